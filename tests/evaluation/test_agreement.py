"""Agreement between raters, against published examples and against loops over pairs."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairseq_kerbs.evaluation.human_scores import agreement

Units = list[list[int]]


def counts(units: Units) -> NDArray[np.int64]:
    """How often each value from 0 to 5 was given to each unit."""
    return np.array([[unit.count(v) for v in range(6)] for unit in units]).reshape(-1, 6)


# Fleiss's worked example as it is usually shown: 10 subjects, 14 raters, 5 categories.
FLEISS = """0 0 0 0 14
0 2 6 4 2
0 0 3 5 6
0 3 9 2 0
2 2 8 1 1
7 7 0 0 0
3 2 6 3 0
2 5 3 2 2
6 5 2 1 0
0 2 2 3 7"""

# Krippendorff's "Computing Krippendorff's Alpha-Reliability": 4 observers, 12 units, gaps.
KRIPPENDORFF = """1 2 3 3 2 1 4 1 2 . . .
1 2 3 3 2 2 4 1 2 5 . 3
. 3 3 3 2 3 4 2 2 5 1 .
1 2 3 3 2 4 4 1 2 5 1 ."""


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


def test_hand_worked() -> None:
    """Scores 0, 1, 2 occur 3, 2, 3 times; their ranks' middles are 1.5, 4, 6.5.

    kappa = (3/4 − 22/64) / (1 − 22/64); alpha = 1 − 7 · 2·25 / (2·(6·6.25 + 6·6.25 + 9·25)).
    """
    found = agreement(counts([[0, 0], [1, 1], [2, 2], [0, 2]]))
    assert found == pytest.approx((13 / 21, 5 / 12), rel=1e-12)


def test_published_example_of_fleiss() -> None:
    units = [
        [value for value, count in enumerate(row.split()) for _ in range(int(count))]
        for row in FLEISS.splitlines()
    ]
    kappa, alpha = agreement(counts(units))
    assert kappa == pytest.approx(0.210, abs=5e-4)
    assert kappa == pytest.approx(float(slow_kappa(units)), rel=1e-12)
    assert alpha == pytest.approx(float(slow_alpha(units)), rel=1e-12)


def test_published_example_of_krippendorff() -> None:
    """It has gaps, which we do not take: it holds the sum that ours is held to."""
    columns = zip(*(row.split() for row in KRIPPENDORFF.splitlines()), strict=True)
    units = [[int(value) for value in column if value != "."] for column in columns]
    assert float(slow_alpha(units)) == pytest.approx(0.815, abs=5e-4)


@given(st.data(), st.integers(2, 4))
def test_equals_the_sums_over_pairs(data: st.DataObject, raters: int) -> None:
    unit = st.lists(st.integers(0, 2), min_size=raters, max_size=raters)
    units = data.draw(st.lists(unit, min_size=1, max_size=12))
    if len({value for row in units for value in row}) == 1:
        assert agreement(counts(units)) == (None, None)
        return
    expected = float(slow_kappa(units)), float(slow_alpha(units))
    assert agreement(counts(units)) == pytest.approx(expected, abs=1e-12)


def test_limits() -> None:
    assert agreement(counts([[0, 0, 0], [2, 2, 2], [1, 1, 1]])) == pytest.approx((1, 1))
    for nothing in ([[1], [2]], [[2, 2], [2, 2]]):
        assert agreement(counts(nothing)) == (None, None)
    # far apart is worse than close for alpha, the same for kappa
    near, far = [[0, 1], [1, 1], [2, 2], [0, 0]], [[0, 2], [1, 1], [2, 2], [0, 0]]
    assert (agreement(counts(near))[1] or 0) > (agreement(counts(far))[1] or 0) + 0.1
