"""The inner product and the KerBS kernel in plain torch, with gradients in closed form.

The fused backends (:mod:`.backends.cpu`, :mod:`.backends.triton`) fall back on these classes and
are held to them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_kerbs.kernels import THETA_LIMIT, kerbs_gain, safe_inverse
from fairseq_kerbs.likelihood.backends.blocks import Block
from fairseq_kerbs.likelihood.backends.eager import Backend, Kept, Senses, Target, Tensors

BERNOULLI = [0.1666666169, -0.002776880713, 6.372609382e-05]
"""B(z) = 1/(1 − e^−z) − 1/z = ½ + z/2·Σ_k c_k z^2k for |z| ≤ 1 in float32: the polynomial through
the Chebyshev nodes, relative error 6e-8."""

BERNOULLI_SERIES = [1 / 6, -1 / 360, 1 / 15120, -1 / 604800, 1 / 23950080]
BERNOULLI_SERIES += [-691 / 653837184000, 1 / 37362124800]
"""The same as its power series, c_k = 2 B_2k+2/(2k + 2)!, for |z| ≤ ½ in float64."""


class InnerProductBackend(Backend):
    """s = x: nothing to compute in either direction."""

    buffers, rooms = 3, 0

    def _score(self, block: Block, own: Tensors, h_norm: Tensor) -> Tensor:
        return own[0]

    def _carry_back(
        self, block: Block, grad: Tensor, own: Tensors, h_norm: Tensor, sums: Tensor
    ) -> Tensor:
        return torch.zeros_like(h_norm)  # P = G lies there already

    def logits(self, x: Tensor, h_norm: Tensor) -> tuple[Tensor, Kept]:
        return x, ()

    def backward_logits(
        self, grad: Tensor, x: Tensor, h_norm: Tensor, kept: Kept, sums: Tensor
    ) -> tuple[Tensor, Tensor]:
        return grad, torch.zeros_like(h_norm)


class KerbsBackend(Backend):
    """The KerBS kernel (Eq. 9) as s = |h||w| a E with E = e^z − 1, z = −θc, a = −g(θ)/θ.

    θ = 0 stands for 1e-8 (1e-30 in float64) here: that near, the kernel is h·w to the last bit,
    and the large a meets an E that is exact for tiny arguments.

    With P = G·∂s/∂x = G·g·(E + 1), homogeneity in |h| and |w| gives the gradients along h and w
    from Σ G s = Σ |h||w| a G E, and dθ from the same sums, with a' = da/dθ:

        h·dh = Σ_m G s,    w·dW = Σ_n G s,    dθ = |w| a' Σ_n |h| G E + w·(P h)/θ

    The last cancels for small θ ("curved" senses). There

        dθ = −|w| (g'/θ · Σ_n |h| G E + g · Σ_n |h| G c² r(z)),   r(z) = (z e^z − E)/z²

    and c² r(z) = E·z B(z)/θ² with the B of :data:`BERNOULLI`, which no E cancels. The two sums
    over tokens are Σ_n |h| G E, and Σ_n |h| G c² r(z), read of curved senses only.

    Attributes, [M] each: ``inverse_norm`` 1/|w|, or 0; ``minus_theta`` −θ; ``radius`` a|w|;
    ``gain`` g(θ); ``curved`` where |θ| is small.
    """

    unit_contexts = True
    buffers, rooms = 5, 2

    def __init__(self, senses: Senses, dtype: torch.dtype) -> None:
        super().__init__(senses, dtype)
        wide = dtype == torch.float64
        tiny, limit = (1e-30, 0.5) if wide else (1e-8, 1.0)
        *series, self._last = BERNOULLI_SERIES if wide else BERNOULLI
        self._series = [self.w_norm.new_tensor(coefficient) for coefficient in reversed(series)]
        bounded = self.theta.clamp(-THETA_LIMIT, THETA_LIMIT).double()
        safe = torch.where(bounded.abs() < tiny, tiny, bounded)
        gain, slope = kerbs_gain(bounded)
        self.inverse_norm = safe_inverse(self.w_norm)
        self.minus_theta, self.gain = -safe.to(dtype), gain.to(dtype)
        self._a = (-gain / safe).to(dtype)
        self.radius = self._a * self.w_norm
        self.curved = bounded.abs() < limit  # [M]
        self._by_bent = (0.5 / safe.square()).to(dtype)
        self._to_z = self.inverse_norm * self.minus_theta
        sums = ~self.curved & (self.theta.abs() <= THETA_LIMIT)
        by_first = torch.where(self.curved, -slope / safe, (gain / safe - slope) / safe)
        self._by_first = torch.where(self.curved | sums, by_first, 0.0).to(dtype)
        self._by_product = torch.where(sums, 1.0 / safe, 0.0).to(dtype)

    def _score(self, block: Block, own: Tensors, h_norm: Tensor) -> Tensor:
        z, e, logits = own
        z.mul_(self._to_z[block.senses].unsqueeze(1))
        torch.mul(torch.expm1(z, out=e), self.radius[block.senses].unsqueeze(1), out=logits)
        return logits.mul_(h_norm)

    def _carry_back(
        self, block: Block, grad: Tensor, own: Tensors, h_norm: Tensor, sums: Tensor
    ) -> Tensor:
        senses, z, grad_e = block.senses, own[0], own[1].mul_(grad)
        along_h = torch.mv(grad_e.t(), self.radius[senses])  # Σ_m G s / |h|
        sums[0, senses] += torch.mv(grad_e, h_norm)
        grad.add_(grad_e)
        bent = torch.mv(grad_e.mul_(self._bent(z)), h_norm)
        sums[1, senses] += bent.mul_(self._by_bent[senses])
        torch.mul(grad, self.gain[senses].unsqueeze(1), out=z)  # P
        return along_h

    def _bent(self, z: Tensor) -> Tensor:
        """2z B(z) = z + z² Σ_k c_k z^2k, by Horner's rule."""
        square, (first, *others) = z.square(), self._series
        result = torch.add(first, square, alpha=self._last)
        for coefficient in (*others, z):
            torch.addcmul(coefficient, result, square, out=result)
        return result

    def _target_logits(self, x: Tensor, senses: Tensor, h_norm: Tensor) -> tuple[Tensor, Tensors]:
        z = x * self._to_z[senses]
        e = z.expm1()
        return e * self.radius[senses] * h_norm, (z, e)

    def _target_gradients(self, grad: Tensor, target: Target, h_norm: Tensor) -> Tensors:
        (z, e), senses = target.kept, target.senses
        grad_e = grad * e
        bent = grad_e * h_norm * self._bent(z) * self._by_bent[senses]
        by_x = (grad + grad_e) * self.gain[senses]
        return by_x, grad_e * self.radius[senses], grad_e * h_norm, bent

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
