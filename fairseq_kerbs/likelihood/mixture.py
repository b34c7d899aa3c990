"""Exact likelihood of words under a mixture of softmaxes, without ever keeping tokens × words.

    p(v | h) = Σ_k π_k softmax_v(S_k(w_v, h̃_k))          Gao et al. 2019, Eq. 1

with word vectors w_v that all components share, a context vector h̃_k and a weight π_k for each
component, and a kernel S_k. K inner products are the mixture of softmaxes of Yang et al. 2018.

Tokens are processed in chunks by :mod:`fairseq_kerbs.likelihood.chunked`, components as in
:mod:`.likelihood.mixture_parts`. With r_kv = π_k p_k(v) / p(v), the gradient of a target's plain
nll is in every component that of a nll of its own, times r_ky: the fused backends serve. Label
smoothing gives every word v the weight q_v:

    loss = Σ_v q_v · −log p(v),   R_k = Σ_v q_v r_kv
    ∂loss/∂s_ku = p_k(u) R_k − q_u r_ku,   ∂loss/∂log π_k = −R_k

Sums over components are made of logarithms, so p_k(v) may lie below the least float.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Unpack

import torch
from torch import Tensor

from fairseq_kerbs.likelihood.backends.eager import Smoothing
from fairseq_kerbs.likelihood.chunked import (
    ChunkedNll,
    Evaluation,
    Gradients,
    NllKeywords,
    NllOptions,
)
from fairseq_kerbs.likelihood.functional import check_options
from fairseq_kerbs.likelihood.mixture_parts import KernelGroup, MixtureParts

Values = tuple[Tensor, Tensor]
Backward = Callable[[Tensor, "_MixtureGradients"], None]


def mixture_nll(
    contexts: Tensor,
    w: Tensor,
    log_weights: Tensor,
    target: Tensor,
    groups: Sequence[KernelGroup],
    thetas: Sequence[Tensor],
    **options: Unpack[NllKeywords],
) -> tuple[Tensor, Tensor]:
    """Exact negative log-likelihood of target words under a mixture (Gao et al. 2019, Eq. 1).

    Args:
        contexts: h̃ of every component, [N, K, d].
        w: word vectors, [V, d].
        log_weights: log π, [N, K]; exp of a row sums to 1.
        target: target words, [N].
        groups: the components by kernel, as
            :func:`fairseq_kerbs.likelihood.mixture_parts.group_components` finds them.
        thetas: θ of every group, [V] each (not read by kernels without one).
        options: as of :func:`.likelihood.functional.kerbs_nll`.

    Returns:
        the loss, a scalar or [N], and the plain nll of each token, [N], detached: float32, or
        float64 where an input is float64.

    Raises:
        ValueError: shapes do not fit, an option is unknown, or a target is outside the vocabulary.
    """
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
    settings = NllOptions(**options)
    check_options(target, len(contexts), len(w), settings)
    build = functools.partial(_MixtureEvaluation, target, groups, settings)
    autograd = torch.is_grad_enabled()
    loss, token_nll = ChunkedNll.apply(build, settings, autograd, contexts, w, log_weights, *thetas)
    return loss, token_nll


class _MixtureEvaluation(Evaluation):
    """A mixture's components, whose probabilities of the words add up."""

    def __init__(
        self,
        target: Tensor,
        groups: Sequence[KernelGroup],
        options: NllOptions,
        contexts: Tensor,
        w: Tensor,
        log_weights: Tensor,
        *thetas: Tensor,
    ) -> None:
        super().__init__(target, len(w), options)
        plain = not self.smoothing.uniform_weight
        self.mixture = MixtureParts(
            contexts, w, log_weights, groups, thetas, tokens=options.chunk_tokens, fused=plain
        )
        self.dtype, self.chunks = self.mixture.dtype, self.mixture.chunks
        self.reads = (True, True, True, *(group.kernel.has_theta for group in groups))

    def chunk(self, rows: slice) -> tuple[Values, Backward]:
        return self._smoothed(rows) if self.smoothing.uniform_weight else self._plain(rows)

    def _plain(self, rows: slice) -> tuple[Values, Backward]:
        target, joint, found = self.target[rows], self.mixture.prior(rows).clone(), []  # [K, n]
        for part in self.mixture.parts:
            backend, x, h_norm = part.begin(rows)
            saved = backend.forward(x, h_norm, target.repeat(part.width), Smoothing())
            log_p = (saved.target.logits.squeeze(1) - saved.normalizer).clamp_max(0.0)
            joint[part.members] += log_p.view(part.width, -1)
            found.append(saved)
            del x, saved
        log_p = joint.logsumexp(0)
        nll = (-log_p).clamp_min(0.0)

        def backward(scale: Tensor, gradients: _MixtureGradients) -> None:
            share = (joint - log_p).exp() * scale  # r_ky of each component, [K, n]
            for part, sums in zip(self.mixture.parts, gradients.parts, strict=True):
                weight = share[part.members].flatten()
                p_and_along_h = part.products.backend.backward(found.pop(0), weight, sums.sums)
                sums.add(part.columns(rows), *p_and_along_h)
            gradients.log_weights[rows] = -share.t()

        return (nll, nll), backward

    def _smoothed(self, rows: slice) -> tuple[Values, Backward]:
        target, prior, weights = self.target[rows], self.mixture.prior(rows), self.smoothing
        columns = torch.arange(len(target), device=target.device)
        found, peak = [], None  # the largest component, [V, n]
        for part in self.mixture.parts:
            backend, x, h_norm = part.begin(rows)
            logits, kept = backend.logits(x, h_norm)  # [V, k·n]
            shift = prior[part.members].flatten() - logits.logsumexp(0)
            joint = logits.add_(shift).view(len(logits), part.width, -1)  # log(π_k p_k(v))
            largest = joint.amax(1)
            peak = largest if peak is None else torch.maximum(peak, largest, out=peak)
            found.append((x, h_norm, kept, joint))
        assert peak is not None
        shares, total = [], torch.zeros_like(peak)  # p(v) relative to the peak, [V, n]
        for part, (*_, joint) in zip(self.mixture.parts, found, strict=True):
            share = part.products.backend.buffer(joint)  # [V, k, n]
            total += torch.sub(joint, peak.unsqueeze(1), out=share.matrix).exp_().sum(1)
            shares.append(share)
        log_p = peak.add_(total.log())
        nll = (-log_p[target, columns]).clamp_min(0.0)
        loss = weights.target_weight * nll
        loss = loss + weights.uniform_weight * (-log_p.sum(0)).clamp_min(0.0)

        def backward(scale: Tensor, gradients: _MixtureGradients) -> None:
            own = (target, slice(None), columns)
            for part, sums in zip(self.mixture.parts, gradients.parts, strict=True):
                (x, h_norm, kept, joint), room = found.pop(0), shares.pop(0)
                share = room.matrix.div_(total.unsqueeze(1))  # r_kv, [V, k, n]
                own_share = weights.target_weight * share[own]  # [n, k]
                weight = weights.uniform_weight * share.sum(0) + own_share.t()  # R_k, [k, n]
                gradients.log_weights[rows, part.members] = (-scale * weight).t()
                grad = joint.sub_(prior[part.members]).exp_().mul_(weight * scale)
                grad.sub_(share.mul_(weights.uniform_weight * scale))
                grad[own] -= own_share * scale.unsqueeze(1)
                p_and_along_h = part.products.backend.backward_logits(
                    grad.flatten(1), x, h_norm, kept, sums.sums
                )
                sums.add(part.columns(rows), *p_and_along_h)

        return (loss, nll), backward

    def new_gradients(self, needs: Sequence[bool]) -> _MixtureGradients:
        return _MixtureGradients(self.mixture, needs)


