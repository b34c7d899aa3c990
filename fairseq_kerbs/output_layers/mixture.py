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
from fairseq_kerbs.output_layers.base import OutputLayer
from fairseq_kerbs.senses import Evidence


def weight_variance(weights: Tensor) -> Tensor:
    """Variance of π over the components (Eq. 14), [..., K] -> [...]; 0 where all weigh the same."""
    return weights.var(-1, unbiased=False)


class MixtureOutputLayer(OutputLayer):
    """p(v | h) = Σ_k π_k softmax_v(S_k(w_v, h̃_k)),  π = softmax(M h),  h̃_k = r tanh(C_k h / r).

    One vector a word, which all components share (Gao's W), so that no sense ever moves and
    nothing is recorded. The mixture is not homogeneous in h: dividing h by a temperature, which is
    all that a generator can do, flattens π and shortens h̃_k, but does not divide log p.

    ``kernels`` are the S_k of all components, by name or themselves. ``reach`` is r, 1 in both
    papers; with inner products it is but a scale, as with C_k / r and r W in their place. Training
    begins with contexts that grow, to give words their frequencies: with r = 1 and vectors of
    length 1, until every tanh is near ±1 and passes hardly a gradient on.

    Attributes:
        reach: r, a scalar; 1 in a checkpoint that does not say it.
        projections: all C_k, one below the other: a linear layer from d to K·d.
        mixing: M, a linear layer from d to K; both begin as torch's linear layers do.
        thetas: θ of components whose kernel has one, by number; [V] each.
        components: number of components K.
    """

    reach: Tensor

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        kernels: Sequence[str | Kernel],
        *,
        init_scale: float = 1.0,
        reach: float = 1.0,
    ) -> None:
        if not kernels:
            raise ValueError("A mixture needs at least one component: give its `kernels`.")
        super().__init__(embed_dim, vocab_size, init_scale=init_scale)
        self.kernels = [build_kernel(kernel).bind(embed_dim) for kernel in kernels]
        self.kernel_name = ",".join(kernel.name for kernel in self.kernels)
        self.components = len(kernels)
        size = self.components * embed_dim
        where: Any = {"bias": False, "device": self.weight.device}
        self.projections = skip_init(nn.Linear, embed_dim, size, **where)
        self.mixing = skip_init(nn.Linear, embed_dim, self.components, **where)
        self.register_buffer("reach", torch.tensor(reach))
        learned = [str(k) for k, kernel in enumerate(self.kernels) if kernel.has_theta]
        self.thetas = nn.ParameterDict({k: torch.empty(vocab_size) for k in learned})
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters at random."""
        super().reset_parameters()
        self.projections.reset_parameters()
        self.mixing.reset_parameters()
        for number, theta in self.thetas.items():
            kernel = self.kernels[int(number)]
            nn.init.normal_(theta, kernel.theta_mean, kernel.theta_std)

    def sense_parameters(self) -> list[nn.Parameter]:
        """Parameters whose rows belong to words."""
        return [self.weight, *self.thetas.values()]

    def contexts(self, h: Tensor) -> Tensor:
        """h̃_k = r tanh(C_k h / r) of every component (Eq. 3), [..., d] -> [..., K, d]."""
        bounded: Tensor = self.reach * torch.tanh(self.projections(h) / self.reach)
        return bounded.unflatten(-1, (self.components, self.embed_dim))

    def log_weights(self, h: Tensor) -> Tensor:
        """Log π (Eq. 2), [..., d] -> [..., K], in float32 at least, the product included."""
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

    def _nll(
        self, h: Tensor, target: Tensor, options: NllOptions
    ) -> tuple[Tensor, Tensor, Evidence | None]:
        return *mixture.mixture_nll(self._mixture(h), target, options), None
