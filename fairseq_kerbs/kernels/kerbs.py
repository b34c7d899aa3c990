"""The KerBS kernel K(h, w; θ) (Section 4.1.2, Eq. 9), its released form, and the inner product.

:mod:`.kernels.functional` applies a kernel to vectors. The chunked likelihood calls ``value()`` and
``partials()`` directly.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from fairseq_kerbs.kernels.base import (
    FoldedSenses,
    Kernel,
    Partials,
    expm1,
    polynomial,
    register,
    safe_inverse,
)

THETA_LIMIT = 64.0
"""Limit of |θ|, beyond which the kernel is constant in θ. Since e^64 = 6e27, logits are finite in
float32 up to |h||w| = 1e9."""

RELEASED_RANGE = (-4.0, 3.0)
"""Where the learned parameter r of ``kerbs_released`` is log θ. Outside it is limited smoothly."""

_PHI2 = [1 / math.factorial(k + 2) for k in range(22)]  # φ2(z) = Σ z^k/(k+2)!
_PHI2_SLOPE = [k / math.factorial(k + 2) for k in range(1, 22)]

# the power series of B: c_k = B_2k+2/(2k + 2)! of the Bernoulli numbers
_BERNOULLI = [1 / n for n in (12, -720, 30240, -1209600, 47900160)]
_BERNOULLI += [-5.284190139e-10, 1.338253653e-11]
_LOG_SLOPE = {  # up to which |z|, and the coefficients c of B(z) = ½ + z Σ_k c_k z^2k
    # the polynomial through the Chebyshev nodes, relative error 6e-8
    torch.float32: (1.0, [0.08333330845, -0.0013884403565, 3.186304691e-05]),
    torch.float64: (0.5, _BERNOULLI),
}


def _log_slope(z: Tensor, e: Tensor) -> Tensor:
    """B(z) = d log φ1(z)/dz = e^z/(e^z − 1) − 1/z in (0, 1), where φ1(z) = (e^z − 1)/z.

    ``e`` is e^z − 1. The result is accurate to a few units in the last place, also at 0.
    """
    limit, coefficients = _LOG_SLOPE[z.dtype]
    series = z * polynomial(z.square(), coefficients) + 0.5
    return torch.where(z.abs() < limit, series, (z * (e + 1.0) - e) / (z * e))


def kerbs_gain(theta: Tensor) -> tuple[Tensor, Tensor]:
    """Normalization g(θ) = 1/(2 φ2(−θ)) of the KerBS kernel, and its derivative g'(θ).

    φ2(z) = (e^z − 1 − z)/z². With a(θ) as printed below Eq. 9, g(θ) = −θ·a(θ), but smooth at θ = 0,
    where g = 1. The normalization makes the integral of the kernel over c ∈ [0, 1] independent of
    θ, and equal to that of the inner product.

    θ has any shape and is within ±:data:`THETA_LIMIT`. g and g' have its shape and dtype, and are
    computed in float64.
    """
    z = -theta.double()
    small = z.abs() < 1.0
    inside = torch.where(small, z, 0.0)
    outside = torch.where(small, 1.0, z)
    phi1 = torch.expm1(outside) / outside
    direct = (torch.expm1(outside) - outside) / outside.square()
    phi2 = torch.where(small, polynomial(inside, _PHI2), direct)
    # φ2' = (φ1 − 2 φ2)/z
    slope = torch.where(small, polynomial(inside, _PHI2_SLOPE), (phi1 - 2 * direct) / outside)
    gain_slope = 0.5 * slope / phi2.square()  # d(−θ)/dθ = −1 cancels the minus of (1/φ2)'
    return (0.5 / phi2).to(theta.dtype), gain_slope.to(theta.dtype)


@register
class KerbsKernel(Kernel):
    """K = |h||w| a(θ)(e^{−θc} − 1), c = cos(h, w)  (Eq. 9).

    a(θ) = −g(θ)/θ with g of :func:`kerbs_gain`. θ = 0 is replaced by 1e-8 (1e-30 in float64), where
    K equals h·w up to rounding. |θ| is limited to :data:`THETA_LIMIT`. Beyond the limit ∂K/∂θ is
    0, so the steepest logit, −|h||w| e^θ/2 at c = −1, stays finite in float32.
    """

    name = "kerbs"
    homogeneous = True
    inner_product_at_zero = True
    constant_is_bias = True

    def prepare(self, theta: Tensor) -> Tensor:
        """[5, ...]: nonzero θ, a, g, g'/g, and the derivative of the limited θ by θ."""
        bounded = theta.double().clamp(-THETA_LIMIT, THETA_LIMIT)
        tiny = 1e-30 if theta.dtype == torch.float64 else 1e-8
        safe = torch.where(bounded.abs() < tiny, tiny, bounded)
        gain, slope = kerbs_gain(bounded)
        inside = (theta.abs() <= THETA_LIMIT).to(gain.dtype)
        return torch.stack([safe, -gain / safe, gain, slope / gain, inside]).to(theta.dtype)

    @staticmethod
    def _cosine(x: Tensor, h_norm: Tensor, w_norm: Tensor) -> Tensor:
        """c in [−1, 1], or 0 if h or w is the zero vector."""
        return (x * safe_inverse(w_norm)).mul_(safe_inverse(h_norm)).clamp_(-1.0, 1.0)

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Tensor:
        safe, a, *_ = prepared
        z = self._cosine(x, h_norm, w_norm).mul_(-safe)
        return expm1(z).mul_(a * w_norm).mul_(h_norm)  # in place: new memory is slow to touch

    def fold(self, w: Tensor, w_norm: Tensor, prepared: Tensor) -> FoldedSenses:
        """Rows r = −θ w/|w| and factors f = a(θ)|w|."""
        safe, a, *_ = prepared
        return FoldedSenses(w * (-safe * safe_inverse(w_norm)).unsqueeze(1), a * w_norm)

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
        safe, a, gain, log_slope, inside = prepared
        cosine = self._cosine(x, h_norm, w_norm)
        z = cosine * -safe
        e = expm1(z)
        # K = x g(θ) φ1(z), so ∂ log K/∂θ = g'/g + B(z) z/θ, and z/θ = −c
        by_theta = (log_slope - _log_slope(z, e) * cosine) * e * (a * inside * w_norm) * h_norm
        return Partials(e * gain + gain, theta=by_theta)


