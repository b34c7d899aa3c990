"""Exact likelihood of words under a mixture of softmaxes, without ever keeping tokens × words.

    p(v | h) = Σ_k π_k softmax_v(S_k(w_v, h̃_k))          Gao et al. 2019, Eq. 1

with word vectors w_v that all components share, a context vector h̃_k and a weight π_k for each
component, and a kernel S_k. K inner products are the mixture of softmaxes of Yang et al. 2018.

Tokens are processed in chunks, as in :mod:`fairseq_kerbs.likelihood.chunked`, components as in
:mod:`.likelihood.mixture_parts`. With r_kv = π_k p_k(v) / p(v), the gradient of a target's plain
nll is in every component that of a nll of its own, times r_ky: the fused passes serve. Label
smoothing gives every word v the weight q_v:

    loss = Σ_v q_v · −log p(v),   R_k = Σ_v q_v r_kv
    ∂loss/∂s_ku = p_k(u) R_k − q_u r_ku,   ∂loss/∂log π_k = −R_k

Sums over components are made of logarithms, so p_k(v) may lie below the least float.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.likelihood.backends.eager import Smoothing
from fairseq_kerbs.likelihood.chunked import Gradients, narrow_gradient
from fairseq_kerbs.likelihood.functional import check_options
from fairseq_kerbs.likelihood.mixture_parts import KernelGroup, MixtureParts, by_token


@dataclass(frozen=True)
class MixtureOptions:
    """Settings of one evaluation; see :func:`mixture_nll` for their meaning.

    ``with_gradients`` is False where the caller's autograd is off: an autograd function cannot see
    that for itself.
    """

    groups: tuple[KernelGroup, ...]
    ignore_index: int = -100
    label_smoothing: float = 0.0
    chunk_tokens: int | None = None
    with_gradients: bool = True


def mixture_nll(
    contexts: Tensor,
    w: Tensor,
    log_weights: Tensor,
    target: Tensor,
    groups: Sequence[KernelGroup],
    thetas: Sequence[Tensor],
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "sum",
    chunk_tokens: int | None = None,
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
        ignore_index: targets with this value give no loss and no gradient.
        label_smoothing: ε ≥ 0, over words as :func:`.likelihood.functional.kerbs_nll` has it.
        reduction: "sum", "mean" (over tokens that count) or "none" ([N], 0 where ignored).
        chunk_tokens: tokens in one chunk; by default what fits.

    Returns:
        the loss, a scalar or [N], and the plain nll of each token, [N], detached: float32, or
        float64 where an input is float64.

    Raises:
        ValueError: shapes do not fit, an option is unknown, or a target is outside the vocabulary.
    """
    _check(contexts, w, log_weights, target)
    check_options(target, len(w), ignore_index, label_smoothing, reduction)
    options = MixtureOptions(
        tuple(groups), ignore_index, label_smoothing, chunk_tokens, torch.is_grad_enabled()
    )
    loss, token_nll = MixtureNll.apply(
        contexts, w, log_weights, target, options, reduction, *thetas
    )
    return loss, token_nll


def _check(contexts: Tensor, w: Tensor, log_weights: Tensor, target: Tensor) -> None:
    if contexts.dim() != 3 or w.dim() != 2 or contexts.shape[2] != w.shape[1]:
        raise ValueError(
            f"contexts has shape {tuple(contexts.shape)} and w {tuple(w.shape)}; they must be "
            "[N, K, d] and [V, d]."
        )
    if log_weights.shape != contexts.shape[:2]:
        raise ValueError(
            f"log_weights has shape {tuple(log_weights.shape)}; it must be [N, K], "
            f"{tuple(contexts.shape[:2])}."
        )
    if target.shape != contexts.shape[:1]:
        raise ValueError(
            f"target has shape {tuple(target.shape)}; it must be [N], N = {contexts.shape[0]}."
        )


class _Plan(MixtureParts):
    """Everything about one evaluation that does not depend on the chunk."""

    def __init__(
        self,
        contexts: Tensor,
        w: Tensor,
        log_weights: Tensor,
        target: Tensor,
        options: MixtureOptions,
        thetas: Sequence[Tensor],
    ) -> None:
        self.smoothing = Smoothing.of(options.label_smoothing, w.shape[0])
        super().__init__(
            contexts,
            w,
            log_weights,
            options.groups,
            thetas,
            tokens=options.chunk_tokens,
            fused=not self.smoothing.each,
        )
        self.counted = target != options.ignore_index  # [N]
        self.target = torch.where(self.counted, target, 0)


