"""The figures of results/README.md, drawn from the raw files that lie in results/.

    python scripts/experiments/figures.py [FOLDER]

writes training.svg, price.svg, lemma41.svg and outliers.svg, and values.json with every value that
they show, into FOLDER (results/figures).
"""

from __future__ import annotations

import csv
import json
import re
import sys
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parents[2] / "results"
SEEDS = (1, 2, 3)
RUNS = {
    "softmax": "softmax",
    "softmax, 4,350 updates": "longer",
    "softmax, widened": "widened",
}
POLICY = "KerBS from the start, policy clusters"
PLACED = "senses placed after 1,200 updates"
PLACED_AT = 1200  # updates
POLICIES = {
    "none": "no moves",
    "released": "released code",
    "paper": "Algorithm 1",
    "clusters": "clusters",
}
NARROW = 0.6  # widths of words in the figure of outliers
WIDE = 1.2
PLACES = {"center": "outliers about the word's center", "origin": "outliers about the origin"}
# Okabe and Ito's colours, which colour-blind readers can tell apart; markers differ as well
LOOKS = {
    "color": ["#000000", "#0072B2", "#56B4E9", "#E69F00", "#D55E00"],
    "marker": list("os^vD"),
    "linestyle": ["-", "-", "--", "--", "-"],
}

Values = dict[str, dict[str, Any]]


@cache
def raw_files(folder: str) -> dict[str, str]:
    """Contents of the raw files of a folder of results/, by their names in its raw.tar.xz."""
    contents = {}
    with tarfile.open(RESULTS / folder / "raw.tar.xz") as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            if content is not None:  # a folder has none
                contents[member.name] = content.read().decode("utf-8")
    return contents


def read(path: str) -> str:
    """A raw file, such as ``clusters/bleu.txt``."""
    folder, _, name = path.partition("/")
    return raw_files(folder)[name]


def validation(pattern: str) -> dict[int, float]:
    """Validation loss in bits by number of updates, the mean of the training logs of all seeds."""
    form = r"valid on 'valid' subset \| loss \S+ \| nll_loss (\S+) .*?num_updates (\d+)"
    logs = []
    for seed in SEEDS:
        found = re.findall(form, read(pattern.format(seed)))
        logs.append({update: loss for loss, update in found})
    common = sorted(set.intersection(*map(set, logs)), key=int)
    return {int(update): mean(float(log[update]) for log in logs) for update in common}


def prices() -> list[dict[str, str]]:
    """Rows of the table of times and agreement with gold senses."""
    return list(csv.DictReader(read("clusters/price.tsv").splitlines(), delimiter="\t"))


class Trained(NamedTuple):
    """Trainings of one kind with different seeds."""

    curve: dict[float, float]  # mean validation loss by processor minutes
    scores: list[float]  # BLEU of each seed


LAYERS_LOG = "tables/layers_small/transformer_{}_s{{}}.train.log"
"""Name of the log of a run of :data:`RUNS`."""


def training() -> Values:
    """Loss over processor minutes, and BLEU at the end, mean and deviation of three seeds."""
    trained = {label: measured_run(name) for label, name in RUNS.items()}
    updates = max(validation(LAYERS_LOG.format("softmax")))
    pace = round(max(trained["softmax"].curve), 2) / updates
    trained[POLICY] = policy_run(pace)
    trained[PLACED] = placed_run(pace)
    return {label: as_values(run) for label, run in trained.items()}


def measured_run(name: str) -> Trained:
    """A run of the comparison of output layers, whose minutes were measured."""
    figures = {run["run"]: run["figures"] for run in json.loads(read("tables/layers_small.json"))}
    runs = [figures[f"layers/transformer/{name}/s{seed}"] for seed in SEEDS]
    losses = validation(LAYERS_LOG.format(name))
    pace = mean(run["cpu_minutes"] for run in runs) / max(losses)
    curve = {update * pace: loss for update, loss in losses.items()}
    return Trained(curve, [run["value"] for run in runs])


def relative_times() -> dict[str, float]:
    """Training time in units of the softmax's, by the name of the run."""
    return {row["meanings"].partition("_s1")[0]: float(row["time"]) for row in prices()}


def policy_run(pace: float) -> Trained:
    """KerBS with the policy clusters. Every update takes as much longer as price.tsv says.

    ``pace`` is the softmax's minutes per update.
    """
    slower = relative_times()["policy"]
    losses = validation("clusters/policy_s{}.train.log")
    curve = {update * pace * slower: loss for update, loss in losses.items()}
    found = re.findall(r"^policy_s\d .*? = (\S+)", read("clusters/bleu.txt"), re.MULTILINE)
    return Trained(curve, [float(bleu) for bleu in found])


