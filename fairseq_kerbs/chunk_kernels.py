"""Kernels over chunks of tokens: values, and gradients in as few passes as each kernel allows.

The likelihood needs the logits [n, M] of a chunk of n tokens, and once their gradient G [n, M] is
known, P = G·∂s/∂x [n, M], which it multiplies with W and h. What is left are gradients by the norms
and θ, which are sums over the chunk. Any kernel gets those from its partial derivatives
(:class:`ChunkKernel`); the inner product has none; for the KerBS kernel they follow from one pass
more, because it is homogeneous in |h| and in |w|.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from fairseq_kerbs.kernels import (
    THETA_LIMIT,
    InnerProductKernel,
    KerbsKernel,
    Kernel,
    kerbs_gain,
    safe_inverse,
)

State = tuple[Tensor, ...]

_HIGHER_TERMS = 5  # Taylor terms beyond the degree that are folded into the polynomial


@functools.cache
def _economization(degree: int) -> Tensor:
    """c^{degree+1} … as combinations of c^1 … c^degree, exact at the Chebyshev nodes, in float64.

    ``degree`` is even, so that no node is 0, where every power agrees anyway.
    """
    steps = torch.arange(degree, dtype=torch.float64)
    nodes = torch.cos((steps + 0.5) * (math.pi / degree)).unsqueeze(1)  # [degree, 1]
    low = nodes ** (steps + 1)
    high = nodes ** torch.arange(degree + 1, degree + 1 + _HIGHER_TERMS, dtype=torch.float64)
    return torch.linalg.solve(low, high)  # [degree, _HIGHER_TERMS]


class ChunkKernel:
    """Any kernel over the chunks of one evaluation; sums gradients by |w| and θ as it goes.

    Args:
        kernel: the kernel.
        w_norm: norms of the sense embeddings, [M].
        theta: kernel parameters, [M].
    """

    def __init__(self, kernel: Kernel, w_norm: Tensor, theta: Tensor) -> None:
        self.kernel, self.w_norm, self.theta = kernel, w_norm, theta
        self._by_w_norm = torch.zeros_like(w_norm)
        self._by_theta = torch.zeros_like(theta)

    def reset(self) -> None:
        """Forget the sums, before another run over the chunks."""
        self._by_w_norm.zero_()
        self._by_theta.zero_()

    def logits(self, x: Tensor, h_norm: Tensor) -> tuple[Tensor, State]:
        """Logits of a chunk, and the state that :meth:`pull_back` wants.

        Args:
            x: products h·w, [n, M]; may be overwritten.
            h_norm: norms of the context vectors, [n, 1].

        Returns:
            logits [n, M], which the caller may overwrite, and the state.
        """
        value = self.kernel.value(x, h_norm, self.w_norm, self.theta)
        return (value.clone() if value is x else value), (x,)

    def pull_back(self, grad: Tensor, state: State, h_norm: Tensor) -> tuple[Tensor, Tensor]:
        """Carry the gradient of a chunk's logits back.

        Args:
            grad: [n, M]; may be overwritten.
            state: from :meth:`logits`.
            h_norm: [n, 1].

        Returns:
            P = G·∂s/∂x, [n, M], and what :meth:`h_gradient` wants, [n, 1].
        """
        partials = self.kernel.partials(state[0], h_norm, self.w_norm, self.theta)
        self._by_w_norm += (grad * partials.w_norm).sum(0)
        if self.kernel.has_theta:
            self._by_theta += (grad * partials.theta).sum(0)
        return grad * partials.x, (grad * partials.h_norm).sum(1, keepdim=True)

    def h_gradient(self, product: Tensor, rows: Tensor, h: Tensor, h_norm: Tensor) -> Tensor:
        """Gradient by h, [n, d], from the product P W [n, d] (overwritten) and ``rows`` [n, 1]."""
        return product.addcmul_(h * safe_inverse(h_norm), rows)

    def w_gradient(self, product: Tensor, w: Tensor) -> Tensor:
        """Gradient by W, [M, d], from the sum of all Pᵀ h [M, d] (overwritten)."""
        norms = self.w_norm.unsqueeze(1)
        return product.addcmul_(w * safe_inverse(norms), self._by_w_norm.unsqueeze(1))

    def theta_gradient(self, product: Tensor, w: Tensor) -> Tensor:
        """Gradient by θ, [M]; ``product`` is the sum of all Pᵀ h, not yet overwritten."""
        return self._by_theta


class ChunkInnerProduct(ChunkKernel):
    """s = x: nothing to compute in either direction."""

    def logits(self, x: Tensor, h_norm: Tensor) -> tuple[Tensor, State]:
        return x, ()

    def pull_back(self, grad: Tensor, state: State, h_norm: Tensor) -> tuple[Tensor, Tensor]:
        return grad, h_norm

    def h_gradient(self, product: Tensor, rows: Tensor, h: Tensor, h_norm: Tensor) -> Tensor:
        return product

    def w_gradient(self, product: Tensor, w: Tensor) -> Tensor:
        return product


class ChunkKerbs(ChunkKernel):
    """The KerBS kernel (Eq. 9) as s = |h||w| a E with E = e^{−θc} − 1, a = −g(θ)/θ.

    θ = 0 stands for 1e-12 (1e-30 in float64) here: that near, the kernel is h·w to the last bit,
    and the large a meets an E that is exact for tiny arguments.

    With P = G·∂s/∂x = G·g·(E + 1), homogeneity in |h| and |w| gives the gradients along h and w
    from Σ G s = Σ |h||w| a G E, and dθ from the same sums, with a' = da/dθ:

        h·dh = Σ_m G s,    w·dW = Σ_n G s,    dθ = |w| a' Σ_n |h| G E + w·(Pᵀ h)/θ

    The last cancels for small θ. There dθ = |w| Σ_n |h| G Σ_k α_k(θ) c^k with the polynomial in c
    that meets ∂K/∂θ at the Chebyshev nodes of [−1, 1]: in float32, degree 8 is right to 5e-7 |h||w|
    up to |θ| = 1, where the sums lose one digit.
    """

    def __init__(self, kernel: Kernel, w_norm: Tensor, theta: Tensor) -> None:
        super().__init__(kernel, w_norm, theta)
        dtype = theta.dtype
        wide = dtype == torch.float64
        tiny, limit, self._degree = (1e-30, 0.25, 10) if wide else (1e-12, 1.0, 8)
        bounded = theta.clamp(-THETA_LIMIT, THETA_LIMIT).double()
        safe = torch.where(bounded.abs() < tiny, tiny, bounded)
        gain, slope = kerbs_gain(bounded)
        small = bounded.abs() < limit  # [M]
        large = ~small & (theta.abs() <= THETA_LIMIT)
        self._inverse_w = safe_inverse(w_norm)
        self._minus_theta, self._gain = -safe.to(dtype), gain.to(dtype)
        self._a = (-gain / safe).to(dtype)
        # a' = −(g' − g/θ)/θ, and 1/θ: only where dθ comes from the sums
        self._a_slope = torch.where(large, (gain / safe - slope) / safe, 0.0).to(dtype)
        self._by_product = torch.where(large, 1.0 / safe, 0.0).to(dtype)
        self._small = small.nonzero().flatten()
        self._all_small = self._small.numel() == theta.numel()
        self._alpha = self._theta_slope(bounded[small], gain[small], slope[small]).to(dtype)
        self._weighted_e = torch.zeros_like(w_norm)  # Σ_n |h| G E

    def reset(self) -> None:
        super().reset()
        self._weighted_e.zero_()

    def _theta_slope(self, theta: Tensor, gain: Tensor, slope: Tensor) -> Tensor:
        """α_1 … α_degree, [degree, senses with small θ]."""
        rows = []  # Taylor: the derivative by θ of g(θ)(−θ)^{k−1}/k!
        power, lower = torch.ones_like(theta), torch.zeros_like(theta)  # (−θ)^{k−1}, and k−2
        for k in range(1, self._degree + _HIGHER_TERMS + 1):
            rows.append((slope * power - (k - 1) * gain * lower) / math.factorial(k))
            power, lower = power * -theta, power
        low, high = rows[: self._degree], rows[self._degree :]
        return torch.stack(low) + _economization(self._degree).to(theta.device) @ torch.stack(high)

    def logits(self, x: Tensor, h_norm: Tensor) -> tuple[Tensor, State]:
        cosine = x.mul_(safe_inverse(h_norm)).mul_(self._inverse_w)
        e = cosine * self._minus_theta
        torch.expm1(e, out=e)
        return (e * (self._a * self.w_norm)).mul_(h_norm), (cosine, e)

    def pull_back(self, grad: Tensor, state: State, h_norm: Tensor) -> tuple[Tensor, Tensor]:
        cosine, e = state
        self._add_small(grad, cosine, h_norm)
        grad_e = grad * e
        rows = grad_e @ (self._a * self.w_norm).unsqueeze(1)  # [n, 1]: Σ_m G s / |h|
        self._weighted_e += (h_norm.t() @ grad_e).squeeze(0)
        return grad.add_(grad_e).mul_(self._gain), rows

    def _add_small(self, grad: Tensor, cosine: Tensor, h_norm: Tensor) -> None:
        if self._small.numel() == 0:
            return
        if not self._all_small:
            grad, cosine = grad[:, self._small], cosine[:, self._small]
        total = self._alpha[-1] * cosine
        for alpha in reversed(self._alpha[:-1]):
            total.add_(alpha).mul_(cosine)
        sums = (h_norm.t() @ total.mul_(grad)).squeeze(0)
        self._by_theta[self._small] += sums * self.w_norm[self._small]

    def h_gradient(self, product: Tensor, rows: Tensor, h: Tensor, h_norm: Tensor) -> Tensor:
        return _with_radial(product, h * safe_inverse(h_norm), rows)

    def w_gradient(self, product: Tensor, w: Tensor) -> Tensor:
        direction = w * self._inverse_w.unsqueeze(1)
        return _with_radial(product, direction, (self._a * self._weighted_e).unsqueeze(1))

    def theta_gradient(self, product: Tensor, w: Tensor) -> Tensor:
        from_product = torch.einsum("md,md->m", product, w) * self._by_product
        return self._by_theta + self._a_slope * self.w_norm * self._weighted_e + from_product


def _with_radial(product: Tensor, direction: Tensor, radial: Tensor) -> Tensor:
    """Replace the component of ``product`` along unit rows ``direction`` by ``radial`` [·, 1]."""
    along = (product * direction).sum(1, keepdim=True)
    # the zero vector has no direction: its product stays whole
    return product.addcmul_(direction, radial - along)


def over_chunks(kernel: Kernel, w_norm: Tensor, theta: Tensor) -> ChunkKernel:
    """The leanest form of a kernel over chunks."""
    lean = {KerbsKernel: ChunkKerbs, InnerProductKernel: ChunkInnerProduct}
    return lean.get(type(kernel), ChunkKernel)(kernel, w_norm, theta)
