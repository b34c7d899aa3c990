"""What raters' sheets say: means, agreement, and a one-tailed paired t-test against a baseline.

The test pairs items: an item's score is the sum over its raters, because the scores of one item
are not independent of each other. Its null hypothesis is the paper's: the system is not better than
the baseline. p-values are not corrected for testing several systems.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from tabulate import tabulate

from fairseq_kerbs.evaluation.sheets import SCORES, Key, Sheet
from fairseq_kerbs.evaluation.texts import csv_text
from fairseq_kerbs.utils.errors import UserError

Scores = NDArray[np.int64]


@dataclass(frozen=True)
class SystemScore:
    """Figures of one system; those of the test are None for the baseline, or without one."""

    system: str
    mean: float
    deviation: float | None  # of its scores, over n − 1; None for a single one
    n: int  # items × raters
    counts: tuple[int, ...]  # how often it got 0, 1 and 2
    difference: float | None = None  # mean minus the baseline's
    t: float | None = None  # of the paired t-test; None also where differences do not vary
    p: float | None = None  # of such a t or a larger one if the system is not better


@dataclass(frozen=True)
class Evaluation:
    """Figures of all systems, and how far raters agree over all items and systems."""

    systems: tuple[SystemScore, ...]  # in the order of the key
    baseline: str | None
    items: int
    raters: tuple[int, ...]  # numbers of those whose sheets there are
    expected_raters: int
    fleiss_kappa: float | None  # None where it is not defined
    krippendorff_alpha: float | None
    rater_means: tuple[float, ...]

    def as_json(self) -> str:
        """Everything as JSON; what is not defined is null."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)

    def as_csv(self) -> str:
        """One row a system; what is not defined is empty."""
        names = ("baseline", "fleiss_kappa", "krippendorff_alpha")
        rows = []
        for system in self.systems:
            row = asdict(system)
            counts = zip(("zeros", "ones", "twos"), row.pop("counts"), strict=True)
            first = {name: row.pop(name) for name in ("system", "mean", "deviation", "n")}
            rows.append(first | dict(counts) | row | {name: getattr(self, name) for name in names})
        return csv_text([list(rows[0]), *(row.values() for row in rows)])

    def as_text(self) -> str:
        """A table for a terminal."""
        header = ["system", "mean", "deviation", "n", *map(str, SCORES)]
        header += [] if self.baseline is None else ["difference", "t", "p"]
        rows = []
        for row in self.systems:
            cells = [row.system, _number(row.mean), _number(row.deviation), row.n, *row.counts]
            if row.system == self.baseline:
                cells.append("baseline")
            elif self.baseline is not None:
                cells += [_number(row.difference, "+.3f"), _number(row.t), _number(row.p, ".4f")]
            rows.append(cells)
        sides = ["left", *["right"] * (len(header) - 1)]
        test = (
            f"p: one-tailed paired t-test over items, system better than {self.baseline}; "
            "– where differences do not vary"
        )
        return "\n".join(
            [
                tabulate(rows, header, "plain", disable_numparse=True, colalign=sides),
                "",
                f"{self.items} items, {len(self.raters)} of {self.expected_raters} raters; "
                f"Fleiss' kappa {_number(self.fleiss_kappa)}, "
                f"Krippendorff's alpha (ordinal) {_number(self.krippendorff_alpha)}",
                "no test: name a --baseline" if self.baseline is None else test,
            ]
        )


def _number(value: float | None, form: str = ".3f") -> str:
    return "–" if value is None else format(value, form)


def score_array(key: Key, sheets: Sequence[Sheet]) -> tuple[Scores, tuple[int, ...]]:
    """Put the scores of blinded sheets back to the systems.

    Args:
        key: the key that the sheets were checked against.
        sheets: one a rater, in any order.

    Returns:
        scores, [systems, items, raters], and the raters' numbers, ascending.

    Raises:
        UserError: there is no sheet, or two are of the same rater.
    """
    by_rater: dict[int, Sheet] = {}
    for sheet in sheets:
        other = by_rater.setdefault(sheet.rater, sheet)
        if other is not sheet:
            raise UserError(
                f"{other.path} and {sheet.path} are both the sheet of rater {sheet.rater}; give "
                "each rater's sheet once"
            )
    if not by_rater:
        raise UserError("there is no sheet to score")
    raters = tuple(sorted(by_rater))
    items = {item: place for place, item in enumerate(sorted({row.item for row in key.rows}))}
    scores = np.full((len(key.systems), len(items), len(raters)), -1, dtype=np.int64)
    for row in key.rows:
        given = [by_rater[rater].scores[row.item, row.letter] for rater in raters]
        scores[key.systems.index(row.system), items[row.item]] = given
    return scores, raters


