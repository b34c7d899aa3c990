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
from fairseq_kerbs.torch_compat import is_compiling


def write_logits(
    kernel: Kernel, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor, logits: Tensor
) -> None:
    """Write logits of products X [M, n] into ``logits``, which may be X. The other arguments are
    those of :meth:`.Kernel.value`: [n], [M, 1] and [..., M, 1]. X may have the inputs' dtype."""
    logits.copy_(kernel.value(widen(x, h_norm.dtype), h_norm, w_norm, theta))


def log_sum(logits: Tensor) -> Tensor:
    """Log of the denominator of Eq. 5, logsumexp over senses, [M, n] -> [n]."""
    if not is_compiling():
        return logits.logsumexp(0)
    peak = logits.amax(0)
    return peak + exp(logits - peak).sum(0).log()


def word_masses(logits: Tensor, senses: Tensor, mask: Tensor) -> Tensor:
    """Log of the unnormalized probability of each word (Eq. 4), [M, n] -> [V, n], from the senses
    and the mask of a :class:`~fairseq_kerbs.senses.SenseTable`, [V, K] each."""
    # a loop over K, which is short: torch.compile would vectorize a sum over K
    rows = [logits[number] for number in senses.t()]
    if len(rows) == 1:
        return rows[0]
    real = mask.t().unsqueeze(2).to(logits.dtype)  # [K, V, 1]
    peak = functools.reduce(torch.maximum, rows)
    # torch.exp, as torch.compile needs minutes for the exp of the kernels here
    shares = [torch.exp(row - peak) * is_real for row, is_real in zip(rows, real)]
    return peak + functools.reduce(torch.add, shares).log()


def write_word_masses(logits: Tensor, senses: Tensor, mask: Tensor, masses: Tensor) -> None:
    """Write :func:`word_masses` into ``masses``, [V, n]."""
    masses.copy_(word_masses(logits, senses, mask))


def write_gradients(
    kernel: Kernel, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor, words: Tensor,
    target: Tensor, log_z: Tensor, log_target: Tensor, weight: Tensor, by_target: Tensor,
    by_word: Tensor | None, masses: Tensor | None, logits: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Overwrite logits s, or bfloat16 X, by G·∂s/∂x, where G is the gradient by the logits:

        G = weight·P(m) − by_target·P(m | y)·[L(m) = y] − by_word·P(m | L(m))

    Args:
        kernel, x, h_norm, w_norm, theta: see :func:`write_logits`.
        words, target: word L(m) of each sense, [M], and target words y, [n].
        log_z, log_target: logsumexp of all logits, and of those of the target's senses, [n].
        weight, by_target, by_word: factors of G, [n]. None stands for 0.
        masses: :func:`word_masses`, [V, n], or None if every word has one sense.
        logits: logits of X, [M, n].

    Returns:
        sums of G·∂s/∂|h| over senses [n], and of G·∂s/∂|w| and G·∂s/∂θ over tokens [M]. For a
        homogeneous kernel, G·s replaces the first two terms.
    """
    grad = exp(logits - log_z) * weight
    if by_word is not None:
        grad = grad - (by_word if masses is None else by_word * exp(logits - masses[words]))
    share = exp((logits - log_target).clamp_max(0.0)) * by_target
    grad = grad - torch.where(words.unsqueeze(1) == target, share, 0.0)
    by_x, by_h, by_w, by_theta = kernel.partials(widen(x, h_norm.dtype), h_norm, w_norm, theta)
    if kernel.homogeneous:
        by_h = by_w = logits
    zeros = torch.zeros_like(w_norm[:, 0])
    sums = (
        (grad * by_h).sum(0) if kernel.reads_norms else torch.zeros_like(log_z),
        (grad * by_w).sum(1) if kernel.reads_norms else zeros,
        (grad * by_theta).sum(1) if kernel.has_theta else zeros,
    )
    (x if x.dtype == torch.bfloat16 else logits).copy_(grad * by_x)
    return sums
