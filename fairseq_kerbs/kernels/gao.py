"""Kernels of Gao et al. 2019, which replace the inner product of the softmax (their Eq. 4–13).

They have no learned parameters. ``lin`` (Eq. 4) is :class:`.kernels.kerbs.InnerProductKernel`.
All others except ``pol`` depend on the squared distance (Eq. 13), clamped at 0:

    D = |w − h|² = |w|² + |h|² − 2 h·w

D has a rounding error, the :func:`resolution`. If f'(D) is unbounded at D = 0 (``log`` and ``pow``
with p < 2, and ``hpb``), the gradient is 0 for smaller D, because the direction of w − h is noise.

The steepest kernels saturate at ±:data:`LOGIT_LIMIT` with gradient 0. Logits and their sums over
words then stay finite in float32.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.kernels.base import Kernel, Partials, option, register

LOGIT_LIMIT = 1e30
"""Largest absolute logit. Its sum over 10^8 words is finite in float32."""

VARIANCE_FLOOR = 0.01
"""Smallest variance in ``ssg`` and ``mog``, that of the zero vector."""


def squared_distance(x: Tensor, h_norm: Tensor, w_norm: Tensor) -> Tensor:
    """D = |w|² + |h|² − 2x ≥ 0 (Eq. 13). The arguments broadcast."""
    return (h_norm.square() + w_norm.square() - 2.0 * x).clamp_min_(0.0)


def resolution(scale: Tensor) -> Tensor:
    """Rounding error of a difference of terms of size ``scale``."""
    return 4.0 * torch.finfo(scale.dtype).eps * scale


def _check(name: str, value: float, allowed: bool, what: str = "a number above 0") -> None:
    if not (allowed and math.isfinite(value)):
        raise ValueError(f"`{name}` is {value}, but it must be {what}.")


class DistanceKernel(Kernel):
    """Base of kernels f(D) of the squared distance D. All options must be above 0."""

    has_theta = False

    def __post_init__(self) -> None:
        for name in self.options:
            value = getattr(self, name)
            _check(name, value, value > 0.0)

    @property
    def steep_at_zero(self) -> bool:
        """Whether f' is unbounded at D = 0. The gradient is then 0 where D is rounding noise."""
        return False

    @abstractmethod
    def of_distance(self, distance: Tensor) -> Tensor:
        """f(D) for D ≥ 0."""

    @abstractmethod
    def slope(self, distance: Tensor) -> Tensor:
        """f'(D) for D ≥ 0. Any value at D = 0 if :attr:`steep_at_zero`."""

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Tensor:
        return self.of_distance(squared_distance(x, h_norm, w_norm))

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
        distance = squared_distance(x, h_norm, w_norm)
        twice = 2.0 * self.slope(distance)
        if self.steep_at_zero:
            noise = resolution(h_norm.square() + w_norm.square())
            twice = torch.where(distance > noise, twice, 0.0)
        return Partials(-twice, twice * h_norm, twice * w_norm)


@register
@dataclass(frozen=True)
class LogKernel(DistanceKernel):
    """S = −log(|w − h|^p + 1)  (Eq. 5), p = ``power`` > 0."""

    name = "log"
    power: float = option(2.0, "p")

    @property
    def steep_at_zero(self) -> bool:
        return self.power < 2.0

    def of_distance(self, distance: Tensor) -> Tensor:
        # −log(1 + e^z) with z = log |w − h|^p: a high power of a long distance is not made
        return -F.softplus(distance.log().mul_(0.5 * self.power))

    def slope(self, distance: Tensor) -> Tensor:
        half = 0.5 * self.power
        # D^(half − 1)/(1 + D^half), for D > 1 divided above and below by D^half
        rise = distance.clamp_max(1.0).pow(half - 1.0) / distance.clamp_min(1.0)
        return -half * rise * torch.sigmoid(half * distance.log().abs())


