"""The chunked evaluation behind :mod:`.likelihood.functional`: one pass gives loss and gradients.

Tokens are processed in chunks. The loss is a sum over tokens, so the gradient of a chunk is known
as soon as its logits are: it is multiplied into dh, dW and dθ at once (three matrix products in
all: logits, dh, dW) and the chunk's buffer is used again for the next one. What happens between
the products is the business of :mod:`.likelihood.backends.eager`, or of its fused forms.

Products run in the dtype of the inputs (that of autocast, where it is on), everything after them
in float32, or float64 for float64 inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.kernels import (
    InnerProductKernel,
    KerbsKernel,
    Kernel,
    compute_dtype,
    safe_inverse,
    safe_norm,
)
from fairseq_kerbs.likelihood.backends import cpu as fused_cpu
from fairseq_kerbs.likelihood.backends import triton as fused_cuda
from fairseq_kerbs.likelihood.backends.eager import ChunkPasses, InnerProductPasses, Smoothing
from fairseq_kerbs.likelihood.backends.eager_kerbs import KerbsPasses
from fairseq_kerbs.senses import SenseTable

ACCELERATOR_SHARE = 8
"""On an accelerator a chunk takes at most this fraction of the free memory, and 1 GiB."""


@dataclass(frozen=True)
class NllOptions:
    """Settings of one evaluation; see :func:`.likelihood.functional.kerbs_nll` for their meaning.

    ``with_gradients`` is False where the caller's autograd is off (validation): an autograd
    function cannot see that for itself.
    """

    kernel: Kernel
    ignore_index: int = -100
    label_smoothing: float = 0.0
    chunk_tokens: int | None = None
    with_gradients: bool = True


def choose_passes(
    kernel: Kernel,
    w_norm: Tensor,
    theta: Tensor,
    table: SenseTable,
    owner: Tensor,
    *,
    fused: bool = True,
) -> ChunkPasses:
    """The leanest passes for a kernel, a device and a dtype.

    Args:
        kernel: the kernel.
        w_norm: norms of the sense embeddings, [M], in the compute dtype.
        theta: kernel parameters, [M], in the same.
        table: senses of every word.
        owner: owner of each sense, [M].
        fused: whether a form without logits will do.
    """
    lean = {KerbsKernel: KerbsPasses, InnerProductKernel: InnerProductPasses}
    kind = lean.get(type(kernel), ChunkPasses)
    passes = None
    if fused and w_norm.device.type == "cpu":
        passes = fused_cpu.fused(kind, kernel, w_norm, theta, table, owner)
    elif fused and w_norm.device.type == "cuda":
        passes = fused_cuda.fused(kind, kernel, w_norm, theta, table, owner)
    return passes or kind(kernel, w_norm, theta, table, owner)


def chunk_tokens(passes: ChunkPasses, senses: int, device: torch.device, itemsize: int) -> int:
    """Number of tokens in a chunk: a multiple of 32 that keeps the buffers where they are fast."""
    budget = passes.cpu_buffer_bytes
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        budget = min(1 << 30, free // ACCELERATOR_SHARE) // passes.buffers
    tokens = budget // (itemsize * max(1, senses))
    return max(16, tokens if tokens < 32 else tokens // 32 * 32)


@functools.cache
def fast_product() -> Callable[..., Tensor] | None:
    """oneDNN's x, w -> x wᵀ, 1.2 to 1.5 times as fast here as the BLAS behind torch.mm.

    torch keeps it for models that its compiler has frozen; None where this torch has none.
    """
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        operator: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
        operator(torch.ones(2, 3), torch.ones(4, 3), None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return None
    return operator


class Products:
    """Products of all senses with chunks of context vectors, and the passes over them.

    Args:
        h: context vectors, [N, d].
        w: sense embeddings, [M, d].
        theta: kernel parameters, [M].
        word_of_sense: [M].
        table: senses of every word.
        kernel: the kernel.
        tokens: tokens in a chunk; None lets :func:`chunk_tokens` choose.
        passes: those of an earlier evaluation with the same senses.
    """

    def __init__(
        self,
        h: Tensor,
        w: Tensor,
        theta: Tensor,
        word_of_sense: Tensor,
        table: SenseTable,
        kernel: Kernel,
        tokens: int | None = None,
        passes: ChunkPasses | None = None,
    ) -> None:
        self.dtype = compute_dtype(h, w, theta)
        device = h.device.type
        # like torch's own products, float64 stays float64 under autocast
        if torch.is_autocast_enabled(device) and self.dtype == torch.float32:
            self.product_dtype = torch.get_autocast_dtype(device)
        else:
            self.product_dtype = torch.promote_types(h.dtype, w.dtype)
        self.h, self.w = h.to(self.product_dtype), w.to(self.product_dtype)
        wide_h = h.to(self.dtype)
        self.h_norm = safe_norm(wide_h).squeeze(-1)  # [N]
        if passes is None:
            w_norm = safe_norm(w.to(self.dtype)).squeeze(-1)  # [M]
            bound = kernel.bind(w.shape[1])
            passes = choose_passes(bound, w_norm, theta.to(self.dtype), table, word_of_sense)
        self.passes = passes
        contexts = passes.kernel.map_contexts(wide_h)
        # what P is multiplied with for dW
        self.mapped_h = self.h if contexts is wide_h else contexts.to(self.product_dtype)
        if passes.unit_contexts:
            contexts = wide_h * safe_inverse(self.h_norm).unsqueeze(1)
        self._contexts = contexts.to(self.product_dtype)
        itemsize = torch.finfo(self.dtype).bits // 8
        size, step = h.shape[0], tokens or chunk_tokens(passes, w.shape[0], h.device, itemsize)
        self.chunks = [slice(i, min(i + step, size)) for i in range(0, size, step)]
        cells = w.shape[0] * min(step, size)
        self._buffer: Tensor | None = None
        self._narrow: Tensor | None = None
        self._fast = fast_product() if device == "cpu" and self._is_plain_float() else None
        if self._fast is not None:
            pass  # it makes its own results
        elif self.product_dtype in passes.product_dtypes:
            self._buffer = self.w.new_empty(cells)  # the passes take products as they come
        else:
            self._buffer = self.h_norm.new_empty(cells)
            if self.product_dtype != self.dtype:
                self._narrow = self.w.new_empty(cells)

    def _matrix(self, flat: Tensor, rows: slice) -> Tensor:
        shape = (self.w.shape[0], rows.stop - rows.start)
        return flat[: shape[0] * shape[1]].view(shape)

    def _is_plain_float(self) -> bool:
        return self.product_dtype == self.dtype == torch.float32 and self._contexts.numel() > 0

    def products(self, rows: slice) -> Tensor:
        """X of a chunk, [M, n], in the compute dtype; overwritten by the next chunk's."""
        if self._fast is not None:
            return self._fast(self.w, self._contexts[rows], None, "none", [], "")
        assert self._buffer is not None
        x = self._matrix(self._buffer, rows)
        contexts = self._contexts[rows].t()  # [d, n]
        if self._narrow is None:
            return torch.mm(self.w, contexts, out=x)
        x.copy_(torch.mm(self.w, contexts, out=self._matrix(self._narrow, rows)))
        if self.product_dtype == torch.float16:  # norms of 256 and 256 reach its end
            x.clamp_(torch.finfo(torch.float16).min, torch.finfo(torch.float16).max)
        return x

    def narrow(self, x: Tensor, rows: slice) -> Tensor:
        """``x`` [M, n] in the dtype of products."""
        return x if self._narrow is None else self._matrix(self._narrow, rows).copy_(x)


