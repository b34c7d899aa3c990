"""Figures of a human evaluation, worked by hand, and by SciPy called another way."""

from __future__ import annotations

import csv
import json
import math
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
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


def test_hand_worked_means_and_test(worked_example: dict[str, Any]) -> None:
    base, kerbs = worked_example["systems"]
    # Student's distribution with three degrees of freedom has a closed form; here x = t/√3 = √2
    p = 0.5 - (math.sqrt(2) / 3 + math.atan(math.sqrt(2))) / math.pi
    assert p == pytest.approx(0.04587, abs=1e-5)
    nothing = {"difference": None, "t": None, "p": None}
    assert base == {"system": "base", "mean": 0.75, "deviation": pytest.approx(0.5), "n": 4,
                    "zeros": 1, "ones": 3, "twos": 0, **nothing}  # fmt: skip
    assert kerbs == {"system": "kerbs", "mean": 1.75, "deviation": pytest.approx(0.5), "n": 4,
                     "zeros": 0, "ones": 1, "twos": 3, "difference": 1.0,
                     "t": pytest.approx(math.sqrt(6)), "p": pytest.approx(p)}  # fmt: skip


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


# --- agreement between raters, against loops over pairs

Units = list[list[int]]


def counts(units: Units) -> NDArray[np.int64]:
    """How often each value from 0 to 5 was given to each unit."""
    return np.array([[unit.count(v) for v in range(6)] for unit in units]).reshape(-1, 6)


def slow_kappa(units: Units) -> Fraction:
    """Fleiss' kappa as shares of equal pairs, counted one by one."""
    values = [value for unit in units for value in unit]
    shares = [[a == b for a, b in permutations(unit, 2)] for unit in units]
    observed = sum((Fraction(sum(own), len(own)) for own in shares), Fraction()) / len(units)
    expected = Fraction(sum(a == b for a in values for b in values), len(values) ** 2)
    return (observed - expected) / (1 - expected)


def slow_alpha(units: Units) -> Fraction:
    """Alpha with Krippendorff's own sum for the ordinal distance, pair by pair."""
    units = [unit for unit in units if len(unit) > 1]
    values = [value for unit in units for value in unit]

    def distance(a: int, b: int) -> Fraction:
        low, high = min(a, b), max(a, b)
        between = sum(values.count(g) for g in range(low, high + 1))
        return (between - Fraction(values.count(a) + values.count(b), 2)) ** 2

    observed = sum(
        sum((distance(a, b) for a, b in permutations(unit, 2)), Fraction()) / (len(unit) - 1)
        for unit in units
    )
    expected = sum((distance(a, b) for a, b in permutations(values, 2)), Fraction())
    return 1 - observed * (len(values) - 1) / expected


def test_hand_worked_agreement() -> None:
    """Scores 0, 1, 2 occur 3, 2, 3 times; their ranks' middles are 1.5, 4, 6.5.

    kappa = (3/4 − 22/64) / (1 − 22/64); alpha = 1 − 7 · 2·25 / (2·(6·6.25 + 6·6.25 + 9·25)).
    """
    expected = pytest.approx((13 / 21, 5 / 12), rel=1e-12)
    assert agreement(counts([[0, 0], [1, 1], [2, 2], [0, 2]])) == expected
    result = evaluate(*filled({"a": [[0, 0], [1, 1]], "b": [[2, 2], [0, 2]]}))  # items and systems
    assert (result["fleiss_kappa"], result["krippendorff_alpha"]) == expected
    assert (result["raters"], result["rater_means"]) == ([1, 2], [0.75, 1.25])


@given(st.data(), st.integers(2, 4))
def test_equals_the_sums_over_pairs(data: st.DataObject, raters: int) -> None:
    unit = st.lists(st.integers(0, 2), min_size=raters, max_size=raters)
    units = data.draw(st.lists(unit, min_size=1, max_size=12))
    if len({value for row in units for value in row}) == 1:
        assert agreement(counts(units)) == (None, None)
        return
    expected = float(slow_kappa(units)), float(slow_alpha(units))
    assert agreement(counts(units)) == pytest.approx(expected, abs=1e-12)
