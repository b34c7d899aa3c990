"""Mixtures of softmaxes as output layers (Yang et al. 2018; Gao et al. 2019, Eq. 1–3).

layer = MixtureOutputLayer(embed_dim=288, vocab_size=10_000, kernels=["lin"] * 3)      # MoS
layer = MixtureOutputLayer(288, 10_000, ["lin", "lin", "lin", "log"])                  # kernels
loss = layer.nll(h, target, reduction="mean")
loss = loss + 0.1 * layer.variance(h).mean()                                           # Eq. 14
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_kerbs.kernels import Kernel, build_kernel, compute_dtype
from fairseq_kerbs.likelihood.mixture import mixture_nll
from fairseq_kerbs.likelihood.mixture_parts import (
    group_components,
    mixture_log_probs,
    score_mixture,
)
from fairseq_kerbs.output_layers.kerbs import OutputLayer
from fairseq_kerbs.senses import Evidence


def weight_variance(weights: Tensor) -> Tensor:
    """Variance of π over the components (Eq. 14), [..., K] -> [...].

    It is 0 where all weigh the same, and largest, (K − 1)/K², where one has all the weight.
    """
    return weights.var(-1, unbiased=False)


class MixtureOutputLayer(OutputLayer):
    """p(v | h) = Σ_k π_k softmax_v(S_k(w_v, h̃_k)),  π = softmax(M h),  h̃_k = tanh(C_k h).

    One vector a word, which all components share (Gao's W), so that no sense ever moves and
    nothing is recorded. The mixture is not homogeneous in h: dividing h by a temperature, which is
    all that a generator can do, flattens π and shortens h̃_k, but does not divide log p.

    Args:
        embed_dim: size d of context vectors and word vectors.
        vocab_size: number of words V.
        kernels: kernel S_k of every component, by name or itself.

    Attributes:
        weight: word vectors W, [V, d]; normal with deviation d^−½, as those of the softmax layer.
        projections: all C_k, one below the other: a linear layer from d to K·d.
        mixing: M, a linear layer from d to K; both begin as torch's linear layers do.
        thetas: θ of components whose kernel has one, by number; [V] each.
        groups: the components by kernel.

    Raises:
        ValueError: there is no component, or no kernel of such a name.
    """

    def __init__(self, embed_dim: int, vocab_size: int, kernels: Sequence[str | Kernel]) -> None:
        if not kernels:
            raise ValueError("A mixture needs at least one component: give its kernels.")
        super().__init__(embed_dim, vocab_size, vocab_size, max_senses=1, kernel="lin")
        self.inventory.recording = False
        self.kernels = [build_kernel(kernel) for kernel in kernels]
        self.groups = group_components(self.kernels, embed_dim)
        self.projections = nn.Linear(embed_dim, len(kernels) * embed_dim, bias=False)
        self.mixing = nn.Linear(embed_dim, len(kernels), bias=False)
        self.thetas = nn.ParameterDict(
            {
                str(number): nn.Parameter(torch.empty(vocab_size))
                for number, kernel in enumerate(self.kernels)
                if kernel.has_theta
            }
        )
        self._reset_thetas()

    @property
    def components(self) -> int:
        """Number of components K."""
        return len(self.kernels)

    def reset_parameters(self) -> None:
        """Draw all parameters at random."""
        super().reset_parameters()
        if hasattr(self, "mixing"):  # not yet there when the base class comes here
            self.projections.reset_parameters()
            self.mixing.reset_parameters()
            self._reset_thetas()

    def _reset_thetas(self) -> None:
        for number, theta in self.thetas.items():
            kernel = self.kernels[int(number)]
            nn.init.normal_(theta, kernel.theta_mean, kernel.theta_std)

    def sense_parameters(self) -> list[nn.Parameter]:
        """Parameters whose rows belong to words."""
        return [*super().sense_parameters(), *self.thetas.values()]

    def contexts(self, h: Tensor) -> Tensor:
        """h̃_k = tanh(C_k h) of every component (Eq. 3), [..., d] -> [..., K, d]."""
        projected: Tensor = self.projections(h)
        return torch.tanh(projected).unflatten(-1, (self.components, self.embed_dim))

    def log_weights(self, h: Tensor) -> Tensor:
        """Log π (Eq. 2), [..., d] -> [..., K], in float32 at least, the product included."""
        weight = self.mixing.weight
        dtype = compute_dtype(h, weight)
        with torch.autocast(h.device.type, enabled=False):
            return F.linear(h.to(dtype), weight.to(dtype)).log_softmax(-1)

    def variance(self, h: Tensor) -> Tensor:
        """:func:`weight_variance` of each token's weights, [..., d] -> [...]."""
        return weight_variance(self.log_weights(h).exp())

    def _group_thetas(self) -> Iterator[Tensor]:
        for group in self.groups:
            theta: Tensor = self.thetas.get(str(group.components[0]), self.theta)
            yield theta

    def log_probs(self, h: Tensor) -> Tensor:
        """Log-probabilities of all words (Eq. 1), [..., d] -> [..., V], at least float32."""
        thetas = tuple(self._group_thetas())
        inputs = (self.contexts(h), self.weight, self.log_weights(h), self.groups, thetas)
        if torch.is_grad_enabled():
            return mixture_log_probs(*inputs)
        versions = tuple((value.data_ptr(), value._version) for value in (self.weight, *thetas))
        key = (h.dtype, versions)
        prepared = None
        if self._prepared is not None and self._prepared[0] == key and not self.training:
            prepared = self._prepared[1]
        scores, prepared = score_mixture(*inputs, backends=prepared)
        self._prepared = None if self.training else (key, prepared)
        return scores

    def nll_with_evidence(
        self,
        h: Tensor,
        target: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "sum",
    ) -> tuple[Tensor, Tensor, Evidence]:
        """:meth:`nll`, each token's plain nll [...] (detached), and each word's only sense."""
        flat, words = h.reshape(-1, self.embed_dim), target.reshape(-1)
        loss, token_nll = mixture_nll(
            self.contexts(flat),
            self.weight,
            self.log_weights(flat),
            words,
            self.groups,
            tuple(self._group_thetas()),
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
        )
        counted = words != ignore_index
        probability = torch.where(counted, (-token_nll).exp(), 0.0).unsqueeze(1)  # [N, 1]
        senses = torch.where(counted, words, 0).unsqueeze(1)
        evidence = Evidence(-token_nll, senses, probability, counted)
        if reduction == "none":
            loss = loss.view(target.shape)
        return loss, token_nll.view(target.shape), evidence

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, kernels={[kernel.name for kernel in self.kernels]}"
