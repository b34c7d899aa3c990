"""Attention of recurrent decoders to the outputs of an encoder.

Each module scores the decoder's state against every source position, and returns the weights and
what the decoder reads of the source with them. The decoders of
:mod:`fairseq_kerbs.models.recurrent` decide when it is called, and what becomes of the result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from fairseq.models import lstm
from torch import Tensor, nn


class Attention(nn.Module, ABC):
    """Interface of attentions. Each is built from the size of states and of encoder outputs."""

    def keys(self, outputs: Tensor) -> Tensor | None:
        """What is computed once a sentence from encoder outputs [src_len, batch, units].

        Returns:
            A tensor with the batch first, which a beam search can reorder, or None.
        """
        return None

    @abstractmethod
    def forward(
        self, state: Tensor, keys: Tensor | None, outputs: Tensor, padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Read the source once.

        Args:
            state: state of the decoder, [batch, units].
            keys: result of :meth:`keys`.
            outputs: outputs of the encoder, [src_len, batch, units].
            padding: True at padding, [src_len, batch].

        Returns:
            What is read, [batch, units], and the weight of each position, [batch, src_len]. Weights
            are at least 0, sum to 1, and are 0 at padding.
        """


class BahdanauAttention(Attention):
    r"""Additive attention of Bahdanau et al. (2015), Section 3.1 and Appendix A.1.2.

    .. math::

        \alpha_j = \text{softmax}_j\, v^\top \tanh(W_s s + W_h h_j), \quad
        c = \sum_j \alpha_j h_j

    for a state s and encoder outputs h_j. The :math:`W_h h_j` are the keys. The paper leaves out
    all biases in print; we have one, in :math:`W_h h_j`.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        self.state_proj = nn.Linear(units, units, bias=False)  # W_s
        self.key_proj = nn.Linear(units, units)  # W_h
        self.score_proj = nn.Linear(units, 1, bias=False)  # v

    def keys(self, outputs: Tensor) -> Tensor:
        """Keys, [batch, src_len, units]."""
        keys: Tensor = self.key_proj(outputs.transpose(0, 1))
        return keys

    def forward(
        self, state: Tensor, keys: Tensor | None, outputs: Tensor, padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns c, [batch, units], and the weights α, [batch, src_len]."""
        assert keys is not None
        hidden = torch.tanh(keys + self.state_proj(state).unsqueeze(1))  # [batch, src_len, units]
        scores = self.score_proj(hidden).squeeze(2)  # [batch, src_len]
        # in float32, where float16 and bfloat16 would lose small weights
        scores = scores.float() if scores.dtype != torch.float64 else scores
        weights = scores.masked_fill(padding.t(), float("-inf")).softmax(1).type_as(outputs)
        read = torch.bmm(weights.unsqueeze(1), outputs.transpose(0, 1)).squeeze(1)
        return read, weights


class LuongAttention(lstm.AttentionLayer, Attention):
    r"""Bilinear attention of Luong et al. (2015), by fairseq's layer.

    .. math::

        \alpha_j = \text{softmax}_j\, h_j^\top W s, \quad
        \tilde s = \tanh(W_c [\textstyle\sum_j \alpha_j h_j; s])

    There are no keys. What is read is s̃.
    """

    def __init__(self, units: int) -> None:
        super().__init__(units, units, units)

    def forward(
        self, state: Tensor, keys: Tensor | None, outputs: Tensor, padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns s̃, [batch, units], and the weights α, [batch, src_len]."""
        read, weights = lstm.AttentionLayer.forward(self, state, outputs, padding)
        return read, weights.t()


ATTENTIONS: dict[str, type[Attention]] = {"bahdanau": BahdanauAttention, "luong": LuongAttention}
"""Attentions of the flag ``--attention``."""


class Maxout(nn.Module):
    """Linear layer with two units for each output, which is the greater of the two."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, 2 * outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[…, inputs] -> […, outputs]: the maximum of units j and j + outputs."""
        first, second = self.linear(x).chunk(2, dim=-1)
        return torch.maximum(first, second)
