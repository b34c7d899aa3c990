"""The KerBS kernel (Eq. 9) over chunks of products: :mod:`.likelihood.backends.eager` by hand.

Its gradients by the norms and θ need no partial derivative of their own, because the kernel is
homogeneous in |h| and in |w|.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from fairseq_kerbs.kernels import THETA_LIMIT, kerbs_gain, safe_inverse
from fairseq_kerbs.kernels.base import polynomial
from fairseq_kerbs.likelihood.backends.eager import Backend, Kept, Senses, Target, Tensors

BENT = [0.4999999801, 0.3333333313, 0.1250006353, 0.0333333973]
BENT += [0.006941279401, 0.001190157391, 0.0001786452495, 2.255325601e-5]
"""r(z) = (z e^z − (e^z − 1))/z² for |z| ≤ 1 in float32: the polynomial through the Chebyshev nodes,
relative error 7e-8."""

BENT_SERIES = [1.0 / (math.factorial(k) * (k + 2)) for k in range(14)]
"""The same as its power series, for |z| ≤ ½ in float64."""


class KerbsBackend(Backend):
    """The KerBS kernel (Eq. 9) as s = |h||w| a E with E = e^z − 1, z = −θc, a = −g(θ)/θ.

    θ = 0 stands for 1e-12 (1e-30 in float64) here: that near, the kernel is h·w to the last bit,
    and the large a meets an E that is exact for tiny arguments.

    With P = G·∂s/∂x = G·g·(E + 1), homogeneity in |h| and |w| gives the gradients along h and w
    from Σ G s = Σ |h||w| a G E, and dθ from the same sums, with a' = da/dθ:

        h·dh = Σ_m G s,    w·dW = Σ_n G s,    dθ = |w| a' Σ_n |h| G E + w·(P h)/θ

    The last cancels for small θ ("curved" senses). There

        dθ = −|w| (g'/θ · Σ_n |h| G E + g · Σ_n |h| G c² r(z)),   r(z) = (z e^z − E)/z²

    The two sums over tokens are Σ_n |h| G E, and Σ_n |h| G c² r(z), read of curved senses only.

    Attributes:
        inverse_norm: 1/|w|, or 0, [M].
        minus_theta: −θ, [M].
        radius: a|w|, [M].
        gain: g(θ), [M].
        curved: senses whose |θ| is small, [M].
    """

    unit_contexts = True
    buffers = 4

    def __init__(self, senses: Senses) -> None:
        super().__init__(senses)
        w_norm, theta, dtype = self.w_norm, self.theta, self.theta.dtype
        wide = dtype == torch.float64
        tiny, limit = (1e-30, 0.5) if wide else (1e-12, 1.0)
        self._polynomial = BENT_SERIES if wide else BENT
        bounded = theta.clamp(-THETA_LIMIT, THETA_LIMIT).double()
        safe = torch.where(bounded.abs() < tiny, tiny, bounded)
        gain, slope = kerbs_gain(bounded)
        self.inverse_norm = safe_inverse(w_norm)
        self.minus_theta, self.gain = -safe.to(dtype), gain.to(dtype)
        self._a = (-gain / safe).to(dtype)
        self.radius = self._a * w_norm
        self.curved = bounded.abs() < limit  # [M]
        sums = ~self.curved & (theta.abs() <= THETA_LIMIT)
        by_first = torch.where(self.curved, -slope / safe, (gain / safe - slope) / safe)
        self._by_first = torch.where(self.curved | sums, by_first, 0.0).to(dtype)
        self._by_product = torch.where(sums, 1.0 / safe, 0.0).to(dtype)

    @functools.cached_property
    def _curved_rows(self) -> Tensor | slice:
        found = self.curved.nonzero().flatten()
        return slice(None) if len(found) == len(self.theta) else found

    def logits(self, x: Tensor, h_norm: Tensor) -> tuple[Tensor, Kept]:
        e, logits = self.buffer(x), self.buffer(x)
        torch.mul(x, (self.inverse_norm * self.minus_theta).unsqueeze(1), out=e.matrix).expm1_()
        torch.mul(e.matrix, self.radius.unsqueeze(1), out=logits.matrix).mul_(h_norm)
        return logits.matrix, (e, logits)

    def backward_logits(
        self, grad: Tensor, x: Tensor, h_norm: Tensor, kept: Kept, sums: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = self._curved_rows
        curved = x[rows]
        buffers = [self.buffer(curved) for _ in range(3)]
        cosine, z, bent = (buffer.matrix for buffer in buffers)
        torch.mul(curved, self.inverse_norm[rows].unsqueeze(1), out=cosine)
        torch.mul(cosine, self.minus_theta[rows].unsqueeze(1), out=z)
        polynomial(z, self._polynomial, bent).mul_(cosine).mul_(cosine).mul_(grad[rows])
        sums[1, rows] += bent @ h_norm
        grad_e = kept[0].matrix.mul_(grad)
        along_h = self.radius @ grad_e  # [n]: Σ_m G s / |h|
        sums[0] += grad_e @ h_norm
        return torch.add(grad, grad_e, out=x).mul_(self.gain.unsqueeze(1)), along_h

    def _target_logits(self, x: Tensor, senses: Tensor, h_norm: Tensor) -> tuple[Tensor, Tensors]:
        cosine = x * self.inverse_norm[senses]
        e = (cosine * self.minus_theta[senses]).expm1()
        return e * self.radius[senses] * h_norm, (cosine, e)

    def _target_gradients(self, grad: Tensor, target: Target, h_norm: Tensor) -> Tensors:
        (cosine, e), senses = target.kept, target.senses
        bent = polynomial(cosine * self.minus_theta[senses], self._polynomial) * cosine.square()
        by_h, by_x = grad * h_norm, grad * self.gain[senses] * (1.0 + e)
        return by_x, grad * e * self.radius[senses], by_h * e, by_h * bent

    def h_gradient(self, product: Tensor, along_h: Tensor, h: Tensor, h_norm: Tensor) -> Tensor:
        return _with_radial(product, h, safe_inverse(h_norm), along_h)

    def sense_gradients(self, product: Tensor, w: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        from_product = torch.einsum("md,md->m", product, w) * self._by_product
        bent = torch.where(self.curved, sums[1] * self.gain, 0.0)
        by_theta = self.w_norm * (self._by_first * sums[0] - bent) + from_product
        return _with_radial(product, w, self.inverse_norm, self._a * sums[0]), by_theta


def _with_radial(product: Tensor, rows: Tensor, inverse_norm: Tensor, radial: Tensor) -> Tensor:
    """Replace the component of ``product`` [·, d] along ``rows`` [·, d] by ``radial`` [·].

    The zero vector has no direction: its product stays whole.
    """
    along = torch.einsum("id,id->i", product, rows) * inverse_norm
    return product.addcmul_(rows, ((radial - along) * inverse_norm).unsqueeze(1))
