"""A likelihood chunk by chunk: losses of tokens and, at once, the gradients of their sum.

The loss is a sum over tokens, so the gradient of a chunk of tokens is known as soon as its logits
are: it is multiplied into dh, dW and dθ (three matrix products in all: logits, dh, dW) before the
next chunk begins. What happens between the products is in :mod:`.likelihood.passes`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, compute_dtype, safe_inverse, safe_norm
from fairseq_kerbs.kernels.base import is_compiling
from fairseq_kerbs.likelihood import compilation
from fairseq_kerbs.likelihood.passes import (
    KernelPasses,
    Part,
    Tensors,
    gradients,
    normalizers,
    passes_of,
    shared_words,
    slices,
    write_logits,
)
from fairseq_kerbs.senses import SenseTable

STEP = 32  # tokens in a chunk are a multiple of it: rows of X begin where vectors of a CPU do
CPU_TOKENS, CPU_BYTES = 256, 128 << 20  # of X, at most

BLOCK = 1 << 18
"""Products that one operation goes through at a time where nothing is compiled."""

KERNEL_PASSES: dict[str, KernelPasses] = {}  # operators take no objects: kernels by a key of each


def kernel_key(kernel: Kernel) -> str:
    """A key under which :func:`run_chunks` finds a kernel; equal for kernels that do the same."""
    kind = type(kernel)
    key = f"{kind.__module__}.{kind.__qualname__}{sorted(vars(kernel).items())}"
    if key not in KERNEL_PASSES:
        KERNEL_PASSES[key] = passes_of(kernel)
    return key


def check_words(target: Tensor, counted: Tensor, vocab_size: int) -> None:
    """Raise a ValueError where a target that counts is no word; on a GPU it fails later there."""
    valid = (target >= 0) & (target < vocab_size) | ~counted
    if target.is_cuda:  # a question here would be a pause for the card
        torch._assert_async(valid.all(), "a target is outside the vocabulary")
    elif not bool(valid.all()):
        raise ValueError(
            f"`target` holds {int(target[~valid][0])}, which is outside the vocabulary of "
            f"{vocab_size} words and not `ignore_index`."
        )


@functools.cache
def _onednn() -> Callable[..., Tensor] | None:
    """oneDNN's a, b -> a bᵀ, which torch keeps for models that its compiler has frozen; None where
    this torch has none. On an AMD CPU it takes half the time of the BLAS behind torch.mm."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        operator: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
        some = torch.ones(2, 3, device="cpu", dtype=torch.float32)
        operator(some, some, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return None
    return operator


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ of [m, k] and [n, k]."""
    plain = a.device.type == "cpu" and a.dtype == torch.float32 and a.numel() and b.numel()
    operator = _onednn() if plain and not is_compiling() else None
    if operator is not None:
        return operator(a, b, None, "none", [], "")
    return a @ b.t()


class PreparedSenses:
    """Senses as the products want them; see :class:`Senses`, :class:`.passes.KernelPasses`."""

    def __init__(
        self, h: Tensor, w: Tensor, theta: Tensor, passes: KernelPasses, products: torch.dtype
    ) -> None:
        self.dtype, self.passes = compute_dtype(h, w, theta), passes
        self.w = w.to(products)
        self.wide_w = w.to(self.dtype)
        self.w_norm = safe_norm(self.wide_w).squeeze(-1)  # [M]
        self.columns = passes.columns(self.w_norm, theta.to(self.dtype))

    def contexts(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """What the products X take of context vectors [..., d], and their norms [...]."""
        wide = h.to(self.dtype)
        h_norm = safe_norm(wide)
        contexts = self.passes.kernel.map_contexts(wide)
        if self.passes.unit_contexts:
            contexts = contexts * safe_inverse(h_norm)
        return contexts.to(self.w.dtype), h_norm.squeeze(-1)

    def products(self, contexts: Tensor) -> Tensor:
        """X [M, n] of contexts [n, d], in the compute dtype."""
        x = multiply(self.w, contexts).to(self.dtype)
        if self.w.dtype == torch.float16:  # norms of 256 and 256 reach its end
            x.clamp_(torch.finfo(torch.float16).min, torch.finfo(torch.float16).max)
        return x

    def logits_of(self, senses: Tensor, rows: Tensor, h: Tensor) -> Tensor:
        """Logits [..., K] of some senses for each context vector h [..., d]: their numbers [..., K]
        and vectors ``rows`` [..., K, d]."""
        contexts, h_norm = self.contexts(h)
        x = torch.einsum("...d,...kd->...k", contexts.to(self.dtype), rows.to(self.dtype))
        return self.passes.logits(x, h_norm.unsqueeze(-1), self.columns_of(senses))

    def columns_at(self, rows: slice) -> Tensors:
        """The columns of some rows."""
        return tuple(column[rows] for column in self.columns)

    def columns_of(self, senses: Tensor) -> Tensors:
        """The columns at some senses [...]."""
        return tuple(column.squeeze(1)[senses] for column in self.columns)


def product_dtype(h: Tensor, w: Tensor) -> torch.dtype:
    """The dtype of products; float64 stays float64 under autocast, as in torch's own products."""
    found = torch.promote_types(h.dtype, w.dtype)
    device = h.device.type
    if found != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return found


def chunk_size(tokens: int, w: Tensor, compiled: bool) -> int:
    """Number of tokens in a chunk, a multiple of 32.

    Compiled on a CPU, all chunks have one size whatever the number of tokens, so that one
    compilation serves; else they are about as large as each other. On a GPU X has a sixteenth of
    its memory, since every chunk reads and writes all of dW; less where each operation makes a
    matrix of its own.
    """
    row = 4 * max(1, len(w))
    most = min(CPU_TOKENS, CPU_BYTES // row)
    if w.is_cuda:
        memory = torch.cuda.get_device_properties(w.device).total_memory
        most = memory // (16 if compiled else 96) // row
    most = max(STEP, most // STEP * STEP)
    if compiled and not w.is_cuda:
        return most
    even = -(-tokens // max(1, -(-tokens // most)))
    return -(-even // STEP) * STEP


def run_chunks(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    table: Sequence[Tensor],
    target: Tensor,
    counted: Tensor,
    weight: Tensor,
    smoothing: Sequence[float],
    needs: Sequence[bool],
    kernel: str,
    chunk_tokens: int,
    products: torch.dtype,
    compiled: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Losses of all tokens and, at once, the gradients of their weighted sum.

    Args:
        h, w, theta: context vectors [N, d], sense embeddings [M, d], kernel parameters [M].
        table: the four tensors of a :class:`SenseTable`.
        target, counted: target words and which of them count, [N] each.
        weight: the gradient of the result by each token's loss, [N].
        smoothing: weights in the loss of the nll, and of each word's −log P.
        needs: whether gradients by h, w and θ are wanted.
        kernel: a key of :data:`KERNEL_PASSES`.
        chunk_tokens: tokens in a chunk; 0 for :func:`chunk_size`.
        products: dtype of the products.
        compiled: whether the passes may be compiled.

    Returns:
        losses and plain nlls [N], P(s_t = m) of the target's senses [N, K], and the gradients by h,
        w and θ, empty where they are not wanted; all in the compute dtype.
    """
    words = SenseTable(*table)
    check_words(target, counted, len(words.senses))
    with torch.no_grad(), torch.autocast(h.device.type, enabled=False):
        senses = PreparedSenses(h, w, theta, KERNEL_PASSES[kernel], products)
        compiled = compiled and any(needs) and compilation.worthwhile(len(w))
        size = chunk_size(len(h), w, compiled)
        if chunk_tokens:
            size = min(chunk_tokens, max(STEP, -(-len(h) // STEP) * STEP))
        evaluation = _Evaluation(senses, words, (smoothing[0], smoothing[1]), needs, compiled)
        contexts, h_norm = senses.contexts(h)
        target = torch.where(counted, target, 0)
        weight = torch.where(counted, weight.to(senses.dtype), 0.0)
        if compiled and not h.is_cuda:  # all chunks of one size: the last counts for less
            pad = (0, -len(h) % size)
            h_norm, target, weight = (F.pad(value, pad) for value in (h_norm, target, weight))
        found, by_h = [], []
        for start in range(0, len(h), max(1, size)):
            at = slice(start, start + size)
            tokens = (h[at], contexts[at], h_norm[at], target[at], weight[at])
            losses, gradient = evaluation.chunk(*tokens)
            found.append(losses)
            by_h.append(gradient)
        width = words.senses.shape[1]
        empty = [h_norm.new_zeros(0), h_norm.new_zeros(0), h_norm.new_zeros(0, width)]
        whole = [torch.cat(parts)[: len(h)] for parts in zip(empty, *found, strict=True)]
        for values in whole:
            values[~counted] = 0.0
        dh = torch.cat([h_norm.new_zeros(0, h.shape[1] if needs[0] else 0), *by_h])
        return whole[0], whole[1], whole[2], dh, *evaluation.sense_gradients()


class _Evaluation:
    """Sums of gradients over chunks of tokens."""

    def __init__(
        self,
        senses: PreparedSenses,
        table: SenseTable,
        smoothing: tuple[float, float],
        needs: Sequence[bool],
        compiled: bool,
    ) -> None:
        self.senses, self.table, self.smoothing, self.needs = senses, table, smoothing, needs
        self.compiled = compiled
        self.run = compilation.call if compiled else _plainly
        self.rooms: dict[str, Tensor] = {}
        self.sums = senses.w_norm.new_zeros(2, len(senses.w))
        # dθ of the KerBS kernel, too, is read off the product P h
        self.dw = torch.zeros_like(senses.wide_w) if needs[1] or needs[2] else None

    def room(self, name: str, rows: int, tokens: int) -> Tensor:
        """A matrix that all chunks use: fresh pages would take as long as the passes."""
        size = rows * tokens
        if name not in self.rooms:
            self.rooms[name] = self.senses.w_norm.new_empty(size)
        return self.rooms[name][:size].view(rows, tokens)

    def chunk(
        self, h: Tensor, contexts: Tensor, h_norm: Tensor, target: Tensor, weight: Tensor
    ) -> tuple[Tensors, Tensor]:
        """Loss [n], nll [n] and P of the target's senses [n, K]; the gradient by h, [n, d].

        The last three may be longer than ``h`` and ``contexts``, with weights of 0.
        """
        senses, passes, run = self.senses, self.senses.passes, self.run
        count, width = len(senses.w), len(target)
        x, logits = senses.products(contexts), self.room("logits", count, width)
        if width > len(h):
            x = F.pad(x, (0, width - len(h)))
        own, mask = self.table.senses[target], self.table.mask[target]  # [n, K]
        tokens = torch.arange(width, device=target.device)
        own_x, columns = x[own, tokens.unsqueeze(1)], senses.columns_of(own)
        at_target = (h_norm.unsqueeze(1), columns)
        # operation after operation, rows stay in the cache of a CPU only if they are few
        rows = count if self.compiled or x.is_cuda else max(1, BLOCK // max(1, width))
        parts = slices(count, rows)
        for at in parts:
            run(write_logits, passes, x[at], h_norm, senses.columns_at(at), logits[at])
        table = self.table if self.smoothing[1] else None
        log_z, along_h, uniform, log_mass = self._normalize(x, h_norm, logits, table, rows)
        own_logits = passes.logits(own_x, *at_target)
        there = own_logits.masked_fill(~mask, -torch.inf)
        # rounded alone, a word that is all but certain could get a probability above 1
        nll = (log_z - there.logsumexp(1)).clamp_min(0.0)
        loss = nll if uniform is None else self.smoothing[0] * nll + self.smoothing[1] * uniform
        joint = (there - log_z.unsqueeze(1)).exp().clamp_max(1.0)
        if not any(self.needs):
            return (loss, nll, joint), nll.new_zeros(0, 0)
        weight_z = weight * self._whole
        for at in parts:
            own_table = table and table._replace(place=table.place[at])
            sums = run(
                gradients, passes, x[at], h_norm, senses.columns_at(at), logits[at], own_table,
                self._each, log_z, log_mass, weight_z,
            )  # fmt: skip
            for total, part in zip(self.sums, sums, strict=True):
                total[at] += part
        # the target's own senses: −target weight · P(m | y)
        grad = there.softmax(1) * (-self.smoothing[0] * weight).unsqueeze(1)
        by_x, *others = passes.pull_back(grad, own_x, own_logits, *at_target)
        logits.view(-1).index_add_(0, (own * width + tokens.unsqueeze(1)).flatten(), by_x.flatten())
        along_h = along_h * weight_z
        along_h += (grad * passes.along_h(own_x, own_logits, *at_target)).sum(1)
        for total, part in zip(self.sums, others, strict=True):
            if isinstance(part, Tensor):
                total.index_add_(0, own.flatten(), part.flatten())
        kept = slice(0, len(h))
        by_h = self._multiply(logits[:, kept], h, h_norm[kept], along_h[kept])
        return (loss, nll, joint), by_h

    @property
    def _whole(self) -> float:
        """Weight of log Z in the loss of a token."""
        return self.smoothing[0] + len(self.table.senses) * self.smoothing[1]

    @property
    def _each(self) -> float:
        return self.smoothing[1] / self._whole

    def _normalize(
        self, x: Tensor, h_norm: Tensor, logits: Tensor, table: SenseTable | None, rows: int
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """log Z [n], what ``h_gradient`` wants but for the target's senses [n]; with label
        smoothing Σ_i −log P(word i) [n], and the log mass of words with several senses [U, n]."""
        arguments = (self.senses.passes, x, h_norm, self.senses.columns, logits)
        found: Part | None = None  # compiled, it is found on the way
        if not self.compiled:
            found = self.senses.passes.along_h(x, logits, h_norm, self.senses.columns)
        if not any(self.needs):
            found = 0.0
        log_z, mean, alone, along = self.run(normalizers, *arguments, found, table, rows)
        if table is None:
            return log_z, mean, None, None
        log_mass, count = None, len(table.shared)
        if count:
            log_mass, means = (self.room(name, count, len(h_norm)) for name in ("words", "means"))
            for at in slices(count, rows):
                some = table._replace(shared=table.shared[at])
                self.run(shared_words, *arguments, found, some, log_mass[at], means[at])
            alone = alone + log_mass.sum(0)
            along = along + means.sum(0)
        return log_z, mean - self._each * along, len(table.senses) * log_z - alone, log_mass

    def _multiply(self, p: Tensor, h: Tensor, h_norm: Tensor, along_h: Tensor) -> Tensor:
        """Take P into dW; the gradient by h."""
        senses, kernel = self.senses, self.senses.passes.kernel
        wide_h = h.to(senses.dtype)
        mapped = kernel.map_contexts(wide_h).to(senses.w.dtype)
        unscale: Tensor | None = None
        if senses.w.dtype == torch.float16 and p.numel():
            scale = _float16_scale(p, senses.w, mapped)
            p, unscale = p * scale, 1.0 / scale
        p = p.to(senses.w.dtype)

        def wide(product: Tensor) -> Tensor:
            product = product.to(senses.dtype)
            return product if unscale is None else product * unscale

        if self.dw is not None:
            self.dw += wide(multiply(p, mapped.t()))
        if not self.needs[0]:
            return h_norm.new_zeros(0, 0)
        product = wide(multiply(p.t(), senses.w.t()))
        return senses.passes.h_gradient(product, along_h, wide_h, h_norm)

    def sense_gradients(self) -> tuple[Tensor, Tensor]:
        """Gradients by w and θ in the compute dtype; empty where they are not wanted."""
        senses, empty = self.senses, self.sums.new_zeros(0)
        if self.dw is None:
            return empty, empty.clone()
        dw, dtheta = senses.passes.sense_gradients(
            self.dw, self.sums, senses.wide_w, senses.w_norm, senses.columns
        )
        return dw if self.needs[1] else empty, dtheta.clone() if self.needs[2] else empty.clone()


def _plainly(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


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