def placed_run(pace: float) -> Trained:
    """A softmax whose senses are placed in the middle.

    Updates take the softmax's minutes until the placement. Afterwards they take as much longer as
    makes the time of price.tsv. ``pace`` is the softmax's minutes per update.
    """
    before = validation(LAYERS_LOG.format("softmax"))
    after = validation("clusters/at0.4_s{}.train.log")
    total = PLACED_AT + max(after)
    slower = (relative_times()["at0.4"] * total - PLACED_AT) / max(after)
    curve = {pace * update: loss for update, loss in before.items() if update <= PLACED_AT}
    for update, loss in after.items():
        curve[pace * (PLACED_AT + slower * update)] = loss
    section = read("clusters/paired.txt").split("# senses after 1,200 updates")[1]
    bleu = dict(re.findall(r"longer s(\d) \S+ (\S+) p", section))
    return Trained(curve, [float(bleu[str(seed)]) for seed in SEEDS])


def as_values(run: Trained) -> dict[str, Any]:
    """Rounded values of a curve, with mean and deviation of BLEU."""
    return {
        "minutes": [round(minutes, 2) for minutes in run.curve],
        "loss": [round(loss, 4) for loss in run.curve.values()],
        "bleu": round(mean(run.scores), 2),
        "deviation": round(stdev(run.scores), 2),
    }


def price() -> Values:
    """V-measure with its interval, that of permuted senses and the ceiling, by time."""
    form = r"^V +(\S+) \[(\S+), (\S+)\] +(\S+) \[.*?\] +\S+ \[.*?\] +(\S+) \["
    shown = {}
    for row in prices():
        ((v, low, high, permuted, ceiling),) = re.findall(
            form, read(f"clusters/{row['meanings']}"), re.MULTILINE
        )
        values = {"time": row["time"], "v": v, "low": low, "high": high}
        values |= {"permuted": permuted, "ceiling": ceiling}
        shown[row["training"]] = {name: float(value) for name, value in values.items()}
    return shown


def lemma41() -> Values:
    """Senses of words with 1 to 4 clusters, and words with as many senses, means over seeds."""
    rows = [r for r in json.loads(read("lemmas/lemmas.json"))["rows"] if r["lemma"] == "4.1"]
    shown: Values = {}
    for policy in POLICIES:
        # of revision 51d32c7, which also had --new-sense split
        runs = [r for r in rows if r["policy"] == policy and r.get("new_sense", "keep") == "keep"]
        senses = [round(mean(r[f"senses_{k}"] for r in runs), 3) for k in (1, 2, 3, 4)]
        shown[policy] = {"senses": senses, "exact": round(mean(r["exact"] for r in runs), 3)}
    return shown


def outliers() -> Values:
    """σ and θ by dimension, means over seeds, for a narrow and a wide word.

    A name is place, share of outliers and width. The last θ is that of the limit d → ∞, and the
    last σ its closed form.
    """
    rows = json.loads(read("lemmas/outliers.json"))["rows"]
    shown: Values = {}
    for row in rows:
        if row["width"] in (NARROW, WIDE):
            name = f"{row['place']} {row['alpha']:g} {row['width']:g}"
            shown.setdefault(name, {"dim": [], "sigma": [], "theta": []})
    for name, curve in shown.items():
        place, share, width = name.split()
        case = (place, float(share), float(width))
        own = [row for row in rows if (row["place"], row["alpha"], row["width"]) == case]
        for dim in dict.fromkeys(row["dim"] for row in own):
            runs = [row for row in own if row["dim"] == dim]
            curve["dim"].append(dim)
            for value in ("sigma", "theta"):
                curve[value].append(round(mean(run[value] for run in runs), 4))
    return shown