@register
@dataclass(frozen=True)
class PowerKernel(DistanceKernel):
    """S = −|w − h|^p  (Eq. 6), p = ``power`` > 0. For p = 2, h·w with a penalty on |w|²."""

    name = "pow"
    power: float = option(2.0, "p")

    @property
    def steep_at_zero(self) -> bool:
        return self.power < 2.0

    def of_distance(self, distance: Tensor) -> Tensor:
        return -distance.pow(0.5 * self.power).clamp_max_(LOGIT_LIMIT)

    def slope(self, distance: Tensor) -> Tensor:
        half = 0.5 * self.power
        inside = distance.pow(half) < LOGIT_LIMIT
        return torch.where(inside, -half * distance.pow(half - 1.0), 0.0)


@register
@dataclass(frozen=True)
class PolynomialKernel(Kernel):
    """S = (α h·w + c)^p  (Eq. 7), ``alpha`` > 0, ``offset`` c, ``power`` p.

    p is an integer ≥ 1 because the base may be negative. With an odd p, S is monotonic in h·w. The
    defaults give S = 8 + x + … near x = h·w = 0, where training starts, with the slope of the inner
    product. The slope is 2.6 at x = 15 and 0 at x = −24.
    """

    name = "pol"
    has_theta = False
    alpha: float = option(1.0 / 12.0, "alpha")
    offset: float = option(2.0, "c")
    power: int = option(3, "p")

    def __post_init__(self) -> None:
        _check("alpha", self.alpha, self.alpha > 0.0)
        _check("offset", self.offset, True, "a finite number")
        what = "a whole number from 1 on for the kernel pol, as its base may be negative"
        _check("power", self.power, self.power >= 1 and float(self.power).is_integer(), what)
        object.__setattr__(self, "power", int(self.power))

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Tensor:
        base = self.alpha * x + self.offset
        return base.pow(self.power).clamp_(-LOGIT_LIMIT, LOGIT_LIMIT)

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
        base = self.alpha * x + self.offset
        inside = base.pow(self.power).abs() < LOGIT_LIMIT
        by_x = torch.where(inside, self.power * self.alpha * base.pow(self.power - 1), 0.0)
        return Partials(by_x)


@register
@dataclass(frozen=True)
class RadialBasisKernel(DistanceKernel):
    """S = exp(−γ |w − h|²)  (Eq. 8), γ = ``gamma`` > 0.

    S is in [0, 1], so probabilities differ by a factor of e at most. After layer normalization |h|²
    is d, some hundreds. γ = 0.01 has a gradient there, γ = 1 does not.
    """

    name = "rbf"
    gamma: float = option(0.01, "gamma")

    def of_distance(self, distance: Tensor) -> Tensor:
        return torch.exp(-self.gamma * distance)

    def slope(self, distance: Tensor) -> Tensor:
        return -self.gamma * torch.exp(-self.gamma * distance)


@register
@dataclass(frozen=True)
class SphericalGaussianKernel(Kernel):
    """S = log ∫ N(z; w, σ_w² I) N(z; h, σ_h² I) dz  (Eq. 9).

    S = −(d/2) log(2πs) − |w − h|²/(2s) with s = σ_w² + σ_h² and d = ``dim``. The paper does not
    define the variances. Here the variance of a vector is the mean square of its coordinates,
    σ_v² = |v|²/d + :data:`VARIANCE_FLOOR`.
    """

    name = "ssg"
    has_theta = False
    components: ClassVar[int] = 1
    dim: int | None = None

    def bind(self, dim: int) -> Kernel:
        if dim % self.components:
            raise ValueError(
                f"`kernel` {self.name} halves its vectors, which have {dim} numbers: choose an "
                "even embedding size."
            )
        return self if self.dim == dim else replace(self, dim=dim)

    def _sums(self, x: Tensor, h_norm: Tensor, w_norm: Tensor) -> tuple[int, Tensor, Tensor]:
        """2k, Σ D_ij over pairs of components, and s = σ_w² + σ_h², for S = −k log(2πs) − ΣD/(2s).

        n components of d/n coordinates have n² pairs, so 2k = n²·(d/n) = n·d.
        """
        assert self.dim, "Kernel.bind gives the size of the vectors"
        squares = h_norm.square() + w_norm.square()
        distance = (self.components * squares - 2.0 * x).clamp_min_(0.0)
        return self.components * self.dim, distance, squares / self.dim + 2.0 * VARIANCE_FLOOR

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Tensor:
        factor, distance, variance = self._sums(x, h_norm, w_norm)
        return -0.5 * (factor * torch.log(2.0 * math.pi * variance) + distance / variance)

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
        factor, distance, variance = self._sums(x, h_norm, w_norm)
        inverse = 1.0 / variance
        by_variance = (0.5 * inverse) * (distance * inverse - factor)
        # of |h|², where components / factor is 1/d; by |h| it is 2|h| times that
        by_square = by_variance * (self.components / factor) - (0.5 * self.components) * inverse
        twice = 2.0 * by_square
        return Partials(inverse.expand_as(x), twice * h_norm, twice * w_norm)


