"""The chunked evaluation behind :mod:`fairseq_kerbs.likelihood`: one pass gives loss and gradients.

Tokens are processed in chunks. The loss is a sum over tokens, so the gradient of a chunk is known
as soon as its logits are: it is multiplied into dh, dW and dθ at once (three matrix products in
all: logits, dh, dW) and the chunk's buffers are used again for the next one. With label smoothing
over words the gradient of the smoothed target needs, besides, the posterior of every sense inside
its own word: one gather a chunk.

Products run in the dtype of the inputs (that of autocast, where it is on), everything after them
in float32, or float64 for float64 inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.chunk_kernels import State, over_chunks
from fairseq_kerbs.kernels import Kernel, compute_dtype, safe_norm
from fairseq_kerbs.senses import SenseTable

CHUNK_BYTES = 8 << 20
"""Size of one tokens × senses buffer in float32: a chunk's few buffers stay near the caches."""

ACCELERATOR_CHUNK_BYTES = 128 << 20
"""The same on an accelerator, where a product needs many tokens to fill the device."""


@dataclass(frozen=True)
class NllOptions:
    """Settings of one evaluation; see :func:`fairseq_kerbs.likelihood.kerbs_nll` for their meaning.

    ``with_gradients`` is False where the caller's autograd is off (validation): an autograd
    function cannot see that for itself.
    """

    kernel: Kernel
    ignore_index: int = -100
    label_smoothing: float = 0.0
    chunk_tokens: int | None = None
    with_gradients: bool = True


def word_logsumexp(logits: Tensor, table: SenseTable) -> Tensor:
    """Sum exp(logits) over the senses of each word, in the log: [..., M] -> [..., V].

    Each word is scaled by its own largest sense, so that improbable words keep their precision.
    """
    if table.senses.shape[1] == 1:
        return logits.index_select(-1, table.senses[:, 0])
    slots = logits[..., table.senses]  # [..., V, K]
    return slots.masked_fill(~table.mask, -torch.inf).logsumexp(-1)


