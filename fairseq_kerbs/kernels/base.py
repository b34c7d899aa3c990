"""What every kernel is: a function of x = h·w, |h|, |w| and θ, and its four partial derivatives."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.torch_compat import is_compiling


class Partials(NamedTuple):
    """Partial derivatives of a kernel value, each broadcastable to the value's shape."""

    x: Tensor | float
    h_norm: Tensor | float = 0.0
    w_norm: Tensor | float = 0.0
    theta: Tensor | float = 0.0


class Kernel(ABC):
    """One kernel: its value and partial derivatives over broadcastable tensors."""

    name: ClassVar[str]  # its key in KERNELS
    options: ClassVar[tuple[str, ...]] = ()  # of its constructor, for a user to choose
    has_theta: ClassVar[bool] = True  # whether it reads θ
    reads_norms: ClassVar[bool] = True  # whether it reads |h| and |w|
    homogeneous: ClassVar[bool] = False  # whether the value grows as h does, and as w does
    theta_std: ClassVar[float] = 0.1  # θ begins as the paper's "random vector", normal with these
    theta_mean: ClassVar[float] = 0.0

    @abstractmethod
    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Tensor:
        """Kernel value; all arguments broadcast and are float32 or float64.

        ``theta`` is what :meth:`prepare` gives of θ.
        """

    @abstractmethod
    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Partials:
        """Derivatives of :meth:`value` by x (norms fixed), |h|, |w| (x fixed) and θ itself.

        A homogeneous kernel gives none by norms: |h| ∂s/∂|h| = |w| ∂s/∂|w| = s − x ∂s/∂x.
        """

    def prepare(self, theta: Tensor) -> Tensor:
        """What the kernel needs of θ [...], once a sense: several functions of it, [C, ...], or as
        such θ itself."""
        return theta

    def bind(self, dim: int) -> Kernel:
        """This kernel for vectors of ``dim`` coordinates: itself, unless their number matters; a
        ValueError if it cannot work with vectors of this size."""
        return self

    def map_contexts(self, h: Tensor) -> Tensor:
        """Context vectors as they enter the products x, [..., d] -> [..., d]; as such, h itself.

        A linear and symmetric map A, so that x = (A h)·w and the gradient by h of a function of x
        is A applied to its gradient by A h. Norms are always those of h.
        """
        return h


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 where an input is float64, float32 otherwise: sums never run in low precision."""
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32


def safe_norm(vectors: Tensor) -> Tensor:
    """Euclidean norm over the last dimension, kept as size 1; gradient 0 at the zero vector."""
    return torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)


def safe_inverse(norm: Tensor) -> Tensor:
    """1/norm, and 0 where the norm is 0 (or too small for its inverse to be finite)."""
    tiny = torch.finfo(norm.dtype).tiny
    return torch.where(norm >= tiny, 1.0 / norm.clamp_min(tiny), 0.0)


def polynomial(z: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Σ_k coefficients[k]·z^k, by Horner's rule."""
    result = z * coefficients[-1]
    for coefficient in reversed(coefficients[1:-1]):
        result.add_(coefficient).mul_(z)
    return result.add_(coefficients[0])


_LN2 = {  # in two parts: n times the first is exact
    torch.float32: (0.693359375, -2.12194440054690583e-4),
    torch.float64: (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}


def expm1(z: Tensor) -> Tensor:
    """e^z − 1 for |z| ≤ 80, as exact as torch.expm1 also where torch.compile makes e^z − 1 of that.

    With z = n·ln 2 + r and |r| ≤ ½ ln 2 it is 2^n (e^r − 1) + (2^n − 1).
    """
    if not is_compiling():
        return torch.expm1(z)
    power, inside = _reduced(z)
    return power * inside + (power - 1.0)


def exp(z: Tensor) -> Tensor:
    """e^z for z ≤ 80; torch.compile would keep a matrix of what torch.exp gives, where it is used
    twice. The least is e^−87 in float32."""
    if not is_compiling():
        return torch.exp(z)
    power, inside = _reduced(z.clamp_min(-700.0 if z.dtype == torch.float64 else -87.0))
    return power * inside + power


def _reduced(z: Tensor) -> tuple[Tensor, Tensor]:
    """2^n and e^r − 1; see :func:`expm1`. Not by calls of a library, which end a CPU's vectors."""
    high, low = _LN2[z.dtype]
    n = torch.round(z * (1 / math.log(2)))
    r = z - n * high - n * low
    terms = 13 if z.dtype == torch.float64 else 6
    inside = r + r * r * polynomial(r, [1 / math.factorial(k + 2) for k in range(terms)])
    if z.dtype == torch.float64:
        return torch.exp2(n), inside
    return ((n.to(torch.int32) + 127) << 23).view(torch.float32), inside
