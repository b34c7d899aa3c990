"""Base class of kernels: functions of x = h·w, |h|, |w| and θ, with partial derivatives.

A kernel class describes itself: its options, and what other parts of the project may do with it.
:func:`register` adds it to :data:`KERNELS`. Flags, checkpoints and the checks of a resumed training
read :data:`KERNELS`, so none of them has to name a kernel.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from fairseq_kerbs.torch_compat import is_compiling


class Partials(NamedTuple):
    """Partial derivatives of a kernel value, each broadcastable to the value's shape."""

    x: Tensor | float
    h_norm: Tensor | float = 0.0
    w_norm: Tensor | float = 0.0
    theta: Tensor | float = 0.0


class FoldedSenses(NamedTuple):
    """Senses in a form that needs two operations per logit: K = |h| f_m (e^{r_m·h/|h|} − 1)."""

    rows: Tensor  # r, [M, d]
    factors: Tensor  # f, [M]


@dataclasses.dataclass(frozen=True)
class KernelOption:
    """A hyper-parameter of a kernel. It is a flag, too."""

    name: str  # of the field in the kernel's class
    default: Any
    help: str  # what it is, for the flag's description

    @property
    def type(self) -> type:
        """Type of the values."""
        return type(self.default)

    @property
    def flag(self) -> str:
        """Flag that sets it. Kernels with an option of the same name share the flag."""
        return f"--kernel-{self.name.replace('_', '-')}"


def option(default: Any, help: str) -> Any:
    """A field of a kernel's dataclass that is an option (:class:`KernelOption`)."""
    return dataclasses.field(default=default, metadata={"option": help})


class Kernel(ABC):
    """A kernel K(x, |h|, |w|, θ) with x = h·w, for a context vector h and a sense embedding w.

    A subclass implements :meth:`value` and :meth:`partials`, sets the class attributes whose
    defaults are wrong for it, and is registered by :func:`register`. With options it is a frozen
    dataclass whose fields are made by :func:`option`.
    """

    name: ClassVar[str]  # key in KERNELS and value of --kernel
    options: ClassVar[Mapping[str, KernelOption]] = {}  # by name; set by register()
    has_theta: ClassVar[bool] = True  # uses θ
    homogeneous: ClassVar[bool] = False  # K(ah, bw) = ab K(h, w) for a, b > 0
    theta_std: ClassVar[float] = 0.1  # standard deviation of the initial θ, whose mean is 0
    moved_theta: ClassVar[float] = 1e-8  # of a sense that Algorithm 1 has moved, as printed there
    inner_product_at_zero: ClassVar[bool] = False  # K = h·w at θ = 0: senses can be placed
    constant_is_bias: ClassVar[bool] = False  # a constant coordinate of h adds a bias (at θ = 0)

    @abstractmethod
    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Tensor:
        """Kernel value, without autograd (see :func:`.functional.apply_kernel`).

        Arguments are float32 or float64 and broadcast to the shape of ``x``. ``prepared`` is the
        result of :meth:`prepare`.
        """

    @abstractmethod
    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
        """Partial derivatives of :meth:`value` by x, |h|, |w| and θ, with the others fixed.

        A partial that is 0 everywhere stays the number 0.0, which saves its pass over all senses. A
        homogeneous kernel leaves out those by norms: |h| ∂K/∂|h| = |w| ∂K/∂|w| = K − x ∂K/∂x.
        """

    def prepare(self, theta: Tensor) -> Tensor:
        """Functions of θ [...] that are computed once per sense: [C, ...], or θ itself."""
        return theta

    def theta_of(self, parameter: Tensor) -> Tensor:
        """θ in the kernel's formula, for a learned parameter [...]. By default they are equal."""
        return parameter

    def bind(self, dim: int) -> Kernel:
        """The kernel for vectors of size ``dim``. Raises a ValueError for an unsupported size.

        That of a bound kernel must return itself: it is called for every loss.
        """
        return self

    def map_contexts(self, h: Tensor) -> Tensor:
        """Linear map A of context vectors before the products, [..., d] -> [..., d].

        The products are x = (A h)·w. A is symmetric, so a gradient by A h becomes one by h through
        A again. Norms are those of h. The default is the identity.
        """
        return h

    def fold(self, w: Tensor, w_norm: Tensor, prepared: Tensor) -> FoldedSenses | None:
        """Senses in the form that is fastest in decoding. None if the kernel has no such form.

        w is [M, d] and |w| [M]. ``prepared`` is the result of :meth:`prepare`, [..., M].
        """
        return None


