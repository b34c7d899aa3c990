"""A likelihood chunk by chunk: losses of tokens and, at once, the gradients of their sum.

The loss is a sum over tokens, so the gradient of a chunk of tokens is known as soon as its logits
are: it is multiplied into dh, dW and dθ (three matrix products in all: logits, dh, dW) before the
next chunk begins. What happens between the products is in :mod:`.likelihood.passes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, safe_inverse
from fairseq_kerbs.kernels.prepared import PreparedSenses, multiply
from fairseq_kerbs.likelihood import compilation, passes
from fairseq_kerbs.senses import SenseTable
from fairseq_kerbs.torch_compat import assert_later, is_compiling

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
        batch = _Batch(senses, words, smoothing, gradients, compiled, size)
        inputs = h, *senses.contexts(h), target, weight
        parts = [batch.run(*chunk) for chunk in zip(*(value.split(size) for value in inputs))]
        *losses, dh = (torch.cat(values) for values in zip(*parts))
        for loss in losses:
            loss[weight == 0.0] = 0.0
        dw, by_norm, by_theta = batch.by_senses
        if gradients:
            dw = _with_norms(senses.kernel, dw, w, senses.w_norm.squeeze(1), by_norm)
        return losses[0], losses[1], losses[2], dh, dw, by_theta


class _Batch:
    """Losses of chunks of tokens, and sums of gradients over the chunks."""

    def __init__(
        self, senses: PreparedSenses, table: SenseTable, smoothing: Sequence[float],
        gradients: bool, compiled: bool, size: int,
    ) -> None:  # fmt: skip
        self.senses, self.table, self.smoothing = senses, table, smoothing
        self.gradients, self.compiled, self.size = gradients, compiled, size
        self.call = compilation.call if compiled else lambda function, *inputs: function(*inputs)
        new, count = senses.w_norm, len(senses.w)
        # for all chunks: new memory is slow to touch
        self.logits, self.masses = new.new_empty(count, size), new.new_empty(0)
        if smoothing[1] and len(table.senses) < count:
            self.masses = new.new_empty(len(table.senses), size)
        shapes = (senses.w.shape, count, count) if gradients else (0, 0, 0)
        self.by_senses = [new.new_zeros(shape) for shape in shapes]  # dW, by |w|, by θ

    def run(
        self, h: Tensor, contexts: Tensor, h_norm: Tensor, target: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss [n], nll [n] and P of the target's senses [n, K]; the gradient by h, [n, d]."""
        (by_nll, by_each), tokens, x = self.smoothing, len(h), self.senses.products(contexts)
        if self.compiled and not h.is_cuda:  # tokens without weight fill up the last chunk
            lack = (0, self.size - tokens)
            x, h_norm, target, weight = (F.pad(v, lack) for v in (x, h_norm, target, weight))
        logits, sums = self.logits[:, : len(target)], []
        for rows in row_blocks(x, self.compiled):
            self.call(passes.write_logits, *self.senses.inputs(x, h_norm, rows), logits[rows])
            sums.append(self.call(passes.log_sum, logits[rows]))
        log_z = torch.stack(sums).logsumexp(0)
        column = torch.arange(len(target), device=target.device).unsqueeze(1)
        there = logits[self.table.senses[target], column]
        there = there.masked_fill(~self.table.mask[target], -torch.inf)  # of the target's senses
        own = there.logsumexp(1)
        # rounded alone, a word that is all but certain could get a probability above 1
        loss = nll = (log_z - own).clamp_min(0.0)
        joint = (there - log_z.unsqueeze(1)).exp().clamp_max(1.0)
        masses = self._word_masses(logits) if by_each else None
        if masses is not None:
            loss = by_nll * nll + by_each * (len(masses) * log_z - masses.sum(0))
        dh = h_norm.new_empty(0)
        if self.gradients:
            by_target, by_word = by_nll * weight, by_each * weight
            dh = self._gradients(
                h, contexts, h_norm, x, logits, target, log_z, own,
                by_target + len(self.table.senses) * by_word, by_target,
                by_word if by_each else None, None if masses is logits else masses,
            )  # fmt: skip
        return loss[:tokens], nll[:tokens], joint[:tokens], dh

    def _word_masses(self, logits: Tensor) -> Tensor:
        """Log of the unnormalized probabilities of all words, [M, n] -> [V, n]."""
        if not self.masses.numel():
            return logits  # every word has one sense, in whatever order
        masses = self.masses[:, : logits.shape[1]]
        for at in row_blocks(masses, self.compiled):
            table = self.table.senses[at], self.table.mask[at]
            self.call(passes.write_word_masses, logits, *table, masses[at])
        return masses

    def _gradients(
        self, h: Tensor, contexts: Tensor, h_norm: Tensor, x: Tensor, logits: Tensor, *rest: Any
    ) -> Tensor:
        """Take a chunk into the gradients by the senses; the gradient by h, [n, d]. ``rest`` is of
        :func:`.passes.write_gradients`."""
        dw, by_norm, by_theta = self.by_senses
        along_h = torch.zeros_like(h_norm)
        for rows in row_blocks(x, self.compiled):
            inputs = *self.senses.inputs(x, h_norm, rows), self.table.words[rows], *rest
            sums = self.call(passes.write_gradients, *inputs, logits[rows])
            along_h += sums[0]
            by_norm[rows] += sums[1]
            by_theta[rows] += sums[2]
        at, w, dtype, scale = slice(len(h)), self.senses.w, h_norm.dtype, None
        p = logits[:, at]
        if w.dtype == torch.float16 and p.numel():
            # Most entries of G are probabilities of one in many thousand senses, of which float16
            # would leave nothing; so P is as large as its sums over senses and tokens allow.
            factors = ((0, w), (1, contexts))
            bounds = [p.abs().sum(dim).amax() * v.abs().amax().clamp_min(1.0) for dim, v in factors]
            scale = 32768.0 / torch.stack(bounds).amax().clamp_min(torch.finfo(dtype).tiny)
            p = p * scale
        p = p.to(w.dtype)
        products = [multiply(*pair).to(dtype) for pair in ((p, contexts.t()), (p.t(), w.t()))]
        if scale is not None:
            products = [product / scale for product in products]
        dw += products[0]
        by_h = self.senses.kernel.map_contexts(products[1])
        return _with_norms(self.senses.kernel, by_h, h, h_norm[at], along_h[at])


def _with_norms(
    kernel: Kernel, product: Tensor, rows: Tensor, norm: Tensor, by_norm: Tensor
) -> Tensor:
    """The gradient by h or w [·, d], in the place of the product Pᵀ W or P h, from it and the sums
    of :func:`.passes.write_gradients` [·]."""
    inverse, rows = safe_inverse(norm), rows.to(product.dtype)
    if kernel.homogeneous:  # of the gradient along h or w alone
        by_norm = by_norm * inverse - torch.einsum("id,id->i", product, rows) * inverse
    return product.addcmul_(rows, (by_norm * inverse).unsqueeze(1))
