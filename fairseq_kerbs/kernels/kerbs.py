"""The KerBS kernel K(h, w; θ) (Section 4.1.2, Eq. 9), its released form, and the inner product.

A kernel is written once; :mod:`.kernels.functional` makes functions of whole vectors of it, and the
chunked likelihood multiplies the partials with the gradient of its logits.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from fairseq_kerbs.kernels.base import Kernel, Partials, expm1, polynomial, safe_inverse

THETA_LIMIT = 64.0
"""|θ| beyond which the KerBS kernel stays as it is at the limit: e^64 = 6e27 leaves float32 room
for |h||w| to 1e9."""

_PHI1_SLOPE = [k / math.factorial(k + 1) for k in range(1, 20)]  # φ1'(z) = Σ k z^(k−1)/(k+1)!
_PHI2 = [1 / math.factorial(k + 2) for k in range(22)]  # φ2(z) = Σ z^k/(k+2)!
_PHI2_SLOPE = [k / math.factorial(k + 2) for k in range(1, 22)]


def _phi1(z: Tensor) -> Tensor:
    """φ1(z) = (e^z − 1)/z with φ1(0) = 1, accurate to a few units in the last place."""
    zero = z == 0
    return torch.where(zero, 1.0, expm1(z) / torch.where(zero, 1.0, z))


def _phi1_slope(z: Tensor, exp_z: Tensor, phi1: Tensor) -> Tensor:
    """φ1'(z) = (e^z − φ1(z))/z; near 0, where that cancels, its series."""
    threshold, terms = (1.0, 19) if z.dtype == torch.float64 else (0.3, 7)
    small = z.abs() < threshold
    series = polynomial(torch.where(small, z, 0.0), _PHI1_SLOPE[:terms])
    return torch.where(small, series, (exp_z - phi1) / torch.where(small, 1.0, z))


def kerbs_gain(theta: Tensor) -> tuple[Tensor, Tensor]:
    """Normalization g(θ) = 1/(2 φ2(−θ)) of the KerBS kernel, and its derivative g'(θ).

    g(θ) = −θ·a(θ) with the a(θ) printed below Eq. 9, but smooth at θ = 0, where g = 1. It makes
    the integral of the kernel over c ∈ [0, 1] equal to that of the inner product, for every θ.
    φ2(z) = (e^z − 1 − z)/z². Computed in float64 (it is one number a sense) for θ within
    ±THETA_LIMIT; both have its shape and dtype.
    """
    z = -theta.double()
    small = z.abs() < 1.0
    inside, outside = torch.where(small, z, 0.0), torch.where(small, 1.0, z)
    phi1 = torch.expm1(outside) / outside
    direct = (torch.expm1(outside) - outside) / outside.square()
    phi2 = torch.where(small, polynomial(inside, _PHI2), direct)
    # φ2' = (φ1 − 2 φ2)/z
    slope = torch.where(small, polynomial(inside, _PHI2_SLOPE), (phi1 - 2 * direct) / outside)
    gain_slope = 0.5 * slope / phi2.square()  # d(−θ)/dθ = −1 cancels the minus of (1/φ2)'
    return (0.5 / phi2).to(theta.dtype), gain_slope.to(theta.dtype)


def _cosine(x: Tensor, h_norm: Tensor, w_norm: Tensor) -> Tensor:
    """cos(h, w) in [−1, 1]; 0 where one of the vectors is zero (there x = 0 as well)."""
    return (x * safe_inverse(h_norm) * safe_inverse(w_norm)).clamp(-1.0, 1.0)


class KerbsKernel(Kernel):
    """K = |h||w| a(θ)(e^{−θc} − 1), c = cos(h, w), computed as x·g(θ)·φ1(−θc)  (Eq. 9).

    With φ1(z) = (e^z − 1)/z and g(θ) = 1/(2 φ2(−θ)) nothing is 0/0 at θ = 0 (there K = h·w) nor at
    c = 0. |θ| is bounded by :data:`THETA_LIMIT`: beyond it the kernel keeps its shape and ∂K/∂θ
    is 0, so that the steepest logit, −|h||w| e^θ/2 at c = −1, stays finite in float32.
    """

    name = "kerbs"

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Tensor:
        bounded = theta.clamp(-THETA_LIMIT, THETA_LIMIT)
        gain, _ = kerbs_gain(bounded)
        return x * (gain * _phi1(-bounded * _cosine(x, h_norm, w_norm)))

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Partials:
        bounded = theta.clamp(-THETA_LIMIT, THETA_LIMIT)
        gain, gain_slope = kerbs_gain(bounded)
        cosine = _cosine(x, h_norm, w_norm)
        z = -bounded * cosine
        exp_z, phi1 = torch.exp(z), _phi1(z)
        phi1_slope = _phi1_slope(z, exp_z, phi1)
        # s = |h||w|·k(c): at fixed x, growing norms only shrink c: ds = (k − c k') d(|h||w|)
        by_norms = bounded * gain * cosine.square() * phi1_slope
        by_theta = x * (gain_slope * phi1 - gain * cosine * phi1_slope)
        by_theta = by_theta * (theta.abs() <= THETA_LIMIT)
        return Partials(gain * exp_z, by_norms * w_norm, by_norms * h_norm, by_theta)


class ReleasedKerbsKernel(Kernel):
    """The kernel of the authors' released TensorFlow code, which differs from Eq. 9.

    The parameter θ is raw; r = −0.5 + 4.5·tanh((θ + 0.5)/4.5) keeps it within (−5, 4), and
    t = e^r > 0 is the kernel parameter in the paper's sign −t: for c > 0 the kernel of Eq. 9 with
    parameter −t (e^{+tc}, steep towards c = 1), for c ≤ 0 the plain inner product. The authors
    publish the range and the two branches; the tanh is our reading of their soft clamp.
    """

    name = "kerbs_released"
    theta_mean = -1.0
    _curved: ClassVar[KerbsKernel] = KerbsKernel()

    @staticmethod
    def _paper_theta(theta: Tensor) -> tuple[Tensor, Tensor]:
        """−t, and its derivative by θ."""
        squashed = torch.tanh((theta + 0.5) / 4.5)
        paper_theta = -torch.exp(4.5 * squashed - 0.5)
        return paper_theta, paper_theta * (1 - squashed.square())

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Tensor:
        paper_theta, _ = self._paper_theta(theta)
        # c ≤ 0 is evaluated at c = 0, so the branch that is not taken cannot overflow
        curved = self._curved.value(x.clamp_min(0.0), h_norm, w_norm, paper_theta)
        return torch.where(x > 0, curved, x)

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Partials:
        paper_theta, chain = self._paper_theta(theta)
        curved = self._curved.partials(x.clamp_min(0.0), h_norm, w_norm, paper_theta)
        positive = (x > 0).to(x.dtype)
        by_norms = curved.h_norm * positive, curved.w_norm * positive
        return Partials(torch.where(x > 0, curved.x, 1.0), *by_norms, curved.theta * chain)


class InnerProductKernel(Kernel):
    """K = h·w: plain softmax (Eq. 3), Gao's ``lin`` (Eq. 4), and the limit of Eq. 9 for θ → 0."""

    name = "lin"
    has_theta = False

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Tensor:
        return x

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Partials:
        return Partials(1.0)
