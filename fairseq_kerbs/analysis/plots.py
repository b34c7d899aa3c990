"""Figures: shapes of kernels, and a trained model's senses.

All are readable in grey: lines differ in their dashes, senses in the shape of their marks. Files
are written whole or not at all, the same bytes at every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairseq_kerbs.analysis.context_vectors import Projection
from fairseq_kerbs.analysis.history import Series
from fairseq_kerbs.analysis.words import frequency_groups
from fairseq_kerbs.kernels import apply_kernel, build_kernel
from fairseq_kerbs.kernels.gao import (
    DistanceKernel,
    LogKernel,
    PowerKernel,
    RadialBasisKernel,
    WaveletKernel,
)
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# By suffix of the file, what would change from run to run and is left out of it.
_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    ".svg": {"Date": None, "Creator": None},
}
SUFFIXES = tuple(_METADATA)

LINES: tuple[dict[str, Any], ...] = (
    {"color": "#000000", "linestyle": "-"},
    {"color": "#b03a2e", "linestyle": "--"},
    {"color": "#2471a3", "linestyle": "-."},
    {"color": "#7d8a2e", "linestyle": (0, (1, 1.2))},
)
"""Styles of the lines of a panel."""

MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Marks of a word's senses, in order; every second one is empty."""

_BARS: dict[str, Any] = {"color": "#5f7285", "edgecolor": "white"}
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": "small"}


def check_figure_path(path: Path) -> None:
    """Refuse a name that no figure can have, before anything is computed.

    Raises:
        UserError: the suffix is none of `SUFFIXES`.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{path}: the name of a figure must end in one of {', '.join(SUFFIXES)}, which say "
            "what kind of file it is"
        )


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the suffix says; its folder is made where it is missing.

    Raises:
        UserError: the suffix is unknown or the file cannot be written.
    """
    from matplotlib import rc_context

    check_figure_path(path)
    suffix = path.suffix.lower()
    with rc_context({"svg.hashsalt": "fairseq_kerbs"}), atomic_write_bytes(path) as stream:
        figure.savefig(stream, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])


