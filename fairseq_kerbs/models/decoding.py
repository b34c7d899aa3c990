"""What all our models share: features go out of ``forward``, and the output layer scores them.

fairseq's generators, scorers and criterions ask ``get_normalized_probs`` for word probabilities of
whatever ``forward`` returned, so the number of senses never shows outside.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.models.config import fail
from fairseq_kerbs.models.fitting import check_checkpoint
from fairseq_kerbs.output_layers import OutputLayer


class ScoredByOutputLayer:
    """Mixin for fairseq decoders.

    Attributes:
        output: the output layer.
        sense_bias: a constant 1 is the last coordinate of context vectors.
    """

    output: OutputLayer
    sense_bias = False

    def contexts(self, features: Tensor) -> Tensor:
        """Context vectors [..., d] of the output layer, from the decoder's features."""
        return F.pad(features, (0, 1), value=1.0) if self.sense_bias else features

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


class FittingCheckpoint:
    """Mixin for fairseq models: a checkpoint of other sizes is refused with one sentence."""

    def upgrade_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """What fairseq calls with a checkpoint's parameters before it loads them."""
        model: Any = super()
        model.upgrade_state_dict(state_dict)
        for key, _ in model.named_parameters():
            if key not in state_dict:
                fail(
                    f"the checkpoint has no {key}: give the numbers of layers and the other flags "
                    "that it was trained with."
                )
        for key, own in model.state_dict().items():
            found = state_dict.get(key, own).shape
            if found == own.shape:
                continue
            if key == "encoder.embed_tokens.weight" and found[1:] == own.shape[1:]:
                fail(
                    f"the checkpoint has a source dictionary of {found[0]} words, the data has one "
                    f"of {own.shape[0]}: use the data that the model was trained on."
                )
            fail(
                f"the checkpoint's {key} has the shape {list(found)}, this model's "
                f"{list(own.shape)}: give the sizes that it was trained with."
            )