@register
@dataclass(frozen=True)
class GaussianMixtureKernel(SphericalGaussianKernel):
    """S = Σ_ij log ∫ N(z; w_i, σ_w² I) N(z; h_j, σ_h² I) dz  (Eq. 10, with its sum of logarithms).

    The components of a vector have its two halves as means, and its variance as in
    :class:`SphericalGaussianKernel`. The sum of the four distances is

        Σ_ij |w_i − h_j|² = 2|w|² + 2|h|² − 2 w·(h + h°),   h° = h with its halves exchanged

    so the products x use h + h°. Unlike the logarithm of a sum, this sum of logarithms depends on w
    only through w_1 + w_2 and the norm.
    """

    name = "mog"
    components: ClassVar[int] = 2

    def map_contexts(self, h: Tensor) -> Tensor:
        return h + torch.roll(h, h.shape[-1] // 2, -1)


@register
@dataclass(frozen=True)
class HyperbolicKernel(Kernel):
    """S = −arcosh(1 + 2|w' − h'|²/((1 − |w'|²)(1 − |h'|²)))  (Eq. 11), v' = v/(1 + √(1 + |v|²)).

    The paper prints arccos, but its argument is at least 1. S is the negative distance in the
    Poincaré ball, into which v' maps every v. The distance is computed on the hyperboloid:

        T = √(1 + |w|²)·√(1 + |h|²) − h·w − 1,    S = −log(1 + T + √(T(T + 2)))

    This avoids the division by 1 − |v'|². At T = 0 the gradient is unbounded (see the module).
    """

    name = "hpb"
    has_theta = False

    @staticmethod
    def _excess(x: Tensor, h_norm: Tensor, w_norm: Tensor) -> tuple[Tensor, Tensor]:
        """T, and T + h·w."""
        # √(1 + |v|²) − 1, exact for short vectors, too
        h_excess = h_norm.square() / (1.0 + torch.sqrt(1.0 + h_norm.square()))
        w_excess = w_norm.square() / (1.0 + torch.sqrt(1.0 + w_norm.square()))
        whole = h_excess + w_excess + h_excess * w_excess
        return (whole - x).clamp_min_(0.0), whole

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Tensor:
        excess, _ = self._excess(x, h_norm, w_norm)
        return -torch.log1p(excess + torch.sqrt(excess * (excess + 2.0)))

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
        excess, whole = self._excess(x, h_norm, w_norm)
        steep = torch.rsqrt(excess * (excess + 2.0))
        steep = torch.where(excess > resolution(whole), steep, 0.0)  # −dS/dT = dS/dx
        # coordinates of the hyperboloid along its axis
        h_height = torch.sqrt(1.0 + h_norm.square())
        w_height = torch.sqrt(1.0 + w_norm.square())
        by_h = h_norm * w_height / h_height
        by_w = w_norm * h_height / w_height
        return Partials(steep, -steep * by_h, -steep * by_w)


@register
@dataclass(frozen=True)
class WaveletKernel(DistanceKernel):
    """S = cos(|w − h|²/a) · exp(−|w − h|²/b)  (Eq. 12), in [−1, 1], a > 0, b > 0.

    The defaults are 100 for the same reason as γ in :class:`RadialBasisKernel`.
    """

    name = "wav"
    a: float = option(100.0, "a")
    b: float = option(100.0, "b")

    def of_distance(self, distance: Tensor) -> Tensor:
        return torch.cos(distance / self.a) * torch.exp(-distance / self.b)

    def slope(self, distance: Tensor) -> Tensor:
        angle = distance / self.a
        waves = torch.sin(angle) / self.a + torch.cos(angle) / self.b
        return -waves * torch.exp(-distance / self.b)
