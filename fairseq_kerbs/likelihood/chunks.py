"""Losses of tokens and the gradients of their sum, chunk by chunk.

The gradient of a chunk needs only its logits, so it is added to dh, dW and dθ before the next chunk
begins. This takes three matrix products: logits, dh and dW.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, safe_inverse, safe_norm
from fairseq_kerbs.kernels.prepared import PreparedSenses, multiply, widen
from fairseq_kerbs.likelihood import compilation, passes
from fairseq_kerbs.senses import SenseTable
from fairseq_kerbs.torch_compat import assert_later

STEP = 32  # chunk sizes are multiples of it, which aligns rows of X with a CPU's vectors
CPU_TOKENS, CPU_BYTES = 256, 128 << 20  # maximum size of a chunk, and of X
GPU_SHARES = 96, 16  # logits take 1/96 of a GPU's memory in eager mode, 1/16 compiled
BLOCK = 1 << 18  # products per operation in eager mode

KERNELS_BY_KEY: dict[str, Kernel] = {}  # custom operators take no Python objects


def kernel_key(kernel: Kernel) -> str:
    """Register a kernel for :func:`run_chunks`. Equal kernels have the same key."""
    key = f"{type(kernel)}{sorted(vars(kernel).items())}"
    KERNELS_BY_KEY.setdefault(key, kernel)
    return key


def check_words(target: Tensor, vocab_size: int) -> None:
    """Raise a ValueError if a target is outside the vocabulary. On a GPU, an assertion fails."""
    valid = (target >= 0) & (target < vocab_size)
    if target.is_cuda:  # reading the result here would synchronize with the GPU
        assert_later(valid.all(), "a target is outside the vocabulary")
    elif not bool(valid.all()):
        raise ValueError(f"`target` holds {int(target[~valid][0])}, not one of {vocab_size} words.")


def row_blocks(values: Tensor, whole: bool = False) -> list[slice]:
    """Blocks of rows of a matrix [m, n] that fit into a CPU's cache, or one block of all rows."""
    size = max(1, values.shape[0] if whole or values.is_cuda else BLOCK // max(1, values.shape[1]))
    return [slice(i, i + size) for i in range(0, values.shape[0], size)]


def chunk_size(tokens: int, w: Tensor, compiled: bool, cpu_tokens: int = CPU_TOKENS) -> int:
    """Number of tokens in a chunk, a multiple of :data:`STEP`.

    Compiled chunks on a CPU have one size. Those on a GPU are large, as each updates all of dW.
    """
    row = 4 * max(1, len(w))  # bytes per token
    size = min(cpu_tokens, CPU_BYTES // row)
    if w.is_cuda:
        memory = torch.cuda.get_device_properties(w.device).total_memory
        size = memory // GPU_SHARES[compiled] // row
    if not compiled or w.is_cuda:
        size = min(size, tokens + STEP - 1)
    return max(STEP, size // STEP * STEP)


def run_chunks(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    table: Sequence[Tensor],
    target: Tensor,
    weight: Tensor,
    gradients: bool,
    smoothing: Sequence[float],
    kernel: str,
    products: torch.dtype,
    compiled: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Losses of all tokens, and the gradients of their weighted sum.

    Args:
        h, w, theta: context vectors [N, d], sense embeddings [M, d], kernel parameters [M].
        table: the tensors of a :class:`SenseTable`.
        target, weight: target words and the weights of their losses, [N] each.
        smoothing: weights of the nll and of each word's −log P in the loss.
        kernel, products: key in :data:`KERNELS_BY_KEY`, and dtype of the matrix products.
        compiled: allow ``torch.compile``.

    Returns:
        losses [N], nlls without smoothing [N], P(s_t = m) of the target's senses [N, K], and
        gradients by h, w and θ (empty without ``gradients``), all in the compute dtype. The first
        three are 0 at weight 0.
    """
    check_words(target, len(table[0]))
    with torch.no_grad(), torch.autocast(h.device.type, enabled=False):
        senses = PreparedSenses.of(h, w, theta, KERNELS_BY_KEY[kernel], products)
        compiled = compiled and gradients and compilation.worthwhile(len(w))
        size = chunk_size(len(h), w, compiled)
        chunks = _Chunks(senses, SenseTable(*table), smoothing, gradients, compiled, size)
        wide = h.to(senses.w_norm.dtype)
        contexts = senses.kernel.map_contexts(wide).to(senses.w.dtype)
        inputs = h, contexts, safe_norm(wide).squeeze(-1), target, weight
        splits = (value.split(size) for value in inputs)
        *losses, dh = map(torch.cat, zip(*(chunks.run(*part) for part in zip(*splits))))
        for loss in losses:
            loss[weight == 0.0] = 0.0
        dw, by_norm, by_theta = chunks.by_senses
        if gradients:
            dw = _with_norms(senses.kernel, dw, w, senses.w_norm.squeeze(1), by_norm)
        return losses[0], losses[1], losses[2], dh, dw, by_theta


class _Chunks:
    """Losses of chunks of tokens, and sums of gradients over the chunks."""

    def __init__(
        self,
        senses: PreparedSenses,
        table: SenseTable,
        smoothing: Sequence[float],
        gradients: bool,
        compiled: bool,
        size: int,
    ) -> None:
        self.senses, self.table, self.smoothing = senses, table, smoothing
        self.gradients, self.compiled, self.size = gradients, compiled, size
        self.call = compilation.call if compiled else lambda function, *inputs: function(*inputs)
        new, count = senses.w_norm, len(senses.w)
        masses = len(table.senses) if smoothing[1] and len(table.senses) < count else 0
        # all chunks reuse these, as the first access to new memory is slow on a CPU
        rows = (0 if senses.w.is_cuda else count, count, masses, masses)
        self.x, self.logits, *self.of_words = (new.new_zeros(number * size) for number in rows)
        shapes = (senses.w.shape, count, count) if gradients else (0, 0, 0)
        self.by_senses = [new.new_zeros(shape) for shape in shapes]  # dW, by |w|, by θ

    def run(
        self, h: Tensor, contexts: Tensor, h_norm: Tensor, target: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss [n], nll [n], P of the target's senses [n, K], and the gradient by h, [n, d]."""
        (by_nll, by_each), tokens, table = self.smoothing, len(h), self.table
        words, dh, masses = len(table.senses), h_norm.new_empty(0), None
        with_mean, sums = self.gradients and self.senses.kernel.homogeneous, []
        if h.is_cuda:
            x = multiply(self.senses.w, contexts)  # the passes widen it
        else:  # compiled functions need a fixed size: pad with tokens of weight 0
            padding = (0, self.size - tokens if self.compiled else 0)
            h_norm, target, weight = (F.pad(v, padding) for v in (h_norm, target, weight))
            x = self.x[: len(self.senses.w) * len(target)].view(len(self.senses.w), len(target))
            for rows in row_blocks(x):
                x[rows, :tokens] = widen(multiply(self.senses.w[rows], contexts), x.dtype)
        logits = self.logits[: x.numel()].view_as(x)
        for rows in row_blocks(x, self.compiled):
            self.call(passes.write_logits, *self.senses.inputs(x, h_norm, rows), logits[rows])
            sums.append(self.call(passes.log_sum, logits[rows], with_mean))
        by_block, of_blocks = map(torch.stack, zip(*sums))  # [blocks, n] each
        log_z = by_block.logsumexp(0)
        mean = ((by_block - log_z).exp() * of_blocks).sum(0)
        senses, unused = table.senses[target].t(), ~table.mask[target].t()  # [K, n]
        s = logits.gather(0, senses)
        log_target = s.masked_fill(unused, -torch.inf).logsumexp(0)
        # by rounding errors alone, a probability could exceed 1
        loss = nll = (log_z - log_target).clamp_min(0.0)
        joint = (s - log_z).exp().clamp_max(1.0).masked_fill(unused, 0.0).t()
        if by_each:
            if len(self.of_words[0]):
                size = words * x.shape[1]
                masses, means = (value[:size].view(words, -1) for value in self.of_words)
                for i in row_blocks(masses, self.compiled):
                    args = logits, table.senses[i], table.mask[i], masses[i], means[i]
                    self.call(passes.write_word_masses, *args)
            total = (logits if masses is None else masses).sum(0)  # equal with one sense per word
            loss = by_nll * nll + by_each * (words * log_z - total)
        if self.gradients:
            by_all, by_word = (by_nll + words * by_each) * weight, by_each * weight
            along_h = by_all * mean
            if by_each and with_mean:
                along_h -= by_word * (total if masses is None else means.sum(0))
            factors = log_z, log_target, by_all, by_nll * weight, by_word
            at_targets = self._target_gradients(x, h_norm, logits, senses, s, unused, *factors)
            rest = log_z, by_all, by_word if by_each else None, masses
            dh = self._gradients(h, contexts, h_norm, x, logits, along_h, at_targets, *rest)
        return loss[:tokens], nll[:tokens], joint[:tokens], dh

    def _target_gradients(
        self,
        x: Tensor,
        h_norm: Tensor,
        logits: Tensor,
        senses: Tensor,
        s: Tensor,
        unused: Tensor,
        log_z: Tensor,
        log_target: Tensor,
        by_all: Tensor,
        by_target: Tensor,
        by_word: Tensor,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Gradients by the senses of the targets y, with logits s. These logits become the lowest
        number, so that :func:`.write_gradients` leaves them out: sums of both parts of G would
        cancel.

        Returns:
            their numbers, and G·∂s/∂x, G·∂s/∂|h|, G·∂s/∂|w| and G·∂s/∂θ, [K, n] each. For a
            homogeneous kernel, G·s replaces the third, and −by_target·P(m | y)·s the second.
        """
        kernel, _, w_norm, theta = self.senses
        share = torch.exp((s - log_target).clamp_max(0.0))
        inputs = widen(x.gather(0, senses), s.dtype), h_norm, w_norm[senses, 0]
        by_x, *others = kernel.partials(*inputs, theta[..., senses, 0])
        if kernel.homogeneous:
            others[:2] = s, s
        whole = torch.exp(s - log_z) * by_all - share * (by_word + by_target)
        once = whole.masked_fill(unused, 0.0)  # padding repeats a word's first sense
        of_h = (share * -by_target).masked_fill(unused, 0.0) if kernel.homogeneous else once
        logits.scatter_(0, senses, torch.full_like(s, torch.finfo(s.dtype).min))
        return senses, whole * by_x, [g * by for g, by in zip((of_h, once, once), others)]

    def _gradients(
        self,
        h: Tensor,
        contexts: Tensor,
        h_norm: Tensor,
        x: Tensor,
        logits: Tensor,
        along_h: Tensor,
        at_targets: tuple[Tensor, Tensor, list[Tensor]],
        *rest: Any,
    ) -> Tensor:
        """Add to the gradients by the senses, and return the gradient by h, [n, d]."""
        dw, by_norm, by_theta = self.by_senses
        for rows in row_blocks(x, self.compiled):
            inputs = *self.senses.inputs(x, h_norm, rows), self.table.words[rows], *rest
            sums = self.call(passes.write_gradients, *inputs, logits[rows])
            for total, part in zip((along_h, by_norm[rows], by_theta[rows]), sums):
                total += part
        senses, whole, (of_h, *of_senses) = at_targets
        along_h += of_h.sum(0)
        for total, part in zip((by_norm, by_theta), of_senses):
            total.index_put_((senses,), part, accumulate=True)  # in a fixed order, also on a GPU
        written = x if x.dtype == torch.bfloat16 else logits
        written.scatter_(0, senses, whole.to(written.dtype))
        at, w, dtype, scale = slice(len(h)), self.senses.w, h_norm.dtype, h_norm.new_ones(())
        p = written[:, at]
        if w.dtype == torch.float16 and p.numel():
            # Most entries are tiny. At this scale no sum over senses or tokens overflows.
            factors = ((0, w), (1, contexts))
            bounds = [p.abs().sum(dim).amax() * v.abs().amax().clamp_min(1.0) for dim, v in factors]
            scale = 32768.0 / torch.stack(bounds).amax().clamp_min(torch.finfo(dtype).tiny)
            p = p * scale
        p = p.to(w.dtype)
        for rows in row_blocks(p):  # a product of all rows would allocate memory, which is slow
            dw[rows] += multiply(p[rows], contexts.t()).to(dtype) / scale
        by_h = self.senses.kernel.map_contexts(multiply(p.t(), w.t()).to(dtype) / scale)
        return _with_norms(self.senses.kernel, by_h, h, h_norm[at], along_h[at])


def _with_norms(
    kernel: Kernel, product: Tensor, rows: Tensor, norm: Tensor, by_norm: Tensor
) -> Tensor:
    """Add the gradient through |h| or |w| to the product Pᵀ W or P h, [·, d], in place."""
    inverse, rows = safe_inverse(norm), rows.to(product.dtype)
    if kernel.homogeneous:  # by_norm is G·s, the component of the gradient along h or w
        by_norm = by_norm * inverse - torch.einsum("id,id->i", product, rows) * inverse
    return product.addcmul_(rows, (by_norm * inverse).unsqueeze(1))