def draw_training(plt: Any, values: Values) -> Any:
    """Figure of :func:`training`."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5))
    for label, shown in values.items():
        left.plot(shown["minutes"], shown["loss"], label=label)
        end = shown["minutes"][-1]
        right.errorbar(end, shown["bleu"], shown["deviation"], capsize=4)
    left.set(ylabel="validation loss, bits per subword", ylim=(2.2, 3.4))
    right.set(ylabel="BLEU, mean ± deviation", ylim=(36.5, 40))
    for axes in (left, right):
        axes.set(xlabel="processor minutes of training", xlim=(0, 22))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncol=3)
    return figure


def draw_price(plt: Any, values: Values) -> Any:
    """Figure of agreement with gold senses over training time."""
    figure, axes = plt.subplots(figsize=(7.5, 4.5))
    for label, shown in values.items():
        bars = [[shown["v"] - shown["low"]], [shown["high"] - shown["v"]]]
        axes.errorbar(shown["time"], shown["v"], bars, label=label, capsize=4, linestyle="")
    for name, text in (("ceiling", "linear classifier"), ("permuted", "permuted senses")):
        level = mean(shown[name] for shown in values.values())
        axes.axhline(level, color="#666666", linestyle=":")
        axes.text(1.78, level + 0.01, text, ha="right", color="#444444")
    axes.set(xlabel="training time ÷ time of the softmax", xlim=(1, 1.8), ylim=(0, 0.9))
    axes.set(ylabel="V-measure, 43 words, 95 % interval")
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.88))
    return figure


def draw_lemma41(plt: Any, values: Values) -> Any:
    """Figure of the number of senses by the number of clusters."""
    figure, axes = plt.subplots(figsize=(7.5, 4.5))
    counts = [1, 2, 3, 4]
    axes.plot(
        counts, counts, color="#cccccc", linewidth=6, marker="", label="one sense per cluster"
    )
    for policy, name in POLICIES.items():
        label = f"{name}: {values[policy]['exact']:.0%} of the words correct"
        axes.plot(counts, values[policy]["senses"], label=label)
    axes.set(xlabel="number of clusters of a word", ylabel="mean number of senses after training")
    axes.set(xticks=counts, yticks=counts)
    axes.legend()
    return figure


def draw_outliers(plt: Any, values: Values) -> Any:
    """Colours are shares of outliers. Narrow words have full lines, wide words dashed ones."""
    figure, (left, *others) = plt.subplots(1, 3, figsize=(14, 5.4))
    dims = next(iter(values.values()))["dim"][:-1]  # the same in all curves
    # the limit is drawn one step to the right of the largest dimension
    dims_and_limit = [*dims, 4 * dims[-1]]
    shares = sorted({float(name.split()[1]) for name in values})
    for share, color, marker in zip(shares, LOOKS["color"], LOOKS["marker"]):
        for width, line in ((NARROW, "-"), (WIDE, "--")):
            look = {"color": color, "linestyle": line, "marker": marker}
            label = f"α = {share:g}, width {width:g}"
            for axes, place in zip(others, PLACES):
                known = "none" if share == 0 else place
                curve = values[f"{known} {share:g} {width:g}"]
                axes.plot(dims_and_limit, curve["theta"], **look)
                if place == "center":
                    left.plot(dims, curve["sigma"][:-1], label=label, **look)
        if share:
            left.axhline((share / 12) ** 0.5, color=color, linestyle=":")
    left.set(ylabel="σ of the Gaussian; dotted: √(α/12)", yscale="log")
    left.set(title="outliers about the word's center")
    for axes, title in zip(others, PLACES.values()):
        axes.set(ylabel="θ of the kernel", title=title, ylim=(-8.5, 1.8))
    names = [str(dim) for dim in dims]
    _label_dimensions(left, dims, names)
    for axes in others:
        _label_dimensions(axes, dims_and_limit, [*names, "∞"])
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncol=4)
    return figure


def _label_dimensions(axes: Any, ticks: list[int], names: list[str]) -> None:
    """Label the axis of the dimensions."""
    axes.set_xscale("log")
    axes.set_xticks(ticks, names)
    axes.minorticks_off()
    axes.set_xlabel("dimension d of contexts")


def main(arguments: list[str]) -> None:
    """Draw all figures into a folder."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    look = {"axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "kerbs"}
    look |= {"font.size": 13, "axes.grid": True, "grid.alpha": 0.3, "legend.fontsize": 11}
    look |= {"lines.markersize": 7, "legend.frameon": False, "figure.constrained_layout.use": True}
    plt.rcParams.update({**look, "axes.prop_cycle": plt.cycler(**LOOKS)})
    folder = Path(arguments[0]) if arguments else RESULTS / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    drawings: dict[str, tuple[Callable[[], Values], Callable[[Any, Values], Any]]] = {
        "training": (training, draw_training),
        "price": (price, draw_price),
        "lemma41": (lemma41, draw_lemma41),
        "outliers": (outliers, draw_outliers),
    }
    values = {}
    for name, (data, draw) in drawings.items():
        values[name] = data()
        figure = draw(plt, values[name])
        # letters as paths would make more than half of this figure's size
        letters = "none" if name == "outliers" else "path"
        with mpl.rc_context({"svg.fonttype": letters}):
            figure.savefig(folder / f"{name}.svg", facecolor="white", metadata={"Date": None})
    text = json.dumps(values, indent=1, ensure_ascii=False)
    (folder / "values.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