def _panels(number: int, width: float, height: float) -> tuple[Figure, Sequence[Axes]]:
    """A figure of so many panels side by side, and its size in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, number, squeeze=False)[0]
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


# ------------------------------------------------------------------------- kernels

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
    """Kernels of Gao et al. (their Figure 1), their gradients, and KerBS for several θ (Figure 2).

    θ = 0 is the inner product.
    """
    figure, panels = _panels(3, 11.5, 3.7)
    distance, values, gradients = distance_curves()
    cosine, by_theta = kerbs_curves()
    names = [_parameters(kernel) for kernel in DISTANCE_KERNELS]
    thetas = [f"θ = {theta:g}".replace("-", "−") for theta in by_theta]
    squared = "squared distance $D = |w-h|^2$"
    for axes, title, x_label, y_label, x, curves, labels in (
        (panels[0], "Kernels of the distance", squared, "logit $S(D)$", distance, values, names),
        (panels[1], "Their gradients", squared, "$dS/dD$", distance, gradients, names),
        (
            *(panels[2], "KerBS kernel, $|h| = |w| = 1$", "cosine of $h$ and $w$", "logit $K$"),
            *(cosine, by_theta, thetas),
        ),
    ):
        axes.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
        for curve, label, style in zip(curves.values(), labels, LINES, strict=False):
            axes.plot(x.numpy(), curve.numpy(), label=label, **style)
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
        axes.legend(**_LEGEND)
    return figure


def _parameters(kernel: DistanceKernel) -> str:
    letters = {"power": "p", "gamma": "γ"}
    chosen = (f"{letters.get(key, key)} = {getattr(kernel, key):g}" for key in kernel.options)
    return f"{kernel.name} ({', '.join(chosen)})"


# ------------------------------------------------------------------------- senses


def _mark(sense: int, size: float) -> dict[str, Any]:
    color = LINES[sense % len(LINES)]["color"]
    face = "none" if sense % 2 else color
    return {"marker": MARKS[sense % len(MARKS)], "s": size, "edgecolors": color, "facecolors": face}


def plot_contexts(
    word: str, plane: Projection, sense_of: Sequence[int], senses: Sequence[int]
) -> Figure:
    """Context vectors of a word in a plane, its sense vectors on top (Figure 1 of the paper).

    Args:
        word: the word.
        plane: its contexts and senses.
        sense_of: [n] index of each context's most probable sense.
        senses: [K] numbers of the senses.
    """
    figure, (axes,) = _panels(1, 7.2, 3.9)
    found = torch.tensor(sense_of)
    for index, number in enumerate(senses):
        own = plane.contexts[found == index]
        label = f"sense {number}: {len(own)} contexts"
        axes.scatter(*own.T.tolist(), label=label, alpha=0.75, linewidths=1.0, **_mark(index, 26))
    for index, (x, y) in enumerate(plane.senses.tolist()):
        axes.scatter([x], [y], s=330, facecolors="white", edgecolors="black", zorder=3)
        axes.scatter([x], [y], zorder=4, **_mark(index, 90))
    axes.set(
        title=f"Contexts of “{_plain(word)}”, with its senses (in circles)",
        xlabel=f"first principal component ({plane.share[0]:.0%} of the variance)",
        ylabel=f"second ({plane.share[1]:.0%})",
    )
    axes.set_aspect("equal", adjustable="datalim")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), **_LEGEND)
    return figure


def plot_theta(
    words: Sequence[str], theta: Sequence[Sequence[float]], usage: Sequence[Sequence[float]]
) -> Figure:
    """θ of the senses of some words (Figure 3 of the paper).

    Args:
        words: words, drawn from left to right.
        theta: for each word θ of its senses.
        usage: alike, their shares of the word's usage; the more used, the larger the mark.
    """
    figure, (axes,) = _panels(1, max(4.0, 1.6 + 0.62 * len(words)), 3.9)
    for place, (values, shares) in enumerate(zip(theta, usage, strict=True)):
        axes.vlines(place, min(values), max(values), color="0.75", zorder=1)
        sizes = [20 + 160 * share for share in shares]
        axes.scatter(
            [place] * len(values), values, s=sizes, facecolors="none", edgecolors="black", zorder=2
        )
        mean = float(np.dot(values, shares))
        axes.hlines(mean, place - 0.3, place + 0.3, color="#b03a2e", linewidth=2, zorder=3)
    axes.axhline(0.0, color="0.85", linewidth=0.8, zorder=0)
    axes.set_xticks(range(len(words)), [_plain(word) for word in words])
    if len(words) > 6:
        axes.tick_params(axis="x", rotation=45)
    axes.set_title("Kernel parameter of each sense\n(size: usage; bar: mean by usage)")
    axes.set(xlabel="word", ylabel="θ")
    axes.margins(x=0.08)
    return figure


def plot_frequency(senses: Sequence[int], counts: Sequence[int]) -> Figure:
    """Number of senses of words against their frequency.

    Args:
        senses: [V] number of senses of each word.
        counts: [V] occurrences in the training data; words with 0 are left out.
    """
    figure, (axes,) = _panels(1, 5.6, 3.9)
    each, times = np.asarray(senses), np.asarray(counts)
    shown = np.flatnonzero(times)
    apart = np.random.default_rng(1).uniform(-0.25, 0.25, len(shown))
    label = "a word (moved up or down at random)"
    axes.scatter(times[shown], each[shown] + apart, s=6, color="0.6", linewidths=0, label=label)
    groups = frequency_groups(counts)
    middles = [times[group[len(group) // 2]] for group in groups]
    means = [each[group].mean() for group in groups]
    axes.plot(middles, means, color="black", marker="o", label="mean of a tenth of the words")
    axes.set(title="Senses of a word and its frequency", xscale="log", ylabel="senses")
    axes.set_xlabel("occurrences in the training data")
    axes.set_yticks(range(1, max(senses) + 1))
    axes.legend(**_LEGEND)
    return figure


def plot_usage(usage: Tensor, word_of_sense: Tensor) -> Figure:
    """How usage U (Eq. 13) is spread over all senses, and within words.

    Args:
        usage: [M] U of each sense.
        word_of_sense: [M] its word.
    """
    figure, (left, right) = _panels(2, 9.0, 3.6)
    numbers, words = usage.double().numpy(), word_of_sense.numpy()
    positive = numbers[numbers > 0]
    left.hist(np.log10(positive), bins=30, **_BARS)
    never = len(numbers) - len(positive)
    title = f"Usage of senses ({never} never used)" if never else "Usage of senses"
    left.set(title=title, xlabel="log10 of usage U", ylabel="senses")
    sums = np.bincount(words, weights=numbers)[words]
    share = numbers / np.maximum(sums, 1e-300)
    right.hist(share[np.bincount(words)[words] > 1], bins=20, range=(0, 1), **_BARS)
    right.set(title="Within words of several senses", ylabel="senses")
    right.set_xlabel("share of its word's usage")
    return figure


def plot_history(series: Series) -> Figure:
    """Words by number of senses, senses moved, and quantiles of θ, over training."""
    found = []
    for title, label, start in (
        ("Words by number of senses", "words", "words_with_"),
        ("Senses moved", "senses since the last record", "senses_moved"),
        ("Quantiles of θ", "θ", "theta_q"),
    ):
        names = sorted(name for name in series if name.startswith(start))
        found += [(title, label, names)] if names else []
    figure, panels = _panels(len(found), 4.2 * len(found), 3.6)
    for axes, (title, label, names) in zip(panels, found, strict=True):
        for index, name in enumerate(names):
            updates, values = series[name]
            marks = {"marker": MARKS[index % len(MARKS)], "markevery": max(1, len(updates) // 8)}
            style = LINES[index % len(LINES)] | marks
            axes.plot(updates, values, markersize=4, label=_series_name(name), **style)
        axes.set(title=title, xlabel="updates", ylabel=label)
        if len(names) > 1:
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": len(names)}
            axes.legend(**below, **_LEGEND, columnspacing=0.8, handlelength=1.8)
    return figure


def _series_name(name: str) -> str:
    """``words_with_2`` as "2 senses", ``theta_q05`` as "5 %"."""
    number = name.rpartition("_")[2]
    if name.startswith("theta_q"):
        return f"{int(number.removeprefix('q'))} %"
    return f"{number} sense{'s' if number != '1' else ''}" if number.isdigit() else name


def _plain(word: str) -> str:
    r"""A word that matplotlib does not take for mathematics.

    >>> _plain("US$")
    'US\\$'
    """
    return word.replace("\\", "\\\\").replace("$", "\\$") if "$" in word else word
