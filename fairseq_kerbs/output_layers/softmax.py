"""Softmax baseline (Eq. 3)."""

from __future__ import annotations

from fairseq_kerbs.output_layers.base import KernelOutputLayer


class SoftmaxOutputLayer(KernelOutputLayer):
    """P(word i) = softmax_i(h · w_i), computed by the same code as KerBS.

    Args:
        embed_dim: size d of context vectors and word embeddings.
        vocab_size: number of words V.
        biased: the last coordinate of context vectors is 1, so that words have biases.
        init_scale: standard deviation of initial embeddings, in units of d^−½.
    """

    def __init__(
        self, embed_dim: int, vocab_size: int, *, biased: bool = False, init_scale: float = 1.0
    ) -> None:
        super().__init__(embed_dim, vocab_size, biased=biased, init_scale=init_scale)
        self._bind("lin")
        self.reset_parameters()
