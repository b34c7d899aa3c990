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
from fairseq_kerbs.kernels import kerbs_kernel
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
COLORS = ("#000000", "#b03a2e", "#2471a3", "#7d8a2e")
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1.2)))
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
_BARS: dict[str, Any] = {"color": "#5f7285", "edgecolor": "white"}


def check_figure_path(path: Path) -> None:
    """Refuse a name that no figure can have, before anything is computed.

    Raises:
        UserError: the suffix is none of .png, .pdf and .svg.
    """
    if path.suffix.lower() not in _METADATA:
        raise UserError(
            f"{path}: the name of a figure must end in one of {', '.join(_METADATA)}, which say "
            "what kind of file it is"
        )


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the suffix says; its folder is made where it is missing.

    Raises:
        UserError: the file cannot be written.
    """
    from matplotlib import rc_context

    suffix = path.suffix.lower()
    with rc_context({"svg.hashsalt": "fairseq_kerbs"}), atomic_write_bytes(path) as stream:
        figure.savefig(stream, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])


def _panels(
    width: float, height: float, *labels: tuple[str, str, str]
) -> tuple[Figure, Sequence[Axes]]:
    """A figure of a size in inches with panels side by side: title, label of x, label of y."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, len(labels), squeeze=False)[0]
    for axes, (title, x_label, y_label) in zip(panels, labels, strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
    return figure, panels


def _line(index: int) -> dict[str, Any]:
    return {"color": COLORS[index % len(COLORS)], "linestyle": DASHES[index % len(DASHES)]}


# ------------------------------------------------------------------------- kernels

DISTANCE_KERNELS: tuple[DistanceKernel, ...] = (
    PowerKernel(2.0),
    LogKernel(2.0),
    RadialBasisKernel(1.0),
    WaveletKernel(1.0, 1.0),
)
"""What Gao plots, with p = 2 and with γ = a = b = 1, where all bend within the same distance."""

THETAS = (-2.0, 0.0, 2.0)


def plot_kernels() -> Figure:
    """Kernels of Gao et al. (their Figure 1), their gradients, and KerBS for several θ (Figure 2).

    θ = 0 is the inner product.
    """
    squared = "squared distance $D = |w-h|^2$"
    figure, panels = _panels(
        *(11.5, 3.7),
        ("Kernels of the distance", squared, "logit $S(D)$"),
        ("Their gradients", squared, "$dS/dD$"),
        ("KerBS kernel, $|h| = |w| = 1$", "cosine of $h$ and $w$", "logit $K$"),
    )
    distance = torch.linspace(0.0, 4.0, 401, dtype=torch.float64)
    letters = {"power": "p", "gamma": "γ"}
    drawn = []  # panel, label, x, y
    for kernel in DISTANCE_KERNELS:
        options = (f"{letters.get(key, key)} = {getattr(kernel, key):g}" for key in kernel.options)
        name = f"{kernel.name} ({', '.join(options)})"
        drawn.append((panels[0], name, distance, kernel.of_distance(distance)))
        drawn.append((panels[1], name, distance, kernel.slope(distance)))
    cosine = torch.linspace(-1.0, 1.0, 401, dtype=torch.float64)
    h = torch.stack([cosine, (1 - cosine.square()).sqrt()], 1)  # [401, 2]
    for theta in THETAS:
        name, w = f"θ = {theta:g}".replace("-", "−"), torch.eye(1, 2).to(h)
        value = kerbs_kernel(h, w, torch.tensor([theta]).to(h))[:, 0]
        drawn.append((panels[2], name, cosine, value))
    for axes, label, x, y in drawn:
        axes.plot(x.numpy(), y.numpy(), label=label, **_line(len(axes.lines)))
    for axes in panels:
        axes.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
        axes.legend(frameon=False, fontsize="small")
    return figure


# ------------------------------------------------------------------------- senses


def _mark(sense: int, size: float) -> dict[str, Any]:
    """The mark of a word's sense; every second one is empty."""
    color = COLORS[sense % len(COLORS)]
    face = "none" if sense % 2 else color
    return {"marker": MARKS[sense % len(MARKS)], "s": size, "edgecolors": color, "facecolors": face}


def plot_contexts(
    word: str, plane: Projection, sense_of: Sequence[int], senses: Sequence[int]
) -> Figure:
    """Context vectors of a word in a plane, its sense vectors on top (Figure 1 of the paper);
    ``sense_of`` [n] is the index of each context's most probable of its ``senses`` [K]."""
    title = f"Contexts of “{_plain(word)}”, with its senses (in circles)"
    label = f"first principal component ({plane.share[0]:.0%} of the variance)"
    figure, (axes,) = _panels(7.2, 3.9, (title, label, f"second ({plane.share[1]:.0%})"))
    found = torch.tensor(sense_of)
    for index, (number, (x, y)) in enumerate(zip(senses, plane.senses.tolist(), strict=True)):
        own = plane.contexts[found == index]
        label = f"sense {number}: {len(own)} contexts"
        axes.scatter(*own.T.tolist(), label=label, alpha=0.75, linewidths=1.0, **_mark(index, 26))
        axes.scatter([x], [y], s=330, facecolors="white", edgecolors="black", zorder=3)
        axes.scatter([x], [y], zorder=4, **_mark(index, 90))
    axes.set_aspect("equal", adjustable="datalim")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small")
    return figure


def plot_theta(
    words: Sequence[str], theta: Sequence[Sequence[float]], usage: Sequence[Sequence[float]]
) -> Figure:
    """For each word θ of its senses (Figure 3 of the paper), and their shares of the word's usage;
    the more used, the larger the mark."""
    title = "Kernel parameter of each sense\n(size: usage; bar: mean by usage)"
    figure, (axes,) = _panels(max(4.0, 1.6 + 0.62 * len(words)), 3.9, (title, "word", "θ"))
    empty: dict[str, Any] = {"facecolors": "none", "edgecolors": "black", "zorder": 2}
    for place, (values, shares) in enumerate(zip(theta, usage, strict=True)):
        axes.vlines(place, min(values), max(values), color="0.75", zorder=1)
        sizes = [20 + 160 * share for share in shares]
        axes.scatter([place] * len(values), values, s=sizes, **empty)
        mean = float(np.dot(values, shares))
        axes.hlines(mean, place - 0.3, place + 0.3, color=COLORS[1], linewidth=2, zorder=3)
    axes.axhline(0.0, color="0.85", linewidth=0.8, zorder=0)
    rotation = 45 if len(words) > 6 else 0
    axes.set_xticks(range(len(words)), [_plain(word) for word in words], rotation=rotation)
    return figure


def plot_frequency(senses: Sequence[int], counts: Sequence[int]) -> Figure:
    """Number of senses [V] of each word against its occurrences [V] in the training data; words
    with none are left out."""
    labels = ("Senses of a word and its frequency", "occurrences in the training data", "senses")
    figure, (axes,) = _panels(5.6, 3.9, labels)
    each, times = np.asarray(senses), np.asarray(counts)
    shown = np.flatnonzero(times)
    apart = np.random.default_rng(1).uniform(-0.25, 0.25, len(shown))
    label = "a word (moved up or down at random)"
    axes.scatter(times[shown], each[shown] + apart, s=6, color="0.6", linewidths=0, label=label)
    groups = frequency_groups(counts)
    middles = [times[group[len(group) // 2]] for group in groups]
    means = [each[group].mean() for group in groups]
    axes.plot(middles, means, color="black", marker="o", label="mean of a tenth of the words")
    axes.set(xscale="log", yticks=range(1, max(senses) + 1))
    axes.legend(frameon=False, fontsize="small")
    return figure


def plot_usage(usage: Tensor, word_of_sense: Tensor) -> Figure:
    """How usage U (Eq. 13) [M] is spread over all senses, and within their words [M]."""
    numbers, words = usage.double().numpy(), word_of_sense.numpy()
    positive = numbers[numbers > 0]
    never = len(numbers) - len(positive)
    title = f"Usage of senses ({never} never used)" if never else "Usage of senses"
    within = ("Within words of several senses", "share of its word's usage", "senses")
    figure, (left, right) = _panels(9.0, 3.6, (title, "log10 of usage U", "senses"), within)
    left.hist(np.log10(positive), bins=30, **_BARS)
    share = numbers / np.maximum(np.bincount(words, weights=numbers)[words], 1e-300)
    right.hist(share[np.bincount(words)[words] > 1], bins=20, range=(0, 1), **_BARS)
    return figure


def plot_history(series: Series) -> Figure:
    """Words by number of senses, senses moved, and quantiles of θ, over training."""
    found = [
        ((title, "updates", label), names)
        for title, label, start in (
            ("Words by number of senses", "words", "words_with_"),
            ("Senses moved", "senses since the last record", "senses_moved"),
            ("Quantiles of θ", "θ", "theta_q"),
        )
        if (names := sorted(name for name in series if name.startswith(start)))
    ]
    figure, panels = _panels(4.2 * len(found), 3.6, *(labels for labels, _ in found))
    for axes, (_, names) in zip(panels, found, strict=True):
        for index, name in enumerate(names):
            updates, values = series[name]
            marks: dict[str, Any] = {
                "marker": MARKS[index % len(MARKS)],
                "markevery": max(1, len(updates) // 8),
            }
            number = name.rpartition("_")[2]  # words_with_2, theta_q05
            label = f"{int(number[1:])} %" if name.startswith("theta") else number
            axes.plot(updates, values, markersize=4, label=label, **_line(index), **marks)
        if len(names) > 1:
            below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}
            axes.legend(**below, ncols=len(names), frameon=False, fontsize="small")
    return figure


def _plain(word: str) -> str:
    r"""A word that matplotlib does not take for mathematics.

    >>> _plain("US$")
    'US\\$'
    """
    return word.replace("\\", "\\\\").replace("$", "\\$") if "$" in word else word
