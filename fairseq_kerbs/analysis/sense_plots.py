"""Figures of a trained model's senses: θ of words, number of senses, usage, context vectors.

All are told apart without colour, by the shape of a mark or the pattern of a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_kerbs.analysis.context_vectors import Projection
from fairseq_kerbs.analysis.figures import LINES
from fairseq_kerbs.analysis.history import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Marks of a word's senses, in order; every second one is empty."""

_GREY = "#5f7285"
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": "small"}


def _new(width: float = 5.6, height: float = 3.9) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _mark(sense: int, size: float) -> dict[str, Any]:
    color = LINES[sense % len(LINES)]["color"]
    return {
        "marker": MARKS[sense % len(MARKS)],
        "s": size,
        "edgecolors": color,
        "facecolors": "none" if sense % 2 else color,
    }


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
    figure, axes = _new(width=7.2)
    found = torch.tensor(sense_of)
    for index, number in enumerate(senses):
        own = plane.contexts[found == index]
        label = f"sense {number}: {len(own)} contexts"
        axes.scatter(*own.T.tolist(), label=label, alpha=0.75, linewidths=1.0, **_mark(index, 26))
    for index, (x, y) in enumerate(plane.senses.tolist()):
        axes.scatter([x], [y], s=330, facecolors="white", edgecolors="black", zorder=3)
        axes.scatter([x], [y], zorder=4, **_mark(index, 90))
    axes.set_title(f"Contexts of {_quoted(word)}, with its senses (in circles)")
    axes.set(
        xlabel=f"first principal component ({plane.share[0]:.0%} of the variance)",
        ylabel=f"second ({plane.share[1]:.0%})",
    )
    axes.set_aspect("equal", adjustable="datalim")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), **_LEGEND)
    return figure


def plot_theta(words: Sequence[str], theta: Sequence[Sequence[float]], usage: Any) -> Figure:
    """θ of the senses of some words (Figure 3 of the paper).

    Args:
        words: words, drawn from left to right.
        theta: for each word θ of its senses.
        usage: alike, their shares of the word's usage; the more used, the larger the mark.
    """
    figure, axes = _new(width=max(4.0, 1.6 + 0.62 * len(words)))
    for place, (values, shares) in enumerate(zip(theta, usage, strict=True)):
        axes.vlines(place, min(values), max(values), color="0.75", zorder=1)
        sizes = [20 + 160 * share for share in shares]
        axes.scatter(
            [place] * len(values), values, s=sizes, facecolors="none", edgecolors="black", zorder=2
        )
        mean = sum(value * share for value, share in zip(values, shares, strict=True))
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
    figure, axes = _new()
    shown = [(count, number) for count, number in zip(counts, senses, strict=True) if count > 0]
    generator = torch.Generator().manual_seed(1)
    apart = (torch.rand(len(shown), generator=generator) - 0.5).mul(0.5).tolist()
    axes.scatter(
        [count for count, _ in shown],
        [number + shift for (_, number), shift in zip(shown, apart, strict=True)],
        s=6,
        color="0.6",
        linewidths=0,
        label="a word (moved up or down at random)",
    )
    ordered = sorted(shown, reverse=True)
    ends = [(k * len(ordered) // 10, (k + 1) * len(ordered) // 10) for k in range(10)]
    groups = [ordered[begin:end] for begin, end in ends if begin < end]
    middles = [group[len(group) // 2][0] for group in groups]
    means = [sum(number for _, number in group) / len(group) for group in groups]
    axes.plot(middles, means, color="black", marker="o", label="mean of a tenth of the words")
    axes.set_xscale("log")
    axes.set_title("Senses of a word and its frequency")
    axes.set(xlabel="occurrences in the training data", ylabel="senses")
    axes.set_yticks(range(1, max(senses) + 1))
    axes.legend(**_LEGEND)
    return figure


def plot_usage(usage: Tensor, word_of_sense: Tensor) -> Figure:
    """How usage U (Eq. 13) is spread over all senses, and within words.

    Args:
        usage: [M] U of each sense.
        word_of_sense: [M] its word.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    positive = usage[usage > 0].double()
    logs = positive.log10()
    left.hist(logs.tolist(), bins=30, color=_GREY, edgecolor="white")
    title = "Usage of senses"
    if len(positive) < len(usage):
        title += f" ({len(usage) - len(positive)} never used)"
    left.set(title=title, xlabel="log10 of usage U", ylabel="senses")
    sums = torch.zeros(int(word_of_sense.max()) + 1, dtype=torch.float64)
    sums.index_add_(0, word_of_sense, usage.double())
    numbers = word_of_sense.bincount()
    several = numbers[word_of_sense] > 1
    share = usage.double() / sums[word_of_sense].clamp_min(1e-300)
    bins = [k / 20 for k in range(21)]
    right.hist(share[several].tolist(), bins=bins, color=_GREY, edgecolor="white")
    right.set(
        title="Within words of several senses", xlabel="share of its word's usage", ylabel="senses"
    )
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_history(series: Series) -> Figure:
    """Words by number of senses, senses moved, and quantiles of θ, over training."""
    from matplotlib.figure import Figure

    panels = [
        ("Words by number of senses", "words", [n for n in series if n.startswith("words_with_")]),
        (
            "Senses moved",
            "senses since the last record",
            [n for n in series if n == "senses_moved"],
        ),
        ("Quantiles of θ", "θ", [n for n in series if n.startswith("theta_q")]),
    ]
    panels = [panel for panel in panels if panel[2]]
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    for axes, (title, label, names) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        for index, name in enumerate(sorted(names)):
            style = LINES[index % len(LINES)]
            marker = MARKS[index % len(MARKS)]
            updates, values = series[name]
            every = max(1, len(updates) // 8)
            axes.plot(
                *(updates, values),
                **style,
                marker=marker,
                markevery=every,
                markersize=4,
                label=_series_name(name),
            )
        axes.set(title=title, xlabel="updates", ylabel=label)
        axes.spines[["top", "right"]].set_visible(False)
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


def _quoted(word: str) -> str:
    return f"“{_plain(word)}”"
