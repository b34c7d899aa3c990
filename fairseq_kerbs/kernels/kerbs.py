"""Kernels K(h, w; θ) that score a context vector against a sense embedding (Section 4.1.2, Eq. 9).

A kernel is written once, as a function of four quantities that broadcast against each other:

    x = h·w,    |h|,    |w|,    θ

and of its four partial derivatives. Everything else is built from these: :func:`kerbs_kernel` and
:func:`kernel_logits` (plain, differentiable, any shape) and the chunked likelihood of
:mod:`fairseq_kerbs.likelihood`, which multiplies the partials with the gradient of its logits. A
new kernel is one subclass of :class:`.kernels.base.Kernel` in :data:`KERNELS`; those of
Gao et al. 2019 are in :mod:`fairseq_kerbs.kernels.gao`.

Low precision: float16 and bfloat16 inputs are computed in float32; where the caller wants its own
dtype back, values are saturated to that dtype's finite range, so a logit is never infinite.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from fairseq_kerbs.kernels.base import Kernel as Kernel
from fairseq_kerbs.kernels.base import Partials as Partials
from fairseq_kerbs.kernels.gao import GAO_KERNELS

THETA_LIMIT = 64.0
"""|θ| beyond which the KerBS kernel stays as it is at the limit: e^64 = 6e27 leaves float32 room
for |h||w| to 1e9."""

_SERIES_BELOW = 0.3  # |z| under which φ1' is summed as a series in float32: see _phi1_slope


# ----------------------------------------------------------------- the KerBS kernel, Eq. 9


def _phi1(z: Tensor) -> Tensor:
    """φ1(z) = (e^z − 1)/z with φ1(0) = 1, accurate to a few units in the last place."""
    zero = z == 0
    return torch.where(zero, torch.ones_like(z), torch.expm1(z) / torch.where(zero, 1.0, z))


def _phi1_slope(z: Tensor, exp_z: Tensor, phi1: Tensor) -> Tensor:
    """φ1'(z) = (e^z − φ1(z))/z; near 0, where that cancels, the series Σ k z^(k−1)/(k+1)!."""
    wide = z.dtype == torch.float64
    threshold = 1.0 if wide else _SERIES_BELOW
    small = z.abs() < threshold
    inside = torch.where(small, z, torch.zeros_like(z))
    factorial, coefficients = 1.0, []
    for k in range(1, 20 if wide else 8):
        factorial *= k + 1
        coefficients.append(k / factorial)
    series = torch.full_like(z, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        series = series * inside + coefficient
    direct = (exp_z - phi1) / torch.where(small, torch.ones_like(z), z)
    return torch.where(small, series, direct)


def _phi2_and_slope(z: Tensor) -> tuple[Tensor, Tensor]:
    """φ2(z) = (e^z − 1 − z)/z² and φ2'(z), in float64; both by series for |z| < 1."""
    small = z.abs() < 1.0
    inside = torch.where(small, z, torch.zeros_like(z))
    factorial, terms = 1.0, []  # φ2(z) = Σ_{k≥0} z^k/(k+2)!
    for k in range(22):
        factorial *= k + 2
        terms.append(1.0 / factorial)
    series, slope = torch.zeros_like(z), torch.zeros_like(z)
    for term in reversed(terms):
        slope = slope * inside + series
        series = series * inside + term
    outside = torch.where(small, torch.ones_like(z), z)
    direct = (torch.expm1(outside) - outside) / outside.square()
    # φ2' = (φ1(z) − 2 φ2(z))/z, with φ1(z) = e^z-difference quotient
    direct_slope = (torch.expm1(outside) / outside - 2 * direct) / outside
    return torch.where(small, series, direct), torch.where(small, slope, direct_slope)


def kerbs_gain(theta: Tensor) -> tuple[Tensor, Tensor]:
    """Normalization g(θ) = 1/(2 φ2(−θ)) of the KerBS kernel, and its derivative g'(θ).

    g(θ) = −θ·a(θ) with the a(θ) printed below Eq. 9, but smooth at θ = 0, where g = 1. It makes
    the integral of the kernel over c ∈ [0, 1] equal to that of the inner product, for every θ.
    Computed in float64 (it is one number a sense) and returned in the dtype of ``theta``.

    Args:
        theta: kernel parameters, any shape, within ±THETA_LIMIT.
    """
    phi2, slope = _phi2_and_slope(-theta.double())
    gain = 0.5 / phi2
    gain_slope = 0.5 * slope / phi2.square()  # d(−θ)/dθ = −1 cancels the minus of (1/φ2)'
    return gain.to(theta.dtype), gain_slope.to(theta.dtype)


def safe_inverse(norm: Tensor) -> Tensor:
    """1/norm, and 0 where the norm is 0 (or too small for its inverse to be finite)."""
    tiny = torch.finfo(norm.dtype).tiny
    return torch.where(norm >= tiny, 1.0 / norm.clamp_min(tiny), 0.0)


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
        by_x = gain * exp_z
        # s = |h||w|·k(c): at fixed x, growing norms only shrink c: ds = (k − c k') d(|h||w|)
        by_norms = bounded * gain * cosine.square() * phi1_slope
        by_theta = x * (gain_slope * phi1 - gain * cosine * phi1_slope)
        inside = (theta.abs() <= THETA_LIMIT).to(theta.dtype)
        return Partials(by_x, by_norms * w_norm, by_norms * h_norm, by_theta * inside)


class ReleasedKerbsKernel(Kernel):
    """The kernel of the authors' released TensorFlow code, which differs from Eq. 9.

    The parameter θ is raw; r = −0.5 + 4.5·tanh((θ + 0.5)/4.5) keeps it within (−5, 4), and
    t = e^r > 0 is the kernel parameter in the paper's sign −t: for c > 0 the kernel of Eq. 9 with
    parameter −t (e^{+tc}, steep towards c = 1), for c ≤ 0 the plain inner product. The authors
    publish the range and the two branches; the tanh is our reading of their soft clamp.
    """

    name = "kerbs_released"
    theta_mean = -1.0
    _center: ClassVar[float] = -0.5
    _half_range: ClassVar[float] = 4.5

    def _paper_theta(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        squashed = torch.tanh((theta - self._center) / self._half_range)
        paper_theta = -torch.exp(self._center + self._half_range * squashed)
        return paper_theta, paper_theta * (1 - squashed.square())

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Tensor:
        paper_theta, _ = self._paper_theta(theta)
        gain, _ = kerbs_gain(paper_theta)
        # c ≤ 0 is evaluated at c = 0, so the branch that is not taken cannot overflow
        cosine = _cosine(x, h_norm, w_norm).clamp_min(0.0)
        return torch.where(x > 0, x * (gain * _phi1(-paper_theta * cosine)), x)

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Partials:
        paper_theta, chain = self._paper_theta(theta)
        curved = KerbsKernel().partials(x.clamp_min(0.0), h_norm, w_norm, paper_theta)
        positive = (x > 0).to(x.dtype)
        by_x = torch.where(x > 0, curved.x, torch.ones_like(curved.x))
        return Partials(
            by_x, curved.h_norm * positive, curved.w_norm * positive, curved.theta * chain
        )


class InnerProductKernel(Kernel):
    """K = h·w: plain softmax (Eq. 3), and the limit of Eq. 9 for θ → 0."""

    name = "lin"
    has_theta = False

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Tensor:
        return x

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Partials:
        zero = x.new_zeros(())
        return Partials(torch.ones_like(x), zero, zero, zero)


_KERNELS: tuple[type[Kernel], ...] = (KerbsKernel, ReleasedKerbsKernel, InnerProductKernel)

KERNELS: dict[str, type[Kernel]] = {kernel.name: kernel for kernel in (*_KERNELS, *GAO_KERNELS)}
"""Kernels by the name that ``--kernel`` takes."""


def build_kernel(name: str | Kernel, **options: Any) -> Kernel:
    """Return the kernel called ``name`` (or ``name`` itself, if it is a kernel already).

    Raises:
        ValueError: no kernel has that name; the message lists those there are.
    """
    if isinstance(name, Kernel):
        return name
    if name not in KERNELS:
        known = ", ".join(sorted(KERNELS))
        raise ValueError(f"--kernel: there is no kernel named '{name}'; choose one of {known}.")
    return KERNELS[name](**options)


# ----------------------------------------------------------------- differentiable fronts


def _reduce_to(gradient: Tensor, like: Tensor) -> Tensor:
    return gradient.sum_to_size(like.shape) if gradient.shape != like.shape else gradient


class _KernelFunction(torch.autograd.Function):
    """Autograd node of a kernel over broadcast x, |h|, |w|, θ: saves inputs only."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor
    ) -> Tensor:
        ctx.kernel = kernel
        ctx.save_for_backward(x, h_norm, w_norm, theta)
        return kernel.value(x, h_norm, w_norm, theta)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        partials = ctx.kernel.partials(*inputs)
        needed = ctx.needs_input_grad[1:]
        gradients = [
            _reduce_to(grad_output * partial, like) if need else None
            for partial, like, need in zip(partials, inputs, needed, strict=True)
        ]
        return (None, *gradients)


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 where an input is float64, float32 otherwise: sums never run in low precision."""
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32


def apply_kernel(
    kernel: Kernel, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor
) -> Tensor:
    """Differentiable kernel value from x = h·w, |h|, |w| and θ, which broadcast.

    Returns:
        float32 (float64 where an input is), of the broadcast shape.
    """
    dtype = compute_dtype(x, h_norm, w_norm, theta)
    whole = x.expand(torch.broadcast_shapes(x.shape, h_norm.shape, w_norm.shape, theta.shape))
    result: Tensor = _KernelFunction.apply(
        kernel, whole.to(dtype), h_norm.to(dtype), w_norm.to(dtype), theta.to(dtype)
    )
    return result


def safe_norm(vectors: Tensor) -> Tensor:
    """Euclidean norm over the last dimension, kept as size 1; gradient 0 at the zero vector."""
    norm: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return norm


def kernel_logits(h: Tensor, w: Tensor, theta: Tensor, kernel: str | Kernel = "kerbs") -> Tensor:
    """Kernel logits of every context vector against every sense, in float32 or float64.

    Args:
        h: context vectors, [..., d].
        w: sense embeddings, [M, d].
        theta: kernel parameters, [M] (not read by kernels without one).
        kernel: a name of :data:`KERNELS` or a kernel.

    Returns:
        logits, [..., M].
    """
    _check_shapes(h, w, theta)
    dtype = compute_dtype(h, w, theta)
    with torch.autocast(h.device.type, enabled=False):
        wide_h, wide_w = h.to(dtype), w.to(dtype)
        bound = build_kernel(kernel).bind(w.shape[1])
        x = bound.map_contexts(wide_h) @ wide_w.t()  # [..., M]
        w_norm = safe_norm(wide_w).squeeze(-1)  # [M]
        return apply_kernel(bound, x, safe_norm(wide_h), w_norm, theta)


def kerbs_kernel(h: Tensor, w: Tensor, theta: Tensor) -> Tensor:
    """The KerBS kernel of Eq. 9 between every context vector and every sense.

    Computed in float64 and rounded once, so that value and gradients are right to the precision of
    the inputs' dtype even where ∂K/∂θ changes its sign. Training and decoding use
    :func:`kernel_logits` and :mod:`fairseq_kerbs.likelihood`, which stay in float32.

    Args:
        h: context vectors, [..., d].
        w: sense embeddings, [M, d].
        theta: kernel parameters, [M]; |θ| is bounded by :data:`THETA_LIMIT`.

    Returns:
        [..., M], in the common dtype of the inputs, saturated to its finite range.
    """
    logits = kernel_logits(h.double(), w.double(), theta.double(), "kerbs")
    dtype = torch.promote_types(torch.promote_types(h.dtype, w.dtype), theta.dtype)
    limits = torch.finfo(dtype)
    return logits.clamp(limits.min, limits.max).to(dtype)


def _check_shapes(h: Tensor, w: Tensor, theta: Tensor) -> None:
    if w.dim() != 2 or h.shape[-1] != w.shape[1]:
        raise ValueError(
            f"Context vectors of shape {tuple(h.shape)} do not fit sense embeddings of shape "
            f"{tuple(w.shape)}: h is [..., d] and w is [M, d]."
        )
    if theta.shape != w.shape[:1]:
        raise ValueError(
            f"theta has shape {tuple(theta.shape)}, but there are {w.shape[0]} senses: it is [M]."
        )
