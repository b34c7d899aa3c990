"""Element-wise passes and sums over a chunk of products, as plain functions for torch.compile.

X [M, n] has the products of M senses, or some of them, with n context vectors. A sense is a row, so
that gathering senses copies whole rows. Compiled functions that write allocate nothing as large.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel
from fairseq_kerbs.kernels.base import exp
from fairseq_kerbs.kernels.prepared import widen

ROWS = 64  # senses whose sums are added to the others' sums: a CPU's cache holds their logits


def write_logits(
    kernel: Kernel, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor, logits: Tensor
) -> None:
    """Write logits of products X [M, n] into ``logits``, which may be X. The other arguments are
    those of :meth:`.Kernel.value`: [n], [M, 1] and [..., M, 1]. X may have the inputs' dtype."""
    logits.copy_(kernel.value(widen(x, h_norm.dtype), h_norm, w_norm, theta))


def log_sum(logits: Tensor, with_mean: bool) -> tuple[Tensor, Tensor]:
    """Log of the denominator of Eq. 5, logsumexp over senses, and the mean logit Σ_m P(m) s_m if it
    is needed, else 0: [M, n] -> [n], [n]."""
    size = len(logits) // ROWS * ROWS
    parts, sums = [logits[:size].unflatten(0, (-1, ROWS)), logits[size:].unsqueeze(0)], []
    for part in (part for part in parts if part.shape[0] * part.shape[1]):
        peak = part.amax(1)
        shares = exp(part - peak.unsqueeze(1))
        moment = (shares * part).sum(1) if with_mean else torch.zeros_like(peak)
        sums.append((peak, shares.sum(1), moment))
    peaks, totals, moments = (torch.cat(values) for values in zip(*sums))  # [M / ROWS, n]
    peak = peaks.amax(0)
    factors = exp(peaks - peak)
    total = (factors * totals).sum(0)
    return peak + total.log(), (factors * moments).sum(0) / total


def word_masses(logits: Tensor, senses: Tensor, mask: Tensor) -> Tensor:
    """Log of the unnormalized probability of each word (Eq. 4), [M, n] -> [V, n], from the senses
    and the mask of a :class:`~fairseq_kerbs.senses.SenseTable`, [V, K] each."""
    # a loop over K, which is short: torch.compile would vectorize a sum over K
    rows = [logits[number] for number in senses.t()]
    if len(rows) == 1:
        return rows[0]
    peak, shares = _shares(rows, mask)
    return peak + functools.reduce(torch.add, shares).log()


def _shares(rows: list[Tensor], mask: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Largest logit of each word [V, n], and e to the power of the differences, 0 at padding."""
    real = mask.t().unsqueeze(2).to(rows[0].dtype)  # [K, V, 1]
    peak = functools.reduce(torch.maximum, rows)
    return peak, [torch.exp(row - peak) * is_real for row, is_real in zip(rows, real)]


def write_word_masses(
    logits: Tensor, senses: Tensor, mask: Tensor, masses: Tensor, means: Tensor
) -> None:
    """Write :func:`word_masses` into ``masses``, and the mean logits Σ_m P(m | word) s_m of the
    senses of each word into ``means``, [V, n] each."""
    rows = [logits[number] for number in senses.t()]
    peak, shares = _shares(rows, mask)
    total = functools.reduce(torch.add, shares)
    masses.copy_(peak + total.log())
    weighted = [share * row for share, row in zip(shares, rows)]
    means.copy_(functools.reduce(torch.add, weighted) / total)


def write_gradients(
    kernel: Kernel,
    x: Tensor,
    h_norm: Tensor,
    w_norm: Tensor,
    theta: Tensor,
    words: Tensor,
    log_z: Tensor,
    weight: Tensor,
    by_word: Tensor | None,
    masses: Tensor | None,
    logits: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Overwrite logits s, or bfloat16 X, by G·∂s/∂x, where G is the gradient by the logits:

        G = weight·P(m) − by_word·P(m | L(m)), or 0 if s is the lowest number of its dtype

    Args:
        kernel, x, h_norm, w_norm, theta: see :func:`write_logits`.
        words: word L(m) of each sense, [M].
        log_z: logsumexp of all logits, [n].
        weight, by_word: factors of G, [n]. None stands for 0.
        masses: :func:`word_masses`, [V, n], or None if every word has one sense.
        logits: logits of X, [M, n].

    Returns:
        sums of G·∂s/∂|h| over senses [n], or 0 for a homogeneous kernel, and of G·∂s/∂|w| and
        G·∂s/∂θ over tokens [M]. For a homogeneous kernel, G·s replaces the second term.
    """
    grad = exp(logits - log_z) * weight
    if by_word is not None:
        lowest = torch.finfo(logits.dtype).min
        shares = logits.gt(lowest) if masses is None else exp(logits - masses[words])
        grad = grad - by_word * shares
    by_x, by_h, by_w, by_theta = kernel.partials(widen(x, h_norm.dtype), h_norm, w_norm, theta)
    if kernel.homogeneous:
        by_w = logits
    zeros = torch.zeros_like(w_norm[:, 0])
    sums = (
        torch.zeros_like(log_z) if isinstance(by_h, float) else (grad * by_h).sum(0),
        zeros if isinstance(by_w, float) else (grad * by_w).sum(1),
        zeros if isinstance(by_theta, float) else (grad * by_theta).sum(1),
    )
    (x if x.dtype == torch.bfloat16 else logits).copy_(grad * by_x)
    return sums
