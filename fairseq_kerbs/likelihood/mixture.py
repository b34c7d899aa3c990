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
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairseq_kerbs.kernels import Kernel, compute_dtype, kernel_logits
from fairseq_kerbs.kernels.prepared import product_dtype
from fairseq_kerbs.likelihood.chunks import check_words
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
    """Exact negative log-likelihood of N target words [N], int64 (Gao et al. 2019, Eq. 1).

    Returns the loss, a scalar or [N], and the plain nll of each token, [N], detached: float32, or
    float64 where an input is float64. Raises a ValueError where the target does not fit the
    contexts or is outside the vocabulary. Nothing is compiled.
    """
    contexts, w = mixture[:2]
    check_target(target, contexts)
    counted = target != options.ignore_index
    target = torch.where(counted, target, 0)
    if not is_compiling():
        check_words(target, len(w))
    products = product_dtype(contexts, w)
    mixture = mixture._replace(
        contexts=torch.where(counted[:, None, None], contexts, 0.0),  # may hold anything there
        w=w.to(compute_dtype(contexts, w)),  # gradients of chunks are added up in this dtype
    )
    how = options.smoothing_weights(len(w)), products
    chunks, again = _chunks(mixture), partial(checkpoint, use_reentrant=False)
    parts = [
        again(_chunk_losses, part, words, *how, preserve_rng_state=False)
        for part, words in zip(chunks, target.split(len(chunks[0].contexts) or 1))
    ]
    losses, nlls = (torch.where(counted, torch.cat(values), 0.0) for values in zip(*parts))
    if options.reduction != "none":
        losses = losses.sum()
    if options.reduction == "mean":
        losses = losses / counted.sum().clamp_min(1)
    return losses, nlls.detach()


def _chunks(mixture: Mixture) -> list[Mixture]:
    """The mixture for a few tokens at a time."""
    contexts, w, shares, *_ = mixture
    size = max(8, CHUNK_BYTES // (4 * shares.shape[-1] * len(w)))
    flat = contexts.reshape(-1, *contexts.shape[-2:]), shares.reshape(-1, shares.shape[-1])
    parts = zip(*(value.split(size) for value in flat))
    return [mixture._replace(contexts=part, log_weights=weights) for part, weights in parts]


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
    return kernel_logits(
        mixture.contexts[:, k], mixture.w, mixture.thetas[k], mixture.kernels[k], products
    )


def _log_probs(mixture: Mixture, products: torch.dtype) -> Tensor:
    """Log-probabilities of all words, [n, V]."""
    shares = mixture.log_weights.unsqueeze(2).unbind(1)
    logits = (_logits(mixture, k, products) for k in range(len(shares)))
    return torch.stack([part.log_softmax(1) + p for part, p in zip(logits, shares)]).logsumexp(0)


def mixture_log_probs(mixture: Mixture) -> Tensor:
    """Log-probabilities of all words (Gao et al. 2019, Eq. 1), differentiable: [..., V] in float32,
    or float64 where an input is float64; exp of it sums to 1."""
    products = product_dtype(mixture.contexts, mixture.w)
    parts = [_log_probs(part, products) for part in _chunks(mixture)]
    return torch.cat(parts).view(*mixture.log_weights.shape[:-1], len(mixture.w))
