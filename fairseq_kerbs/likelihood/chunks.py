"""A likelihood chunk by chunk: losses of tokens and, at once, the gradients of their sum.

The loss is a sum over tokens, so the gradient of a chunk of tokens is known as soon as its logits
are: it is multiplied into dh, dW and dθ (three matrix products in all: logits, dh, dW) before the
next chunk begins. What happens between the products is in :mod:`.likelihood.passes`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, compute_dtype, safe_inverse, safe_norm
from fairseq_kerbs.likelihood import compilation, passes
from fairseq_kerbs.senses import SenseTable
from fairseq_kerbs.torch_compat import assert_later, autocast_dtype, is_compiling

STEP = 32  # tokens in a chunk are a multiple of it: rows of X begin where vectors of a CPU do
CPU_TOKENS, CPU_BYTES = 256, 128 << 20  # of X, at most
BLOCK = 1 << 18  # products that one operation goes through at a time where nothing is compiled

KERNELS_BY_KEY: dict[str, Kernel] = {}  # operators take no objects


def kernel_key(kernel: Kernel) -> str:
    """A key under which :func:`run_chunks` finds a kernel; equal for kernels that do the same."""
    kind = type(kernel)
    key = f"{kind.__module__}.{kind.__qualname__}{sorted(vars(kernel).items())}"
    KERNELS_BY_KEY.setdefault(key, kernel)
    return key


def check_words(target: Tensor, vocab_size: int) -> None:
    """Raise a ValueError where a target is no word; on a GPU it fails later there."""
    valid = (target >= 0) & (target < vocab_size)
    if target.is_cuda:  # a question here would be a pause for the card
        assert_later(valid.all(), "a target is outside the vocabulary")
    elif not bool(valid.all()):
        raise ValueError(
            f"`target` holds {int(target[~valid][0])}, which is outside the vocabulary of "
            f"{vocab_size} words and not `ignore_index`."
        )


@functools.cache
def _onednn() -> Callable[..., Tensor] | None:
    """oneDNN's a, b -> a bᵀ, which torch keeps for models that its compiler has frozen; None where
    this torch has none. On an AMD CPU it takes half the time of the BLAS behind torch.mm."""
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
    return a @ b.t() if operator is None else operator(a, b, None, "none", [], "")


def product_dtype(h: Tensor, w: Tensor) -> torch.dtype:
    """The dtype of products; float64 stays float64 under autocast, as in torch's own products."""
    common = torch.promote_types(h.dtype, w.dtype)
    return common if common == torch.float64 else autocast_dtype(h.device.type) or common


