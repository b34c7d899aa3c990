"""Figures of a human evaluation, worked by hand, and by SciPy called another way."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fairseq_kerbs.evaluation.human_scores import Evaluation, evaluate, score_array
from fairseq_kerbs.evaluation.sheets import Key, Sheet, draw_answers, make_key
from fairseq_kerbs.utils.errors import UserError

Given = dict[str, list[list[int]]]  # system -> [items, raters]


def filled(
    given_scores: Given, seed: int = 3, sheets: int | None = None
) -> tuple[Key, list[Sheet]]:
    """A key, and the sheets of raters who give these scores to what they read."""
    shape = np.array(list(given_scores.values())).shape
    sources = [f"input {line}" for line in range(shape[1])]
    systems = {n: [f"{n} {line}" for line in range(shape[1])] for n in given_scores}
    answers = draw_answers(sources, systems, shape[1], seed)
    key = make_key(answers, list(systems), raters=shape[2], seed=seed)
    result = []
    for rater in range(sheets or shape[2]):
        scores = {}
        for answer in answers:
            system, line = answer.text.split()
            scores[answer.item, answer.letter] = given_scores[system][int(line)][rater]
        result.append(Sheet(Path(f"r{rater + 1}.csv"), rater + 1, scores))
    return key, result


def worked_example() -> Evaluation:
    """Four items and one rater: differences 1, 1, 0, 2 have mean 1 and deviation √(2/3)."""
    key, sheets = filled({"base": [[1], [1], [1], [0]], "kerbs": [[2], [2], [1], [2]]})
    return evaluate(key, sheets, "base")


def test_hand_worked_means_and_test() -> None:
    base, kerbs = worked_example().systems
    assert (base.mean, base.n, base.counts) == (0.75, 4, (1, 3, 0))
    assert base.deviation == pytest.approx(0.5)
    assert (base.difference, base.t, base.p) == (None, None, None)
    assert (kerbs.mean, kerbs.difference, kerbs.counts) == (1.75, 1.0, (0, 1, 3))
    assert kerbs.t == pytest.approx(math.sqrt(6))
    # Student's distribution with three degrees of freedom has a closed form; here x = t/√3 = √2
    p = 0.5 - (math.sqrt(2) / 3 + math.atan(math.sqrt(2))) / math.pi
    assert kerbs.p == pytest.approx(p, rel=1e-9)
    assert p == pytest.approx(0.04587, abs=1e-5)


def test_the_test_is_over_items_and_one_tailed() -> None:
    rng = Random(5)
    scores = {n: [[rng.randrange(3) for _ in range(3)] for _ in range(20)] for n in ("a", "b", "c")}
    key, sheets = filled(scores)
    figures = {row.system: row for row in evaluate(key, sheets, "a").systems}
    for name in ("b", "c"):
        differences = np.mean(scores[name], 1) - np.mean(scores["a"], 1)
        t, two_sided = stats.ttest_1samp(differences, 0.0)
        assert figures[name].t == pytest.approx(t, rel=1e-9)
        assert figures[name].p == pytest.approx(two_sided / 2 if t > 0 else 1 - two_sided / 2)
        assert figures[name].mean == pytest.approx(np.mean(scores[name]))
        assert figures[name].deviation == pytest.approx(np.std(scores[name], ddof=1))
        assert figures[name].n == 60
    swapped = {row.system: row for row in evaluate(key, sheets, "b").systems}
    assert swapped["a"].p == pytest.approx(1 - (figures["b"].p or 0))


@given(st.data())
def test_blinding_is_undone_whatever_the_seed_and_the_order_of_sheets(data: st.DataObject) -> None:
    items, raters = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    score = st.lists(st.integers(0, 2), min_size=raters, max_size=raters)
    rows = st.lists(score, min_size=items, max_size=items)
    scores = {
        name: data.draw(rows) for name in ("a", "b", "c", "d")[: data.draw(st.integers(1, 4))]
    }
    key, sheets = filled(scores, seed=data.draw(st.integers(0, 99)))
    recovered, numbers = score_array(key, sheets)
    assert numbers == tuple(range(1, raters + 1))
    lines = [next(r.line for r in key.rows if r.item == item) - 1 for item in range(1, items + 1)]
    for name, own in zip(key.systems, recovered, strict=True):
        assert own.tolist() == [scores[name][line] for line in lines]
    shuffled = data.draw(st.permutations(sheets))
    assert evaluate(key, shuffled, "a") == evaluate(key, sheets, "a")


def test_what_is_not_defined_is_said() -> None:
    key, sheets = filled({"a": [[1, 1], [1, 1]], "b": [[2, 2], [2, 2]]}, sheets=1)
    result = evaluate(key, sheets, "a")
    assert (result.systems[1].t, result.systems[1].p) == (None, None)  # differences do not vary
    assert (result.fleiss_kappa, result.krippendorff_alpha) == (None, None)  # one rater
    assert "1 of 2 raters; Fleiss' kappa –" in result.as_text()
    assert json.loads(result.as_json())["systems"][1]["p"] is None
    key, sheets = filled({"a": [[1]]})
    assert evaluate(key, sheets).systems[0].deviation is None
    assert "no test: name a --baseline" in evaluate(key, sheets).as_text()


def test_reports() -> None:
    result = worked_example()
    text = result.as_text().splitlines()
    assert text[1].split() == ["base", "0.750", "0.500", "4", "1", "3", "0", "baseline"]
    assert text[2].split() == ["kerbs", "1.750", "0.500", *"4013", "+1.000", "2.449", "0.0459"]
    rows = list(csv.DictReader(io.StringIO(result.as_csv())))
    assert [row["system"] for row in rows] == ["base", "kerbs"]
    assert float(rows[1]["p"]) == result.systems[1].p
    assert (rows[0]["p"], rows[1]["twos"], rows[1]["baseline"]) == ("", "3", "base")
    content = json.loads(result.as_json())
    assert content["systems"][1]["counts"] == [0, 1, 3]
    assert content["rater_means"] == [1.25]


def test_agreement_is_over_items_and_systems() -> None:
    key, sheets = filled({"a": [[0, 0], [1, 1]], "b": [[2, 2], [0, 2]]})
    result = evaluate(key, sheets)
    assert result.fleiss_kappa == pytest.approx(13 / 21)  # as in test_agreement
    assert result.krippendorff_alpha == pytest.approx(5 / 12)


def test_refusals() -> None:
    key, sheets = filled({"a": [[0, 1]], "b": [[2, 1]]})
    with pytest.raises(UserError, match="--baseline c is none of the systems a, b"):
        evaluate(key, sheets, "c")
    twin = Sheet(Path("copy.csv"), 2, sheets[1].scores)
    with pytest.raises(UserError, match=r"r2.csv and copy.csv are both the sheet of rater 2"):
        evaluate(key, [*sheets, twin])
    with pytest.raises(UserError, match="no sheet"):
        evaluate(key, [])
