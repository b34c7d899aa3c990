"""Training criterion: cross-entropy over words (Eq. 11), computed by the output layer.

fairseq reads the types of configuration fields as they are: annotations are not postponed here.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from fairseq import metrics
from fairseq.criterions import label_smoothed_cross_entropy as stock
from fairseq.criterions import register_criterion
from torch import Tensor

from fairseq_kerbs.likelihood.nll import NllOptions
from fairseq_kerbs.models.config import user_errors
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.output_layers.mixture import MixtureOutputLayer, weight_variance
from fairseq_kerbs.utils.errors import UserError

RHO = (
    "rho, the weight of the variance of mixture weights in the training loss (Gao et al., Eq. 14) "
    "[0.1 with --output-layer mixture, 0 with mos]"
)


@dataclass
class KerbsCrossEntropyCriterionConfig(stock.LabelSmoothedCrossEntropyCriterionConfig):
    """Flags of ``--criterion kerbs_cross_entropy``."""

    mixture_regularization: Optional[float] = field(default=None, metadata={"help": RHO})


@register_criterion("kerbs_cross_entropy", dataclass=KerbsCrossEntropyCriterionConfig)
class KerbsCrossEntropyCriterion(stock.LabelSmoothedCrossEntropyCriterion):
    """Label-smoothed cross-entropy for the output layers of fairseq_kerbs.

    Loss and logs are those of fairseq's ``label_smoothed_cross_entropy``. The matrix of tokens ×
    senses is never in memory. In training mode the layer records the statistics of Eq. 12–13.

    With a mixture, the training loss has the term ρ Var(π), the variance of a token's mixture
    weights (Gao et al. 2019, Eq. 14). The log has the mean weight of each component.

    Args:
        task: the fairseq task.
        sentence_avg: average gradients over sentences instead of tokens.
        label_smoothing: ε, in [0, 1). The default of the flag is 0.
        ignore_prefix_size: number of target tokens to leave out at the start of a sentence.
        report_accuracy: log the share of target words that are predicted.
        mixture_regularization: ρ, 0 or more, or None for that of the layer.

    Raises:
        UserError: a value is out of range, or the model has no output layer of fairseq_kerbs.
    """

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
        mixture_regularization: Optional[float] = None,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        with user_errors():
            NllOptions(label_smoothing=label_smoothing)
        rho = self.mixture_regularization = mixture_regularization
        if rho is not None and not 0.0 <= rho < math.inf:
            raise UserError(
                f"--mixture-regularization is {rho}; it must be a finite number, 0 or more."
            )
        self._mixture_log: dict[str, Tensor] = {}

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        loss, size, log = super().forward(model, sample, reduce)
        mixture = self._mixture_log
        self._mixture_log = {}
        return loss, size, log | mixture

    def compute_loss(
        self, model: Any, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Smoothed loss and nll in nats: sums, or one value per token if not ``reduce``."""
        features, target = self._features_and_target(model, net_output, sample)
        layer = output_layer_of(model)
        loss, token_nll, _ = layer.nll_with_probabilities(
            features,
            target,
            ignore_index=self.padding_idx,
            label_smoothing=self.eps,
            reduction="sum" if reduce else "none",
        )
        rho = self._rho(layer)
        with torch.set_grad_enabled(torch.is_grad_enabled() and rho > 0):
            weights = layer.component_weights(features)  # [batch, len, K]
        if weights is not None:
            counted = target.ne(self.padding_idx)
            variance = torch.where(counted, weight_variance(weights), 0.0)  # [batch, len]
            self._mixture_log = _mixture_sums(weights.detach(), variance.detach(), counted)
            if rho and model.training:
                penalty = rho * variance
                loss = loss + (penalty.sum() if reduce else penalty)
        if not reduce:
            return loss.flatten(), token_nll.flatten()
        return loss, token_nll.sum()

    def _rho(self, layer: OutputLayer) -> float:
        """ρ of the flag, or else of the layer. A UserError is raised if it has no components."""
        rho = self.mixture_regularization
        if not isinstance(layer, MixtureOutputLayer):
            if rho:
                raise UserError(
                    f"--mixture-regularization {rho} is for --output-layer mos and mixture: leave "
                    "it out for other output layers."
                )
            return 0.0
        return layer.published_regularization if rho is None else rho

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the metrics of fairseq, and the means over tokens of mixture weights and variance."""
        super().reduce_metrics(logging_outputs)
        tokens = sum(float(log.get("mixture_tokens", 0)) for log in logging_outputs)
        if tokens == 0:
            return
        names = {name for log in logging_outputs for name in log if name.startswith("mixture_")}
        for name in sorted(names - {"mixture_tokens"}):
            mean = sum(log.get(name, 0) for log in logging_outputs) / tokens
            # the variance of nine weights is below 0.1, so that 4 digits would be too few
            digits = 6 if name == "mixture_variance" else 4
            metrics.log_scalar(name, mean, tokens, priority=1520, round=digits)

    def compute_accuracy(
        self, model: Any, net_output: Any, sample: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Number of correctly predicted target words, and number of target words."""
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


def _mixture_sums(weights: Tensor, variance: Tensor, counted: Tensor) -> dict[str, Tensor]:
    """Sums over tokens for the log.

    Args:
        weights: π of every token, [batch, len, K].
        variance: their variance, 0 at padding, [batch, len].
        counted: False at padding, [batch, len].
    """
    of_components = torch.where(counted.unsqueeze(-1), weights, 0.0).sum((0, 1))  # [K]
    sums = {f"mixture_weight_{k}": value for k, value in enumerate(of_components)}
    return {**sums, "mixture_variance": variance.sum(), "mixture_tokens": counted.sum()}


def output_layer_of(model: torch.nn.Module) -> OutputLayer:
    """The output layer of a model. Raises a UserError if it is not one of fairseq_kerbs."""
    layer = getattr(getattr(model, "decoder", None), "output", None)
    if not isinstance(layer, OutputLayer):
        raise UserError(
            "--criterion kerbs_cross_entropy needs one of the architectures of fairseq_kerbs, say "
            "--arch transformer_kerbs, lstm_kerbs, or for language models transformer_lm_kerbs."
        )
    return layer