class _Chunk:
    """One chunk of the plain nll after the first pass.

    Attributes:
        nll: −log p(y), [n].
        loss: what is to be minimized, [n].
    """

    def __init__(self, plan: _Plan, rows: slice) -> None:
        self.plan, self.rows, self.target = plan, rows, plan.target[rows]
        joint = plan.prior(rows).clone()  # [K, n]
        self.normalizers = []
        for part in plan.parts:
            x, passes, target = part.begin(rows), part.passes, self.target.repeat(part.width)
            own_x, words, _ = passes.own_products(x, target)
            own = passes.own_logits(own_x, words, part.h_norm).squeeze(1)  # [k·n]
            normalizer = passes.reduce(x, part.h_norm)
            self.normalizers.append(normalizer)
            joint[part.index] += (own - normalizer).clamp_max(0.0).view(part.width, -1)
        log_p = joint.logsumexp(0)
        self.share = (joint - log_p).exp()  # r_ky, [K, n]
        self.nll = self.loss = (-log_p).clamp_min(0.0)

    def pull_back(self, scale: Tensor, gradients: _MixtureGradients) -> None:
        """Add the chunk's gradients to the sums; ``scale`` [n] is that of each token's loss."""
        share = self.share * scale
        plain = Smoothing.of(0.0, 1)
        for part, normalizer, sums in zip(
            self.plan.parts, self.normalizers, gradients.parts, strict=True
        ):
            assert part.x is not None
            along_h = part.passes.pull_back_targets(
                part.x,
                part.h_norm,
                normalizer,
                share[part.index].flatten(),
                plain,
                self.target.repeat(part.width),
            )
            part.add_to(sums, along_h)
        gradients.log_weights[self.rows] = -share.t()


class _SmoothChunk:
    """One chunk with label smoothing; attributes as of :class:`_Chunk`."""

    def __init__(self, plan: _Plan, rows: slice) -> None:
        self.plan, self.rows, self.target = plan, rows, plan.target[rows]
        self.prior, self.columns = plan.prior(rows), torch.arange(len(self.target)).to(plan.target)
        peak: Tensor | None = None  # [V, n], of the largest component
        for part in plan.parts:
            logits = part.passes.logits(part.begin(rows), part.h_norm)  # [V, k·n]
            shift = self.prior[part.index].flatten() - logits.logsumexp(0)
            part.joint = logits.add_(shift).view(len(logits), part.width, -1)
            largest = part.joint.amax(1)
            peak = largest if peak is None else torch.maximum(peak, largest, out=peak)
        assert peak is not None
        self.total = torch.zeros_like(peak)  # p(v) relative to the peak, [V, n]
        for part in plan.parts:
            part.share = part.passes._take("share", part.joint)
            torch.sub(part.joint, peak.unsqueeze(1), out=part.share).exp_()
            self.total += part.share.sum(1)
        log_p = peak.add_(self.total.log())
        self.nll = (-log_p[self.target, self.columns]).clamp_min(0.0)
        weights = plan.smoothing
        self.loss = weights.share * self.nll + weights.each * (-log_p.sum(0)).clamp_min(0.0)

    def pull_back(self, scale: Tensor, gradients: _MixtureGradients) -> None:
        """Add the chunk's gradients to the sums; ``scale`` [n] is that of each token's loss."""
        weights, own = self.plan.smoothing, (self.target, slice(None), self.columns)
        by_weights = torch.empty_like(self.prior)  # [K, n]
        for part, sums in zip(self.plan.parts, gradients.parts, strict=True):
            share = part.share.div_(self.total.unsqueeze(1))  # r_kv, [V, k, n]
            own_share = weights.share * share[own]  # [n, k]
            weight = weights.each * share.sum(0) + own_share.t()  # R_k, [k, n]
            by_weights[part.index] = -scale * weight
            grad = part.joint.sub_(self.prior[part.index]).exp_().mul_(weight * scale)
            grad.sub_(share.mul_(weights.each * scale))
            grad[own] -= own_share * scale.unsqueeze(1)
            assert part.x is not None
            along_h = part.passes._carry_back(grad.flatten(1), part.x, part.h_norm)
            part.add_to(sums, along_h)
        gradients.log_weights[self.rows] = by_weights.t()


