"""Log-probabilities of all words (Eq. 4–5): by autograd, and fast for decoding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import (
    InnerProductKernel,
    KerbsKernel,
    Kernel,
    build_kernel,
    kernel_logits,
    safe_norm,
)
from fairseq_kerbs.kernels.prepared import PreparedSenses, product_dtype
from fairseq_kerbs.likelihood.chunks import chunk_size, row_blocks
from fairseq_kerbs.likelihood.nll import Senses
from fairseq_kerbs.likelihood.passes import word_masses, write_logits
from fairseq_kerbs.senses import build_sense_table


def kerbs_log_probs(
    h: Tensor, w: Tensor, theta: Tensor, word_of_sense: Tensor, vocab_size: int, *,
    kernel: str | Kernel = "kerbs",
) -> Tensor:  # fmt: skip
    """Log-probabilities of all words (Eq. 4–5), differentiable.

    Where autograd is off this is :func:`score_words`, which is faster and needs less memory.

    Args:
        h: context vectors, [..., d].
        w, theta, word_of_sense, kernel: as of :func:`kerbs_nll`.
        vocab_size: number of words V.

    Returns:
        [..., V] in float32, or float64 where an input is float64; exp of it sums to 1.
    """
    table = build_sense_table(word_of_sense, vocab_size)
    senses = Senses(w, theta, table, build_kernel(kernel))
    return word_log_probs(h, senses) if torch.is_grad_enabled() else score_words(h, senses)[0]


def word_log_probs(h: Tensor, senses: Senses) -> Tensor:
    """:func:`kerbs_log_probs` by autograd, all logits at once: [..., d] -> [..., V]."""
    w, theta, table, kernel = senses
    logits = kernel_logits(h.reshape(-1, h.shape[-1]), w, theta, kernel).t()  # [M, N]
    words = word_masses(logits, table.senses, table.mask)  # [V, N]
    return words.log_softmax(0).t().reshape(*h.shape[:-1], len(table.senses))


class RankedSenses(NamedTuple):
    """Senses in an order in which words are summed without a gather: the first sense of every word,
    then the second ones, and so on; words with more senses come first."""

    senses: PreparedSenses
    counts: list[int]  # number of words with more than k senses, for k = 0, 1, …
    rows: Tensor  # where each word is among the first senses, [V]
    places: Tensor  # where each sense is, [M]

    @classmethod
    def of(cls, h: Tensor, senses: Senses) -> RankedSenses:
        """Prepare senses for context vectors like h."""
        w, theta, table, kernel = senses
        words = table.mask.sum(1).sort(descending=True, stable=True).indices
        mask = table.mask[words]
        order = table.senses[words].t()[mask.t()]  # [M]
        bound = kernel.bind(w.shape[1])
        if type(bound) is KerbsKernel and not theta.any():
            bound = InnerProductKernel()  # the same to the last bit
        chosen = PreparedSenses.of(h, w[order], theta[order], bound, product_dtype(h, w))
        return cls(chosen, mask.sum(0).tolist(), words.argsort(), order.argsort())

    def log_probs(self, h: Tensor) -> Tensor:
        """Log-probabilities of all words for a few context vectors, [n, d] -> [n, V]."""
        contexts, h_norm = self.senses.contexts(h)
        x = self.senses.products(contexts)
        for rows in row_blocks(x):
            write_logits(*self.senses.inputs(x, h_norm, rows), x[rows])
        start = len(self.rows)
        for count in self.counts[1:]:
            first, others = x[:count], x[start : start + count]
            torch.logaddexp(first, others, out=first)
            start += count
        scores = x[: len(self.rows)].log_softmax(0)
        return (scores.index_select(0, self.rows) if len(self.counts) > 1 else scores).t()

    def logits_of(self, senses: Tensor, vectors: Tensor, h: Tensor) -> Tensor:
        """Logits [..., K] of some senses for each context vector h [..., d]: their numbers [..., K]
        and vectors [..., K, d]."""
        (kernel, _, w_norm, theta), places = self.senses, self.places[senses]
        h = h.to(w_norm.dtype)
        x = torch.einsum("...d,...kd->...k", kernel.map_contexts(h), vectors.to(h.dtype))
        return kernel.value(x, safe_norm(h), w_norm[places, 0], theta[..., places, 0])


@torch.no_grad()
def score_words(
    h: Tensor, senses: Senses, ranked: RankedSenses | None = None
) -> tuple[Tensor, RankedSenses]:
    """:func:`kerbs_log_probs` without gradient, a chunk of tokens at a time.

    ``ranked`` is what an earlier call with the same senses returned beside the [..., V]
    log-probabilities; it saves preparing them again.
    """
    ranked = ranked or RankedSenses.of(h, senses)
    flat = h.reshape(-1, h.shape[-1])
    with torch.autocast(h.device.type, enabled=False):
        size = chunk_size(len(flat), senses.w, compiled=False)
        scores = torch.cat([ranked.log_probs(part) for part in flat.split(size)])
    return scores.view(*h.shape[:-1], len(ranked.rows)), ranked
