"""Exact likelihood of words under a mixture of softmaxes, chunk by chunk.

    p(v | h) = Σ_k π_k softmax_v(S_k(w_v, h̃_k) + b_v)    Gao et al. 2019, Eq. 1, which has no b_v

with shared word embeddings w_v, and a context vector h̃_k, a weight π_k and a kernel S_k for each
component. The output bias b_v is optional and shared by the components. With inner products this
is the mixture of softmaxes of Yang et al. 2018. Backward computes each chunk again, so that only
one of tokens × words × components is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairseq_kerbs.kernels import Kernel, compute_dtype, kernel_logits
from fairseq_kerbs.kernels.prepared import product_dtype
from fairseq_kerbs.likelihood.chunks import GPU_SHARE_EAGER, Smoothing, check_words
from fairseq_kerbs.likelihood.nll import NllOptions, check_target
from fairseq_kerbs.torch_compat import is_compiling

CHUNK_BYTES = 16 << 20  # size of the logits of all components, on a CPU


class Mixture(NamedTuple):
    """The K components of a mixture, for [...] tokens."""

    contexts: Tensor  # h̃ of each component, [..., K, d]
    w: Tensor  # word embeddings, [V, d]
    log_weights: Tensor  # log π, normalized, [..., K]
    kernels: Sequence[Kernel]  # of each component, bound to d
    thetas: Sequence[Tensor]  # θ of each component, [V], ignored by kernels without one
    bias: Tensor | None = None  # output bias b of all components, [V]; None is no bias


def mixture_nll(mixture: Mixture, target: Tensor, options: NllOptions) -> tuple[Tensor, Tensor]:
    """Exact negative log-likelihood of target words (Gao et al. 2019, Eq. 1), in nats.

    Args:
        mixture: components with context vectors [N, K, d], and an output bias [V] or None.
        target: target words, int64 [N].
        options: options of the likelihood. Nothing is compiled.

    Returns:
        the loss, a scalar or [N], and the nll of each token without smoothing, [N], detached.

    Raises:
        ValueError: a target is no word, or has another dtype, length or device than it must have.
    """
    contexts = mixture.contexts
    w = mixture.w
    check_target(target, contexts)
    counted = target != options.ignore_index
    target = torch.where(counted, target, 0)
    if not is_compiling():
        check_words(target, len(w))
    products = product_dtype(contexts, w)
    summed = compute_dtype(contexts, w)  # dtype in which gradients of chunks are summed
    mixture = mixture._replace(
        contexts=torch.where(counted[:, None, None], contexts, 0.0),  # ignored ones may be NaN
        w=w.to(summed),
        bias=None if mixture.bias is None else mixture.bias.to(summed),
    )
    chunks = _chunks(mixture)
    words = target.split(len(chunks[0].contexts) or 1)
    smoothing = options.smoothing_weights(len(w))
    losses = []
    nlls = []
    for chunk, chunk_target in zip(chunks, words):
        chunk_loss, chunk_nll = checkpoint(
            _chunk_losses,
            chunk,
            chunk_target,
            smoothing,
            products,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        losses.append(chunk_loss)
        nlls.append(chunk_nll)
    loss = torch.where(counted, torch.cat(losses), 0.0)
    nll = torch.where(counted, torch.cat(nlls), 0.0).detach()
    if options.reduction == "none":
        return loss, nll
    number = counted.sum().clamp_min(1) if options.reduction == "mean" else 1
    return loss.sum() / number, nll


def _chunks(mixture: Mixture) -> list[Mixture]:
    """Split the tokens of a mixture into chunks."""
    count = mixture.log_weights.shape[-1]
    contexts = mixture.contexts.reshape(-1, *mixture.contexts.shape[-2:])  # [N, K, d]
    memory = CHUNK_BYTES
    if contexts.is_cuda:
        memory = torch.cuda.get_device_properties(contexts.device).total_memory // GPU_SHARE_EAGER
    size = max(8, memory // (4 * count * len(mixture.w)))
    log_weights = mixture.log_weights.reshape(-1, count)
    return [
        mixture._replace(contexts=h, log_weights=log_pi)
        for h, log_pi in zip(contexts.split(size), log_weights.split(size))
    ]


def _chunk_losses(
    mixture: Mixture, target: Tensor, smoothing: Smoothing, products: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Loss and nll of a chunk, [n] each."""
    index = target.unsqueeze(1)
    if smoothing.word:
        log_probs = _log_probs(mixture, products)
        nll = -log_probs.gather(1, index).squeeze(1).clamp_max(0.0)
        return smoothing.nll * nll - smoothing.word * log_probs.sum(1).clamp_max(0.0), nll
    by_component = [
        logits.gather(1, index).squeeze(1) - logits.logsumexp(1)
        for logits in _logits(mixture, products)
    ]
    nll = -(torch.stack(by_component, 1) + mixture.log_weights).logsumexp(1).clamp_max(0.0)
    return nll, nll


def _logits(mixture: Mixture, products: torch.dtype) -> Iterator[Tensor]:
    """Logits of each component, [n, V], with matrix products in the dtype ``products``."""
    for h, theta, kernel in zip(mixture.contexts.unbind(1), mixture.thetas, mixture.kernels):
        logits = kernel_logits(h, mixture.w, theta, kernel, products)
        yield logits if mixture.bias is None else logits + mixture.bias


def _log_probs(mixture: Mixture, products: torch.dtype) -> Tensor:
    """Log-probabilities of all words, [n, V]."""
    log_weights = mixture.log_weights.unsqueeze(2).unbind(1)  # [n, 1] for each component
    joint = [
        logits.log_softmax(1) + log_pi
        for logits, log_pi in zip(_logits(mixture, products), log_weights)
    ]
    return torch.stack(joint).logsumexp(0)


def mixture_log_probs(mixture: Mixture) -> Tensor:
    """Log-probabilities of all words (Gao et al. 2019, Eq. 1), differentiable: [..., V]."""
    products = product_dtype(mixture.contexts, mixture.w)
    parts = [_log_probs(part, products) for part in _chunks(mixture)]
    return torch.cat(parts).view(*mixture.log_weights.shape[:-1], len(mixture.w))
