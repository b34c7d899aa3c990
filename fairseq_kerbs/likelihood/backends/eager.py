"""What happens to a chunk of products between the matrix products of the likelihood, by kernel.

From the products X [M, n] of all senses with n context vectors, :meth:`Backend.forward` finds their
logsumexp and the logits of the target's senses; :meth:`Backend.backward` turns what was saved into
P = G·∂s/∂x [M, n], G the gradient of the logits, which the likelihood multiplies with W and h. What
is left are gradients by the norms and θ, sums over tokens that the caller keeps.

A sense is a row and a token a column, so that the senses of a word are whole rows, wherever they
lie. :class:`Backend` is plain torch: any kernel, every dtype and device. The inner product and the
KerBS kernel need less (:mod:`.closed_forms`), and less still in one pass (:mod:`.backends.cpu`,
:mod:`.backends.triton`).
On a CPU rows go through them block by block (:mod:`.blocks`); sums over blocks are added in the
blocks' order, so that results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, safe_inverse, safe_norm
from fairseq_kerbs.likelihood.backends.blocks import (
    BLOCK,
    Block,
    Buffer,
    cut_rows,
    cut_words,
    each,
    ranked_logsumexp,
)
from fairseq_kerbs.senses import SenseTable

Tensors = tuple[Tensor, ...]
Kept = tuple[Any, ...]  # tensors and buffers


class Smoothing(NamedTuple):
    """Label smoothing over words: loss = target_weight·nll + uniform_weight·uniform_nll.

    G of a sense of word i: total·P(m) − uniform_weight·P(m | i) − target_weight·P(m | y)·1[i = y].
    """

    target_weight: float = 1.0  # 1 − ε − ε', the weight of the plain nll
    uniform_weight: float = 0.0  # ε' = ε/(V − 1), the weight of each word's −log P
    total: float = 1.0  # target_weight + V·ε'

    @classmethod
    def of(cls, epsilon: float, vocab_size: int) -> Smoothing:
        """Weights for smoothing by ε."""
        each = epsilon / max(1, vocab_size - 1)
        rest = 1.0 - epsilon - each
        return cls(rest, each, rest + vocab_size * each)


class Senses(NamedTuple):
    """What context vectors are scored against."""

    w: Tensor  # sense embeddings, [M, d]
    theta: Tensor  # kernel parameters, [M] (not read by kernels without one)
    word_of_sense: Tensor  # the word of each sense, [M]; all words of 0 … V−1 have one or more
    table: SenseTable  # senses of every word
    kernel: Kernel


class Target(NamedTuple):
    """The senses of each token's target word."""

    word: Tensor  # [n]
    senses: Tensor  # their numbers, [n, K]
    x: Tensor  # their products in the compute dtype, [n, K]
    logits: Tensor  # [n, K]; −∞ at padding
    kept: Tensors  # what else the backend wants of them, [n, K] each


class Saved(NamedTuple):
    """What forward finds in a chunk. :meth:`Backend.backward` uses it up: P lies where x did."""

    x: Tensor  # products, [M, n]
    h_norm: Tensor  # [n]
    normalizer: Tensor  # logsumexp over all senses, [n] (Eq. 5's denominator)
    uniform_nll: Tensor | None  # Σ_i −log P(word i) over all words, [n]; with label smoothing
    target: Target
    smoothing: Smoothing  # of the loss
    kept: Kept  # what else the backend wants


