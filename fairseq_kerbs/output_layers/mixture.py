"""Mixtures of softmaxes as output layers (Yang et al. 2018; Gao et al. 2019, Eq. 1–3).

layer = MixtureOutputLayer(288, 10_000, ["lin"] * 3, biases=True)                      # MoS
layer = MixtureOutputLayer(288, 10_000, ["lin", "lin", "lin", "log"])                  # kernels
loss = layer.nll(h, target, reduction="mean")
loss = loss + 0.1 * weight_variance(layer.component_weights(h)).mean()                 # Eq. 14
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from fairseq_kerbs.kernels import Kernel, build_kernel, compute_dtype
from fairseq_kerbs.likelihood import mixture
from fairseq_kerbs.likelihood.nll import NllOptions, check_target
from fairseq_kerbs.output_layers.base import Losses, OutputLayer


def weight_variance(weights: Tensor) -> Tensor:
    """Variance of the weights π over components (Gao et al., Eq. 14), [..., K] -> [...]."""
    return weights.var(-1, unbiased=False)


class MixtureOutputLayer(OutputLayer):
    """Mixture of K softmaxes, with a kernel S_k in each.

        p(v | h) = Σ_k π_k softmax_v(S_k(w_v, h̃_k) + b_v)
        π = softmax(M h),    h̃_k = r tanh((C_k h + b_k) / r)

    All components share the word embeddings W, [V, d], and the output bias b, [V]. Words have one
    sense, so no sense moves.

    - The mixture of softmaxes (MoS) of Yang et al. (2018) is K inner products, r = 1 and
      ``biases=True``. The equations of the paper have no biases. Its code has b_k and b, and none
      in M: https://github.com/zihangdai/mos.
    - The mixtures of kernels of Gao et al. (2019, Eq. 1-3) have r = 1 and no biases.

    Initial b is 0, as in the code of Yang et al. C_k, b_k and M are initialized as in
    ``torch.nn.Linear``, as there, uniformly in ±d^−½. Initial word embeddings are ours: that code
    draws them uniformly in ±0.1.

    Other values of the tanh scale r are ours. Early in training contexts grow while the model
    learns word frequencies. With r = 1 and embeddings of norm 1, every tanh then saturates.

    The mixture is not homogeneous in h. A generator's temperature divides h, which does not divide
    log p.

    Args:
        embed_dim: size d of context vectors and word embeddings.
        vocab_size: number of words V.
        kernels: kernel S_k of every component, or its name.
        init_scale: standard deviation of initial embeddings, in units of d^−½.
        tanh_scale: r, positive. It is no part of the state dict, as the kernels' options.
        biases: whether the projections have biases b_k and the output b. This is not ``biased`` of
            other layers: context vectors have no constant coordinate.

    Raises:
        ValueError: ``kernels`` is empty, a kernel is unknown, or ``tanh_scale`` is not positive and
            finite.
    """

    bias: nn.Parameter | None  # output bias b, [V]

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        kernels: Sequence[str | Kernel],
        *,
        init_scale: float = 1.0,
        tanh_scale: float = 1.0,
        biases: bool = False,
    ) -> None:
        if not kernels:
            raise ValueError("A mixture needs at least one component: give its `kernels`.")
        if not 0.0 < tanh_scale < math.inf:
            raise ValueError(f"`tanh_scale` is {tanh_scale}, but must be within (0, inf).")
        super().__init__(embed_dim, vocab_size, init_scale=init_scale)
        self.kernels = [build_kernel(kernel).bind(embed_dim) for kernel in kernels]
        self.kernel_name = ",".join(kernel.name for kernel in self.kernels)
        self.components = len(kernels)
        size = self.components * embed_dim
        where: Any = {"device": self.weight.device}
        # the stacked C_k and b_k
        self.projections = skip_init(nn.Linear, embed_dim, size, bias=biases, **where)
        self.mixing = skip_init(nn.Linear, embed_dim, self.components, bias=False, **where)  # M
        self.bias = nn.Parameter(torch.empty(vocab_size)) if biases else None
        self.tanh_scale = tanh_scale
        learned = [str(k) for k, kernel in enumerate(self.kernels) if kernel.has_theta]
        self.thetas = nn.ParameterDict({k: torch.empty(vocab_size) for k in learned})  # [V] each
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters at random."""
        super().reset_parameters()
        self.projections.reset_parameters()
        self.mixing.reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        for number, theta in self.thetas.items():
            kernel = self.kernels[int(number)]
            nn.init.normal_(theta, std=kernel.theta_std)

    def contexts(self, h: Tensor) -> Tensor:
        """h̃_k = r tanh((C_k h + b_k) / r) of every component, [..., d] -> [..., K, d]."""
        bounded: Tensor = self.tanh_scale * torch.tanh(self.projections(h) / self.tanh_scale)
        return bounded.unflatten(-1, (self.components, self.embed_dim))

    def log_weights(self, h: Tensor) -> Tensor:
        """Log π (Eq. 2), [..., d] -> [..., K], computed in float32 or float64."""
        weight = self.mixing.weight
        dtype = compute_dtype(h, weight)
        with torch.autocast(h.device.type, enabled=False):
            return F.linear(h.to(dtype), weight.to(dtype)).log_softmax(-1)

    def component_weights(self, h: Tensor) -> Tensor:
        """π (Eq. 2), [..., d] -> [..., K]."""
        return self.log_weights(h).exp()

    @property
    def published_regularization(self) -> float:
        """ρ of the paper: 0.1 in all mixtures of Gao et al. (Section 4.4), 0 in MoS.

        MoS is the layer with biases.
        """
        return 0.1 if self.bias is None else 0.0

    def sense_logits(self, contexts: Tensor, senses: Tensor) -> Tensor:
        """Inner products [n, k] of context vectors h̃ [n, d] with the words [k], with the bias b.

        Word embeddings as ``contexts`` give the similarity of words.
        """
        logits = super().sense_logits(contexts, senses)
        return logits if self.bias is None else logits + self.bias[senses].float()

    def _mixture(self, h: Tensor) -> mixture.Mixture:
        thetas = [self.thetas.get(str(k), self.theta) for k in range(self.components)]
        return mixture.Mixture(
            self.contexts(h), self.weight, self.log_weights(h), self.kernels, thetas, self.bias
        )

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, tanh_scale={self.tanh_scale}, biases={self.bias is not None}"
        )

    def _log_probs(self, h: Tensor) -> Tensor:
        return mixture.mixture_log_probs(self._mixture(h))

    def _score(self, h: Tensor, prepared: Any) -> tuple[Tensor, Any]:
        return self._log_probs(h), None

    @property
    def may_compile(self) -> bool:
        """Nothing of a mixture is compiled."""
        return False

    def _nll(self, h: Tensor, target: Tensor, options: NllOptions) -> Losses:
        check_target(target, h)
        counted = target != options.ignore_index
        # before the projections, in whose gradients 0 · NaN of an ignored context is NaN
        h = torch.where(counted.unsqueeze(1), h, 0.0)
        return *mixture.mixture_nll(self._mixture(h), target, options), None
