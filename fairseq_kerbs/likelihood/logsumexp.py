"""logsumexp and the mean over the senses of a chunk of logits, for torch.compile.

A pass reads each logit once: it sums in blocks of senses that a CPU's cache holds, with a peak for
each block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels.base import exp

ROWS = 64  # senses whose sums are added to the others' sums: a CPU's cache holds their logits


class LogSumExp(NamedTuple):
    """Sums over the logits of all senses, or of a block of senses, for each of n tokens."""

    lse: Tensor  # logsumexp, the log of the denominator of Eq. 5, [n]
    mean: Tensor | None  # mean logit Σ_m P(m) s_m, [n]. None if nobody needs it


def logsumexp(logits: Tensor) -> LogSumExp:
    """logsumexp over senses, [m, n] -> [n], without the mean."""
    peaks = []
    totals = []
    for block in _blocks(logits):
        peak = block.amax(1)
        peaks.append(peak)
        totals.append(exp(block - peak.unsqueeze(1)).sum(1))
    peak, factors = _common_peak(torch.cat(peaks))
    total = (factors * torch.cat(totals)).sum(0)
    return LogSumExp(peak + total.log(), None)


def logsumexp_and_mean(logits: Tensor) -> LogSumExp:
    """logsumexp over senses and the mean logit, [m, n] -> [n], [n]."""
    peaks = []
    totals = []
    moments = []
    for block in _blocks(logits):
        peak = block.amax(1)
        exponentials = exp(block - peak.unsqueeze(1))
        peaks.append(peak)
        totals.append(exponentials.sum(1))
        moments.append((exponentials * block).sum(1))
    peak, factors = _common_peak(torch.cat(peaks))
    total = (factors * torch.cat(totals)).sum(0)
    mean = (factors * torch.cat(moments)).sum(0) / total
    return LogSumExp(peak + total.log(), mean)


def _blocks(logits: Tensor) -> list[Tensor]:
    """Logits [m, n] as blocks of :data:`ROWS` senses and the rest, [blocks, senses, n] each."""
    size = len(logits) // ROWS * ROWS
    blocks = [logits[:size].unflatten(0, (-1, ROWS)), logits[size:].unsqueeze(0)]
    return [block for block in blocks if block.shape[0] * block.shape[1]]


def _common_peak(peaks: Tensor) -> tuple[Tensor, Tensor]:
    """Largest of the blocks' peaks [blocks, n], and the factors that relate their sums to it."""
    peak = peaks.amax(0)
    return peak, exp(peaks - peak)