KERNELS: dict[str, type[Kernel]] = {}
"""Kernels by name, in the order in which they were registered."""

KernelClass = TypeVar("KernelClass", bound="type[Kernel]")


def register(kernel: KernelClass) -> KernelClass:
    """Class decorator that adds a kernel to :data:`KERNELS`. Above ``@dataclass`` if it is one.

    Raises:
        ValueError: another kernel has that name.
    """
    if kernel.name in KERNELS:
        raise ValueError(f"There are two kernels named '{kernel.name}': rename one of them.")
    if dataclasses.is_dataclass(kernel):
        kernel.options = {
            item.name: KernelOption(item.name, item.default, item.metadata["option"])
            for item in dataclasses.fields(kernel)
            if "option" in item.metadata
        }
    KERNELS[kernel.name] = kernel
    return kernel


def is_zero(partial: Tensor | float) -> bool:
    """Whether a partial derivative is the number 0, so that no product with it is needed."""
    return isinstance(partial, float) and partial == 0.0


def kernel_options() -> dict[str, dict[str, KernelOption]]:
    """Options of all kernels: for each name of an option, the option of each kernel by its name."""
    found: dict[str, dict[str, KernelOption]] = {}
    for name, kernel in KERNELS.items():
        for option_name, described in kernel.options.items():
            found.setdefault(option_name, {})[name] = described
    return found


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if an input is float64, else float32. Sums never run in half precision."""
    wide = any(tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if wide else torch.float32


def safe_norm(vectors: Tensor) -> Tensor:
    """Euclidean norm, [..., d] -> [..., 1], with gradient 0 at the zero vector."""
    return torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)


def safe_inverse(norm: Tensor) -> Tensor:
    """1/norm, or 0 if the norm is too small for a finite inverse."""
    tiny = torch.finfo(norm.dtype).tiny
    return torch.where(norm >= tiny, 1.0 / norm.clamp_min(tiny), 0.0)


def polynomial(z: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Σ_k coefficients[k]·z^k by Horner's rule, of two coefficients or more, in the shape of z."""
    result = z * coefficients[-1]
    for coefficient in reversed(coefficients[1:-1]):
        result.add_(coefficient).mul_(z)
    return result.add_(coefficients[0])


_LN2 = {  # in two parts: n times the first is exact
    torch.float32: (0.693359375, -2.12194440054690583e-4),
    torch.float64: (6.93147180369123816490e-01, 1.90821492927058770002e-10),
}


def expm1(z: Tensor) -> Tensor:
    """e^z − 1 for |z| ≤ 80, exact near 0 also under torch.compile.

    On a CPU torch.compile replaces torch.expm1 by e^z − 1. This is 2^n (e^r − 1) + (2^n − 1) with
    z = n·ln 2 + r and |r| ≤ ½ ln 2.
    """
    if z.is_cuda or not is_compiling():
        return torch.expm1(z)
    high, low = _LN2[z.dtype]
    n = torch.round(z * (1 / math.log(2)))
    r = z - n * high - n * low
    terms = 13 if z.dtype == torch.float64 else 6
    inside = r + r * r * polynomial(r, [1 / math.factorial(k + 2) for k in range(terms)])
    if z.dtype == torch.float64:
        power = torch.exp2(n)
    else:
        power = ((n.to(torch.int32) + 127) << 23).view(torch.float32)
    return power * inside + (power - 1.0)


def exp(z: Tensor) -> Tensor:
    """e^z, with a relative error of about 1 + |z| units in the last place under torch.compile.

    For a CPU torch.compile stores the result of torch.exp in memory if it is used twice, but
    recomputes this.
    """
    if z.is_cuda or not is_compiling():
        return torch.exp(z)
    return torch.exp2(z * (1 / math.log(2)))