def evaluate(key: Key, sheets: Sequence[Sheet], baseline: str | None = None) -> Evaluation:
    """All figures of a human evaluation.

    Args:
        key: the key that the sheets were checked against.
        sheets: one a rater; their order makes no difference.
        baseline: system to test the others against.

    Raises:
        UserError: there is no such baseline, or see `score_array`.
    """
    if baseline is not None and baseline not in key.systems:
        raise UserError(f"--baseline {baseline} is none of the systems {', '.join(key.systems)}")
    scores, raters = score_array(key, sheets)
    reference = None if baseline is None else scores[key.systems.index(baseline)]
    given = np.stack([scores == score for score in SCORES], -1)  # [systems, items, raters, 3]
    counts = given.sum(2).reshape(-1, len(SCORES))  # [systems × items, 3]
    return Evaluation(
        systems=tuple(
            _figures(name, own, None if name == baseline else reference)
            for name, own in zip(key.systems, scores, strict=True)
        ),
        baseline=baseline,
        items=scores.shape[1],
        raters=raters,
        expected_raters=key.raters,
        fleiss_kappa=fleiss_kappa(counts),
        krippendorff_alpha=krippendorff_alpha(counts),
        rater_means=tuple(scores.mean((0, 1)).tolist()),
    )


def _figures(name: str, own: Scores, reference: Scores | None) -> SystemScore:
    """Figures of one system from its scores, [items, raters], and the baseline's."""
    counts = tuple(int((own == score).sum()) for score in SCORES)
    deviation = float(own.std(ddof=1)) if own.size > 1 else None
    figures = (name, float(own.mean()), deviation, own.size, counts)
    if reference is None:
        return SystemScore(*figures)
    difference = float(own.mean() - reference.mean())
    ours, theirs = own.sum(1), reference.sum(1)  # [items]; whole, so differences are exact
    if len(np.unique(ours - theirs)) < 2:
        return SystemScore(*figures, difference)  # the test is not defined
    test = stats.ttest_rel(ours, theirs, alternative="greater")
    return SystemScore(*figures, difference, float(test.statistic), float(test.pvalue))


# --- agreement: 1 is full agreement, 0 that of chance; SciPy has neither measure -----------------


def fleiss_kappa(counts: ArrayLike) -> float | None:
    """Fleiss' kappa (1971): (P − Pe) / (1 − Pe), over pairs of equal scores.

    Args:
        counts: how often each value was given to each unit, [units, values].

    Returns:
        kappa; None where it is not defined: one rater, no unit, or one value throughout.

    Raises:
        ValueError: units have different numbers of raters.
    """
    table = np.asarray(counts)
    raters = table.sum(1)
    if (raters != raters[:1]).any():
        raise ValueError("Fleiss' kappa needs the same number of raters for every unit.")
    if (table.sum(0) > 0).sum() < 2 or raters[0] < 2:
        return None
    observed = ((table**2).sum(1) - raters).mean() / (raters[0] * (raters[0] - 1))
    expected = ((table.sum(0) / table.sum()) ** 2).sum()
    return float((observed - expected) / (1 - expected))


def krippendorff_alpha(counts: ArrayLike) -> float | None:
    """Krippendorff's alpha for ordinal values: 1 − Do / De.

    The distance between two values is the squared number of scores that lie between them, half of
    their own included. Units with a single value say nothing about agreement and are passed over.

    Args:
        counts: how often each value, ascending, was given to each unit, [units, values].

    Returns:
        alpha; None where it is not defined: no unit with two values, or one value throughout.
    """
    table = np.asarray(counts)
    table = table[table.sum(1) > 1]
    totals = table.sum(0)  # [values]
    if (totals > 0).sum() < 2:
        return None
    weights = 1.0 / (table.sum(1) - 1)  # [units]
    # ordered pairs of values in the same unit; a value makes no pair with itself
    pairs = (table * weights[:, None]).T @ table - np.diag(weights @ table)
    # a value stands at the middle of the ranks of its scores
    middle = totals.cumsum() - totals / 2
    distance = (middle[:, None] - middle[None, :]) ** 2
    expected = (np.outer(totals, totals) * distance).sum() / (totals.sum() - 1)
    return float(1 - (pairs * distance).sum() / expected)
