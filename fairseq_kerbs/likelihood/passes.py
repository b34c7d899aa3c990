"""What happens to a chunk of products between the matrix products: plain functions of tensors.

X [M, n] holds the products of M senses with n context vectors. A sense is a row, so that the senses
of a word are whole rows, wherever they lie. A function that writes into its last matrix keeps
nothing else of that size where ``torch.compile`` makes it. All but :func:`write_word_masses` may be
called for some of the senses alone, with the rows of these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel
from fairseq_kerbs.kernels.base import exp
from fairseq_kerbs.torch_compat import is_compiling

ROWS = 64
"""Rows of X that :func:`log_sum` takes at a time where it is compiled."""


def write_logits(
    kernel: Kernel, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor, logits: Tensor
) -> None:
    """The logits s of products X [M, n], written into ``logits`` (which X itself may be).

    Args:
        h_norm, w_norm, theta: as ``kernel.value`` takes them, [n], [M, 1] and [..., M, 1].
    """
    logits.copy_(kernel.value(x, h_norm, w_norm, theta))


def log_sum(logits: Tensor) -> Tensor:
    """logsumexp over senses, [M, n] -> [n] (the denominator of Eq. 5)."""
    if not is_compiling():
        return logits.logsumexp(0)
    peak = _over_rows(torch.amax, logits)
    return peak + _over_rows(torch.sum, exp(logits - peak)).log()


def _over_rows(reduce: Callable[..., Tensor], values: Tensor) -> Tensor:
    """``torch.sum`` or ``torch.amax`` of [M, n] over M, a few rows at a time, whose columns a CPU's
    cache holds."""
    if not is_compiling():
        return reduce(values, 0)
    whole = len(values) // ROWS * ROWS
    parts = [reduce(values[:whole].unflatten(0, (-1, ROWS)), 1)] if whole else []
    if whole < len(values):
        parts.append(reduce(values[whole:], 0, keepdim=True))
    return reduce(torch.cat(parts), 0)


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
    """:func:`word_masses`, of all words or some, written into ``masses``."""
    masses.copy_(word_masses(logits, senses, mask))


def pull_back(
    kernel: Kernel, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor, logits: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradient of logits times their derivatives by x, |h|, |w| and θ, None where the kernel
    does not read these; of a homogeneous kernel, times the logits in the place of those by norms.
    All arguments broadcast."""
    by_x, by_h, by_w, by_theta = kernel.partials(x, h_norm, w_norm, theta)
    along_h = along_w = None
    if kernel.homogeneous:
        along_h = along_w = grad * logits
    elif kernel.reads_norms:
        along_h, along_w = grad * by_h, grad * by_w
    return grad * by_x, along_h, along_w, grad * by_theta if kernel.has_theta else None


def write_gradients(
    kernel: Kernel, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor, words: Tensor,
    log_z: Tensor, weight: Tensor, by_word: Tensor | None, masses: Tensor | None, logits: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """P = G·∂s/∂x written over the logits s, but for what the target's senses add to G.

    Args:
        kernel, x, h_norm, w_norm, theta: as of :func:`write_logits`.
        words: the word of each sense L(m), [M].
        log_z: logsumexp of all logits, [n].
        weight, by_word: weights in G of P(m) and of −P(m | L(m)), [n]; None for 0.
        masses: :func:`word_masses` [V, n]; None where every word has one sense.
        logits: those of X.

    Returns:
        sums of the other results of :func:`pull_back`: by |h| over senses [n], by |w| and by θ over
        tokens [M]; 0 where there is no such result.
    """
    grad = exp(logits - log_z) * weight
    if by_word is not None:
        grad = grad - (by_word if masses is None else by_word * exp(logits - masses[words]))
    p, by_h, *others = pull_back(kernel, x, h_norm, w_norm, theta, logits, grad)
    zeros = torch.zeros_like(w_norm[:, 0])
    sums = (
        torch.zeros_like(log_z) if by_h is None else _over_rows(torch.sum, by_h),
        *(zeros if part is None else part.sum(1) for part in others),
    )
    logits.copy_(p)
    return sums