class Backend:
    """Any kernel in plain torch, in the compute dtype. No result depends on an earlier call."""

    has_threads = True  # of :mod:`.blocks`
    unit_contexts = False  # whether the products X are made with h/|h| instead of h
    buffers = 6  # matrices of a chunk's size in use at the same time
    cpu_buffer_bytes = 16 << 20  # one of them on a CPU: products want many tokens
    rooms = 1  # matrices beside X that a chunk keeps: the last holds logits, later their gradient

    def __init__(self, senses: Senses, dtype: torch.dtype) -> None:
        self.kernel = senses.kernel.bind(senses.w.shape[1])
        self.w_norm = safe_norm(senses.w.to(dtype)).squeeze(-1)  # [M]
        self.theta, self.table = senses.theta.to(dtype), senses.table
        self.word_of_sense = senses.word_of_sense
        self._pool: list[Tensor] = []
        self._cuts: dict[tuple[int, bool], list[Block]] = {}

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether X may come, and P leave, in this dtype instead of the compute dtype."""
        return False

    def buffer(self, like: Tensor) -> Buffer:
        """Room for a matrix like this one."""
        return Buffer(self._pool, like)

    def _blocks(self, x: Tensor, by_words: bool = False) -> list[Block]:
        key = x.shape[1], by_words
        if key not in self._cuts:
            most = max(1, BLOCK // max(1, x.shape[1])) if x.device.type == "cpu" else len(x)
            cut = cut_words if by_words else cut_rows
            self._cuts[key] = cut(self.table, self.word_of_sense, most)
        return self._cuts[key]

    def _score(self, block: Block, own: Tensors, h_norm: Tensor) -> Tensor:
        """Logits of a block, in the last of its ``own`` matrices: X, which may change, and those
        of ``rooms``."""
        w_norm, theta = (values[block.senses].unsqueeze(1) for values in (self.w_norm, self.theta))
        return own[-1].copy_(self.kernel.value(own[0], h_norm, w_norm, theta))

    def _carry_back(
        self, block: Block, grad: Tensor, own: Tensors, h_norm: Tensor, sums: Tensor
    ) -> Tensor:
        """:meth:`backward_logits` of a block that was scored: P over X, and ``along_h`` [n]."""
        w_norm, theta = (values[block.senses].unsqueeze(1) for values in (self.w_norm, self.theta))
        partials = self.kernel.partials(own[0], h_norm, w_norm, theta)
        sums[0, block.senses] += (grad * partials.w_norm).sum(1)
        sums[1, block.senses] += (grad * partials.theta).sum(1)
        along_h = (grad * partials.h_norm).sum(0)
        torch.mul(grad, partials.x, out=own[0])
        return along_h

    # ------------------------------------------------------------ all logits

    def logits(self, x: Tensor, h_norm: Tensor) -> tuple[Tensor, Kept]:
        """Logits [M, n], which last as long as the rest: what :meth:`backward_logits` wants.

        X is used up but for that.
        """
        kept = tuple(self.buffer(x) for _ in range(self.rooms))
        each(lambda block: self._score(block, block.of(x, *kept), h_norm), self._blocks(x))
        return kept[-1].matrix, kept

    def backward_logits(
        self, grad: Tensor, x: Tensor, h_norm: Tensor, kept: Kept, sums: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Carry any gradient of the logits back.

        Args:
            grad: G, [M, n]; used up.
            x, h_norm: products, [M, n], over which P is written, and norms, [n].
            kept: what :meth:`logits` returned beside them; used up.
            sums: sums over tokens, [2, M], to which this chunk's are added.

        Returns:
            P = G·∂s/∂x, [M, n], and what :meth:`h_gradient` wants, [n].
        """

        def work(block: Block) -> Tensor:
            return self._carry_back(block, grad[block.rows], block.of(x, *kept), h_norm, sums)

        return x, torch.stack(each(work, self._blocks(x))).sum(0)

    # ------------------------------------------------------------ the protocol

    def forward(self, x: Tensor, h_norm: Tensor, target: Tensor, smoothing: Smoothing) -> Saved:
        """All that the loss of a chunk needs, from products [M, n], norms [n] and targets [n]."""
        found, smooth = self._target(x, h_norm, target), smoothing.uniform_weight != 0.0
        blocks = self._blocks(x, smooth)
        turned = isinstance(blocks[0].senses, Tensor)  # blocks hold rows of X from anywhere
        matrices = (self.buffer(x) if turned else x, *(self.buffer(x) for _ in range(self.rooms)))
        words = x.new_empty(1).expand(len(self.table.senses), x.shape[1])  # only a shape
        by_words = tuple(self.buffer(words) for _ in range(2 * smooth))  # Σ q of each, P(word)

        def work(block: Block) -> Tensors:
            own = block.of(*matrices)
            if turned:
                torch.index_select(x, 0, block.senses, out=own[0])
            level = self._score(block, own, h_norm)
            if smooth:
                level = ranked_logsumexp(level, block.ranks, *block.of_words(*by_words))
            peak = level.amax(0)
            level.sub_(peak)
            below = level.sum(0) if smooth else peak
            return peak, level.exp_().sum(0), below

        peaks, totals, below = (torch.stack(part) for part in zip(*each(work, blocks), strict=True))
        peak = peaks.amax(0)
        parts = (peaks - peak).exp_()  # [blocks, n]
        total = (totals * parts).sum(0)
        normalizer, uniform_nll = peak + total.log(), None
        if smooth:
            sizes = x.new_tensor([[block.ranks[0]] for block in blocks])
            uniform_nll = ((normalizer - peaks) * sizes - below).sum(0)
        kept = blocks, matrices, by_words, parts / total
        return Saved(x, h_norm, normalizer, uniform_nll, found, smoothing, kept)

    def backward(self, saved: Saved, scale: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """P and ``along_h`` of a chunk as of :meth:`backward_logits`, for the gradient of its loss.

        ``scale`` is the gradient of the result by each token's loss, [n]; ``saved`` is used up.
        """
        x, smoothing = saved.x, saved.smoothing
        blocks, matrices, by_words, parts = saved.kept
        uniform = scale * smoothing.uniform_weight

        def work(block: Block, weight: Tensor) -> Tensor:
            own = block.of(*matrices)
            grad = own[-1]
            if saved.uniform_nll is None:
                grad.mul_(weight)
            else:
                within, share = block.of_words(*by_words)
                share.mul_(weight).sub_(uniform).div_(within)
                for part in grad.split(block.ranks):
                    part.mul_(share[: len(part)])
            along_h = self._carry_back(block, grad, own, saved.h_norm, sums)
            if matrices[0] is not x:
                x.index_copy_(0, block.senses, own[0])
            return along_h

        along_h = torch.stack(each(work, blocks, parts * (scale * smoothing.total))).sum(0)
        return x, along_h + self._add_target(x, saved, scale, sums)

    def log_probs(self, x: Tensor, h_norm: Tensor, out: Tensor) -> None:
        """Log-probabilities of all words into ``out``, [n, V] (Eq. 4–5); X is used up."""
        words = torch.empty_like(out.t(), memory_format=torch.contiguous_format)  # [V, n]

        def work(block: Block) -> None:
            products = x[block.senses]
            own = (products, *(torch.empty_like(products) for _ in range(self.rooms)))
            logits = self._score(block, own, h_norm)
            room = logits.new_empty(2, block.ranks[0], x.shape[1])
            words[block.numbers] = ranked_logsumexp(logits, block.ranks, *room)

        each(work, self._blocks(x, True))
        out.copy_(words.sub_(words.logsumexp(0)).t())

    def logits_of(self, senses: Tensor, rows: Tensor, h: Tensor) -> Tensor:
        """Logits [..., K] of some senses for each context vector h [..., d]: their numbers [..., K]
        and vectors ``rows`` [..., K, d]."""
        wide_h, rows = h.to(self.w_norm.dtype), rows.to(self.w_norm.dtype)
        h_norm = safe_norm(wide_h)
        contexts = self.kernel.map_contexts(wide_h)
        if self.unit_contexts:
            contexts = contexts * safe_inverse(h_norm)
        x = torch.einsum("...d,...kd->...k", contexts, rows)
        return self._target_logits(x, senses, h_norm)[0]

    def h_gradient(self, product: Tensor, along_h: Tensor, h: Tensor, h_norm: Tensor) -> Tensor:
        """Gradient by h, [n, d], from the product Pᵀ W [n, d] (overwritten) and ``along_h`` [n]."""
        by_contexts = self.kernel.map_contexts(product)
        return by_contexts.addcmul_(h * safe_inverse(h_norm).unsqueeze(1), along_h.unsqueeze(1))

    def sense_gradients(self, product: Tensor, w: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients by W [M, d] and θ [M] from the sum of all P h [M, d] (overwritten)."""
        along_w = (sums[0] * safe_inverse(self.w_norm)).unsqueeze(1)
        return product.addcmul_(w, along_w), sums[1]

    # ------------------------------------------------------------ the target's senses

    def _target(self, x: Tensor, h_norm: Tensor, word: Tensor) -> Target:
        senses, mask = self.table.senses[word], self.table.mask[word]
        tokens = torch.arange(len(word), device=word.device).unsqueeze(1)
        own = x[senses, tokens].to(self.w_norm.dtype)  # [n, K]
        logits, kept = self._target_logits(own, senses, h_norm.unsqueeze(1))
        return Target(word, senses, own, logits.masked_fill(~mask, -torch.inf), kept)

    def _add_target(self, p: Tensor, saved: Saved, scale: Tensor, sums: Tensor) -> Tensor:
        """Add the target's −target_weight·P(m | y) to P and ``sums``; its ``along_h`` [n]."""
        target, senses = saved.target, saved.target.senses
        weight = -saved.smoothing.target_weight * scale
        grad = target.logits.softmax(1) * weight.unsqueeze(1)  # [n, K], 0 at padding
        by_x, along_h, *parts = self._target_gradients(grad, target, saved.h_norm.unsqueeze(1))
        for total, part in zip(sums, parts, strict=True):
            total.index_add_(0, senses.flatten(), part.flatten())
        tokens = torch.arange(p.shape[1], device=p.device).unsqueeze(1)
        p.view(-1).index_add_(0, (senses * p.shape[1] + tokens).flatten(), by_x.flatten())
        return along_h.sum(1)

    def _target_logits(self, x: Tensor, senses: Tensor, h_norm: Tensor) -> tuple[Tensor, Tensors]:
        return self.kernel.value(x, h_norm, self.w_norm[senses], self.theta[senses]), ()

    def _target_gradients(self, grad: Tensor, target: Target, h_norm: Tensor) -> Tensors:
        """G [n, K] times ∂s/∂x, times what ``along_h`` sums, and times what the two sums sum."""
        w_norm, theta = self.w_norm[target.senses], self.theta[target.senses]
        return tuple(grad * part for part in self.kernel.partials(target.x, h_norm, w_norm, theta))
