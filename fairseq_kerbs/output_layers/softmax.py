"""Plain softmax (Eq. 3)."""

from __future__ import annotations

from fairseq_kerbs.output_layers.base import KernelOutputLayer


class SoftmaxOutputLayer(KernelOutputLayer):
    """P(word i) = softmax_i(h · w_i): the baseline, on the same memory-lean code path as KerBS.

    Arguments are those of :class:`OutputLayer`.
    """

    def __init__(
        self, embed_dim: int, vocab_size: int, *, biased: bool = False, init_scale: float = 1.0
    ) -> None:
        super().__init__(embed_dim, vocab_size, biased=biased, init_scale=init_scale)
        self._bind("lin")
        self.reset_parameters()
