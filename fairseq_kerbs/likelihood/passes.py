"""What happens to a chunk of products between the matrix products: plain functions of tensors.

X [M, n] holds the products of M senses with n context vectors. A sense is a row, so that the senses
of a word are whole rows, wherever they lie. A function that writes into its last matrix keeps
nothing else of that size where ``torch.compile`` makes it. It may be called for some of the senses
alone, with the rows of these.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel
from fairseq_kerbs.kernels.base import exp
from fairseq_kerbs.torch_compat import is_compiling


def write_logits(
    kernel: Kernel, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor, logits: Tensor
) -> None:
    """Logits of products X [M, n], written into ``logits``, which may be X; for the others see
    ``kernel.value``: [n], [M, 1] and [..., M, 1]."""
    logits.copy_(kernel.value(x, h_norm, w_norm, theta))


def log_sum(logits: Tensor) -> Tensor:
    """logsumexp over senses, [M, n] -> [n] (the denominator of Eq. 5)."""
    if not is_compiling():
        return logits.logsumexp(0)
    peak = logits.amax(0)
    return peak + exp(logits - peak).sum(0).log()


def word_masses(logits: Tensor, senses: Tensor, mask: Tensor) -> Tensor:
    """Log of the unnormalized probability of every word (Eq. 4), [M, n] -> [V, n]; the words'
    senses as in :class:`~fairseq_kerbs.senses.SenseTable`, [V, K] each.

    Sense by sense: torch.compile would go along K, which is short, with a CPU's vectors.
    """
    rows = [logits[number] for number in senses.t()]
    if len(rows) == 1:
        return rows[0]
    there = mask.t().unsqueeze(2).to(logits.dtype)  # [K, V, 1]
    peak = functools.reduce(torch.maximum, rows)
    # not by exp of the kernels, which takes torch.compile minutes here
    shares = [torch.exp(row - peak) * real for row, real in zip(rows, there)]
    return peak + functools.reduce(torch.add, shares).log()


def write_word_masses(logits: Tensor, senses: Tensor, mask: Tensor, masses: Tensor) -> None:
    """:func:`word_masses` written into ``masses``."""
    masses.copy_(word_masses(logits, senses, mask))


def write_gradients(
    kernel: Kernel, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor, words: Tensor,
    target: Tensor, log_z: Tensor, own: Tensor, weight: Tensor, by_target: Tensor,
    by_word: Tensor | None, masses: Tensor | None, logits: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """G·∂s/∂x written over the logits s, with the gradient by the logits

        G = weight·P(m) − by_target·P(m | y)·[L(m) = y] − by_word·P(m | L(m)).

    Args:
        kernel, x, h_norm, w_norm, theta: as of :func:`write_logits`.
        words, target: the word of each sense L(m), [M]; the target words y, [n].
        log_z, own: logsumexp of all logits, and of those of the target's senses, [n].
        weight, by_target, by_word: [n]; None for 0.
        masses: :func:`word_masses` [V, n]; None where every word has one sense.
        logits: those of X.

    Returns:
        sums of G·∂s/∂|h| over senses [n], and of G·∂s/∂|w| and G·∂s/∂θ over tokens [M]; of a
        homogeneous kernel G·s stands in the place of the first two.
    """
    grad = exp(logits - log_z) * weight
    if by_word is not None:
        grad = grad - (by_word if masses is None else by_word * exp(logits - masses[words]))
    share = exp((logits - own).clamp_max(0.0)) * by_target
    grad = grad - torch.where(words.unsqueeze(1) == target, share, 0.0)
    by_x, by_h, by_w, by_theta = kernel.partials(x, h_norm, w_norm, theta)
    if kernel.homogeneous:
        by_h = by_w = logits
    zeros = torch.zeros_like(w_norm[:, 0])
    sums = (
        (grad * by_h).sum(0) if kernel.reads_norms else torch.zeros_like(log_z),
        (grad * by_w).sum(1) if kernel.reads_norms else zeros,
        (grad * by_theta).sum(1) if kernel.has_theta else zeros,
    )
    logits.copy_(grad * by_x)
    return sums
