"""The KerBS kernel (Eq. 9) over chunks of products: :mod:`.likelihood.backends.eager` by hand.

Its gradients by the norms and θ follow from one pass more than the logits need, because the kernel
is homogeneous in |h| and in |w|.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fairseq_kerbs.kernels import THETA_LIMIT, Kernel, kerbs_gain, safe_inverse
from fairseq_kerbs.likelihood.backends.eager import ChunkPasses, add_at
from fairseq_kerbs.senses import SenseTable

BENT = [0.4999999801, 0.3333333313, 0.1250006353, 0.0333333973]
BENT += [0.006941279401, 0.001190157391, 0.0001786452495, 2.255325601e-5]
"""r(z) = (z e^z − (e^z − 1))/z² for |z| ≤ 1 in float32: the polynomial through the Chebyshev nodes,
relative error 7e-8."""

BENT_SERIES = [1.0 / (math.factorial(k) * (k + 2)) for k in range(14)]
"""The same as its power series, for |z| ≤ ½ in float64."""


class KerbsPasses(ChunkPasses):
    """The KerBS kernel (Eq. 9) as s = |h||w| a E with E = e^z − 1, z = −θc, a = −g(θ)/θ.

    θ = 0 stands for 1e-12 (1e-30 in float64) here: that near, the kernel is h·w to the last bit,
    and the large a meets an E that is exact for tiny arguments.

    With P = G·∂s/∂x = G·g·(E + 1), homogeneity in |h| and |w| gives the gradients along h and w
    from Σ G s = Σ |h||w| a G E, and dθ from the same sums, with a' = da/dθ:

        h·dh = Σ_m G s,    w·dW = Σ_n G s,    dθ = |w| a' Σ_n |h| G E + w·(P h)/θ

    The last cancels for small θ ("curved" senses). There

        dθ = −|w| (g'/θ · Σ_n |h| G E + g · Σ_n |h| G c² r(z)),   r(z) = (z e^z − E)/z²

    Attributes:
        inverse_norm: 1/|w|, or 0, [M].
        minus_theta: −θ, [M].
        radius: a|w|, [M].
        gain: g(θ), [M].
        curved: senses whose |θ| is small, [M].
        weighted: Σ_n |h| G E so far, [M].
        bent: Σ_n |h| G c² r(z) so far, [M]; read of curved senses only.
    """

    unit_contexts = True
    buffers = 4

    def __init__(
        self, kernel: Kernel, w_norm: Tensor, theta: Tensor, table: SenseTable, owner: Tensor
    ) -> None:
        dtype = theta.dtype
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
        by_weighted = torch.where(self.curved, -slope / safe, (gain / safe - slope) / safe)
        self._by_weighted = torch.where(self.curved | sums, by_weighted, 0.0).to(dtype)
        self._by_product = torch.where(sums, 1.0 / safe, 0.0).to(dtype)
        super().__init__(kernel, w_norm, theta, table, owner)
        self._curved_rows: Tensor | slice | None = None

    def reset(self) -> None:
        self.weighted = torch.zeros_like(self.w_norm)
        self.bent = torch.zeros_like(self.w_norm)

    def logits(self, x: Tensor, h_norm: Tensor) -> Tensor:
        z = torch.mul(
            x, (self.inverse_norm * self.minus_theta).unsqueeze(1), out=self._take("e", x)
        )
        e = z.expm1_()
        self._kept_e = e
        logits = self._take("logits", x)
        return torch.mul(e, self.radius.unsqueeze(1), out=logits).mul_(h_norm)

    def own_logits(self, x: Tensor, senses: Tensor, h_norm: Tensor) -> Tensor:
        return self._own_e(x, senses)[1] * self.radius[senses] * h_norm.unsqueeze(1)

    def _own_e(self, x: Tensor, senses: Tensor) -> tuple[Tensor, Tensor]:
        cosine = x * self.inverse_norm[senses]
        return cosine, (cosine * self.minus_theta[senses]).expm1()

    def _carry_back(self, grad: Tensor, x: Tensor, h_norm: Tensor) -> Tensor:
        self._add_bent(grad, x, h_norm)
        grad_e = self._kept_e.mul_(grad)
        along_h = self.radius @ grad_e  # [n]: Σ_m G s / |h|
        self.weighted += grad_e @ h_norm
        torch.add(grad, grad_e, out=x).mul_(self.gain.unsqueeze(1))
        return along_h

    def _add_bent(self, grad: Tensor, x: Tensor, h_norm: Tensor) -> None:
        if self._curved_rows is None:
            found = self.curved.nonzero().flatten()
            self._curved_rows = slice(None) if len(found) == len(self.theta) else found
        rows = self._curved_rows
        cosine = self._take("cosine", x[rows])
        torch.mul(x[rows], self.inverse_norm[rows].unsqueeze(1), out=cosine)
        z = torch.mul(cosine, self.minus_theta[rows].unsqueeze(1), out=self._take("z", cosine))
        total = _horner(z, self._polynomial, self._take("r", cosine))
        total.mul_(cosine).mul_(cosine).mul_(grad[rows])
        self.bent[rows] += total @ h_norm

    def add_own(self, p: Tensor, x: Tensor, senses: Tensor, grad: Tensor, h_norm: Tensor) -> Tensor:
        cosine, e = self._own_e(x, senses)
        z = cosine * self.minus_theta[senses]
        bent = _horner(z, self._polynomial, torch.empty_like(z)) * cosine.square()
        by_h = grad * h_norm.unsqueeze(1)  # [n, K]
        self.weighted.index_add_(0, senses.flatten(), (by_h * e).flatten())
        self.bent.index_add_(0, senses.flatten(), (by_h * bent).flatten())
        add_at(p, senses, grad * self.gain[senses] * (1.0 + e))
        return (grad * e * self.radius[senses]).sum(1)

    def h_gradient(self, product: Tensor, along_h: Tensor, h: Tensor, h_norm: Tensor) -> Tensor:
        return _with_radial(product, h, safe_inverse(h_norm), along_h)

    def w_gradient(self, product: Tensor, w: Tensor) -> Tensor:
        return _with_radial(product, w, self.inverse_norm, self._a * self.weighted)

    def theta_gradient(self, product: Tensor, w: Tensor) -> Tensor:
        from_product = torch.einsum("md,md->m", product, w) * self._by_product
        bent = torch.where(self.curved, self.bent * self.gain, 0.0)
        return self.w_norm * (self._by_weighted * self.weighted - bent) + from_product


def _horner(z: Tensor, coefficients: list[float], out: Tensor) -> Tensor:
    out.fill_(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        out.mul_(z).add_(coefficient)
    return out


def _with_radial(product: Tensor, rows: Tensor, inverse_norm: Tensor, radial: Tensor) -> Tensor:
    """Replace the component of ``product`` [·, d] along ``rows`` [·, d] by ``radial`` [·].

    The zero vector has no direction: its product stays whole.
    """
    along = torch.einsum("id,id->i", product, rows) * inverse_norm
    return product.addcmul_(rows, ((radial - along) * inverse_norm).unsqueeze(1))
