"""Exact likelihood of words under a mixture of softmaxes, without a matrix of tokens × words.

    p(v | h) = Σ_k π_k softmax_v(S_k(w_v, h̃_k) + b_v)    Gao et al. 2019, Eq. 1, which has no b_v

with shared word embeddings w_v, and a context vector h̃_k, a weight π_k and a kernel S_k for each
component. The output bias b_v is optional and shared by the components. With inner products this
is the mixture of softmaxes of Yang et al. 2018.

There are two ways, which both compute logits twice, forward and backward:

- All components of a chunk of tokens are in memory together, by autograd.
- Each component has a likelihood of its own (:mod:`.nll`). On a CPU with a large vocabulary this is
  faster. It has no label smoothing, no mixed precision, and a bias with inner products only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fairseq_kerbs.kernels import InnerProductKernel, Kernel, compute_dtype, kernel_logits
from fairseq_kerbs.kernels.prepared import product_dtype
from fairseq_kerbs.likelihood.chunks import GPU_SHARE_EAGER, Smoothing, check_words
from fairseq_kerbs.likelihood.nll import (
    NllOptions,
    SenseParameters,
    check_target,
    nll_with_probabilities,
)
from fairseq_kerbs.senses import build_sense_table
from fairseq_kerbs.torch_compat import is_compiling

CHUNK_BYTES = 16 << 20  # size of the logits of all components, on a CPU
LEAST_WORDS = 4096  # size of a vocabulary from which components on their own are faster on a CPU


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
    check_target(target, mixture.contexts)
    counted = target != options.ignore_index
    words = torch.where(counted, target, 0)
    if not is_compiling():
        check_words(words, len(mixture.w))
    # ignored ones may be NaN
    mixture = mixture._replace(
        contexts=torch.where(counted[:, None, None], mixture.contexts, 0.0),
        log_weights=torch.where(counted[:, None], mixture.log_weights, 0.0),
    )
    if _has_separate_components(mixture, options):
        loss = _losses_by_component(mixture, target, options)
        nll = loss
    else:
        loss, nll = _losses_by_chunk(mixture, words, options)
    loss = torch.where(counted, loss, 0.0)
    nll = torch.where(counted, nll, 0.0).detach()
    if options.reduction == "none":
        return loss, nll
    total = loss.sum()
    if options.reduction == "mean":
        total = total / counted.sum().clamp_min(1)
    return total, nll


def _has_separate_components(mixture: Mixture, options: NllOptions) -> bool:
    """Whether each component's likelihood is computed by :mod:`.nll`."""
    contexts = mixture.contexts
    w = mixture.w
    faster = w.device.type == "cpu" and len(w) >= LEAST_WORDS and not is_compiling()
    # gradients by w are rounded to its dtype before they are summed over components
    exact = w.dtype == product_dtype(contexts, w) == compute_dtype(contexts, w)
    # a bias there is a coordinate of w, which is one for inner products alone
    expressible = mixture.bias is None or all(
        type(kernel) is InnerProductKernel for kernel in mixture.kernels
    )
    return options.label_smoothing == 0.0 and faster and exact and expressible


def _losses_by_component(mixture: Mixture, target: Tensor, options: NllOptions) -> Tensor:
    """−log Σ_k π_k p_k(y), [N], by the nll of the target under each component.

    The gradient by the nll of a component is its posterior, which weights the token in the
    component's own gradients.
    """
    contexts = mixture.contexts
    w = mixture.w
    if mixture.bias is not None:
        contexts = F.pad(contexts, (0, 1), value=1.0)
        w = torch.cat([w, mixture.bias.to(w.dtype).unsqueeze(1)], 1)
    one_sense = build_sense_table(torch.arange(len(w), device=w.device), len(w))
    options = replace(options, reduction="none", compile=False)
    nlls = [
        nll_with_probabilities(h, SenseParameters(w, theta, one_sense, kernel), target, options)[0]
        for h, theta, kernel in zip(contexts.unbind(1), mixture.thetas, mixture.kernels)
    ]
    return -(mixture.log_weights - torch.stack(nlls, 1)).logsumexp(1).clamp_max(0.0)


def _losses_by_chunk(
    mixture: Mixture, target: Tensor, options: NllOptions
) -> tuple[Tensor, Tensor]:
    """Loss and nll of each token, [N] each, of which backward computes each chunk again."""
    contexts = mixture.contexts
    w = mixture.w
    bias = mixture.bias
    products = product_dtype(contexts, w)
    summed = compute_dtype(contexts, w)  # dtype in which gradients of chunks are summed
    if bias is not None:
        bias = bias.to(summed)
    mixture = mixture._replace(w=w.to(summed), bias=bias)
    chunks = _chunks(mixture)
    size = max(1, len(chunks[0].contexts))
    words = target.split(size)
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
    return torch.cat(losses), torch.cat(nlls)


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
