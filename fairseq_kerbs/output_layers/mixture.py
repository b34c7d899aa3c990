"""Mixtures of softmaxes as output layers (Yang et al. 2018; Gao et al. 2019, Eq. 1–3).

layer = MixtureOutputLayer(embed_dim=288, vocab_size=10_000, kernels=["lin"] * 3)      # MoS
layer = MixtureOutputLayer(288, 10_000, ["lin", "lin", "lin", "log"])                  # kernels
loss = layer.nll(h, target, reduction="mean")
loss = loss + 0.1 * weight_variance(layer.component_weights(h)).mean()                 # Eq. 14
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from fairseq_kerbs.kernels import Kernel, build_kernel, compute_dtype
from fairseq_kerbs.likelihood import mixture
from fairseq_kerbs.likelihood.nll import NllOptions
from fairseq_kerbs.output_layers.base import Losses, OutputLayer


def weight_variance(weights: Tensor) -> Tensor:
    """Variance of the weights π over components (Gao et al., Eq. 14), [..., K] -> [...]."""
    return weights.var(-1, unbiased=False)


class MixtureOutputLayer(OutputLayer):
    """p(v | h) = Σ_k π_k softmax_v(S_k(w_v, h̃_k)),  π = softmax(M h),  h̃_k = r tanh(C_k h / r).

    All K components share the word embeddings W, [V, d]. Words have one sense, so no sense moves.

    The tanh scale r is 1 in both papers. Early in training contexts grow while the model learns
    word frequencies. With r = 1 and embeddings of norm 1, every tanh then saturates.

    The mixture is not homogeneous in h. A generator's temperature divides h, which does not divide
    log p.

    Args:
        embed_dim: size d of context vectors and word embeddings.
        vocab_size: number of words V.
        kernels: kernel S_k of every component, or its name.
        init_scale: standard deviation of initial embeddings, in units of d^−½.
        tanh_scale: r.

    Raises:
        ValueError: ``kernels`` is empty, or a kernel is unknown.
    """

    tanh_scale: Tensor  # r, a scalar buffer

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        kernels: Sequence[str | Kernel],
        *,
        init_scale: float = 1.0,
        tanh_scale: float = 1.0,
    ) -> None:
        if not kernels:
            raise ValueError("A mixture needs at least one component: give its `kernels`.")
        super().__init__(embed_dim, vocab_size, init_scale=init_scale)
        self.kernels = [build_kernel(kernel).bind(embed_dim) for kernel in kernels]
        self.kernel_name = ",".join(kernel.name for kernel in self.kernels)
        self.components = len(kernels)
        size = self.components * embed_dim
        where: Any = {"bias": False, "device": self.weight.device}
        self.projections = skip_init(nn.Linear, embed_dim, size, **where)  # the stacked C_k
        self.mixing = skip_init(nn.Linear, embed_dim, self.components, **where)  # M
        self.register_buffer("tanh_scale", torch.tensor(tanh_scale))
        learned = [str(k) for k, kernel in enumerate(self.kernels) if kernel.has_theta]
        self.thetas = nn.ParameterDict({k: torch.empty(vocab_size) for k in learned})  # [V] each
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters at random."""
        super().reset_parameters()
        self.projections.reset_parameters()
        self.mixing.reset_parameters()
        for number, theta in self.thetas.items():
            kernel = self.kernels[int(number)]
            nn.init.normal_(theta, std=kernel.theta_std)

    def contexts(self, h: Tensor) -> Tensor:
        """h̃_k = r tanh(C_k h / r) of every component (Eq. 3), [..., d] -> [..., K, d]."""
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

    def _mixture(self, h: Tensor) -> mixture.Mixture:
        thetas = [self.thetas.get(str(k), self.theta) for k in range(self.components)]
        return mixture.Mixture(
            self.contexts(h), self.weight, self.log_weights(h), self.kernels, thetas
        )

    def _log_probs(self, h: Tensor) -> Tensor:
        return mixture.mixture_log_probs(self._mixture(h))

    def _score(self, h: Tensor, prepared: Any) -> tuple[Tensor, Any]:
        return self._log_probs(h), None

    def _nll(self, h: Tensor, target: Tensor, options: NllOptions) -> Losses:
        return *mixture.mixture_nll(self._mixture(h), target, options), None
