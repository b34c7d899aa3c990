"""Figures of kernels, of a trained model's senses, and of their history in the training.

They are readable in grayscale, by dashes of lines and shapes of marks. Files are written atomically
and are identical in every run.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pandas import DataFrame
from torch import Tensor

from fairseq_kerbs.analysis.projection import Projection
from fairseq_kerbs.analysis.words import senses_by_frequency
from fairseq_kerbs.kernels import kerbs_kernel
from fairseq_kerbs.kernels.gao import LogKernel, PowerKernel, RadialBasisKernel, WaveletKernel
from fairseq_kerbs.training.curve import updates_before
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, iter_lines

# by suffix: metadata without dates
_METADATA: dict[str, Any] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # colorblind-safe, by Okabe and Ito
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1.2)))
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
WORD_COLORS = (*COLORS, "#e69f00", "#56b4e9", "#000000", "#999999")
"""A color for each of at most eight words, of which the first seven are by Okabe and Ito."""
_BARS: dict[str, Any] = {"color": "#5f7285", "edgecolor": "white"}


def check_figure_path(path: Path) -> None:
    """Raise a UserError unless the suffix is that of a supported format."""
    if path.suffix.lower() not in _METADATA:
        raise UserError(f"{path}: the name of a figure must end in one of {', '.join(_METADATA)}")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the suffix. Letters that the font lacks are reported."""
    suffix = path.suffix.lower()
    salt = rc_context({"svg.hashsalt": "fairseq_kerbs"})
    caught = warnings.catch_warnings(record=True)
    with salt, caught as messages, atomic_write(path, "wb") as stream:
        warnings.simplefilter("always")  # also what an earlier figure has warned of
        figure.savefig(stream, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])
    texts = [str(message.message) for message in messages or ()]
    for text in texts:
        if "Glyph" not in text:
            warnings.warn(text, stacklevel=2)
    if any("Glyph" in text for text in texts):
        print(
            "fairseq-kerbs: the font has no letters of this language, and the figure has boxes; "
            "set font.family in a matplotlibrc file",
            file=sys.stderr,
        )


