"""Plain softmax (Eq. 3)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fairseq_kerbs.likelihood import kerbs_log_probs, nll_with_evidence, score_words
from fairseq_kerbs.output_layers.base import OutputLayer


class SoftmaxOutputLayer(OutputLayer):
    """P(word i) = softmax_i(h · w_i): the baseline, on the same memory-lean code path as KerBS.

    Args:
        embed_dim: size d of context vectors and word embeddings.
        vocab_size: number of words V.
        biased, init_scale: see :class:`OutputLayer`.
    """

    def __init__(
        self, embed_dim: int, vocab_size: int, *, biased: bool = False, init_scale: float = 1.0
    ) -> None:
        super().__init__(embed_dim, vocab_size, biased=biased, init_scale=init_scale)
        self.reset_parameters()

    def _log_probs(self, h: Tensor) -> Tensor:
        inputs = (h, self.weight, self.theta, self.word_of_sense, self.vocab_size)
        return kerbs_log_probs(*inputs, kernel="lin", table=self.table)

    def _score(self, h: Tensor, prepared: Any) -> tuple[Tensor, Any]:
        inputs = (h, self.weight, self.theta, self.word_of_sense, self.table)
        return score_words(*inputs, kernel="lin", backend=prepared)

    def _nll(self, h: Tensor, target: Tensor, **options: Any) -> tuple[Tensor, Tensor, None]:
        inputs = (h, self.weight, self.theta, self.word_of_sense, target)
        loss, token_nll, _ = nll_with_evidence(*inputs, kernel="lin", table=self.table, **options)
        return loss, token_nll, None
