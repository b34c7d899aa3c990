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

_PHI2 = [1 / math.factorial(k + 2) for k in range(22)]  # φ2(z) = Σ z^k/(k+2)!
_PHI2_SLOPE = [k / math.factorial(k + 2) for k in range(1, 22)]

_LOG_SLOPE = {  # up to which |z|, and the coefficients c of B(z) = ½ + z Σ_k c_k z^2k
    # the polynomial through the Chebyshev nodes, relative error 6e-8
    torch.float32: (1.0, [0.08333330845, -0.0013884403565, 3.186304691e-05]),
    # the power series, c_k = B_2k+2/(2k + 2)! of the Bernoulli numbers B
    torch.float64: (
        0.5,
        [
            1 / 12,
            -1 / 720,
            1 / 30240,
            -1 / 1209600,
            1 / 47900160,
            -5.284190139e-10,
            1.338253653e-11,
        ],
    ),
}


def _log_slope(z: Tensor, e: Tensor) -> Tensor:
    """B(z) = d log φ1(z)/dz = e^z/(e^z − 1) − 1/z, in (0, 1), of z and e = e^z − 1, for
    φ1(z) = (e^z − 1)/z; accurate to a few units in the last place, also at 0."""
    limit, coefficients = _LOG_SLOPE[z.dtype]
    series = z * polynomial(z.square(), coefficients) + 0.5
    return torch.where(z.abs() < limit, series, (e + 1.0) / e - 1.0 / z)


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


class KerbsKernel(Kernel):
    """K = |h||w| a(θ)(e^{−θc} − 1), c = cos(h, w)  (Eq. 9).

    a(θ) = −g(θ)/θ, see :func:`kerbs_gain`, and θ = 0 stands for 1e-8 (1e-30 in float64). That near
    to 0, K is h·w to the last bit, and the large a meets an e^{−θc} − 1 that is exact. |θ| is
    bounded by :data:`THETA_LIMIT`: beyond it the kernel keeps its shape and ∂K/∂θ is 0, so that the
    steepest logit, −|h||w| e^θ/2 at c = −1, stays finite in float32.
    """

    name = "kerbs"
    homogeneous = True

    def prepare(self, theta: Tensor) -> Tensor:
        """θ without 0, a, g, g'/g, and the derivative of the bounded θ by θ, in this order."""
        bounded = theta.double().clamp(-THETA_LIMIT, THETA_LIMIT)
        tiny = 1e-30 if theta.dtype == torch.float64 else 1e-8
        safe = torch.where(bounded.abs() < tiny, tiny, bounded)
        gain, slope = kerbs_gain(bounded)
        inside = (theta.abs() <= THETA_LIMIT).to(gain.dtype)
        return torch.stack([safe, -gain / safe, gain, slope / gain, inside]).to(theta.dtype)

    @staticmethod
    def _exponent(x: Tensor, h_norm: Tensor, w_norm: Tensor, safe: Tensor) -> Tensor:
        """z = −θc with c in [−1, 1]; 0 where one of the vectors is zero (there x = 0 as well)."""
        cosine = (x * safe_inverse(w_norm)).mul_(safe_inverse(h_norm)).clamp_(-1.0, 1.0)
        return cosine.mul_(-safe)

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Tensor:
        safe, a, *_ = theta
        z = self._exponent(x, h_norm, w_norm, safe)
        return expm1(z).mul_(a * w_norm).mul_(h_norm)  # in place: new memory is slow to touch

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Partials:
        safe, a, gain, log_slope, inside = theta
        z = self._exponent(x, h_norm, w_norm, safe)
        e = expm1(z)
        # K = x g(θ) φ1(z), so ∂ log K/∂θ = g'/g + B(z) z/θ
        by_theta = (_log_slope(z, e) * (z / safe) + log_slope) * e * (a * inside * w_norm) * h_norm
        return Partials(e * gain + gain, theta=by_theta)


class ReleasedKerbsKernel(Kernel):
    """The kernel of the authors' released TensorFlow code, which differs from Eq. 9.

    The parameter θ is raw; r = −0.5 + 4.5·tanh((θ + 0.5)/4.5) keeps it within (−5, 4), and
    t = e^r > 0 is the kernel parameter in the paper's sign −t: for c > 0 the kernel of Eq. 9 with
    parameter −t (e^{+tc}, steep towards c = 1), for c ≤ 0 the plain inner product. The authors
    publish the range and the two branches; the tanh is our reading of their soft clamp.
    """

    name = "kerbs_released"
    homogeneous = True
    theta_mean = -1.0
    _curved: ClassVar[KerbsKernel] = KerbsKernel()

    def prepare(self, theta: Tensor) -> Tensor:
        """What the kernel of Eq. 9 prepares of −t, with the derivative of −t by θ in the end."""
        squashed = torch.tanh((theta + 0.5) / 4.5)
        paper_theta = -torch.exp(4.5 * squashed - 0.5)
        chain = paper_theta * (1 - squashed.square())
        return torch.cat([self._curved.prepare(paper_theta)[:-1], chain.unsqueeze(0)])

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Tensor:
        # c ≤ 0 is evaluated at c = 0, so the branch that is not taken cannot overflow
        curved = self._curved.value(x.clamp_min(0.0), h_norm, w_norm, theta)
        return torch.where(x > 0, curved, x)

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Partials:
        # at c = 0 the partial by θ is 0
        curved = self._curved.partials(x.clamp_min(0.0), h_norm, w_norm, theta)
        return curved._replace(x=torch.where(x > 0, curved.x, 1.0))


class InnerProductKernel(Kernel):
    """K = h·w: plain softmax (Eq. 3), Gao's ``lin`` (Eq. 4), and the limit of Eq. 9 for θ → 0."""

    name = "lin"
    has_theta = reads_norms = False

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Tensor:
        return x

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Partials:
        return Partials(1.0)