class _MixtureGradients:
    """Sums of gradients by contexts, w, log π and every group's θ over chunks."""

    def __init__(self, mixture: MixtureParts, needs: Sequence[bool]) -> None:
        self.mixture = mixture
        self.log_weights = torch.zeros_like(mixture.log_weights)  # [N, K]
        self.parts = [
            Gradients(part.products, (needs[0], needs[1], theta))
            for part, theta in zip(mixture.parts, needs[3:], strict=True)
        ]

    def finish(self) -> list[Tensor | None]:
        """Gradients by contexts [N, K, d], w [V, d], log π [N, K] and every group's θ [V]."""
        by_contexts: Tensor | None = None
        by_w: Tensor | None = None
        thetas = []
        for part, sums in zip(self.mixture.parts, self.parts, strict=True):
            h, w, theta = sums.finish()
            thetas.append(theta)
            if h is not None:
                h = self.mixture.by_token(h, part.width)
                if len(self.parts) == 1:
                    by_contexts = h
                else:
                    if by_contexts is None:
                        by_contexts = h.new_empty(*self.log_weights.shape, h.shape[2])
                    by_contexts[:, part.members] = h
            if w is not None:
                by_w = w if by_w is None else by_w.add_(w)
        return [by_contexts, by_w, self.log_weights, *thetas]