class _Plan(Products):
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
        super().__init__(h, w, theta, word_of_sense, table, options.kernel, options.chunk_tokens)
        self.table = table
        self.smoothing = Smoothing.of(options.label_smoothing, table.senses.shape[0])
        self.counted = target != options.ignore_index  # [N]
        self.target = torch.where(self.counted, target, 0)


class _Chunk:
    """One chunk after the first pass: its losses, and what the pull back wants."""

    def __init__(self, plan: _Plan, rows: slice) -> None:
        self.plan, self.rows, passes = plan, rows, plan.passes
        self.h_norm, counted = plan.h_norm[rows], plan.counted[rows]  # [n]
        self.x = plan.products(rows)  # [M, n]
        own_x, senses, mask = passes.own_products(self.x, plan.target[rows])  # [n, K]
        own = passes.own_logits(own_x, senses, self.h_norm).masked_fill(~mask, -torch.inf)
        spread = None
        if plan.smoothing.each:
            self.normalizer, spread = passes.reduce_words(self.x, self.h_norm)  # [n]
        else:
            self.normalizer = passes.reduce(self.x, self.h_norm)
        # rounded alone, a word that is all but certain could get a probability above 1
        nll = (self.normalizer - own.logsumexp(1)).clamp_min(0.0)
        self.nll = torch.where(counted, nll, 0.0)  # [n]
        joint = (own - self.normalizer.unsqueeze(1)).exp().clamp_max(1.0)
        self.joint = torch.where(counted.unsqueeze(1), joint, 0.0)  # [n, K]
        self.loss = plan.smoothing.share * self.nll
        if spread is not None:
            self.loss = self.loss + plan.smoothing.each * torch.where(counted, spread, 0.0)

    def pull_back(self, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """P = G·∂s/∂x of the chunk [M, n], and what the kernel's ``h_gradient`` wants [n].

        Args:
            weight: gradient of the result by each token's loss, [n]; None where all are 1.
        """
        plan = self.plan
        scale = plan.counted[self.rows].to(plan.dtype)
        if weight is not None:
            scale = scale * weight
        along_h = plan.passes.pull_back_targets(
            self.x, self.h_norm, self.normalizer, scale, plan.smoothing, plan.target[self.rows]
        )
        return self.x, along_h


class Gradients:
    """Sums dh, dW and dθ over chunks, in the compute dtype."""

    def __init__(self, plan: Products, needs: tuple[bool, bool, bool]) -> None:
        self.plan, self.needs = plan, needs
        plan.passes.reset()
        self.h = torch.empty_like(plan.h, dtype=plan.dtype) if needs[0] else None
        # dθ of the KerBS kernel, too, is read off the product P h
        self.w = torch.zeros_like(plan.w, dtype=plan.dtype) if needs[1] or needs[2] else None

    def add(self, rows: slice, by_x: Tensor, along_h: Tensor) -> None:
        """Take in a chunk: P [M, n] (may be overwritten) and ``along_h`` [n]."""
        plan, mapped, unscale = self.plan, self.plan.mapped_h[rows], None
        if plan.product_dtype == torch.float16:
            scale = _float16_scale(by_x, plan.w, mapped)
            by_x, unscale = by_x.mul_(scale), 1.0 / scale
        by_x = plan.narrow(by_x, rows)
        same = plan.product_dtype == plan.dtype
        if self.h is not None:
            if same:
                torch.mm(by_x.t(), plan.w, out=self.h[rows])
            else:
                self.h[rows] = _rescaled((by_x.t() @ plan.w).to(plan.dtype), unscale)
            h = plan.h[rows].to(plan.dtype)
            plan.passes.h_gradient(self.h[rows], along_h, h, plan.h_norm[rows])
        if self.w is not None:
            if same:
                self.w.addmm_(by_x, mapped)
            else:
                self.w += _rescaled((by_x @ mapped).to(plan.dtype), unscale)

    def finish(self) -> tuple[Tensor | None, ...]:
        """Gradients of h, w and theta in the compute dtype; None where none is needed."""
        w, theta = self.plan.w.to(self.plan.dtype), None
        if self.needs[2] and self.w is not None:
            theta = self.plan.passes.theta_gradient(self.w, w)
        if self.needs[1] and self.w is not None:
            self.w = self.plan.passes.w_gradient(self.w, w)
        return tuple(
            gradient if need else None
            for gradient, need in zip((self.h, self.w, theta), self.needs, strict=True)
        )


def _float16_scale(by_x: Tensor, w: Tensor, h: Tensor) -> Tensor:
    """Factor that takes P = G·∂s/∂x as high in float16's range as Pᵀ W and P h allow.

    Most entries of G are probabilities of one in many thousand senses, which float16 would round
    to a few bits or to 0; those at −1 times a steep kernel may pass its upper end.
    """
    size = by_x.abs()
    tokens = size.sum(0).amax() * w.abs().amax().to(size.dtype).clamp_min(1.0)
    senses = size.sum(1).amax() * h.abs().amax().to(size.dtype).clamp_min(1.0)
    largest = torch.maximum(tokens, senses)
    return torch.where(largest > 0, 32768.0 / largest, 1.0)


def _rescaled(product: Tensor, factor: Tensor | None) -> Tensor:
    return product if factor is None else product.mul_(factor)


def _run_chunks(
    plan: _Plan, gradients: Gradients | None, weight: Tensor | None
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
    for rows in plan.chunks:
        chunk = _Chunk(plan, rows)
        loss[rows], plain[rows], joints[rows] = chunk.loss, chunk.nll, chunk.joint
        if gradients is not None:
            by_x, along_h = chunk.pull_back(None if weight is None else weight[rows])
            gradients.add(rows, by_x, along_h)
            del by_x
        del chunk  # before the next one's products are made
    return loss, plain, joints


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
        gradients = Gradients(plan, needs) if any(needs) and reduction != "none" else None
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
                gradients = Gradients(ctx.plan, ctx.needs)
                _run_chunks(ctx.plan, gradients, grad_loss)
                results, factor = gradients.finish(), None
            else:
                factor = grad_loss / ctx.divisor if ctx.reduction == "mean" else grad_loss
                results = ctx.gradients
        narrowed = (
            None if gradient is None else narrow_gradient(gradient, factor, dtype)
            for gradient, dtype in zip(results, ctx.dtypes, strict=True)
        )
        return (*narrowed, None, None, None, None, None)


def narrow_gradient(gradient: Tensor, factor: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Gradient times ``factor`` in ``dtype``; only the factor, a loss scale, may overflow it."""
    if torch.finfo(dtype).max < torch.finfo(gradient.dtype).max:
        limits = torch.finfo(dtype)
        gradient = gradient.clamp(limits.min, limits.max)
    return (gradient if factor is None else gradient * factor).to(dtype)
