"""The chunked evaluation behind all likelihoods: one pass gives loss and gradients.

Tokens are processed in chunks. The loss is a sum over tokens, so the gradient of a chunk is known
as soon as its logits are: it is multiplied into dh, dW and dθ at once (three matrix products in
all: logits, dh, dW) before the next chunk begins. What happens between the products is the business
of :mod:`.likelihood.backends`; what the loss is, that of an :class:`Evaluation`.

Products run in the dtype of the inputs (that of autocast, where it is on), everything after them
in float32, or float64 for float64 inputs.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.kernels import InnerProductKernel, KerbsKernel
from fairseq_kerbs.kernels.base import compute_dtype, safe_inverse, safe_norm
from fairseq_kerbs.likelihood.backends import cpu, eager, triton
from fairseq_kerbs.likelihood.backends.blocks import each, slices
from fairseq_kerbs.likelihood.backends.closed_forms import InnerProductBackend, KerbsBackend


@dataclass(frozen=True)
class NllOptions:
    """Options of a likelihood.

    Attributes:
        ignore_index: targets with this value give no loss and no gradient.
        label_smoothing: ε; the loss of a token is (1 − ε − ε')·nll + ε' Σ_i −log P(word i) with
            ε' = ε/(V − 1), as fairseq's label smoothing.
        reduction: "sum", "mean" (over tokens that count) or "none" ([N], 0 where ignored).
        chunk_tokens: tokens in one chunk; by default what :func:`chunk_tokens` finds right.
        gradient_filter: 0 for exact gradients. Above 0, senses for which |∂loss/∂x| (P of
            :mod:`.likelihood.backends.eager`) is at most so much times the largest weight of a
            token's loss, in all of a chunk's tokens, are left out of the two products that make dh
            and dW. The loss stays exact. For the kernels ``kerbs`` and ``lin``, and not with label
            smoothing, whose gradients are as small for all senses.

    Raises:
        ValueError: an option is out of range, or does not go together with another.
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: str = "sum"
    chunk_tokens: int | None = None
    gradient_filter: float = 0.0

    def __post_init__(self) -> None:
        if self.reduction not in ("sum", "mean", "none"):
            raise ValueError(
                f"`reduction` is '{self.reduction}'; it must be 'sum', 'mean' or 'none'."
            )
        for name in ("label_smoothing", "gradient_filter"):
            if not 0.0 <= (value := getattr(self, name)) < 1.0:
                raise ValueError(f"`{name}` is {value}; it must be within [0, 1).")
        if self.gradient_filter and self.label_smoothing:
            raise ValueError(
                "`gradient_filter` does not go together with `label_smoothing`, whose gradients it "
                "would leave out: give one of them."
            )

    def check(self, target: Tensor, tokens: int, vocab_size: int) -> None:
        """Raise a ValueError where a target is no word."""
        if target.shape != (tokens,):
            raise ValueError(
                f"`target` has shape {tuple(target.shape)}; it must be [N], N = {tokens}."
            )
        if target.is_cuda:  # without a pause; of those that are too high the gather says it
            words = (target >= 0) | (target == self.ignore_index)
            torch._assert_async(words.all(), "a target is negative and not ignore_index")
        used = target[target != self.ignore_index] if target.device.type == "cpu" else target[:0]
        if used.numel() and not 0 <= int(used.min()) <= int(used.max()) < vocab_size:
            raise ValueError(
                f"A target is outside the vocabulary of {vocab_size} words and is not "
                f"`ignore_index` ({self.ignore_index})."
            )


# ------------------------------------------------------------------------ products of a chunk

SHARE = 2048
"""Senses in a share of a product, where threads take one after another."""


def choose_backend(senses: eager.Senses, dtype: torch.dtype, fused: bool = True) -> eager.Backend:
    """The leanest backend; ``fused`` says whether one that never has all logits will do."""
    build = {"cpu": cpu.build, "cuda": triton.build}.get(senses.w.device.type)
    lean = {KerbsKernel: KerbsBackend, InnerProductKernel: InnerProductBackend}
    found = build(senses, dtype) if fused and build else None
    return found or lean.get(type(senses.kernel), eager.Backend)(senses, dtype)


def chunk_tokens(
    backend: eager.Backend, senses: int, device: torch.device, dtype: torch.dtype
) -> int:
    """Number of tokens in a chunk: a multiple of 32 that keeps the buffers where they are fast."""
    budget = backend.cpu_buffer_bytes
    if device.type == "cuda":
        # every chunk reads and writes all of dW, so that few large ones are better; what is free
        # at the moment would make sums of another order in another run
        most = torch.cuda.get_device_properties(device).total_memory // 16
        budget = min(4 << 30, most) // backend.buffers
    tokens = budget // (dtype.itemsize * max(1, senses))
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
    """Products of all senses with chunks of context vectors h [N, d], and the backend for them.

    ``tokens`` are those in a chunk, by default :func:`chunk_tokens`; ``backend`` is that of an
    earlier evaluation with the same senses.
    """

    def __init__(
        self,
        h: Tensor,
        senses: eager.Senses,
        tokens: int | None = None,
        backend: eager.Backend | None = None,
    ) -> None:
        w, device = senses.w, h.device.type
        self.dtype = compute_dtype(h, w, senses.theta)
        # like torch's own products, float64 stays float64 under autocast
        if torch.is_autocast_enabled(device) and self.dtype == torch.float32:
            self.product_dtype = torch.get_autocast_dtype(device)
        else:
            self.product_dtype = torch.promote_types(h.dtype, w.dtype)
        self.h, self.w = h.to(self.product_dtype), w.to(self.product_dtype)
        wide_h = h.to(self.dtype)
        self.h_norm = safe_norm(wide_h).squeeze(-1)  # [N]
        self.backend = backend = backend or choose_backend(senses, self.dtype)
        contexts = backend.kernel.map_contexts(wide_h)
        # what P is multiplied with for dW
        self.mapped_h = self.h if contexts is wide_h else contexts.to(self.product_dtype)
        if backend.unit_contexts:
            contexts = wide_h * safe_inverse(self.h_norm).unsqueeze(1)
        self._contexts = contexts.to(self.product_dtype)
        size, step = len(h), tokens or chunk_tokens(backend, len(w), h.device, self.dtype)
        self.chunks = [slice(i, min(i + step, size)) for i in range(0, size, step)]
        plain = self.product_dtype == self.dtype == torch.float32 and size > 0
        self._fast = fast_product() if device == "cpu" and plain and w.numel() > 0 else None
        # products by torch's threads would keep these waiting, and busy, while backends have theirs
        shared = device == "cpu" and backend.has_threads and torch.get_num_threads() > 1
        self.share = SHARE if shared else max(1, len(w))

    def products(self, rows: slice) -> Tensor:
        """X of a chunk, [M, n], in the compute dtype, or the backend's."""
        contexts = self._contexts[rows]
        if self._fast is not None and self.share >= len(self.w):
            return self._fast(self.w, contexts, None, "none", [], "")
        x = contexts.new_empty(len(self.w), len(contexts))

        def work(at: slice) -> None:
            if self._fast is None:
                torch.mm(self.w[at], contexts.t(), out=x[at])
            else:
                x[at] = self._fast(self.w[at], contexts, None, "none", [], "")

        each(work, slices(len(self.w), self.share))
        if not self.backend.takes(self.product_dtype):
            x = x.to(self.dtype)
        if self.product_dtype == torch.float16:  # norms of 256 and 256 reach its end
            x.clamp_(torch.finfo(torch.float16).min, torch.finfo(torch.float16).max)
        return x


FILTERED = ("kerbs", "lin")  # kernels for which gradients may be filtered
MOST_KEPT = 0.75
"""Above this share of senses, copying those that a gradient filter keeps costs what it saves."""


class Gradients:
    """Sums dh, dW and dθ over chunks, in the compute dtype, where each is needed.

    ``gradient_filter`` is that of :class:`NllOptions`.
    """

    def __init__(
        self, products: Products, needs: Sequence[bool], gradient_filter: float = 0.0
    ) -> None:
        self.products, self.needs, self.gradient_filter = products, needs, gradient_filter
        # of other kernels ``along_h`` would keep what P loses
        if gradient_filter and products.backend.kernel.name not in FILTERED:
            raise ValueError("`gradient_filter` is for the kernels kerbs and lin.")
        self.sums = products.h_norm.new_zeros(2, len(products.w))  # the backend's, over tokens
        self._sums_before = self.sums.clone() if gradient_filter else self.sums
        self.h = torch.empty_like(products.h, dtype=products.dtype) if needs[0] else None
        # dθ of the KerBS kernel, too, is read off the product P h
        wanted = needs[1] or needs[2]
        self.w = torch.zeros_like(products.w, dtype=products.dtype) if wanted else None

    def add(self, rows: slice, p: Tensor, along_h: Tensor, weight: Tensor | None = None) -> None:
        """Take in a chunk: P [M, n] (may be overwritten) and ``along_h`` [n].

        ``weight`` is the gradient of the result by each token's loss, [n]; None where all are 1.
        """
        products, mapped = self.products, self.products.mapped_h[rows]
        same, unscale = products.product_dtype == products.dtype, None
        w, kept = products.w, self._filter(p, weight)
        if kept is not None:
            p, w = p[kept], w[kept]
        if products.product_dtype == torch.float16 and len(p):
            scale = _float16_scale(p, w, mapped)
            p, unscale = p.mul_(scale), 1.0 / scale
        p = p.to(products.product_dtype)

        def wide(product: Tensor) -> Tensor:
            product = product.to(products.dtype)
            return product if unscale is None else product.mul_(unscale)

        if self.h is not None:
            own, shares = self.h[rows], slices(max(1, len(w)), products.share)
            parts = each(lambda at: wide(p[at].t() @ w[at]), shares)

            def by_h(at: slice) -> None:
                product = torch.stack([part[at] for part in parts]).sum(0)
                h, h_norm = products.h[rows][at].to(products.dtype), products.h_norm[rows][at]
                own[at] = products.backend.h_gradient(product, along_h[at], h, h_norm)

            each(by_h, slices(len(along_h), 64 if len(parts) > 1 else len(along_h)))
        if self.w is not None and kept is not None:
            self.w.index_add_(0, kept, wide(p @ mapped))
        elif self.w is not None:

            def by_w(at: slice) -> None:
                assert self.w is not None
                if same:
                    self.w[at].addmm_(p[at], mapped)
                else:
                    self.w[at] += wide(p[at] @ mapped)

            each(by_w, slices(len(w), products.share))

    def _filter(self, p: Tensor, weight: Tensor | None) -> Tensor | None:
        """Numbers of the senses that the filter keeps; None for all."""
        if not self.gradient_filter:
            return None
        largest = 1.0 if weight is None else weight.abs().amax()
        small = torch.maximum(p.amax(1), p.amin(1).neg_()) <= self.gradient_filter * largest
        filtered = bool(small.sum() > (1.0 - MOST_KEPT) * len(p))
        if filtered:
            # what else this chunk added for them would not fit to dW without it
            self.sums.copy_(torch.where(small, self._sums_before, self.sums))
        self._sums_before = self.sums.clone()
        return (~small).nonzero().squeeze(1) if filtered else None

    def finish(self) -> list[Tensor | None]:
        """Gradients of h, w and theta in the compute dtype; None where none is needed."""
        found: list[Tensor | None] = [self.h, None, None]
        if self.w is not None:
            w = self.products.w.to(self.products.dtype)
            found[1:] = self.products.backend.sense_gradients(self.w, w, self.sums)
        return [value if need else None for value, need in zip(found, self.needs, strict=True)]


def _float16_scale(p: Tensor, w: Tensor, h: Tensor) -> Tensor:
    """Factor that takes P = G·∂s/∂x as high in float16's range as Pᵀ W and P h allow.

    Most entries of G are probabilities of one in many thousand senses, which float16 would round
    to a few bits or to 0; those at −1 times a steep kernel may pass its upper end.
    """
    size = p.abs()
    tokens = size.sum(0).amax() * w.abs().amax().to(size.dtype).clamp_min(1.0)
    senses = size.sum(1).amax() * h.abs().amax().to(size.dtype).clamp_min(1.0)
    largest = torch.maximum(tokens, senses)
    return torch.where(largest > 0, 32768.0 / largest, 1.0)


# ------------------------------------------------------------------------ loss and gradients


class Evaluation(ABC):
    """One likelihood of some tokens: what :class:`ChunkedNll` goes through chunk by chunk."""

    dtype: torch.dtype  # of all sums
    chunks: list[slice]
    reads: Sequence[bool]  # whether the result depends on each of the inputs
    widths: tuple[tuple[int, ...], ...] = ((), ())  # sizes beyond N of what each chunk finds

    def __init__(
        self, target: Tensor, tokens: int, vocab_size: int, options: dict[str, Any]
    ) -> None:
        self.options = NllOptions(**options)
        self.options.check(target, tokens, vocab_size)
        self.smoothing = eager.Smoothing.of(self.options.label_smoothing, vocab_size)
        self.counted = target != self.options.ignore_index  # [N]
        self.target = torch.where(self.counted, target, 0)

    @abstractmethod
    def chunk(self, rows: slice) -> tuple[tuple[Tensor, ...], Callable[[Tensor, Any], None]]:
        """Loss [n] and plain nll [n] of a chunk, and what else ``widths`` lists; and a function
        that adds its gradients to sums, given the gradient of the result by each token's loss."""

    @abstractmethod
    def new_gradients(self, needs: Sequence[bool]) -> Any:
        """Empty sums of gradients by the inputs, whose ``finish()`` lists them."""

    def run(
        self, needs: Sequence[bool], weight: Tensor | None = None
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Go through all chunks once: what they find, 0 where ignored, and the gradients needed.

        ``weight`` is the gradient of the result by each token's loss, [N]; None where all are 1.
        """
        size, device = len(self.target), self.target.device
        found = [torch.zeros(size, *w, dtype=self.dtype, device=device) for w in self.widths]
        gradients = self.new_gradients(needs) if any(needs) else None
        with torch.autocast(device.type, enabled=False):
            for rows in self.chunks:
                counted = self.counted[rows]
                values, backward = self.chunk(rows)
                for whole, value in zip(found, values, strict=True):
                    mask = counted.view(-1, *[1] * (value.dim() - 1))
                    whole[rows] = torch.where(mask, value, 0.0)
                if gradients is not None:
                    scale = counted.to(self.dtype)
                    backward(scale if weight is None else scale * weight[rows], gradients)
                del values, backward  # before the next chunk's products are made
            return found, [] if gradients is None else gradients.finish()

    def apply(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The loss as a function of the inputs, and what else is found of each token."""
        return ChunkedNll.apply(self, torch.is_grad_enabled(), *inputs)


class ChunkedNll(torch.autograd.Function):
    """Loss whose gradient is ready when its value is; see the head of this file.

    Gradients wait for backward in the compute dtype: the scale that mixed-precision training puts
    on the loss arrives there, before they are rounded to the parameters' dtype. For reduction
    "none" each token's loss meets its own gradient only in backward, where the logits are computed
    once more: four products instead of three.
    """

    @staticmethod
    def forward(
        ctx: Any, evaluation: Evaluation, with_gradients: bool, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        """``with_gradients``: whether the caller's autograd is on, which is not seen from here."""
        reduction = evaluation.options.reduction
        ctx.needs = needs = [
            need and reads and with_gradients
            for need, reads in zip(ctx.needs_input_grad[2:], evaluation.reads, strict=True)
        ]
        ctx.deferred = any(needs) and reduction == "none"
        ctx.dtypes = [value.dtype for value in inputs]
        (loss, *others), ctx.gradients = evaluation.run([] if ctx.deferred else needs)
        if ctx.deferred:
            ctx.evaluation = evaluation
            ctx.save_for_backward(*inputs)  # backward reads the evaluation; this guards its inputs
        ctx.mark_non_differentiable(*others)
        ctx.divisor = evaluation.counted.sum().clamp_min(1) if reduction == "mean" else None
        if reduction != "none":
            loss = loss.sum()
        return (loss if ctx.divisor is None else loss / ctx.divisor, *others)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if not any(ctx.needs):  # only a theta that the kernel does not read
            return (None,) * (2 + len(ctx.needs))
        factor: Tensor | None = None
        if ctx.deferred:
            _ = ctx.saved_tensors  # an error if an input was changed in place since
            results = ctx.evaluation.run(ctx.needs, grad_loss)[1]
        else:
            results = ctx.gradients
            factor = grad_loss if ctx.divisor is None else grad_loss / ctx.divisor
        narrowed = (
            _narrow(gradient, factor, dtype) if need else None
            for need, gradient, dtype in zip(ctx.needs, results, ctx.dtypes, strict=True)
        )
        return None, None, *narrowed


def _narrow(gradient: Tensor, factor: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Gradient times ``factor`` in ``dtype``; only the factor, a loss scale, may overflow it."""
    if torch.finfo(dtype).max < torch.finfo(gradient.dtype).max:
        limits = torch.finfo(dtype)
        gradient = gradient.clamp(limits.min, limits.max)
    return (gradient if factor is None else gradient * factor).to(dtype)
