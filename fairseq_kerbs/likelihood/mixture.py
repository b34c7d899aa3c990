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
from fairseq_kerbs.likelihood.chunks import check_words, product_dtype
from fairseq_kerbs.likelihood.nll import NllOptions, check_target
from fairseq_kerbs.torch_compat import is_compiling

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
    contexts, w, log_weights = mixture[:3]
    sizes = [tuple(value.shape) for value in mixture[:3]]
    if contexts.dim() != 3 or w.dim() != 2 or sizes[0] != (*sizes[2], w.shape[1]):
        raise ValueError(
            f"`contexts` has shape {sizes[0]}, `w` {sizes[1]} and `log_weights` {sizes[2]}; they "
            "must be [N, K, d], [V, d] and [N, K]."
        )
    check_target(target, contexts)
    counted = target != options.ignore_index
    target = torch.where(counted, target, 0)
    if not is_compiling():
        check_words(target, len(w))
    dtype, products = compute_dtype(contexts, w), product_dtype(contexts, w)
    contexts = torch.where(counted[:, None, None], contexts, 0.0)  # may hold anything there
    mixture = mixture._replace(w=w.to(dtype))  # gradients of chunks are added up in this dtype
    weights = options.smoothing_weights(len(w))
    size = chunk_size(mixture)
    chunks = zip(*(value.split(size) for value in (contexts, log_weights, target)))
    parts = [
        checkpoint(
            _chunk_losses, mixture._replace(contexts=part, log_weights=shares), words, weights,
            products, use_reentrant=False, preserve_rng_state=False,
        )
        for part, shares, words in chunks
    ]  # fmt: skip
    losses, nlls = (torch.where(counted, torch.cat(values), 0.0) for values in zip(*parts))
    if options.reduction != "none":
        losses = losses.sum()
    if options.reduction == "mean":
        losses = losses / counted.sum().clamp_min(1)
    return losses, nlls.detach()


def chunk_size(mixture: Mixture) -> int:
    """Number of tokens in a chunk."""
    return max(8, CHUNK_BYTES // (4 * len(mixture.kernels) * len(mixture.w)))


def _chunk_losses(
    mixture: Mixture, target: Tensor, weights: tuple[float, float], products: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Loss and plain nll of a chunk, [n] each; ``weights`` of the nll and of each word's −log P."""
    index = target.unsqueeze(1)
    if weights[1]:
        log_probs = _log_probs(mixture, products)
        nll = -log_probs.gather(1, index).squeeze(1).clamp_max(0.0)
        return weights[0] * nll - weights[1] * log_probs.sum(1).clamp_max(0.0), nll
    logits = (_logits(mixture, k, products) for k in range(len(mixture.kernels)))
    joint = [part.gather(1, index).squeeze(1) - part.logsumexp(1) for part in logits]
    nll = -(torch.stack(joint, 1) + mixture.log_weights).logsumexp(1).clamp_max(0.0)
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
    products, size = product_dtype(mixture.contexts, mixture.w), chunk_size(mixture)
    flat = mixture.contexts, mixture.log_weights
    flat = flat[0].reshape(-1, *flat[0].shape[-2:]), flat[1].reshape(-1, flat[1].shape[-1])
    parts = [
        _log_probs(mixture._replace(contexts=contexts, log_weights=log_weights), products)
        for contexts, log_weights in zip(*(value.split(size) for value in flat))
    ]
    return torch.cat(parts).view(*mixture.log_weights.shape[:-1], len(mixture.w))