@register
class ReleasedKerbsKernel(Kernel):
    """The kernel of the authors' released TensorFlow code, which differs from Eq. 9.

    The learned parameter is not θ, but r with θ = e^b(r). With c = cos(h, w),

        K = |h||w| a(θ)(e^{θc} − 1)  for c > 0,  where a(θ) = θ/(2(e^θ − 1 − θ))
        K = h·w                      for c ≤ 0

    The first line is the kernel of Eq. 9 with −θ instead of θ. b limits r to (−5, 4):

        b(r) = r               for −4 ≤ r ≤ 3
        b(r) = 4 − e^(3 − r)   for r > 3
        b(r) = e^(4 + r) − 5   for r < −4

    K and its derivative by r are continuous in r. All r start at 0, so all θ at 1. Only as r falls
    does K approach the inner product. The released code also adds 1e-7 to |h|, |w| and |c|. This
    class does not, as it needs no protection against 0/0.
    """

    name = "kerbs_released"
    homogeneous = True
    theta_std = 0.0
    moved_theta = RELEASED_RANGE[0]  # the r of the smallest θ that is not limited, e^−4
    _curved: ClassVar[KerbsKernel] = KerbsKernel()

    @staticmethod
    def _exponent(parameter: Tensor) -> tuple[Tensor, Tensor]:
        """b(r), and its derivative by r."""
        inside = parameter.clamp(*RELEASED_RANGE)
        beyond = parameter - inside  # 0 within the range, so that b is r there, to the last bit
        slope = torch.exp(-beyond.abs())
        return inside + beyond.sign() * (1.0 - slope), slope

    def theta_of(self, parameter: Tensor) -> Tensor:
        """θ = e^b(r), [...] -> [...], computed in float64."""
        return self._exponent(parameter.double())[0].exp().to(parameter.dtype)

    def prepare(self, theta: Tensor) -> Tensor:
        """As :meth:`KerbsKernel.prepare` of −e^b(r), whose derivative by r is in the last row.

        ``theta`` is r, [...].
        """
        exponent, slope = self._exponent(theta.double())
        paper_theta = -exponent.exp()
        columns = self._curved.prepare(paper_theta)
        return torch.cat([columns[:-1], (paper_theta * slope).unsqueeze(0)]).to(theta.dtype)

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Tensor:
        # c ≤ 0 is evaluated at c = 0, so the branch that is not taken cannot overflow
        curved = self._curved.value(x.clamp_min(0.0), h_norm, w_norm, prepared)
        return torch.where(x > 0, curved, x)

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
        # at c = 0 the partial by θ is 0
        curved = self._curved.partials(x.clamp_min(0.0), h_norm, w_norm, prepared)
        return curved._replace(x=torch.where(x > 0, curved.x, 1.0))


@register
class InnerProductKernel(Kernel):
    """K = h·w: softmax (Eq. 3), ``lin`` of Gao et al. (Eq. 4), and the limit of Eq. 9 for θ → 0."""

    name = "lin"
    has_theta = False
    inner_product_at_zero = True
    constant_is_bias = True

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Tensor:
        return x

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
        return Partials(1.0)
