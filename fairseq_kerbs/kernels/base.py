"""What every kernel is: a function of x = h·w, |h|, |w| and θ, and its four partial derivatives.

:mod:`fairseq_kerbs.kernels.kerbs` has the kernels of KerBS and the list of all,
:mod:`fairseq_kerbs.kernels.gao` those of Gao et al.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from torch import Tensor


class Partials(NamedTuple):
    """Partial derivatives of a kernel value, each broadcastable to the value's shape."""

    x: Tensor
    h_norm: Tensor
    w_norm: Tensor
    theta: Tensor


class Kernel(ABC):
    """One kernel: its value and partial derivatives over broadcastable tensors.

    Attributes:
        name: what ``--kernel`` calls it.
        options: arguments of its constructor that a user may choose (``--kernel-…``).
        has_theta: whether it reads θ.
        theta_mean, theta_std: how θ begins: the paper's "random vector", normal with these.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()
    has_theta: ClassVar[bool] = True
    theta_std: ClassVar[float] = 0.1
    theta_mean: ClassVar[float] = 0.0

    @abstractmethod
    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Tensor:
        """Kernel value; all arguments broadcast and are float32 or float64."""

    @abstractmethod
    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, theta: Tensor) -> Partials:
        """Derivatives of :meth:`value` by x (norms fixed), |h|, |w| (x fixed) and θ."""

    def bind(self, dim: int) -> Kernel:
        """This kernel for vectors of ``dim`` coordinates: itself, unless their number matters.

        Raises:
            ValueError: the kernel cannot work with vectors of this size.
        """
        return self

    def map_contexts(self, h: Tensor) -> Tensor:
        """Context vectors as they enter the products x, [..., d] -> [..., d].

        A linear and symmetric map A, so that x = (A h)·w and the gradient by h of a function of x
        is A applied to its gradient by A h. Norms are always those of h itself. The identity
        returns ``h`` itself.
        """
        return h