def _panels(
    width: float,
    height: float,
    *labels: tuple[str, str, str],
    widths: Sequence[float] | None = None,
) -> tuple[Figure, Sequence[Axes]]:
    """A figure (size in inches) with adjacent panels, given title, x label and y label of each.

    With ``widths``, panels share the y axis and have widths in this ratio.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(
        1, len(labels), squeeze=False, sharey=widths is not None, width_ratios=widths
    )[0]
    for axes, (title, x_label, y_label) in zip(panels, labels):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(title=title, xlabel=x_label, ylabel=y_label)
    return figure, panels


def _draw_lines(axes: Axes, x: Tensor, lines: dict[str, Tensor]) -> None:
    """Draw lines by label, with different dashes."""
    for (label, y), color, dashes in zip(lines.items(), COLORS, DASHES):
        axes.plot(x, y, label=label, color=color, linestyle=dashes)
    axes.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    axes.legend(frameon=False, fontsize="small")


DISTANCE_KERNELS = {
    "pow (p = 2)": PowerKernel(2.0),
    "log (p = 2)": LogKernel(2.0),
    "rbf (γ = 1)": RadialBasisKernel(1.0),
    "wav (a = 1, b = 1)": WaveletKernel(1.0, 1.0),
}
"""Kernels that Gao et al. plot, with parameters for similar curvature in the plotted range."""

THETAS = (("θ = −2", -2.0), ("θ = 0", 0.0), ("θ = 2", 2.0))


def plot_kernels() -> Figure:
    """Kernels of Gao et al. (their Figure 1) with gradients, and KerBS for several θ (Figure 2)."""
    squared = "squared distance $D = |w-h|^2$"
    figure, panels = _panels(
        11.5,
        3.7,
        ("Kernels of the distance", squared, "logit $S(D)$"),
        ("Their gradients", squared, "$dS/dD$"),
        ("KerBS kernel, $|h| = |w| = 1$", "cosine of $h$ and $w$", "logit $K$"),
    )
    distance = torch.linspace(0.0, 4.0, 401, dtype=torch.float64)
    cosine = torch.linspace(-1.0, 1.0, 401, dtype=torch.float64)
    h = torch.stack([cosine, (1 - cosine.square()).sqrt()], 1)  # [401, 2]
    kernels = DISTANCE_KERNELS.items()
    w = torch.eye(1, 2).to(h)
    _draw_lines(panels[0], distance, {name: k.of_distance(distance) for name, k in kernels})
    _draw_lines(panels[1], distance, {name: k.slope(distance) for name, k in kernels})
    logits = {name: kerbs_kernel(h, w, torch.full_like(w[:, 0], x))[:, 0] for name, x in THETAS}
    _draw_lines(panels[2], cosine, logits)
    return figure


def _mark(index: int, size: float, colors: Sequence[str] = COLORS) -> dict[str, Any]:
    """Style of the mark of a sense by its index in the word. Every second mark is not filled."""
    color = colors[index % len(colors)]
    face = "none" if index % 2 else color
    return {"marker": MARKS[index % len(MARKS)], "s": size, "edgecolors": color, "facecolors": face}


def plot_contexts(
    word: str,
    plane: Projection,
    sense_of: NDArray[np.int64],
    names: Sequence[str] = (),
    note: str = "",
) -> Figure:
    """Contexts of a word in a plane, with marks of its senses (Figure 1 of the paper).

    Args:
        word: the word.
        plane: projection of contexts and senses.
        sense_of: index of the most probable sense of each context, [n].
        names: names of the senses for the legend.
        note: what the title adds about the word.
    """
    title = f"Contexts of “{_plain(word)}” by sense"
    if note:
        title += f" ({note})"
    figure, (axes,) = _panels(5.6, 5.0, (title, *plane.axes))
    for index, (x, y) in enumerate(plane.senses.tolist()):
        points = plane.contexts[sense_of == index]
        label = f"{_plain(word)}#{index + 1} ({len(points)})"
        if names and names[index]:
            lines = (fill(line, 40) for line in names[index].splitlines())
            label += "\n" + _plain("\n".join(lines))
        axes.scatter(*points.T, label=label, alpha=0.75, linewidths=1.0, **_mark(index, 26))
        axes.scatter([x], [y], s=330, facecolors="white", edgecolors="black", zorder=3)
        axes.scatter([x], [y], zorder=4, **_mark(index, 90))
    axes.set_aspect("equal", adjustable="datalim")
    # below the panel, so that names are still read where a page on a phone has the figure
    figure.legend(loc="outside lower center", frameon=False)
    return figure


def plot_word_contexts(
    labels: Mapping[str, str],
    planes: Sequence[Projection],
    words: Sequence[Sequence[str]],
) -> Figure:
    """Contexts of words, with a color and a mark for each word (Figure 1 of the paper).

    Args:
        labels: legend entry of each word, for at most eight words.
        planes: projection of the contexts of each panel.
        words: word of each of the n contexts, [n], for each panel.
    """
    shown = [[word for word in labels if word in panel] for panel in words]
    titles = [fill(f"Contexts of {', '.join(panel)}", 44) for panel in shown]
    axes_labels = [(_plain(title), *plane.axes) for title, plane in zip(titles, planes)]
    figure, panels = _panels(1.2 + 5.0 * len(planes), 4.4, *axes_labels)
    order = list(labels)
    for axes, plane, word_of, present in zip(panels, planes, words, shown):
        for word in present:
            points = plane.contexts[np.array(word_of) == word]
            style = _mark(order.index(word), 26, WORD_COLORS)
            label = _plain(labels[word])
            axes.scatter(*points.T, label=label, alpha=0.75, linewidths=1.0, **style)
        axes.set_aspect("equal", adjustable="datalim")
        axes.legend(loc="best", fontsize="small", framealpha=0.8)
    return figure


def plot_theta(
    sets: Sequence[Sequence[str]],
    theta: Sequence[Sequence[Sequence[float]]],
    usage: Sequence[Sequence[Sequence[float]]],
    labels: Sequence[str] = (),
) -> Figure:
    """θ of the senses of sets of words (Figure 3 of the paper), with marks sized by usage.

    Args:
        sets: the words of each set, which has a panel of its own.
        theta, usage: θ and share in the word's usage of each sense, for each word of each set.
        labels: title of each panel.
    """
    title = "Kernel parameter of each sense\n(size: usage; bar: mean by usage)"
    titles = [_plain(label) for label in labels] or [""] * len(sets)
    if len(sets) == 1 and not labels:
        titles = [title]
    counts = [len(words) for words in sets]
    width = max(4.0, 1.1 + 0.5 * len(sets) + 0.62 * sum(counts))
    axes_labels = [(text, "word", "θ") for text in titles]
    figure, panels = _panels(width, 3.9, *axes_labels, widths=[count + 0.5 for count in counts])
    if titles != [title]:
        figure.suptitle(title, fontsize="medium")
    for axes, words, thetas, shares in zip(panels, sets, theta, usage):
        _draw_theta(axes, thetas, shares)
        rotation = 45 if sum(counts) > 6 else 0
        axes.set_xticks(range(len(words)), [_plain(word) for word in words], rotation=rotation)
        axes.set_xlim(-0.6, len(words) - 0.4)
    for index in range(max(len(values) for thetas in theta for values in thetas)):
        panels[-1].scatter([], [], label=f"#{index + 1}", **_mark(index, 60))
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, title="sense")
    return figure


def _draw_theta(
    axes: Axes, theta: Sequence[Sequence[float]], usage: Sequence[Sequence[float]]
) -> None:
    """Draw θ of the senses of each word, one word beside the other."""
    for place, (values, shares) in enumerate(zip(theta, usage)):
        axes.vlines(place, min(values), max(values), color="0.75", zorder=1)
        for index, (value, share) in enumerate(zip(values, shares)):
            axes.scatter([place], [value], zorder=2, **_mark(index, 20 + 160 * share))
        mean = float(np.dot(values, shares))
        axes.hlines(mean, place - 0.3, place + 0.3, color="0.4", linewidth=2, zorder=3)
    axes.axhline(0.0, color="0.85", linewidth=0.8, zorder=0)


def plot_frequency(senses: Sequence[int], counts: Sequence[int]) -> Figure:
    """Number of senses [V] of each word by its occurrences [V] in the training data, if above 0."""
    labels = ("Senses of a word and its frequency", "occurrences in the training data", "senses")
    figure, (axes,) = _panels(5.6, 3.9, labels)
    number = np.asarray(senses)
    times = np.asarray(counts)
    seen = np.flatnonzero(times)
    jitter = np.random.default_rng(1).uniform(-0.25, 0.25, len(seen))
    label = "a word (with random vertical offset)"
    axes.scatter(times[seen], number[seen] + jitter, s=6, color="0.6", linewidths=0, label=label)
    tenths = DataFrame(senses_by_frequency(senses, counts))
    middle = (tenths["most"] * tenths["fewest"]) ** 0.5
    label = "mean of a tenth of the words"
    axes.plot(middle, tenths["senses"], color="black", marker="o", label=label)
    axes.set(xscale="log", yticks=range(1, max(senses) + 1))
    axes.legend(frameon=False, fontsize="small")
    return figure


def plot_usage(usage: Tensor, word_of_sense: Tensor) -> Figure:
    """Histograms of usage U (Eq. 13) of senses [M], and of its share in the word."""
    numbers = usage.double().numpy()
    words = word_of_sense.numpy()
    never = np.count_nonzero(numbers == 0)
    title = f"Usage of senses ({never} never used)" if never else "Usage of senses"
    within = ("Within words of several senses", "share of its word's usage", "senses")
    figure, (left, right) = _panels(9.0, 3.6, (title, "log10 of usage U", "senses"), within)
    left.hist(np.log10(numbers[numbers > 0]), bins=30, **_BARS)
    share = numbers / np.maximum(np.bincount(words, weights=numbers)[words], 1e-300)
    right.hist(share[np.bincount(words)[words] > 1], bins=20, range=(0, 1), **_BARS)
    return figure


def plot_theta_histogram(theta: Sequence[float]) -> Figure:
    """Histogram of θ."""
    figure, (axes,) = _panels(4.6, 3.6, ("Kernel parameter", "θ", "senses"))
    axes.hist(theta, bins=30, **_BARS)
    return figure


def _plain(word: str) -> str:
    """Escape a text, which matplotlib could read as mathematics or as a hidden label."""
    word = f"\N{ZERO WIDTH SPACE}{word}" if word.startswith("_") else word
    return word.replace("\\", "\\\\").replace("$", "\\$") if "$" in word else word


_OF_SENSES = re.compile(r"senses_moved|words_with_\d+|theta_q\d+")
_NAMES = re.compile(rf"nll_loss|{_OF_SENSES.pattern}")
# name=value, name value or "name": "value", in JSON for an epoch "train_name"
_FIGURES = re.compile(r'\b(?:train_)?(\w+?)(?:[= ]|": )"?(-?\d[\d.]*(?:e[+-]?\d+)?)(?=[",} ]|$)')
_KINDS = ("train_inner", "train")  # records within an epoch, and per epoch

_CHARTS = {
    "words_with_": ("Words by number of senses, over training", "words", "number of senses: {}"),
    "senses_moved": ("Senses moved", "senses since the last record", "senses moved"),
    "nll_loss": ("Training loss", "bits a token", "loss"),
    "theta_q": ("θ over training", "θ", "{} % of the senses lie below"),
}
"""Title, y label and legend entry by prefix of the names."""


def read_history(path: Path) -> DataFrame:
    """Read the statistics of senses that a training logged, and its loss.

    Of a training in three steps, updates of the third are numbered on from those of the first.

    Args:
        path: output of fairseq-train with ``--log-format simple``, ``json`` or ``tqdm``, or the
            folder of ``--tensorboard-logdir``.

    Returns:
        table with a row per number of updates, and NaN for missing values. If a resumed training
        repeats an update, the last values count.

    Raises:
        UserError: there are no statistics of senses.
    """
    history = DataFrame(_from_tensorboard(path) if path.is_dir() else _from_log(path)).sort_index()
    if not _has_senses(history):
        raise UserError(
            f"{path} has no statistics of senses; name the output of fairseq-train for a KerBS "
            "model with --log-format simple, or its --tensorboard-logdir"
        )
    return history


def _has_senses(names: Iterable[str]) -> bool:
    """Tell whether some of the names are of statistics of senses."""
    return any(_OF_SENSES.fullmatch(name) for name in names)


def _from_log(path: Path) -> dict[str, dict[int, float]]:
    series: dict[str, dict[str, dict[int, float]]] = {kind: defaultdict(dict) for kind in _KINDS}
    before = 0  # updates of the softmax, in the third of three steps
    for line in iter_lines(path):
        begun = updates_before(line)
        before = before if begun is None else begun
        for kind in _KINDS:
            _, marked, rest = line.partition(f"| {kind} | ")
            figures = dict(_FIGURES.findall(rest)) if marked else {}
            if "num_updates" not in figures:
                continue
            update = before + int(float(figures["num_updates"]))
            for name in filter(_NAMES.fullmatch, figures):
                series[kind][name][update] = float(figures[name])
    return next((found for found in series.values() if _has_senses(found)), {})


def _from_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for kind in (*_KINDS, "."):
        if not list((folder / kind).glob("events.out.tfevents.*")):
            continue
        events = EventAccumulator(str(folder / kind), size_guidance={"scalars": 0})
        events.Reload()
        names = list(filter(_NAMES.fullmatch, events.Tags()["scalars"]))
        if _has_senses(names):
            return {name: {e.step: e.value for e in events.Scalars(name)} for name in names}
    return {}


def plot_history(history: DataFrame) -> Figure:
    """Words by number of senses, moved senses, and quantiles of θ, over a training."""
    charts = {start: history.filter(regex=f"^{start}") for start in _CHARTS}
    charts = {start: columns for start, columns in charts.items() if not columns.empty}
    labels = [(_CHARTS[start][0], "updates", _CHARTS[start][1]) for start in charts]
    figure, panels = _panels(4.2 * len(charts), 3.9, *labels)
    for axes, (start, columns) in zip(panels, charts.items()):
        axes.set_prop_cycle(color=COLORS * 2, linestyle=DASHES * 2, marker=MARKS)
        for name in sorted(columns):
            values = columns[name].dropna()
            label = _CHARTS[start][2].format(name.removeprefix(start).lstrip("0"))
            every = max(1, len(values) // 8)
            axes.plot(values.index, values, markersize=4, markevery=every, label=label)
        below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18)}
        axes.legend(**below, frameon=False, fontsize="small")
    return figure