class _Plan:
    """Everything about one evaluation that does not depend on the chunk."""

    def __init__(
        self,
        h: Tensor,
        w: Tensor,
        theta: Tensor,
        word_of_sense: Tensor,
        target: Tensor,
        table: SenseTable,
        options: NllOptions,
    ) -> None:
        self.dtype = compute_dtype(h, w, theta)
        device = h.device.type
        # like torch's own products, float64 stays float64 under autocast
        if torch.is_autocast_enabled(device) and self.dtype == torch.float32:
            self.product_dtype = torch.get_autocast_dtype(device)
        else:
            self.product_dtype = torch.promote_types(h.dtype, w.dtype)
        self.h, self.w = h.to(self.product_dtype), w.to(self.product_dtype)
        self.h_norm = safe_norm(h.to(self.dtype))  # [N, 1]
        self.w_norm = safe_norm(w.to(self.dtype)).squeeze(-1)  # [M]
        self.kernel = over_chunks(options.kernel, self.w_norm, theta.to(self.dtype))
        self.word_of_sense, self.table, self.options = word_of_sense, table, options
        self.counted = target != options.ignore_index  # [N]
        self.target = torch.where(self.counted, target, 0)
        buffer = CHUNK_BYTES if device == "cpu" else ACCELERATOR_CHUNK_BYTES
        tokens = options.chunk_tokens or max(16, buffer // (4 * max(1, w.shape[0])))
        self.chunks = [slice(i, min(i + tokens, h.shape[0])) for i in range(0, h.shape[0], tokens)]

    def logits(self, rows: slice) -> tuple[Tensor, State]:
        """Kernel logits of a chunk, [n, M], and what the kernel wants back with their gradient."""
        x = (self.h[rows] @ self.w.t()).to(self.dtype)  # [n, M]
        if self.product_dtype == torch.float16:  # norms of 256 and 256 reach its end
            x.clamp_(torch.finfo(torch.float16).min, torch.finfo(torch.float16).max)
        return self.kernel.logits(x, self.h_norm[rows])


class _Gradients:
    """Sums dh, dW and dθ over chunks, in the compute dtype."""

    def __init__(self, plan: _Plan, needs: tuple[bool, bool, bool]) -> None:
        self.plan, self.needs = plan, needs
        plan.kernel.reset()
        self.h = torch.zeros_like(plan.h, dtype=plan.dtype) if needs[0] else None
        # dθ of the KerBS kernel, too, is read off the product Pᵀ h
        self.w = torch.zeros_like(plan.w, dtype=plan.dtype) if needs[1] or needs[2] else None

    def add(self, rows: slice, state: State, grad_logits: Tensor) -> None:
        """Take in a chunk: the kernel's state and the gradient of its logits, [n, M]."""
        plan, h_norm = self.plan, self.plan.h_norm[rows]
        by_x, along_h = plan.kernel.pull_back(grad_logits, state, h_norm)
        h, unscale = plan.h[rows], None
        if plan.product_dtype == torch.float16:
            scale = _float16_scale(by_x, plan.w, h)
            by_x, unscale = by_x * scale, 1.0 / scale
        by_x = by_x.to(plan.product_dtype)
        if self.h is not None:
            product = _rescaled((by_x @ plan.w).to(plan.dtype), unscale)
            self.h[rows] = plan.kernel.h_gradient(product, along_h, h.to(plan.dtype), h_norm)
        if self.w is not None:
            if plan.product_dtype == plan.dtype:
                self.w.addmm_(by_x.t(), h)
            else:
                self.w += _rescaled((by_x.t() @ h).to(plan.dtype), unscale)

    def finish(self) -> tuple[Tensor | None, ...]:
        """Gradients of h, w and theta in the compute dtype; None where none is needed."""
        w, theta = self.plan.w.to(self.plan.dtype), None
        if self.needs[2] and self.w is not None:
            theta = self.plan.kernel.theta_gradient(self.w, w)
        if self.needs[1] and self.w is not None:
            self.w = self.plan.kernel.w_gradient(self.w, w)
        return tuple(
            gradient if need else None
            for gradient, need in zip((self.h, self.w, theta), self.needs, strict=True)
        )


def _float16_scale(by_x: Tensor, w: Tensor, h: Tensor) -> Tensor:
    """Factor that takes P = G·∂s/∂x as high in float16's range as P W and Pᵀ h allow.

    Most entries of G are probabilities of one in many thousand senses, which float16 would round
    to a few bits or to 0; those at −1 times a steep kernel may pass its upper end.
    """
    size = by_x.abs()
    rows = size.sum(1).amax() * w.abs().amax().to(size.dtype).clamp_min(1.0)
    columns = size.sum(0).amax() * h.abs().amax().to(size.dtype).clamp_min(1.0)
    largest = torch.maximum(rows, columns)
    return torch.where(largest > 0, 32768.0 / largest, 1.0)


def _rescaled(product: Tensor, factor: Tensor | None) -> Tensor:
    return product if factor is None else product.mul_(factor)


def _token_terms(plan: _Plan, rows: slice, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """logsumexp over all senses [n, 1], plain nll [n], target posteriors and joints [n, K]."""
    target = plan.target[rows]
    senses, mask = plan.table.senses[target], plan.table.mask[target]  # [n, K]
    normalizer = logits.logsumexp(1, keepdim=True)  # [n, 1]
    own = logits.gather(1, senses).masked_fill(~mask, -torch.inf)
    word = own.logsumexp(1, keepdim=True)  # [n, 1]
    counted = plan.counted[rows]
    nll = torch.where(counted, (normalizer - word).squeeze(1), 0.0)
    joint = torch.where(counted.unsqueeze(1), (own - normalizer).exp(), 0.0)
    return normalizer, nll, (own - word).exp(), joint


def _smoothing(plan: _Plan) -> tuple[float, float]:
    """Weights (1 − ε − ε', ε') of the plain nll and of the sum over words."""
    epsilon, vocab_size = plan.options.label_smoothing, plan.table.senses.shape[0]
    if epsilon == 0.0:
        return 1.0, 0.0
    each = epsilon / max(1, vocab_size - 1)
    return 1.0 - epsilon - each, each


def _run_chunks(
    plan: _Plan, gradients: _Gradients | None, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Go through all chunks once.

    Args:
        plan: the evaluation.
        gradients: sums to add gradients to, or None.
        weight: [N] gradient of the result by each token's loss; None where all are 1.

    Returns:
        smoothed loss [N], plain nll [N], P(s_t = m) of the target's senses [N, K].
    """
    size, width = plan.h.shape[0], plan.table.senses.shape[1]
    loss = plan.h_norm.new_zeros(size)
    plain = plan.h_norm.new_zeros(size)
    joints = plan.h_norm.new_zeros(size, width)
    share, each = _smoothing(plan)
    for rows in plan.chunks:
        logits, state = plan.logits(rows)
        normalizer, nll, posterior, joint = _token_terms(plan, rows, logits)
        plain[rows], joints[rows] = nll, joint
        words = word_logsumexp(logits, plan.table) if each else None  # [n, V]
        loss[rows] = share * nll
        if words is not None:
            counted = plan.counted[rows]
            spread = (normalizer - words).sum(1)
            loss[rows] += each * torch.where(counted, spread, 0.0)
        if gradients is not None:
            scale = plan.counted[rows].to(plan.dtype)
            if weight is not None:
                scale = scale * weight[rows]
            grad = _grad_logits(plan, rows, logits, normalizer, posterior, words)
            gradients.add(rows, state, grad.mul_(scale.unsqueeze(1)))
    return loss, plain, joints


def _grad_logits(
    plan: _Plan,
    rows: slice,
    logits: Tensor,
    normalizer: Tensor,
    posterior: Tensor,
    words: Tensor | None,
) -> Tensor:
    """d loss/d logits of a chunk, [n, M]; overwrites ``logits``.

    (share + each·V)·P(m) − share·P(m | word y)·1[L(m)=y] − each·P(m | word L(m))
    """
    share, each = _smoothing(plan)
    senses = plan.table.senses[plan.target[rows]]
    within = None
    if words is not None:
        within = (logits - words.index_select(1, plan.word_of_sense)).exp_()
    grad = logits.sub_(normalizer).exp_()
    if words is not None and within is not None:
        grad.mul_(share + each * words.shape[1]).sub_(within, alpha=each)
    return grad.scatter_add_(1, senses, -share * posterior)


class ChunkedNll(torch.autograd.Function):
    """Loss whose gradient is ready when its value is; see the head of this file.

    Gradients wait for backward in the compute dtype: the scale that mixed-precision training puts
    on the loss arrives there, before they are rounded to the parameters' dtype. For reduction
    "none" each token's loss meets its own gradient only in backward, where the logits are computed
    once more: four products instead of three.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        w: Tensor,
        theta: Tensor,
        word_of_sense: Tensor,
        target: Tensor,
        table: SenseTable,
        options: NllOptions,
        reduction: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        wanted = [need and options.with_gradients for need in ctx.needs_input_grad[:3]]
        needs = (wanted[0], wanted[1], wanted[2] and options.kernel.has_theta)
        ctx.reduction, ctx.needs = reduction, needs
        ctx.dtypes = (h.dtype, w.dtype, theta.dtype)
        plan = _Plan(h, w, theta, word_of_sense, target, table, options)
        ctx.divisor = plan.counted.sum().clamp_min(1).to(plan.dtype)
        gradients = _Gradients(plan, needs) if any(needs) and reduction != "none" else None
        with torch.autocast(h.device.type, enabled=False):
            loss, plain, joints = _run_chunks(plan, gradients, None)
            if gradients is not None:
                ctx.gradients = gradients.finish()
        if any(needs) and reduction == "none":
            ctx.plan = plan
            ctx.save_for_backward(h, w, theta)  # backward reads the plan; this guards its inputs
        ctx.mark_non_differentiable(plain, joints)
        if reduction == "sum":
            loss = loss.sum()
        elif reduction == "mean":
            loss = loss.sum() / ctx.divisor
        return loss, plain, joints

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if not any(ctx.needs):  # only a theta that the kernel does not read
            return (None,) * 8
        with torch.autocast(grad_loss.device.type, enabled=False):
            if ctx.reduction == "none":
                _ = ctx.saved_tensors  # an error if h, w or theta was changed in place since
                gradients = _Gradients(ctx.plan, ctx.needs)
                _run_chunks(ctx.plan, gradients, grad_loss)
                results, factor = gradients.finish(), None
            else:
                factor = grad_loss / ctx.divisor if ctx.reduction == "mean" else grad_loss
                results = ctx.gradients
        narrowed = (
            None if gradient is None else _narrow(gradient, factor, dtype)
            for gradient, dtype in zip(results, ctx.dtypes, strict=True)
        )
        return (*narrowed, None, None, None, None, None)


def _narrow(gradient: Tensor, factor: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Gradient times ``factor`` in ``dtype``; only the factor, a loss scale, may overflow it."""
    if torch.finfo(dtype).max < torch.finfo(gradient.dtype).max:
        limits = torch.finfo(dtype)
        gradient = gradient.clamp(limits.min, limits.max)
    return (gradient if factor is None else gradient * factor).to(dtype)
