"""Mean and deviation over seeds, and the paired bootstrap of sacreBLEU."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.significance import PairedTest

from fairseq_kerbs.evaluation.bleu import bleu_metric
from fairseq_kerbs.utils.errors import UserError

SAMPLES = 1000


@dataclass(frozen=True)
class Summary:
    """Of the figures of several seeds.

    Attributes:
        n: how many.
        mean: None without any.
        deviation: standard deviation of the sample (over n − 1); None for fewer than two.
    """

    n: int
    mean: float | None
    deviation: float | None


def summarize(values: Sequence[float]) -> Summary:
    """Mean and sample standard deviation; a figure that is not finite makes both so."""
    if not values:
        return Summary(0, None, None)
    if not all(map(math.isfinite, values)):
        return Summary(len(values), float(sum(values)), math.nan)
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Summary(len(values), statistics.fmean(values), deviation)


def paired_bootstrap(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    reference: Sequence[str],
    *,
    order: int = 4,
    language: str = "en",
    samples: int = SAMPLES,
) -> float:
    """p-value of sacreBLEU's paired bootstrap test between a system and a baseline, cased.

    It is two-sided: how often, over resampled test sets, the difference strays from its own mean by
    more than the observed difference. sacreBLEU draws the same samples each time (its seed is
    12345 unless SACREBLEU_SEED says otherwise). Of equal texts it would make a small p, because no
    difference exceeds another; they have 1.

    Raises:
        UserError: the texts differ in length.
    """
    if not len(hypotheses) == len(baseline) == len(reference):
        raise UserError(
            f"paired bootstrap of {len(hypotheses)} and {len(baseline)} hypotheses and "
            f"{len(reference)} references; all must come from the same test set"
        )
    if list(hypotheses) == list(baseline):
        return 1.0
    test = PairedTest(
        [("baseline", list(baseline)), ("system", list(hypotheses))],
        {"BLEU": bleu_metric(order, language=language)},
        [list(reference)],
        test_type="bs",
        n_samples=samples,
    )
    _, scores = test()
    result: Any = scores["BLEU"][1]
    return float(result.p_value)
