"""Senses prepared once for decoding, and the log-probabilities of all words from them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import InnerProductKernel, Kernel, safe_inverse, safe_norm
from fairseq_kerbs.kernels.prepared import PreparedSenses, multiply, pack, product_dtype, widen
from fairseq_kerbs.likelihood.chunks import chunk_size, row_blocks
from fairseq_kerbs.likelihood.nll import SenseParameters

SMALLEST = 1e-30
"""Sums of exponentials above it have lost nothing that matters by underflow."""

LARGEST = 1e30
"""Sums of exponentials below it have not overflowed."""

CPU_TOKENS = 128
"""Size of a chunk on a CPU. With few senses its logits stay in the cache."""

FEW = 0.25
"""Words keep their order up to this number of further senses per word."""


class RankedSenses(NamedTuple):
    """Senses in an order in which words are summed without a gather of all of them.

    First comes the first sense of every word, then the second ones, and so on. Words with more
    senses come first. If few words have several, the first senses are in the order of the words
    instead, so that only those words cost time.
    """

    kernel: Kernel
    w: Tensor  # [M, d] in the dtype of products, or the rows of Kernel.fold()
    w_norm: Tensor  # [M] in the compute dtype
    prepared: Tensor  # Kernel.prepare(θ), [..., M]
    factors: Tensor | None  # [M], those of Kernel.fold()
    counts: list[int]  # number of words with more than k senses, for k = 0, 1, …
    word_position: Tensor  # where each word is among the first senses, [V]
    words_of_slot: list[Tensor] | None  # these words for k = 1, …; None if the words are reordered
    sense_position: Tensor  # where each sense is, [M]

    @classmethod
    def of(cls, h: Tensor, senses: SenseParameters) -> RankedSenses:
        """Prepare senses for context vectors like h."""
        few = len(senses.w) - len(senses.table.senses) <= FEW * len(senses.table.senses)
        numbers = senses.table.mask.sum(1)  # of senses, [V]
        words = numbers.sort(descending=True, stable=True).indices
        if few:
            words = torch.arange(len(words), device=words.device)
        mask = senses.table.mask[words].t()
        order = senses.table.senses[words].t()[mask]  # [M]
        counts = [count for count in mask.sum(1).tolist() if count]
        words_of_slot = None
        if few:
            words_of_slot = [has_sense.nonzero().squeeze(1) for has_sense in mask[1 : len(counts)]]
        kernel = senses.kernel.bind(senses.w.shape[1])
        if kernel.inner_product_at_zero and not senses.theta.any():
            kernel = InnerProductKernel()  # the same up to rounding, and faster
        products = product_dtype(h, senses.w)
        _, w, w_norm, prepared = PreparedSenses.of(
            h, senses.w[order], senses.theta[order], kernel, products
        )
        w_norm = w_norm.squeeze(-1)
        prepared = prepared.squeeze(-1)
        folded = None
        if w.dtype == w_norm.dtype:  # else w would be rounded twice
            folded = kernel.fold(w, w_norm, prepared)
        return cls(
            kernel=kernel,
            w=pack(w if folded is None else folded.rows),
            w_norm=w_norm,
            prepared=prepared,
            factors=None if folded is None else folded.factors,
            counts=counts,
            word_position=words.argsort(),
            words_of_slot=words_of_slot,
            sense_position=order.argsort(),
        )

    def write_log_probs(self, h: Tensor, scores: Tensor) -> None:
        """Write log-probabilities of all words for a few context vectors, [n, d], to [n, V]."""
        if len(self.counts) == 1:
            torch.log_softmax(self._logits(h), 1, out=scores)
            return
        if self.words_of_slot is not None:
            self._sum_in_order(h, self.words_of_slot, scores)
            return
        # elsewhere the comparisons would wait for a GPU
        exponentiates = h.device.type == "cpu" and len(h) > 0
        if not (exponentiates and self._sum_exponentials(h, scores)):
            self._sum_logarithms(h, scores)

    def _sum_in_order(self, h: Tensor, words_of_slot: list[Tensor], scores: Tensor) -> None:
        """:meth:`write_log_probs` where the first senses are in the order of the words."""
        words, *others = self._logits(h).split(self.counts, 1)
        for part, numbers in zip(others, words_of_slot):
            words[:, numbers] = torch.logaddexp(words[:, numbers], part)
        torch.log_softmax(words, 1, out=scores)

    def _sum_exponentials(self, h: Tensor, scores: Tensor) -> bool:
        """:meth:`write_log_probs` by sums of exponentials. False if they leave their range."""
        words, *others = self._logits(h).exp_().split(self.counts, 1)
        for part in others:
            words[:, : part.shape[1]].add_(part)
        total = words.sum(1, keepdim=True)
        if not (words.amin() > SMALLEST and total.amax() < LARGEST):
            return False
        torch.index_select(words, 1, self.word_position, out=scores)
        scores.log_().sub_(total.log_())
        return True

    def _sum_logarithms(self, h: Tensor, scores: Tensor) -> None:
        """:meth:`write_log_probs` for logits of every range. It takes longer."""
        words, *others = self._logits(h).split(self.counts, 1)
        for part in others:
            some = words[:, : part.shape[1]]
            torch.logaddexp(some, part, out=some)
        torch.log_softmax(words.index_select(1, self.word_position), 1, out=scores)

    def _logits(self, h: Tensor) -> Tensor:
        """Logits of all senses, [n, d] -> [n, M]."""
        h = h.to(self.w_norm.dtype)
        h_norm = safe_norm(h)
        if self.factors is not None:
            x = multiply(h * safe_inverse(h_norm), self.w)
        else:
            x = widen(multiply(self.kernel.map_contexts(h).to(self.w.dtype), self.w), h.dtype)
        for block in row_blocks(x.t()):  # a block of senses fits into a CPU's cache
            part = x[:, block]
            if self.factors is not None:
                torch.expm1(part, out=part).mul_(self.factors[block]).mul_(h_norm)
            else:
                prepared = self.prepared[..., block]
                part.copy_(self.kernel.value(part, h_norm, self.w_norm[block], prepared))
        return x

    def logits_of(self, senses: Tensor, vectors: Tensor, h: Tensor) -> Tensor:
        """Logits of some senses for each context vector.

        Args:
            senses: their numbers, [..., K].
            vectors: their embeddings, [..., K, d].
            h: context vectors, [..., d].

        Returns:
            [..., K].
        """
        h = h.to(self.w_norm.dtype)
        x = self.kernel.map_contexts(h).unsqueeze(-2) @ vectors.to(h.dtype).transpose(-1, -2)
        x = x.squeeze(-2)
        if isinstance(self.kernel, InnerProductKernel):
            return x
        positions = self.sense_position[senses]
        prepared = self.prepared[..., positions]
        return self.kernel.value(x, safe_norm(h), self.w_norm[positions], prepared)


@torch.no_grad()
def score_words(
    h: Tensor, senses: SenseParameters, ranked: RankedSenses | None = None
) -> tuple[Tensor, RankedSenses]:
    """Log-probabilities of all words (Eq. 4–5) without gradient, a chunk of tokens at a time.

    Args:
        h: context vectors, [..., d].
        senses: senses with their parameters.
        ranked: the second result of an earlier call with the same senses.

    Returns:
        log-probabilities [..., V], and the prepared senses.
    """
    if ranked is None:
        ranked = RankedSenses.of(h, senses)
    flat = h.reshape(-1, h.shape[-1])
    with torch.autocast(h.device.type, enabled=False):
        size = chunk_size(len(flat), senses.w, compiled=False, cpu_tokens=CPU_TOKENS)
        scores = ranked.w_norm.new_empty(len(flat), len(ranked.word_position))
        for part, some in zip(flat.split(size), scores.split(size)):
            ranked.write_log_probs(part, some)
    return scores.view(*h.shape[:-1], len(ranked.word_position)), ranked
