"""What raters' sheets say: means, agreement, and a one-tailed paired t-test against a baseline.

The test pairs items: an item's score is the sum over its raters, because the scores of one item
are not independent of each other. Its null hypothesis is the paper's: the system is not better than
the baseline. p-values are not corrected for testing several systems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from tabulate import tabulate

from fairseq_kerbs.evaluation.sheets import SCORES, Key, Sheet
from fairseq_kerbs.evaluation.texts import table_as_csv
from fairseq_kerbs.utils.errors import UserError

Scores = NDArray[np.int64]


def score_array(key: Key, sheets: Sequence[Sheet]) -> Scores:
    """Put the scores of blinded sheets, one a rater, back to the systems: [systems, items, raters];
    a UserError if two sheets are of the same rater."""
    by_rater: dict[int, Sheet] = {}
    for sheet in sheets:
        other = by_rater.setdefault(sheet.rater, sheet)
        if other is not sheet:
            raise UserError(
                f"{other.path} and {sheet.path} are both the sheet of rater {sheet.rater}; give "
                "each rater's sheet once"
            )
    items = max(answer.item for answer in key.answers)
    scores = np.zeros((len(key.systems), items, len(sheets)), dtype=np.int64)
    for answer in key.answers:
        given = [by_rater[rater].scores[answer.item, answer.letter] for rater in sorted(by_rater)]
        scores[key.systems.index(answer.system), answer.item - 1] = given
    return scores


def evaluate(key: Key, sheets: Sequence[Sheet], baseline: str | None = None) -> dict[str, Any]:
    """All figures of sheets that were checked against the key, as JSON can hold them.

    Returns:
        ``systems``, for each its mean, the deviation over n − 1 and n of its scores, ``counts`` of
        0, 1 and 2, the difference of its mean to the baseline's, and t and p of the test;
        ``baseline``, ``items``, ``raters`` (their numbers), ``expected_raters``, ``fleiss_kappa``,
        ``krippendorff_alpha`` and ``rater_means``. What is not defined is None.

    Raises what `score_array` does; a UserError if there is no system of the baseline's name.
    """
    if baseline is not None and baseline not in key.systems:
        raise UserError(f"--baseline {baseline} is none of the systems {', '.join(key.systems)}")
    scores = score_array(key, sheets)
    by_system = dict(zip(key.systems, scores))
    given = np.stack([scores == score for score in SCORES], -1)  # [systems, items, raters, 3]
    kappa, alpha = agreement(given.sum(2).reshape(-1, len(SCORES)))
    return {
        "systems": [
            _figures(name, each, None if name == baseline else by_system.get(baseline or ""))
            for name, each in by_system.items()
        ],
        "baseline": baseline,
        "items": scores.shape[1],
        "raters": sorted(sheet.rater for sheet in sheets),
        "expected_raters": key.raters,
        "fleiss_kappa": kappa,
        "krippendorff_alpha": alpha,
        "rater_means": scores.mean((0, 1)).tolist(),
    }


def _figures(name: str, scores: Scores, reference: Scores | None) -> dict[str, Any]:
    """Figures of one system from its scores, [items, raters], and the baseline's."""
    figures: dict[str, Any] = {
        "system": name,
        "mean": float(scores.mean()),
        "deviation": float(scores.std(ddof=1)) if scores.size > 1 else None,
        "n": scores.size,
        "counts": [int((scores == score).sum()) for score in SCORES],
        **dict.fromkeys(("difference", "t", "p")),
    }
    if reference is not None:
        differences = scores.sum(1) - reference.sum(1)  # [items]; whole numbers
        figures["difference"] = float(differences.sum() / scores.size)
        if np.ptp(differences) > 0:
            test: Any = stats.ttest_1samp(differences, 0, alternative="greater")
            figures |= {"t": float(test.statistic), "p": float(test.pvalue)}
    return figures


def _table(result: Mapping[str, Any], *counts: str) -> tuple[list[str], list[list[Any]]]:
    """Names of columns, with those of how often 0, 1 and 2 were given, and a row a system."""
    first, last = ["system", "mean", "deviation", "n"], ["difference", "t", "p"]
    rows = [
        [*map(each.get, first), *each["counts"], *map(each.get, last)] for each in result["systems"]
    ]
    return [*first, *counts, *last], rows


def as_csv(result: Mapping[str, Any]) -> str:
    """What `evaluate` returned, one row a system; what is not defined is empty."""
    head, rows = _table(result, "zeros", "ones", "twos")
    names = ["baseline", "fleiss_kappa", "krippendorff_alpha"]
    return table_as_csv([*head, *names], [[*row, *map(result.get, names)] for row in rows])


def as_text(result: Mapping[str, Any]) -> str:
    """What `evaluate` returned, for a terminal."""
    forms = ["", ".3f", ".3f", *[""] * (1 + len(SCORES)), "+.3f", ".3f", ".4f"]
    head, rows = _table(result, *map(str, SCORES))
    table = tabulate(rows, head, "plain", forms, missingval="–", disable_numparse=[0])
    kappa, alpha = (
        "–" if result[name] is None else f"{result[name]:.3f}"
        for name in ("fleiss_kappa", "krippendorff_alpha")
    )
    test = "no test, name a --baseline"
    if result["baseline"]:
        test = f"one-tailed paired t-test over items, system better than {result['baseline']}"
    return (
        f"{table}\n\n{result['items']} items, {len(result['raters'])} of "
        f"{result['expected_raters']} raters; Fleiss' kappa {kappa}, "
        f"Krippendorff's alpha (ordinal) {alpha}\np: {test}"
    )


def agreement(counts: Scores) -> tuple[float | None, float | None]:
    """Fleiss' kappa (1971) and Krippendorff's ordinal alpha: 1 is full agreement, 0 that of chance.

        kappa = (P − Pe) / (1 − Pe)        over pairs of equal scores
        alpha = 1 − Do / De                over squared distances of pairs

    The distance of two values is the number of scores that lie between them, half of their own
    included.

    `counts`, [units, values], are how often each value, ascending, was given to each unit, by
    equally many raters. None where they are not defined: one rater, or one value throughout.
    """
    raters, totals = counts[0].sum(), counts.sum(0)
    if raters < 2 or (totals > 0).sum() < 2:
        return None, None
    # ordered pairs of values in the same unit, [values, values]; no value makes one with itself
    pairs = (counts.T @ counts - np.diag(totals)) / (raters - 1)
    chance = np.outer(totals, totals) / totals.sum()
    equal, expected = pairs.trace(), chance.trace()
    kappa = (equal - expected) / (totals.sum() - expected)
    middle = totals.cumsum() - totals / 2  # of the ranks of a value's scores
    distance = (middle[:, None] - middle[None, :]) ** 2
    at_random = (chance * distance).sum() * totals.sum() / (totals.sum() - 1)
    return float(kappa), float(1 - (pairs * distance).sum() / at_random)
