"""Senses prepared once for decoding, and the log-probabilities of all words from them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import InnerProductKernel, KerbsKernel, safe_norm
from fairseq_kerbs.kernels.prepared import PreparedSenses, product_dtype
from fairseq_kerbs.likelihood.chunks import chunk_size, row_blocks
from fairseq_kerbs.likelihood.nll import Senses
from fairseq_kerbs.likelihood.passes import write_logits

CPU_TOKENS = 1024  # more than in training, where gradients of all senses meet every chunk


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
        mask = table.mask[words].t()
        order = table.senses[words].t()[mask]  # [M]
        bound = kernel.bind(w.shape[1])
        if type(bound) is KerbsKernel and not theta.any():
            bound = InnerProductKernel()  # the same to the last bit
        prepared = PreparedSenses.of(h, w[order], theta[order], bound, product_dtype(h, w))
        return cls(prepared, mask.sum(1).tolist(), words.argsort(), order.argsort())

    def log_probs(self, h: Tensor) -> Tensor:
        """Log-probabilities of all words for a few context vectors, [n, d] -> [n, V]."""
        contexts, h_norm = self.senses.contexts(h)
        x = self.senses.products(contexts)
        for rows in row_blocks(x):
            write_logits(*self.senses.inputs(x, h_norm, rows), x[rows])
        words, *others = x.split(self.counts)
        for part in others:
            torch.logaddexp(words[: len(part)], part, out=words[: len(part)])
        axis = int(h.is_cuda)  # log_softmax over rows is slow on a GPU
        scores = (words.t().contiguous() if axis else words).log_softmax(axis)
        scores = scores.index_select(axis, self.rows) if others else scores
        return scores if axis else scores.t()

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
    """Log-probabilities of all words (Eq. 4–5) without gradient, [..., d] -> [..., V], a chunk of
    tokens at a time; and the prepared senses, ``ranked`` of the next call with the same ones."""
    ranked = ranked or RankedSenses.of(h, senses)
    flat = h.reshape(-1, h.shape[-1])
    with torch.autocast(h.device.type, enabled=False):
        size = chunk_size(len(flat), senses.w, compiled=False, cpu_tokens=CPU_TOKENS)
        scores = torch.cat([ranked.log_probs(part) for part in flat.split(size)])
    return scores.view(*h.shape[:-1], len(ranked.rows)), ranked
