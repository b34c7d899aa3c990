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
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "results"
SEEDS = (1, 2, 3)
RUNS = {
    "softmax": "softmax",
    "softmax, 4,350 updates": "longer",
    "softmax, widened": "widened",
}
POLICY = "KerBS from the start, policy clusters"
PLACED, PLACED_AT = "senses placed after 1,200 updates", 1200
POLICIES = {
    "none": "no moves",
    "released": "released code",
    "paper": "Algorithm 1",
    "clusters": "clusters",
}
NARROW, WIDE = 0.6, 1.2  # widths of words in the figure of outliers
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
    with tarfile.open(RESULTS / folder / "raw.tar.xz") as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        return {
            member.name: content.read().decode("utf-8")
            for member in members
            if (content := archive.extractfile(member)) is not None
        }


def read(path: str) -> str:
    """A raw file, such as ``clusters/bleu.txt``."""
    folder, _, name = path.partition("/")
    return raw_files(folder)[name]


def validation(pattern: str) -> dict[int, float]:
    """Validation loss in bits by number of updates, the mean of the training logs of all seeds."""
    form = r"valid on 'valid' subset \| loss \S+ \| nll_loss (\S+) .*?num_updates (\d+)"
    logs = [dict(map(reversed, re.findall(form, read(pattern.format(seed))))) for seed in SEEDS]
    common = sorted(set.intersection(*map(set, logs)), key=int)
    return {int(update): mean(float(log[update]) for log in logs) for update in common}


def prices() -> list[dict[str, str]]:
    """Rows of the table of times and agreement with gold senses."""
    return list(csv.DictReader(read("clusters/price.tsv").splitlines(), delimiter="\t"))


def training() -> Values:
    """Loss over processor minutes, and BLEU at the end, mean and deviation of three seeds.

    With the policy clusters all updates take as much longer as price.tsv says. With placed senses
    they take the softmax's minutes until the placement, and as much longer afterwards as makes the
    time of price.tsv.
    """
    figures = {run["run"]: run["figures"] for run in json.loads(read("tables/layers_small.json"))}
    log = "tables/layers_small/transformer_{}_s{{}}.train.log"
    curves, scores = {}, {}
    for label, name in RUNS.items():
        runs = [figures[f"layers/transformer/{name}/s{seed}"] for seed in SEEDS]
        curve = validation(log.format(name))
        pace = mean(run["cpu_minutes"] for run in runs) / max(curve)
        curves[label] = {update * pace: loss for update, loss in curve.items()}
        scores[label] = [run["value"] for run in runs]
    pace = round(max(curves["softmax"]), 2) / max(validation(log.format("softmax")))
    times = {row["meanings"].partition("_s1")[0]: float(row["time"]) for row in prices()}
    policy = validation("clusters/policy_s{}.train.log")
    curves[POLICY] = {update * pace * times["policy"]: loss for update, loss in policy.items()}
    found = re.findall(r"^policy_s\d .*? = (\S+)", read("clusters/bleu.txt"), re.MULTILINE)
    scores[POLICY] = [float(bleu) for bleu in found]
    before, after = validation(log.format("softmax")), validation("clusters/at0.4_s{}.train.log")
    total = PLACED_AT + max(after)
    slower = (times["at0.4"] * total - PLACED_AT) / max(after)
    curve = {pace * update: loss for update, loss in before.items() if update <= PLACED_AT}
    curve.update({pace * (PLACED_AT + slower * u): loss for u, loss in after.items()})
    section = read("clusters/paired.txt").split("# senses after 1,200 updates")[1]
    bleu = dict(re.findall(r"longer s(\d) \S+ (\S+) p", section))
    curves[PLACED], scores[PLACED] = curve, [float(bleu[str(seed)]) for seed in SEEDS]
    return {
        label: {
            "minutes": [round(minutes, 2) for minutes in curve],
            "loss": [round(loss, 4) for loss in curve.values()],
            "bleu": round(mean(scores[label]), 2),
            "deviation": round(stdev(scores[label]), 2),
        }
        for label, curve in curves.items()
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
    shares = sorted({float(name.split()[1]) for name in values})
    for share, color, marker in zip(shares, LOOKS["color"], LOOKS["marker"]):
        for width, line in ((NARROW, "-"), (WIDE, "--")):
            look = {"color": color, "linestyle": line, "marker": marker}
            label = f"α = {share:g}, width {width:g}"
            for axes, place in zip(others, PLACES):
                known = "none" if share == 0 else place
                curve = values[f"{known} {share:g} {width:g}"]
                # the limit is drawn one step to the right of the largest dimension
                dims = [*curve["dim"][:-1], 4 * curve["dim"][-2]]
                axes.plot(dims, curve["theta"], **look)
                if place == "center":
                    left.plot(dims[:-1], curve["sigma"][:-1], label=label, **look)
        if share:
            left.axhline((share / 12) ** 0.5, color=color, linestyle=":")
    left.set(ylabel="σ of the Gaussian; dotted: √(α/12)", yscale="log")
    left.set(title="outliers about the word's center")
    for axes, title in zip(others, PLACES.values()):
        axes.set(ylabel="θ of the kernel", title=title, ylim=(-8.5, 1.8))
    for axes, ticks in ((left, dims[:-1]), *((axes, dims) for axes in others)):
        axes.set_xscale("log")
        axes.set_xticks(ticks, ["∞" if dim > dims[-2] else str(dim) for dim in ticks])
        axes.minorticks_off()
        axes.set_xlabel("dimension d of contexts")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncol=4)
    return figure


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
    values = {
        "training": training(),
        "price": price(),
        "lemma41": lemma41(),
        "outliers": outliers(),
    }
    drawings = (draw_training, draw_price, draw_lemma41, draw_outliers)
    for name, draw in zip(values, drawings):
        figure = draw(plt, values[name])
        # letters as paths would make more than half of this figure's size
        letters = "none" if name == "outliers" else "path"
        with mpl.rc_context({"svg.fonttype": letters}):
            figure.savefig(folder / f"{name}.svg", facecolor="white", metadata={"Date": None})
    text = json.dumps(values, indent=1, ensure_ascii=False)
    (folder / "values.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
