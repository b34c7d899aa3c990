"""Exact likelihood of words under a mixture of softmaxes, a chunk of tokens at a time.

    p(v | h) = Σ_k π_k softmax_v(S_k(w_v, h̃_k))          Gao et al. 2019, Eq. 1

with word vectors w_v that all components share, a context vector h̃_k and a weight π_k for each
component, and a kernel S_k. K inner products are the mixture of softmaxes of Yang et al. 2018.
Autograd goes through each chunk again in backward (``torch.utils.checkpoint``), so that no more
than one chunk of tokens × words × components is kept. Sums over components are made of logarithms,
so p_k(v) may lie below the least float.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairseq_kerbs.kernels import Kernel, apply_kernel, compute_dtype, safe_norm
from fairseq_kerbs.kernels.base import is_compiling
from fairseq_kerbs.likelihood.chunks import check_words, product_dtype
from fairseq_kerbs.likelihood.nll import NllOptions, check_target

CHUNK_BYTES = 16 << 20  # of the logits of all components


class Mixture(NamedTuple):
    """A mixture for [...] tokens, all of its components together."""

    contexts: Tensor  # h̃ of every component, [..., K, d]
    w: Tensor  # word vectors, [V, d]
    log_weights: Tensor  # log π, [..., K]; exp of a row sums to 1
    kernels: Sequence[Kernel]  # one a component, bound to d
    thetas: Sequence[Tensor]  # θ of every component, [V] each (not read by kernels without one)


def mixture_nll(mixture: Mixture, target: Tensor, options: NllOptions) -> tuple[Tensor, Tensor]:
    """Exact negative log-likelihood of target words (Gao et al. 2019, Eq. 1).

    Args:
        mixture: that of N tokens.
        target: target words, [N], int64.
        options: see :class:`.likelihood.nll.NllOptions`; nothing is compiled.

    Returns:
        the loss, a scalar or [N], and the plain nll of each token, [N], detached: float32, or
        float64 where an input is float64.

    Raises:
        ValueError: shapes, dtypes or devices do not fit, or a target is outside the vocabulary.
    """
    contexts, w, log_weights, kernels, thetas = mixture
    if contexts.dim() != 3 or w.dim() != 2 or contexts.shape[2] != w.shape[1]:
        raise ValueError(
            f"`contexts` has shape {tuple(contexts.shape)} and `w` {tuple(w.shape)}; they must be "
            "[N, K, d] and [V, d]."
        )
    if log_weights.shape != contexts.shape[:2]:
        raise ValueError(
            f"`log_weights` has shape {tuple(log_weights.shape)}; it must be [N, K], "
            f"{tuple(contexts.shape[:2])}."
        )
    check_target(target, contexts)
    counted = target != options.ignore_index
    if not is_compiling():
        check_words(target, counted, len(w))
    dtype, products = compute_dtype(contexts, w), product_dtype(contexts, w)
    target = torch.where(counted, target, 0)
    contexts = torch.where(counted[:, None, None], contexts, 0.0)  # may hold anything there
    wide_w = w.to(dtype)  # gradients of all chunks are added up in this dtype
    weights = options.smoothing_weights(len(w))
    each, plain = [contexts.new_zeros(0, dtype=dtype)], [contexts.new_zeros(0, dtype=dtype)]
    size = options.chunk_tokens or chunk_size(mixture)
    for start in range(0, max(1, len(target)), size):  # a loss of no tokens has a gradient, too
        at = slice(start, start + size)
        part = Mixture(contexts[at], wide_w, log_weights[at], kernels, thetas)
        loss, nll = checkpoint(
            _chunk_losses, *part, target[at], weights, products,
            use_reentrant=False, preserve_rng_state=False,
        )  # fmt: skip
        each.append(loss)
        plain.append(nll.detach())
    losses, nlls = (torch.where(counted, torch.cat(parts), 0.0) for parts in (each, plain))
    if options.reduction == "none":
        return losses, nlls
    divisor = counted.sum().clamp_min(1) if options.reduction == "mean" else 1
    return losses.sum() / divisor, nlls


def chunk_size(mixture: Mixture) -> int:
    """Number of tokens in a chunk."""
    return max(8, CHUNK_BYTES // (4 * len(mixture.kernels) * len(mixture.w)))


def _chunk_losses(
    contexts: Tensor, w: Tensor, log_weights: Tensor, kernels: Sequence[Kernel],
    thetas: Sequence[Tensor], target: Tensor, weights: tuple[float, float], products: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Loss and plain nll of a chunk, [n] each; ``weights`` of the nll and of each word's −log P."""
    mixture = Mixture(contexts, w, log_weights, kernels, thetas)
    index = target.unsqueeze(1)
    if weights[1]:
        log_probs = _log_probs(mixture, products)
        nll = -log_probs.gather(1, index).squeeze(1).clamp_max(0.0)
        return weights[0] * nll - weights[1] * log_probs.sum(1).clamp_max(0.0), nll
    joint = []
    for k in range(len(kernels)):
        logits = _logits(mixture, k, products)
        joint.append(logits.gather(1, index).squeeze(1) - logits.logsumexp(1))
    log_p = (torch.stack(joint, 1) + log_weights).logsumexp(1)
    nll = -log_p.clamp_max(0.0)
    return nll, nll


def _logits(mixture: Mixture, k: int, products: torch.dtype) -> Tensor:
    """Logits of component k, [n, V]; ``products`` is the dtype of the products."""
    contexts, w, _, kernels, thetas = mixture
    dtype = compute_dtype(contexts, w)
    with torch.autocast(w.device.type, enabled=False):
        h, wide_w = contexts[:, k].to(dtype), w.to(dtype)
        x = (kernels[k].map_contexts(h).to(products) @ w.to(products).t()).to(dtype)
        if products == torch.float16:
            x = x.clamp(torch.finfo(products).min, torch.finfo(products).max)
        norms = safe_norm(h), safe_norm(wide_w).squeeze(-1)
        return apply_kernel(kernels[k], x, *norms, thetas[k])


def _log_probs(mixture: Mixture, products: torch.dtype) -> Tensor:
    """Log-probabilities of all words, [n, V]."""
    parts = [
        _logits(mixture, k, products).log_softmax(1) + mixture.log_weights[:, k, None]
        for k in range(len(mixture.kernels))
    ]
    return torch.stack(parts).logsumexp(0)


def mixture_log_probs(mixture: Mixture) -> Tensor:
    """Log-probabilities of all words (Gao et al. 2019, Eq. 1), differentiable: [..., V] in float32,
    or float64 where an input is float64; exp of it sums to 1."""
    contexts, log_weights = mixture.contexts, mixture.log_weights
    lead, products = log_weights.shape[:-1], product_dtype(contexts, mixture.w)
    contexts = contexts.reshape(-1, *contexts.shape[-2:])
    log_weights = log_weights.reshape(-1, log_weights.shape[-1])
    chunks = zip(
        *(value.split(chunk_size(mixture)) for value in (contexts, log_weights)), strict=True
    )
    parts = [
        _log_probs(mixture._replace(contexts=part, log_weights=weights), products)
        for part, weights in chunks
    ]
    return torch.cat(parts).view(*lead, len(mixture.w))
