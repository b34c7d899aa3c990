"""What raters' sheets say: means, agreement, and a one-tailed paired t-test against a baseline.

The test pairs items: an item's score is the sum over its raters, because the scores of one item
are not independent of each other. Its null hypothesis is the paper's: the system is not better than
the baseline. p-values are not corrected for testing several systems.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fairseq_kerbs.errors import UserError
from fairseq_kerbs.evaluation.agreement import fleiss_kappa, krippendorff_alpha
from fairseq_kerbs.evaluation.human import SCORES, Key
from fairseq_kerbs.evaluation.sheets import Sheet

Scores = NDArray[np.int64]


@dataclass(frozen=True)
class SystemScore:
    """Figures of one system.

    Attributes:
        system: its name.
        mean: mean of its scores.
        deviation: standard deviation of its scores (n − 1); None for a single one.
        n: number of scores, items × raters.
        counts: how often it got 0, 1 and 2.
        difference: mean minus the baseline's; None for the baseline, or without one.
        t: statistic of the paired t-test; None as above, and where the items' differences do not
            vary, so that there is no test.
        p: probability of such a t or a larger one if the system is not better.
    """

    system: str
    mean: float
    deviation: float | None
    n: int
    counts: tuple[int, int, int]
    difference: float | None = None
    t: float | None = None
    p: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """Figures of all systems, and how far raters agree.

    Attributes:
        systems: one an entry, in the order of the key.
        baseline: name of the system that the others are tested against, if any.
        items: number of items.
        raters: numbers of the raters whose sheets there are.
        expected_raters: number of sheets that were made.
        fleiss_kappa, krippendorff_alpha: agreement over all items and systems; None where it is
            not defined.
        rater_means: mean of all scores of each rater.
    """

    systems: tuple[SystemScore, ...]
    baseline: str | None
    items: int
    raters: tuple[int, ...]
    expected_raters: int
    fleiss_kappa: float | None
    krippendorff_alpha: float | None
    rater_means: tuple[float, ...]

    def as_json(self) -> str:
        """Everything as JSON; what is not defined is null."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)

    def as_csv(self) -> str:
        """One row a system; what is not defined is empty."""
        stream = io.StringIO(newline="")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*_FIELDS, "baseline", "fleiss_kappa", "krippendorff_alpha"])
        for row in self.systems:
            figures = [row.mean, row.deviation, row.n, *row.counts, row.difference, row.t, row.p]
            agreement = self.fleiss_kappa, self.krippendorff_alpha
            writer.writerow([row.system, *figures, self.baseline, *agreement])
        return stream.getvalue()

    def as_text(self) -> str:
        """A table for a terminal."""
        width = max(len("system"), *(len(row.system) for row in self.systems)) + 2
        heading = f"{'mean':>6}{'deviation':>11}{'n':>6}" + "".join(f"{s:>6}" for s in SCORES)
        lines = [f"{'system':<{width}}{heading}"]
        if self.baseline is not None:
            lines[0] += f"{'difference':>12}{'t':>8}{'p':>9}"
        for row in self.systems:
            line = f"{row.system:<{width}}{row.mean:>6.3f}{_number(row.deviation, 11)}{row.n:>6}"
            line += "".join(f"{count:>6}" for count in row.counts)
            if row.system == self.baseline:
                line += "  baseline"
            elif self.baseline is not None:
                line += f"{row.difference:>+12.3f}{_number(row.t, 8)}{_number(row.p, 9, '.4f')}"
            lines.append(line)
        return "\n".join([*lines, "", *self._notes()])

    def _notes(self) -> list[str]:
        present = f"{len(self.raters)} of {self.expected_raters} raters"
        notes = [
            f"{self.items} items, {present}; Fleiss' kappa {_number(self.fleiss_kappa)}, "
            f"Krippendorff's alpha (ordinal) {_number(self.krippendorff_alpha)}"
        ]
        if self.baseline is None:
            notes.append("no test: name a --baseline")
        else:
            notes.append(
                f"p: one-tailed paired t-test over items, system better than {self.baseline}; "
                "– where differences do not vary"
            )
        return notes


_FIELDS = ("system", "mean", "deviation", "n", "zeros", "ones", "twos", "difference", "t", "p")


def _number(value: float | None, width: int = 0, form: str = ".3f") -> str:
    return f"{'–' if value is None else format(value, form):>{width}}"


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
        for place, rater in enumerate(raters):
            value = by_rater[rater].scores[row.item, row.letter]
            scores[key.systems.index(row.system), items[row.item], place] = value
    return scores, raters


def one_tailed_test(system: Scores, baseline: Scores) -> tuple[float, float] | None:
    """SciPy's paired t-test of "better than the baseline".

    Args:
        system: [items, raters] scores of one system.
        baseline: [items, raters] scores of the baseline.

    Returns:
        t and p; None where the differences of items do not vary (or there is but one).
    """
    ours, theirs = (
        system.sum(1),
        baseline.sum(1),
    )  # [items]; whole numbers, so differences are exact
    if len(np.unique(ours - theirs)) < 2:
        return None
    result = stats.ttest_rel(ours, theirs, alternative="greater")
    return float(result.statistic), float(result.pvalue)


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
    systems = [
        _figures(name, own, None if name == baseline else reference)
        for name, own in zip(key.systems, scores, strict=True)
    ]
    units = scores.reshape(-1, len(raters)).tolist()  # [systems × items, raters]
    return Evaluation(
        systems=tuple(systems),
        baseline=baseline,
        items=scores.shape[1],
        raters=raters,
        expected_raters=key.raters,
        fleiss_kappa=fleiss_kappa(units),
        krippendorff_alpha=krippendorff_alpha(units),
        rater_means=tuple(scores.mean((0, 1)).tolist()),
    )


def _figures(name: str, own: Scores, reference: Scores | None) -> SystemScore:
    """Figures of one system from its scores, [items, raters], and the baseline's."""
    zeros, ones, twos = (int((own == score).sum()) for score in SCORES)
    mean = float(own.mean())
    deviation = float(own.std(ddof=1)) if own.size > 1 else None
    if reference is None:
        return SystemScore(name, mean, deviation, own.size, (zeros, ones, twos))
    difference = mean - float(reference.mean())
    t, p = one_tailed_test(own, reference) or (None, None)
    return SystemScore(name, mean, deviation, own.size, (zeros, ones, twos), difference, t, p)
