"""How gradients go through the norms |h| and |w|: two rules with one interface.

A logit s = K(x, |h|, |w|, θ) depends on h through x = h·w and through |h|. With the gradient G by
logits, the gradient by h is

    Σ_m G_m ∂s_m/∂x w_m  +  h/|h| Σ_m G_m ∂s_m/∂|h|

The first term is a matrix product. A rule says how to find the second one, and likewise for w, with
a sum over tokens instead of senses. Every rule needs a sum for each token and one for each sense.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, safe_inverse
from fairseq_kerbs.kernels.base import Partials
from fairseq_kerbs.likelihood.logsumexp import LogSumExp, logsumexp, logsumexp_and_mean


class WordLogits(NamedTuple):
    """logsumexp over the senses of each word, for label smoothing.

    That of a word with one sense is the logit of that sense, so only the S words with several
    senses are stored.
    """

    values: Tensor | None  # [S, n]. None if every word has one sense
    total: Tensor  # sum of the values over all words, [n]
    total_mean: Tensor  # sum over all words of the mean logit Σ_m P(m | word) s_m, [n]


class LossWeights(NamedTuple):
    """Weights a, b and c, [n] each, of a token's loss a·lse − b·lse_y − c·Σ_i lse_i.

    lse is the logsumexp over all senses, lse_y over those of the target y, and lse_i over those of
    word i.
    """

    lse: Tensor
    target: Tensor
    word: Tensor


class TargetGradient(NamedTuple):
    """Gradient by the logits of the targets' senses, [K, n] each."""

    logits: Tensor
    grad_logits: Tensor  # G. Padding has the G of the word's first sense
    grad_without_padding: Tensor  # G, but 0 at padding
    through_target: Tensor  # the part −b·P(m | y) of ``grad_without_padding``


class NormSlopes(NamedTuple):
    """Factors of G in the sums for each token and for each sense, broadcastable to [m, n]."""

    h_norm: Tensor | float
    w_norm: Tensor | float


class NormRule(ABC):
    """Interface of the rules. They have no state."""

    logsumexp: Callable[[Tensor], LogSumExp]
    """Pass over the logits that also finds what :meth:`known_token_sums` reads."""

    @abstractmethod
    def known_token_sums(
        self, log_sum: LogSumExp, weights: LossWeights, words: WordLogits | None
    ) -> Tensor:
        """The part of the sum for each token that is known before the pass over gradients, [n]."""

    @abstractmethod
    def slopes(self, logits: Tensor, partials: Partials) -> NormSlopes:
        """Factors of G in the sums, for senses that are not those of targets."""

    @abstractmethod
    def target_terms(self, target: TargetGradient, partials: Partials) -> tuple[Tensor, Tensor]:
        """Terms that the senses of the targets add to both sums.

        Returns:
            those of the sum for each token, and of the sum for each sense, [K, n] each.
        """

    @abstractmethod
    def add(self, product: Tensor, vectors: Tensor, norm: Tensor, sums: Tensor) -> Tensor:
        """Add the gradient through the norm to the one through the products, in place.

        Args:
            product: gradient through the products, [rows, d].
            vectors: h or w, [rows, d] in any dtype.
            norm: |h| or |w|, [rows].
            sums: sums for each row, [rows].

        Returns:
            ``product``.
        """


class PartialsRule(NormRule):
    """For every kernel. The sums are those of G·∂s/∂|h| and G·∂s/∂|w|."""

    logsumexp = staticmethod(logsumexp)

    def known_token_sums(
        self, log_sum: LogSumExp, weights: LossWeights, words: WordLogits | None
    ) -> Tensor:
        return torch.zeros_like(log_sum.lse)

    def slopes(self, logits: Tensor, partials: Partials) -> NormSlopes:
        return NormSlopes(partials.h_norm, partials.w_norm)

    def target_terms(self, target: TargetGradient, partials: Partials) -> tuple[Tensor, Tensor]:
        return (
            target.grad_without_padding * partials.h_norm,
            target.grad_without_padding * partials.w_norm,
        )

    def add(self, product: Tensor, vectors: Tensor, norm: Tensor, sums: Tensor) -> Tensor:
        factors = sums * safe_inverse(norm)
        return product.addcmul_(vectors.to(product.dtype), factors.unsqueeze(1))


class HomogeneousRule(NormRule):
    """For kernels with K(ah, bw) = ab K(h, w), whose |h| ∂s/∂|h| and |w| ∂s/∂|w| are s − x ∂s/∂x.

    The sums are those of G·s. The other part, Σ_m G ∂s/∂x x, is the dot product of h and the
    gradient through the products. The sum over senses needs no pass, as it consists of means:

        Σ_m G_m s_m = a Σ_m P(m) s_m − b Σ_m P(m | y) s_m − c Σ_i Σ_m P(m | i) s_m

    with the weights a, b and c of :class:`LossWeights`.
    """

    logsumexp = staticmethod(logsumexp_and_mean)

    def known_token_sums(
        self, log_sum: LogSumExp, weights: LossWeights, words: WordLogits | None
    ) -> Tensor:
        assert log_sum.mean is not None
        sums = weights.lse * log_sum.mean
        if words is not None:
            sums -= weights.word * words.total_mean
        return sums

    def slopes(self, logits: Tensor, partials: Partials) -> NormSlopes:
        return NormSlopes(h_norm=0.0, w_norm=logits)

    def target_terms(self, target: TargetGradient, partials: Partials) -> tuple[Tensor, Tensor]:
        return target.through_target * target.logits, target.grad_without_padding * target.logits

    def add(self, product: Tensor, vectors: Tensor, norm: Tensor, sums: Tensor) -> Tensor:
        inverse = safe_inverse(norm)
        vectors = vectors.to(product.dtype)
        dots = torch.einsum("id,id->i", product, vectors)
        by_norm = sums * inverse - dots * inverse
        return product.addcmul_(vectors, (by_norm * inverse).unsqueeze(1))


PARTIALS = PartialsRule()
HOMOGENEOUS = HomogeneousRule()


def norm_rule(kernel: Kernel) -> NormRule:
    """The rule for a kernel."""
    return HOMOGENEOUS if kernel.homogeneous else PARTIALS
