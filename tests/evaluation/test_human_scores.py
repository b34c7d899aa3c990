"""Figures of a human evaluation, worked by hand, and by SciPy called another way."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fairseq_kerbs.evaluation.human import (
    Key,
    Sheet,
    agreement,
    as_csv,
    as_text,
    evaluate,
    make_key,
)
from fairseq_kerbs.utils.errors import UserError

Given = dict[str, list[list[int]]]  # system -> [items, raters]


def filled(
    given_scores: Given, seed: int = 3, sheets: int | None = None
) -> tuple[Key, list[Sheet]]:
    """A key, and the sheets of raters who give these scores to what they read."""
    _, items, raters = np.array(list(given_scores.values())).shape
    sources = [f"input {line}" for line in range(items)]
    systems = {n: [f"{n} {line}" for line in range(items)] for n in given_scores}
    key = make_key(sources, systems, items=items, raters=raters, seed=seed)
    result = []
    for rater in range(sheets or raters):
        scores = {}
        for answer in key.answers:
            system, line = answer.text.split()
            scores[answer.item, answer.letter] = given_scores[system][int(line)][rater]
        result.append(Sheet(Path(f"r{rater + 1}.csv"), rater + 1, scores))
    return key, result


@pytest.fixture
def worked_example() -> dict[str, Any]:
    """Four items and one rater: differences 1, 1, 0, 2 have mean 1 and deviation √(2/3)."""
    key, sheets = filled({"base": [[1], [1], [1], [0]], "kerbs": [[2], [2], [1], [2]]})
    return evaluate(key, sheets, "base")


def test_the_test_is_over_items_and_one_tailed() -> None:
    rng = Random(5)
    scores = {n: [[rng.randrange(3) for _ in range(3)] for _ in range(20)] for n in ("a", "b", "c")}
    key, sheets = filled(scores)
    figures = {row["system"]: row for row in evaluate(key, sheets, "a")["systems"]}
    for name in ("b", "c"):
        t, two_sided = stats.ttest_rel(np.mean(scores[name], 1), np.mean(scores["a"], 1))
        assert figures[name]["t"] == pytest.approx(t, rel=1e-9)
        assert figures[name]["p"] == pytest.approx(two_sided / 2 if t > 0 else 1 - two_sided / 2)
        assert figures[name]["mean"] == pytest.approx(np.mean(scores[name]))
        assert figures[name]["deviation"] == pytest.approx(np.std(scores[name], ddof=1))
        assert figures[name]["n"] == 60
    swapped = evaluate(key, sheets, "b")["systems"][0]
    assert swapped["p"] == pytest.approx(1 - figures["b"]["p"])


@given(st.data())
def test_blinding_is_undone_whatever_the_seed_and_the_order_of_sheets(data: st.DataObject) -> None:
    items, raters = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    score = st.lists(st.integers(0, 2), min_size=raters, max_size=raters)
    rows = st.lists(score, min_size=items, max_size=items)
    names = ("a", "b", "c", "d")[: data.draw(st.integers(1, 4))]
    scores = {name: data.draw(rows) for name in names}
    key, sheets = filled(scores, seed=data.draw(st.integers(0, 99)))
    result = evaluate(key, data.draw(st.permutations(sheets)), "a")
    for figures, expected in zip(result["systems"], map(np.array, scores.values()), strict=True):
        assert figures["mean"] == pytest.approx(expected.mean())
        assert figures["twos"] == (expected == 2).sum()
        if figures["system"] != "a":
            difference = expected.mean() - np.mean(scores["a"])
            assert figures["difference"] == pytest.approx(difference)
    assert result["rater_means"] == pytest.approx(np.mean(list(scores.values()), axis=(0, 1)))


def test_what_is_not_defined_is_said() -> None:
    key, sheets = filled({"a": [[1, 1], [1, 1]], "b": [[2, 2], [2, 2]]}, sheets=1)
    result = evaluate(key, sheets, "a")
    assert (result["systems"][1]["t"], result["systems"][1]["p"]) == (None, None)
    assert (result["fleiss_kappa"], result["krippendorff_alpha"]) == (None, None)  # one rater
    assert "1 of 2 raters; Fleiss' kappa –" in as_text(result)
    key, sheets = filled({"a": [[1]]})
    assert evaluate(key, sheets)["systems"][0]["deviation"] is None
    assert "no test, name a --baseline" in as_text(evaluate(key, sheets))


def test_reports(worked_example: dict[str, Any]) -> None:
    text = as_text(worked_example).splitlines()
    assert text[1].split() == ["base", "0.750", "0.500", *"4130", "–", "–", "–"]
    assert text[2].split() == ["kerbs", "1.750", "0.500", *"4013", "+1.000", "2.449", "0.0459"]
    assert json.loads(json.dumps(worked_example)) == worked_example
    base, kerbs = csv.DictReader(as_csv(worked_example).splitlines())
    assert (base["zeros"], base["ones"], base["twos"], base["p"]) == ("1", "3", "0", "")
    assert (kerbs["system"], kerbs["mean"], kerbs["baseline"]) == ("kerbs", "1.75", "base")
    assert float(kerbs["t"]) == pytest.approx(math.sqrt(6))


def test_refusals() -> None:
    key, sheets = filled({"a": [[0, 1]], "b": [[2, 1]]})
    with pytest.raises(UserError, match="--baseline c is none of the systems a, b"):
        evaluate(key, sheets, "c")
    twin = Sheet(Path("copy.csv"), 2, sheets[1].scores)
    with pytest.raises(UserError, match=r"r2.csv and copy.csv are both the sheet of rater 2"):
        evaluate(key, [*sheets, twin])


# --- agreement between raters


def test_hand_worked_agreement() -> None:
    """Scores 0, 1, 2 occur 3, 2, 3 times; their ranks' middles are 1.5, 4, 6.5.

    kappa = (3/4 − 22/64) / (1 − 22/64); alpha = 1 − 7 · 2·25 / (2·(6·6.25 + 6·6.25 + 9·25)).
    """
    expected = pytest.approx((13 / 21, 5 / 12), rel=1e-12)
    counts = np.array([[2, 0, 0], [0, 2, 0], [0, 0, 2], [1, 0, 1]])
    assert agreement(counts) == expected
    result = evaluate(*filled({"a": [[0, 0], [1, 1]], "b": [[2, 2], [0, 2]]}))  # items and systems
    assert (result["fleiss_kappa"], result["krippendorff_alpha"]) == expected
    assert (result["raters"], result["rater_means"]) == ([1, 2], [0.75, 1.25])


def test_agreement_of_several_raters() -> None:
    """Scores 0 0 1 and 2 2 2: 8 of 12 ordered pairs agree, 14 of 36 by chance.

    kappa = (2/3 − 7/18) / (1 − 7/18). Ranks' middles are 1, 2.5, 4.5; alpha = 1 − 5 · (4·2.25/2) /
    (2·(2·2.25 + 6·12.25 + 3·4)).
    """
    counts = np.array([[2, 1, 0], [0, 0, 3]])
    assert agreement(counts) == pytest.approx((5 / 11, 1 - 22.5 / 180), rel=1e-12)


def test_agreement_of_one_value_is_not_defined() -> None:
    assert agreement(np.array([[2, 0, 0], [2, 0, 0]])) == (None, None)
