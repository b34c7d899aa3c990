"""Cross-entropy over words from an output layer's own memory-lean likelihood (Eq. 11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor

from fairseq_kerbs.output_layers import OutputLayer


@dataclass
class KerbsCrossEntropyCriterionConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """Flags of ``--criterion kerbs_cross_entropy``: those of label_smoothed_cross_entropy."""


@register_criterion("kerbs_cross_entropy", dataclass=KerbsCrossEntropyCriterionConfig)
class KerbsCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """Label-smoothed cross-entropy (smoothing 0 by default) for every output layer of ours.

    Same loss and logs as fairseq's ``label_smoothed_cross_entropy``, but tokens × senses are never
    in memory, and while training the layer records what Eq. 12–13 need.
    """

    def compute_loss(
        self, model: Any, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Loss and plain nll, summed (or by token where ``reduce`` is false), in nats."""
        features, target = self._features_and_target(model, net_output, sample)
        loss, token_nll, _ = output_layer_of(model).nll_with_evidence(
            features,
            target,
            ignore_index=self.padding_idx,
            label_smoothing=self.eps,
            reduction="sum" if reduce else "none",
        )
        if not reduce:
            return loss.flatten(), token_nll.flatten()
        return loss, token_nll.sum()

    def compute_accuracy(
        self, model: Any, net_output: Any, sample: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Number of target words that are the most probable word, and number of targets."""
        features, target = self._features_and_target(model, net_output, sample)
        counted = target.ne(self.padding_idx)
        predicted = output_layer_of(model).predict(features[counted].detach())
        return predicted.eq(target[counted]).sum(), counted.sum()

    def _features_and_target(
        self, model: Any, net_output: Any, sample: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        features: Tensor = net_output[0]  # [batch, len, d]
        target: Tensor = model.get_targets(sample, net_output)  # [batch, len]
        skip = self.ignore_prefix_size
        return features[:, skip:], target[:, skip:]


def output_layer_of(model: torch.nn.Module) -> OutputLayer:
    """The output layer of a (possibly wrapped) model.

    Raises:
        SystemExit: the model is none of ours; the message names the flag.
    """
    layer = getattr(getattr(model, "decoder", None), "output", None)
    if not isinstance(layer, OutputLayer):
        raise SystemExit(
            "fairseq_kerbs: error: --criterion kerbs_cross_entropy needs one of the architectures "
            "of fairseq_kerbs (--arch transformer_kerbs, lstm_kerbs, gru_kerbs, and for language "
            "models transformer_lm_kerbs, gru_lm_kerbs, lstm_lm_kerbs, bilstm_lm_kerbs)."
        )
    return layer