class PreparedSenses(NamedTuple):
    """Senses as the products and passes want them."""

    kernel: Kernel
    w: Tensor  # [M, d] in the dtype of products
    w_norm: Tensor  # [M, 1] in the compute dtype
    theta: Tensor  # what the kernel prepares of θ, [..., M, 1]

    @classmethod
    def of(
        cls, h: Tensor, w: Tensor, theta: Tensor, kernel: Kernel, products: torch.dtype
    ) -> PreparedSenses:
        """Prepare senses for context vectors like h, and a dtype of the products."""
        dtype = compute_dtype(h, w, theta)
        theta = kernel.prepare(theta.to(dtype)).unsqueeze(-1)
        return cls(kernel, w.to(products), safe_norm(w.to(dtype)), theta)

    def contexts(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """What the products take of context vectors [n, d], and their norms [n]."""
        wide = h.to(self.w_norm.dtype)
        return self.kernel.map_contexts(wide).to(self.w.dtype), safe_norm(wide).squeeze(-1)

    def products(self, contexts: Tensor) -> Tensor:
        """X [M, n] of contexts [n, d], in the compute dtype."""
        x = multiply(self.w, contexts).to(self.w_norm.dtype)
        if self.w.dtype == torch.float16:  # norms of 256 and 256 reach its end
            x.clamp_(torch.finfo(torch.float16).min, torch.finfo(torch.float16).max)
        return x

    def logits_of(self, senses: Tensor, rows: Tensor, h: Tensor) -> Tensor:
        """Logits [..., K] of some senses for each context vector h [..., d]: their numbers [..., K]
        and vectors ``rows`` [..., K, d]."""
        contexts, h_norm = self.contexts(h)
        dtype = h_norm.dtype
        x = torch.einsum("...d,...kd->...k", contexts.to(dtype), rows.to(dtype))
        return self.kernel.value(x, h_norm.unsqueeze(-1), *self.columns_of(senses))

    def columns_of(self, senses: Tensor) -> tuple[Tensor, Tensor]:
        """What the kernel takes of some senses [...]."""
        return self.w_norm[senses, 0], self.theta[..., senses, 0]

    def inputs(self, x: Tensor, h_norm: Tensor, rows: slice) -> list[Any]:
        """Leading arguments of a pass over some rows of X."""
        return [self.kernel, x[rows], h_norm, self.w_norm[rows], self.theta[..., rows, :]]


def row_blocks(values: Tensor, whole: bool = False) -> list[slice]:
    """The rows of [m, n] that go through the passes together: operation after operation, they stay
    in the cache of a CPU only if they are few."""
    count, width = values.shape
    if whole or values.is_cuda or is_compiling():
        return [slice(0, count)]
    most = max(1, BLOCK // max(1, width))
    return [slice(i, min(i + most, count)) for i in range(0, count, most)]


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
    return max(STEP, -(-even // STEP) * STEP)


def run_chunks(
    h: Tensor, w: Tensor, theta: Tensor, table: Sequence[Tensor], target: Tensor, weight: Tensor,
    smoothing: Sequence[float], gradients: bool, kernel: str, products: torch.dtype, compiled: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Losses of all tokens and, at once, the gradients of their weighted sum.

    Args:
        h, w, theta: context vectors [N, d], sense embeddings [M, d], kernel parameters [M].
        table: the tensors of a :class:`SenseTable`.
        target, weight: target words, and the gradient of the result by each one's loss, [N] each.
        smoothing: weights in the loss of the nll, and of each word's −log P.
        gradients: whether gradients are wanted.
        kernel: a key of :data:`KERNELS_BY_KEY`.
        products: dtype of the products.
        compiled: whether the passes may be compiled.

    Returns:
        losses and plain nlls [N], P(s_t = m) of the target's senses [N, K], 0 where a weight is;
        gradients by h, w and θ, empty where they are not wanted; all in the compute dtype.
    """
    words = SenseTable(*table)
    check_words(target, len(words.senses))
    with torch.no_grad(), torch.autocast(h.device.type, enabled=False):
        senses = PreparedSenses.of(h, w, theta, KERNELS_BY_KEY[kernel], products)
        compiled = compiled and gradients and compilation.worthwhile(len(w))
        size = chunk_size(len(h), w, compiled)
        contexts, h_norm = senses.contexts(h)
        # compiled on a CPU all chunks have one size: what the last one lacks has no weight
        lack = -len(h) % size if compiled and not h.is_cuda else 0
        inputs = [F.pad(value, (0, lack)) for value in (h_norm, target, weight)]
        new = h_norm.new_zeros
        losses = new(len(h)), new(len(h)), new(len(h), words.senses.shape[1])
        dh = new(h.shape if gradients else 0)
        batch = _Batch(senses, words, smoothing, gradients, compiled)
        for start in range(0, len(h), size):
            at = slice(start, min(start + size, len(h)))
            *values, by_h = batch.run_chunk(
                h[at], contexts[at], *(value[start : start + size] for value in inputs)
            )
            for loss, value in zip(losses, values):
                loss[at] = value[: at.stop - start]
            if gradients:
                dh[at] = by_h
        for loss in losses:
            loss[weight == 0.0] = 0.0
        return *losses, dh, *batch.sense_gradients(w)


class _Batch:
    """Losses of chunks of tokens, and sums of gradients over the chunks."""

    def __init__(
        self, senses: PreparedSenses, table: SenseTable, smoothing: Sequence[float],
        gradients: bool, compiled: bool,
    ) -> None:  # fmt: skip
        self.senses, self.table, self.smoothing = senses, table, smoothing
        self.gradients, self.compiled = gradients, compiled
        self.call = compilation.call if compiled else lambda function, *inputs: function(*inputs)
        self.buffers: dict[str, Tensor] = {}  # one for all chunks: new memory is slow to touch
        self.dw = senses.w_norm.new_zeros(senses.w.shape if gradients else 0)
        self.sums = senses.w_norm.new_zeros(2, len(senses.w))  # of gradients by |w| and by θ

    def _buffer(self, name: str, rows: int, tokens: int) -> Tensor:
        size = rows * tokens
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = self.senses.w_norm.new_empty(size)
        return self.buffers[name][:size].view(rows, tokens)

    def run_chunk(
        self, h: Tensor, contexts: Tensor, h_norm: Tensor, target: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss [n], nll [n] and P of the target's senses [n, K]; the gradient by h, [n, d].

        The last three arguments may be longer than the others, with weights of 0.
        """
        table, (by_nll, by_each), count = self.table, self.smoothing, len(target)
        x = self.senses.products(contexts)
        if count > len(h):
            x = F.pad(x, (0, count - len(h)))
        logits, sums = self._buffer("logits", len(x), count), []
        for rows in row_blocks(x, self.compiled):
            self.call(passes.write_logits, *self.senses.inputs(x, h_norm, rows), logits[rows])
            sums.append(self.call(passes.log_sum, logits[rows]))
        log_z = torch.stack(sums).logsumexp(0)
        own = table.senses[target], torch.arange(count, device=target.device).unsqueeze(1)
        there = logits[own].masked_fill(~table.mask[target], -torch.inf)  # of the target's senses
        # rounded alone, a word that is all but certain could get a probability above 1
        loss = nll = (log_z - there.logsumexp(1)).clamp_min(0.0)
        joint = (there - log_z.unsqueeze(1)).exp().clamp_max(1.0)
        masses = self._word_masses(logits) if by_each else None
        if masses is not None:
            loss = by_nll * nll + by_each * (len(masses) * log_z - masses.sum(0))
        if not self.gradients:
            return loss, nll, joint, loss
        by_word = weight * by_each if by_each else None
        by_sense = weight * (by_nll + len(table.senses) * by_each)
        rest = log_z, by_sense, by_word, None if masses is logits else masses
        # what the target's senses add, while their logits are there
        by_x, by_h, *others = passes.pull_back(
            self.senses.kernel, x[own], h_norm.unsqueeze(1), *self.senses.columns_of(own[0]),
            logits[own], there.softmax(1) * (-by_nll * weight).unsqueeze(1),
        )  # fmt: skip
        along_h = torch.zeros_like(h_norm) if by_h is None else by_h.sum(1)
        for rows in row_blocks(x, self.compiled):
            inputs = self.senses.inputs(x, h_norm, rows)
            along, *sums = self.call(
                passes.write_gradients, *inputs, table.words[rows], *rest, logits[rows]
            )
            along_h += along
            for total, part in zip(self.sums, sums):
                total[rows] += part
        logits.index_put_(own, by_x, accumulate=True)
        for total, part in zip(self.sums, others):
            if part is not None:
                total.index_add_(0, own[0].flatten(), part.flatten())
        at = slice(0, len(h))
        return loss, nll, joint, self._multiply(logits[:, at], h, contexts, h_norm[at], along_h[at])

    def _word_masses(self, logits: Tensor) -> Tensor:
        """Log of the unnormalized probabilities of all words, [M, n] -> [V, n]."""
        senses, mask = self.table.senses, self.table.mask
        if len(senses) == len(logits):
            return logits  # in whatever order
        masses = self._buffer("masses", len(senses), logits.shape[1])
        for at in row_blocks(masses, self.compiled):
            self.call(passes.write_word_masses, logits, senses[at], mask[at], masses[at])
        return masses

    def _multiply(
        self, p: Tensor, h: Tensor, contexts: Tensor, h_norm: Tensor, along_h: Tensor
    ) -> Tensor:
        """Take P = G·∂s/∂x [M, n] into dW; the gradient by h, [n, d]."""
        w, dtype, scale = self.senses.w, h_norm.dtype, None
        if w.dtype == torch.float16 and p.numel():
            # Most entries of G are probabilities of one in many thousand senses, of which float16
            # would leave nothing; so P is as large as its sums over senses and tokens allow.
            sums = ((0, w), (1, contexts))
            bounds = [p.abs().sum(dim).amax() * v.abs().amax().clamp_min(1.0) for dim, v in sums]
            scale = 32768.0 / torch.stack(bounds).amax().clamp_min(torch.finfo(dtype).tiny)
            p = p * scale
        p = p.to(w.dtype)
        products = [multiply(*pair).to(dtype) for pair in ((p, contexts.t()), (p.t(), w.t()))]
        if scale is not None:
            products = [product / scale for product in products]
        self.dw += products[0]
        by_h = self.senses.kernel.map_contexts(products[1])
        return _with_norms(self.senses.kernel, by_h, h, h_norm, along_h)

    def sense_gradients(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients by w and θ in the compute dtype; empty where none are wanted."""
        if not self.gradients:
            return self.dw, self.dw.clone()
        norm, (by_w_norm, by_theta) = self.senses.w_norm.squeeze(1), self.sums
        return _with_norms(self.senses.kernel, self.dw, w, norm, by_w_norm), by_theta.clone()


def _with_norms(
    kernel: Kernel, product: Tensor, rows: Tensor, norm: Tensor, by_norm: Tensor
) -> Tensor:
    """The gradient by h or w [·, d], in the place of the product Pᵀ W or P h, from it and the sums
    of :func:`.passes.write_gradients` [·]."""
    inverse, rows = safe_inverse(norm), rows.to(product.dtype)
    if kernel.homogeneous:  # of the gradient along h or w alone
        by_norm = by_norm * inverse - torch.einsum("id,id->i", product, rows) * inverse
    return product.addcmul_(rows, (by_norm * inverse).unsqueeze(1))
