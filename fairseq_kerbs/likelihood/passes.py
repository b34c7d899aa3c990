"""Passes over a chunk of logits, and sums of gradients, as plain functions for torch.compile.

Matrices [M, n] have a row per sense, or per sense of a block, and a column per token. A sense is a
row, so that gathering senses copies whole rows. Compiled functions that write allocate nothing as
large as these matrices.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels.base import exp, is_zero
from fairseq_kerbs.kernels.prepared import KernelInputs
from fairseq_kerbs.likelihood.norms import NormRule


class WordSmoothing(NamedTuple):
    """What label smoothing adds to the gradient by logits, for a block of senses."""

    weight: Tensor  # weight of each word's log-probability in the loss, [n]
    # these are None if all words have one sense
    is_single: Tensor | None  # whether a sense of the block is the only one of its word, [m, 1]
    row_of_sense: Tensor | None  # row of its word in ``word_logits``, any for single senses, [m]
    word_logits: Tensor | None  # those of word_logits(), [S, n]


class LogitGradient(NamedTuple):
    """What the gradient G by logits is computed from, except for the senses of targets.

    G_m = weight·P(m) − smoothing.weight·P(m | L(m))
    """

    lse: Tensor  # logsumexp of all logits, [n]
    weight: Tensor  # derivative of the loss by it, [n]
    smoothing: WordSmoothing | None  # None without label smoothing

    def of(self, logits: Tensor) -> Tensor:
        """G, [m, n], which is 0 where a logit is the lowest number of its dtype."""
        grad_logits = exp(logits - self.lse) * self.weight
        if self.smoothing is None:
            return grad_logits
        weight, is_single, row_of_sense, of_words = self.smoothing
        lowest = torch.finfo(logits.dtype).min
        posteriors = logits.gt(lowest).to(logits.dtype)  # 1, or 0 at the lowest number
        if of_words is not None and is_single is not None:
            several = exp(logits - of_words[row_of_sense])
            posteriors = torch.where(is_single, posteriors, several)
        return grad_logits - weight * posteriors


class GradientSums(NamedTuple):
    """Sums of the gradient G by logits over senses or tokens, for a block of m senses."""

    h_norm: Tensor  # Σ_m G·(slope of the NormRule for |h|), [n]
    w_norm: Tensor  # Σ_t G·(slope of the NormRule for |w|), [m]
    theta: Tensor  # Σ_t G·∂s/∂θ, [m]


def write_logits(inputs: KernelInputs, logits: Tensor) -> None:
    """Write the kernel values [m, n] into ``logits``, which may be the products in ``inputs``."""
    logits.copy_(inputs.value())


def word_logits(logits: Tensor, senses: Tensor, mask: Tensor) -> Tensor:
    """Log of the unnormalized probability of each word (Eq. 4): logsumexp over its senses.

    Args:
        logits: logits of all senses, [M, n].
        senses, mask: those of a :class:`~fairseq_kerbs.senses.SenseTable`, [V, K] each.

    Returns:
        [V, n].
    """
    rows = _rows_by_slot(logits, senses)
    if len(rows) == 1:
        return rows[0]
    peak, exponentials = _exponentials(rows, mask)
    return peak + functools.reduce(torch.add, exponentials).log()


def write_word_logits(
    logits: Tensor, senses: Tensor, mask: Tensor, values: Tensor, means: Tensor
) -> None:
    """Write :func:`word_logits` of some words into ``values``, [S, n].

    ``senses`` and ``mask`` are the rows of these words in a table, [S, K]. The mean logit of each
    word's senses, Σ_m P(m | word) s_m, is written into ``means``, [S, n].
    """
    rows = _rows_by_slot(logits, senses)
    peak, exponentials = _exponentials(rows, mask)
    total = functools.reduce(torch.add, exponentials)
    values.copy_(peak + total.log())
    weighted = [exponential * row for exponential, row in zip(exponentials, rows)]
    means.copy_(functools.reduce(torch.add, weighted) / total)


def _rows_by_slot(logits: Tensor, senses: Tensor) -> list[Tensor]:
    """Logits of every word's first sense, of every word's second one and so on, K times [V, n]."""
    # a loop over K, which is short: torch.compile would vectorize a sum over K
    return [logits[numbers] for numbers in senses.t()]


def _exponentials(rows: list[Tensor], mask: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Largest logit of each word [V, n], and e to the power of the differences, 0 at padding."""
    real = mask.t().unsqueeze(2).to(rows[0].dtype)  # [K, V, 1]
    peak = functools.reduce(torch.maximum, rows)
    return peak, [torch.exp(row - peak) * is_real for row, is_real in zip(rows, real)]


def write_gradients(
    rule: NormRule, inputs: KernelInputs, gradient: LogitGradient, logits: Tensor
) -> GradientSums:
    """Overwrite logits s, or bfloat16 products, by G·∂s/∂x, the gradient by the products x = h·w.

    Args:
        rule: which sums the gradients through |h| and |w| need.
        inputs: kernel, products [m, n] and norms.
        gradient: computes G from the logits.
        logits: kernel values of ``inputs``, or the lowest number where G is 0, [m, n].

    Returns:
        :class:`GradientSums` of this block, to which the senses of the targets are added.
    """
    grad_logits = gradient.of(logits)
    partials = inputs.partials()
    slopes = rule.slopes(logits, partials)
    sums = GradientSums(
        h_norm=_sum_over_senses(grad_logits, slopes.h_norm),
        w_norm=_sum_over_tokens(grad_logits, slopes.w_norm),
        theta=_sum_over_tokens(grad_logits, partials.theta),
    )
    written_over(inputs.x, logits).copy_(grad_logits * partials.x)
    return sums


def written_over(x: Tensor, logits: Tensor) -> Tensor:
    """The matrix that the gradients by products overwrite: the products if they are bfloat16."""
    return x if x.dtype == torch.bfloat16 else logits


def _sum_over_senses(grad_logits: Tensor, slope: Tensor | float) -> Tensor:
    """Σ_m G·slope, [n]. No pass is needed where the slope is the number 0."""
    if is_zero(slope):
        return grad_logits.new_zeros(grad_logits.shape[1])
    return (grad_logits * slope).sum(0)


def _sum_over_tokens(grad_logits: Tensor, slope: Tensor | float) -> Tensor:
    """Σ_t G·slope, [m]. No pass is needed where the slope is the number 0."""
    if is_zero(slope):
        return grad_logits.new_zeros(len(grad_logits))
    return (grad_logits * slope).sum(1)
