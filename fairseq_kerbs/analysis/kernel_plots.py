"""Shapes of kernels: those of Gao et al. (their Figure 1) beside that of KerBS (its Figure 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairseq_kerbs.analysis.figures import LINES
from fairseq_kerbs.gao_kernels import (
    DistanceKernel,
    LogKernel,
    PowerKernel,
    RadialBasisKernel,
    WaveletKernel,
)
from fairseq_kerbs.kernels import apply_kernel, build_kernel

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DISTANCE_KERNELS: tuple[DistanceKernel, ...] = (
    PowerKernel(2.0),
    LogKernel(2.0),
    RadialBasisKernel(1.0),
    WaveletKernel(1.0, 1.0),
)
"""What Gao plots, with p = 2 and with γ = a = b = 1, where all bend within the same distance."""

FARTHEST = 4.0
THETAS = (-2.0, 0.0, 2.0)
POINTS = 401


def distance_curves() -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Kernels over the squared distance.

    Returns:
        squared distances D, [POINTS]; by kernel its values f(D) and its gradients f'(D), alike.
    """
    distance = torch.linspace(0.0, FARTHEST, POINTS, dtype=torch.float64)
    values = {kernel.name: kernel.of_distance(distance) for kernel in DISTANCE_KERNELS}
    return distance, values, {kernel.name: kernel.slope(distance) for kernel in DISTANCE_KERNELS}


def kerbs_curves() -> tuple[Tensor, dict[float, Tensor]]:
    """The KerBS kernel (Eq. 9) between vectors of norm 1.

    Returns:
        cosines, [POINTS]; by θ the values, alike.
    """
    cosine = torch.linspace(-1.0, 1.0, POINTS, dtype=torch.float64)
    one, kernel = torch.ones_like(cosine), build_kernel("kerbs")
    return cosine, {
        theta: apply_kernel(kernel, cosine, one, one, torch.full_like(cosine, theta))
        for theta in THETAS
    }


def plot_kernels() -> Figure:
    """One figure: kernels of Gao, their gradients, and KerBS for several θ (0: inner product)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 3.7), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    distance, values, gradients = distance_curves()
    x_label = "squared distance $D = |w-h|^2$"
    for axes, curves in ((left, values), (middle, gradients)):
        labels = [_parameters(kernel) for kernel in DISTANCE_KERNELS]
        _draw(axes, distance, list(curves.values()), labels)
        axes.set_xlabel(x_label)
    left.set(title="Kernels of the distance", ylabel="logit $S(D)$")
    middle.set(title="Their gradients", ylabel="$dS/dD$")
    cosine, by_theta = kerbs_curves()
    labels = [f"θ = {theta:g}".replace("-", "−") for theta in by_theta]
    _draw(right, cosine, list(by_theta.values()), labels)
    right.set(
        title="KerBS kernel, $|h| = |w| = 1$", xlabel="cosine of $h$ and $w$", ylabel="logit $K$"
    )
    return figure


def _parameters(kernel: DistanceKernel) -> str:
    letters = {"power": "p", "gamma": "γ"}
    chosen = (f"{letters.get(key, key)} = {getattr(kernel, key):g}" for key in kernel.options)
    return f"{kernel.name} ({', '.join(chosen)})"


def _draw(axes: Axes, x: Tensor, curves: list[Tensor], labels: list[str]) -> None:
    axes.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    for curve, label, style in zip(curves, labels, LINES, strict=False):
        axes.plot(x.numpy(), curve.numpy(), label=label, **style)
    axes.legend(frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