class _MixtureGradients:
    """Sums of gradients over chunks, in the compute dtype.

    Args:
        plan: the evaluation.
        needs: whether gradients by the contexts, by w and by θ of every group are wanted.
    """

    def __init__(self, plan: _Plan, needs: tuple[bool, bool, tuple[bool, ...]]) -> None:
        self.plan, self.needs = plan, needs
        self.log_weights = torch.zeros_like(plan.log_weights)  # [N, K]
        self.parts = [
            Gradients(part.products, (needs[0], needs[1], theta))
            for part, theta in zip(plan.parts, needs[2], strict=True)
        ]

    def finish(self) -> tuple[Tensor | None, ...]:
        """Gradients by contexts [N, K, d], w [V, d], log π [N, K] and every group's θ [V]."""
        plan = self.plan
        by_contexts: Tensor | None = None
        by_w: Tensor | None = None
        thetas = []
        for part, sums in zip(plan.parts, self.parts, strict=True):
            h, w, theta = sums.finish()
            thetas.append(theta)
            if h is not None:
                h = by_token(h, plan.tokens, part.width)
                if by_contexts is None:
                    shape = (*plan.log_weights.shape, h.shape[2])
                    by_contexts = h if len(plan.parts) == 1 else h.new_empty(shape)
                if by_contexts is not h:
                    by_contexts[:, part.index] = h
            if w is not None:
                by_w = w if by_w is None else by_w.add_(w)
        return by_contexts, by_w, self.log_weights, *thetas


def _run_chunks(
    plan: _Plan, gradients: _MixtureGradients | None, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Go through all chunks once.

    Args:
        plan: the evaluation.
        gradients: sums to add gradients to, or None.
        weight: gradient of the result by each token's loss, [N]; None where all are 1.

    Returns:
        loss and plain nll of every token, [N] each; 0 where ignored.
    """
    loss = plan.log_weights.new_zeros(len(plan.target))
    plain = torch.zeros_like(loss)
    for rows in plan.chunks:
        counted = plan.counted[rows]
        chunk = (_SmoothChunk if plan.smoothing.each else _Chunk)(plan, rows)
        loss[rows] = torch.where(counted, chunk.loss, 0.0)
        plain[rows] = torch.where(counted, chunk.nll, 0.0)
        if gradients is not None:
            scale = counted.to(plan.dtype)
            chunk.pull_back(scale if weight is None else scale * weight[rows], gradients)
        del chunk  # before the next one's products are made
    return loss, plain


class MixtureNll(torch.autograd.Function):
    """Loss whose gradient is ready when its value is, in the manner of ``ChunkedNll``."""

    @staticmethod
    def forward(
        ctx: Any,
        contexts: Tensor,
        w: Tensor,
        log_weights: Tensor,
        target: Tensor,
        options: MixtureOptions,
        reduction: str,
        *thetas: Tensor,
    ) -> tuple[Tensor, Tensor]:
        wanted = [need and options.with_gradients for need in ctx.needs_input_grad]
        by_theta = tuple(
            need and group.kernel.has_theta
            for need, group in zip(wanted[6:], options.groups, strict=True)
        )
        ctx.needs, ctx.by_weights, ctx.reduction = (*wanted[:2], by_theta), wanted[2], reduction
        ctx.dtypes = [tensor.dtype for tensor in (contexts, w, log_weights, *thetas)]
        ctx.active = any(wanted[:3]) or any(by_theta)
        plan = _Plan(contexts, w, log_weights, target, options, thetas)
        ctx.divisor = plan.counted.sum().clamp_min(1).to(plan.dtype)
        at_once = ctx.active and reduction != "none"
        gradients = _MixtureGradients(plan, ctx.needs) if at_once else None
        with torch.autocast(contexts.device.type, enabled=False):
            loss, plain = _run_chunks(plan, gradients, None)
            if gradients is not None:
                ctx.gradients = gradients.finish()
        if ctx.active and reduction == "none":
            ctx.plan = plan
            ctx.save_for_backward(contexts, w, log_weights, *thetas)  # guards the plan's inputs
        ctx.mark_non_differentiable(plain)
        if reduction == "sum":
            loss = loss.sum()
        elif reduction == "mean":
            loss = loss.sum() / ctx.divisor
        return loss, plain

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.active:
            return (None,) * (len(ctx.dtypes) + 3)
        with torch.autocast(grad_loss.device.type, enabled=False):
            if ctx.reduction == "none":
                _ = ctx.saved_tensors  # an error if an input was changed in place since
                gradients = _MixtureGradients(ctx.plan, ctx.needs)
                _run_chunks(ctx.plan, gradients, grad_loss)
                results, factor = gradients.finish(), None
            else:
                factor = grad_loss / ctx.divisor if ctx.reduction == "mean" else grad_loss
                results = ctx.gradients
        narrowed = [
            None if gradient is None else narrow_gradient(gradient, factor, dtype)
            for gradient, dtype in zip(results, ctx.dtypes, strict=True)
        ]
        by_weights = narrowed[2] if ctx.by_weights else None
        return (*narrowed[:2], by_weights, None, None, None, *narrowed[3:])
