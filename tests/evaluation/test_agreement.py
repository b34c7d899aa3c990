"""Agreement between raters, against published examples and against loops over pairs."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fairseq_kerbs.evaluation.human_scores import fleiss_kappa, krippendorff_alpha

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
    units = [[0, 0], [1, 1], [2, 2], [0, 2]]
    assert fleiss_kappa(counts(units)) == pytest.approx(13 / 21, rel=1e-12)
    assert krippendorff_alpha(counts(units)) == pytest.approx(5 / 12, rel=1e-12)


def test_published_example_of_fleiss() -> None:
    units = [
        [value for value, count in enumerate(row.split()) for _ in range(int(count))]
        for row in FLEISS.splitlines()
    ]
    assert fleiss_kappa(counts(units)) == pytest.approx(0.210, abs=5e-4)
    assert fleiss_kappa(counts(units)) == pytest.approx(float(slow_kappa(units)), rel=1e-12)


def test_published_example_of_krippendorff() -> None:
    columns = zip(*(row.split() for row in KRIPPENDORFF.splitlines()), strict=True)
    units = [[int(value) for value in column if value != "."] for column in columns]
    assert krippendorff_alpha(counts(units)) == pytest.approx(0.815, abs=5e-4)
    assert krippendorff_alpha(counts(units)) == pytest.approx(float(slow_alpha(units)), rel=1e-12)


@given(st.data(), st.integers(2, 4))
def test_raters_and_units_may_be_permuted(data: st.DataObject, raters: int) -> None:
    unit = st.lists(st.integers(0, 2), min_size=raters, max_size=raters)
    units = data.draw(st.lists(unit, min_size=1, max_size=12))
    order = data.draw(st.permutations(range(raters)))
    other = data.draw(st.permutations([[row[place] for place in order] for row in units]))
    if len({value for row in units for value in row}) == 1:
        assert fleiss_kappa(counts(units)) is None
        assert krippendorff_alpha(counts(units)) is None
        return
    assert fleiss_kappa(counts(units)) == pytest.approx(float(slow_kappa(units)), abs=1e-12)
    assert krippendorff_alpha(counts(units)) == pytest.approx(float(slow_alpha(units)), abs=1e-12)
    assert fleiss_kappa(counts(other)) == pytest.approx(fleiss_kappa(counts(units)), abs=1e-12)
    assert krippendorff_alpha(counts(other)) == pytest.approx(
        krippendorff_alpha(counts(units)), abs=1e-12
    )


def test_limits() -> None:
    same = [[0, 0, 0], [2, 2, 2], [1, 1, 1]]
    assert fleiss_kappa(counts(same)) == pytest.approx(1)
    assert krippendorff_alpha(counts(same)) == pytest.approx(1)
    for nothing in ([], [[1], [2]], [[2, 2], [2, 2]]):
        assert fleiss_kappa(counts(nothing)) is None
        assert krippendorff_alpha(counts(nothing)) is None
    # far apart is worse than close for alpha, the same for kappa
    near, far = [[0, 1], [1, 1], [2, 2], [0, 0]], [[0, 2], [1, 1], [2, 2], [0, 0]]
    assert (krippendorff_alpha(counts(near)) or 0) > (krippendorff_alpha(counts(far)) or 0) + 0.1
    with pytest.raises(ValueError, match="same number of raters"):
        fleiss_kappa(counts([[0, 1], [1]]))
