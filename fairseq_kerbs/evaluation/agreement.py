"""Agreement between raters: Fleiss' kappa and Krippendorff's alpha for ordinal scores.

Both compare what raters disagree on with what they would by chance: 1 is full agreement, 0 that of
chance. Fleiss' kappa knows only equal and unequal; alpha counts 0 against 2 for more than 0
against 1. SciPy has neither.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def count_table(units: Sequence[Sequence[int]]) -> Counts:
    """How often each value was given to each unit.

    Args:
        units: values of each unit, one a rater; units may have different numbers of raters.

    Returns:
        [units, values], values ascending.
    """
    values = sorted({value for unit in units for value in unit})
    column = {value: index for index, value in enumerate(values)}
    table = np.zeros((len(units), len(values)), dtype=np.int64)
    for row, unit in enumerate(units):
        for value in unit:
            table[row, column[value]] += 1
    return table


def fleiss_kappa(units: Sequence[Sequence[int]]) -> float | None:
    """Fleiss' kappa (1971): (P − Pe) / (1 − Pe), over pairs of equal scores.

    Args:
        units: values of each unit, one a rater, equally many in each.

    Returns:
        kappa; None where it is not defined: one rater, no unit, or one value throughout.

    Raises:
        ValueError: units have different numbers of raters.
    """
    if len({len(unit) for unit in units}) > 1:
        raise ValueError("Fleiss' kappa needs the same number of raters for every unit.")
    if not units or len(units[0]) < 2:
        return None
    counts, raters = count_table(units), len(units[0])
    if counts.shape[1] < 2:
        return None
    observed = ((counts**2).sum(1) - raters).mean() / (raters * (raters - 1))
    expected = ((counts.sum(0) / counts.sum()) ** 2).sum()
    return float((observed - expected) / (1 - expected))


def krippendorff_alpha(units: Sequence[Sequence[int]]) -> float | None:
    """Krippendorff's alpha for ordinal values: 1 − Do / De.

    The distance between two values is the squared number of scores that lie between them, half of
    their own included. Units with a single value say nothing about agreement and are passed over.

    Args:
        units: values of each unit, one a rater; their numbers may differ.

    Returns:
        alpha; None where it is not defined: no unit with two values, or one value throughout.
    """
    paired = [unit for unit in units if len(unit) > 1]
    counts = count_table(paired)  # [units, K]
    if counts.shape[1] < 2:
        return None
    weights = 1.0 / (counts.sum(1) - 1)  # [units]
    # ordered pairs of values in the same unit, [K, K]; a value makes no pair with itself
    pairs = (counts * weights[:, None]).T @ counts - np.diag(weights @ counts)
    totals = counts.sum(0)  # [K]
    # a value stands at the middle of the ranks of its scores
    middle = totals.cumsum() - totals / 2
    distance = (middle[:, None] - middle[None, :]) ** 2
    expected = (np.outer(totals, totals) * distance).sum() / (totals.sum() - 1)
    return float(1 - (pairs * distance).sum() / expected)
