"""What all our decoders share: features go out of ``forward``, and the output layer scores them.

fairseq's generators, scorers and criterions ask ``get_normalized_probs`` for word probabilities of
whatever ``forward`` returned, so the number of senses never shows outside.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fairseq_kerbs.models.options import check_checkpoint
from fairseq_kerbs.output_layers import OutputLayer


class ScoredByOutputLayer:
    """Mixin for fairseq decoders.

    Attributes:
        output: the output layer.
    """

    output: OutputLayer

    def output_layer(self, features: Tensor) -> Tensor:
        """Features as they are: words are scored in :meth:`get_normalized_probs`."""
        return self.output.anchor(features)

    def get_normalized_probs(
        self, net_output: tuple[Tensor, Any], log_probs: bool, sample: Any = None
    ) -> Tensor:
        """Word (log-)probabilities of features [batch, len, d], in float32: [batch, len, V]."""
        scores = self.output.log_probs(net_output[0])
        return scores if log_probs else scores.exp()

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> dict[str, Any]:
        """Refuse checkpoints of another output layer, with one sentence."""
        check_checkpoint(self.output, state_dict, f"{name}.output.")
        stock = getattr(super(), "upgrade_state_dict_named", None)
        return state_dict if stock is None else stock(state_dict, name)
