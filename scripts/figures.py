"""The figures of results/README.md, drawn from the raw files that lie in results/.

    python scripts/figures.py [FOLDER]

writes training.svg, price.svg and lemma41.svg, and values.json with every value that they show,
into FOLDER (results/figures).
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from pathlib import Path
from statistics import mean, stdev
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
SEEDS = (1, 2, 3)
PLACED_AT = 1200
PLACED = "senses placed after 1,200 updates"
# Okabe and Ito's colours, which colour-blind readers can tell apart; markers differ as well
STYLES = {
    "softmax": ("#000000", "o", "-"),
    "softmax, 4,350 updates": ("#0072B2", "s", "-"),
    "softmax, widened": ("#56B4E9", "^", "--"),
    "KerBS from the start": ("#E69F00", "v", "--"),
    PLACED: ("#D55E00", "D", "-"),
}
RUNS = dict(zip(STYLES, ("softmax", "longer", "widened", "clusters_3v")))
POLICIES = {
    "none": ("no moves", "#999999", "o", ":"),
    "released": ("released code", "#56B4E9", "^", "--"),
    "paper": ("Algorithm 1", "#E69F00", "v", "--"),
    "clusters": ("clusters", "#D55E00", "D", "-"),
}


def read(path: str) -> str:
    """A text file of results/, also where it is gzipped."""
    packed = RESULTS / f"{path}.gz"
    return gzip.decompress(packed.read_bytes()).decode() if packed.exists() else plain(path)


def plain(path: str) -> str:
    return (RESULTS / path).read_text(encoding="utf-8")


def validation(path: str) -> dict[int, float]:
    """Validation loss in bits by number of updates, of one training log."""
    form = r"valid on 'valid' subset \| loss \S+ \| nll_loss (\S+) .*?num_updates (\d+)"
    return {int(update): float(loss) for loss, update in re.findall(form, read(path))}


def averaged(curves: list[dict[int, float]]) -> dict[int, float]:
    """The mean of several seeds, at the updates that all of them have."""
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    return {update: mean(curve[update] for curve in curves) for update in common}


def prices() -> list[dict[str, str]]:
    return list(csv.DictReader(plain("clusters/price.tsv").splitlines(), delimiter="\t"))


def training() -> dict[str, dict[str, Any]]:
    """Loss over processor minutes, and BLEU at the end, mean and deviation of three seeds.

    Senses on the way take the softmax's minutes until they are placed. An update after that takes
    as much longer as makes the time of price.tsv.
    """
    figures = {run["run"]: run["figures"] for run in json.loads(plain("tables/layers_small.json"))}
    log = "tables/layers_small/transformer_{}_s{}.train.log"
    shown: dict[str, dict[str, Any]] = {}
    for label, name in RUNS.items():
        runs = [figures[f"layers/transformer/{name}/s{seed}"] for seed in SEEDS]
        curve = averaged([validation(log.format(name, seed)) for seed in SEEDS])
        pace = mean(run["cpu_minutes"] for run in runs) / max(curve)
        shown[label] = ended({update * pace: loss for update, loss in curve.items()}, runs)
    before = averaged([validation(log.format("softmax", seed)) for seed in SEEDS])
    after = averaged([validation(f"clusters/at0.4_s{seed}.train.log") for seed in SEEDS])
    total = PLACED_AT + max(after)
    pace = max(shown["softmax"]["minutes"]) / total
    time = next(float(row["time"]) for row in prices() if row["meanings"].startswith("at0.4"))
    slower = (time * total - PLACED_AT) / max(after)
    whole = {pace * update: loss for update, loss in before.items() if update <= PLACED_AT}
    whole.update({pace * (PLACED_AT + slower * u): loss for u, loss in after.items()})
    section = plain("clusters/paired.txt").split("# senses after 1,200 updates")[1]
    bleu = dict(re.findall(r"longer s(\d) \S+ (\S+) p", section))
    shown[PLACED] = ended(whole, [{"value": float(bleu[str(seed)])} for seed in SEEDS])
    return shown


def ended(curve: dict[float, float], runs: list[dict[str, float]]) -> dict[str, Any]:
    bleu = [run["value"] for run in runs]
    return {
        "minutes": [round(minutes, 2) for minutes in curve],
        "loss": [round(loss, 4) for loss in curve.values()],
        "bleu": round(mean(bleu), 2),
        "deviation": round(stdev(bleu), 2),
    }


def price() -> dict[str, dict[str, Any]]:
    """V-measure with its interval, that of permuted senses and the ceiling, by time."""
    form = r"^V +(\S+) \[(\S+), (\S+)\] +(\S+) \[.*?\] +\S+ \[.*?\] +(\S+) \["
    shown = {}
    for row in prices():
        found = re.search(form, read(f"clusters/{row['meanings']}"), re.MULTILINE)
        assert found is not None, row["meanings"]
        names = ("v", "low", "high", "permuted", "ceiling")
        values = dict(zip(names, map(float, found.groups())))
        shown[row["training"]] = {"time": float(row["time"]), **values}
    return shown


def lemma41() -> dict[str, dict[str, Any]]:
    """Senses of words with 1 to 4 clusters, and words with as many senses, means over seeds."""
    rows = [r for r in json.loads(plain("lemmas/lemmas.json"))["rows"] if r["lemma"] == "4.1"]
    shown: dict[str, dict[str, Any]] = {}
    for policy in POLICIES:
        mine = [r for r in rows if r["policy"] == policy and r["new_sense"] == "keep"]
        senses = [round(mean(r[f"senses_{k}"] for r in mine), 3) for k in (1, 2, 3, 4)]
        shown[policy] = {"senses": senses, "exact": round(mean(r["exact"] for r in mine), 3)}
    return shown


def draw_training(plt: Any, values: dict[str, dict[str, Any]]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5))
    for label, shown in values.items():
        colour, marker, line = STYLES[label]
        look = {"color": colour, "marker": marker, "markersize": 7}
        left.plot(shown["minutes"], shown["loss"], linestyle=line, label=label, **look)
        end = shown["minutes"][-1]
        right.errorbar(end, shown["bleu"], shown["deviation"], capsize=4, linestyle="", **look)
    left.set(ylabel="validation loss, bits per subword", ylim=(2.2, 3.4))
    right.set(ylabel="BLEU, mean ± deviation", ylim=(36.5, 40))
    for axes in (left, right):
        axes.set(xlabel="processor minutes of training", xlim=(0, 22))
    figure.legend(*left.get_legend_handles_labels(), loc="lower center", ncol=3, frameon=False)
    return figure


def draw_price(plt: Any, values: dict[str, dict[str, Any]]) -> Any:
    figure, axes = plt.subplots(figsize=(7.5, 4.5))
    for label, colour, marker in zip(values, ("#0072B2", "#D55E00", "#E69F00"), "sDv"):
        shown = values[label]
        bars = [[shown["v"] - shown["low"]], [shown["high"] - shown["v"]]]
        look = {"color": colour, "marker": marker, "markersize": 9, "capsize": 4, "linestyle": ""}
        axes.errorbar(shown["time"], shown["v"], bars, label=label, **look)
    for name, said in (("ceiling", "linear classifier"), ("permuted", "permuted senses")):
        level = mean(shown[name] for shown in values.values())
        axes.axhline(level, color="#666666", linestyle=":")
        axes.text(1.78, level + 0.01, said, ha="right", color="#444444")
    axes.set(xlabel="training time ÷ time of the softmax", xlim=(1, 1.8), ylim=(0, 0.9))
    axes.set(ylabel="V-measure, 43 words, 95 % interval")
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.88))
    return figure


def draw_lemma41(plt: Any, values: dict[str, dict[str, Any]]) -> Any:
    figure, axes = plt.subplots(figsize=(7.5, 4.5))
    axes.plot([1, 4], [1, 4], color="#cccccc", linewidth=6, label="one sense per cluster")
    for policy, (name, colour, marker, line) in POLICIES.items():
        shown = values[policy]
        label = f"{name}: {shown['exact']:.0%} of the words correct"
        look = {"color": colour, "marker": marker, "linestyle": line, "markersize": 7}
        axes.plot([1, 2, 3, 4], shown["senses"], label=label, **look)
    axes.set(xlabel="number of clusters of a word", ylabel="mean number of senses after training")
    axes.set(xticks=[1, 2, 3, 4], yticks=[1, 2, 3, 4])
    axes.legend(frameon=False)
    return figure


def main(arguments: list[str]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plain_axes = {"axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "kerbs"}
    plt.rcParams.update({"font.size": 13, "axes.grid": True, "grid.alpha": 0.3, **plain_axes})
    plt.rcParams["legend.fontsize"] = 11
    folder = Path(arguments[0]) if arguments else RESULTS / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    values = {"training": training(), "price": price(), "lemma41": lemma41()}
    for name, draw in (
        ("training", draw_training),
        ("price", draw_price),
        ("lemma41", draw_lemma41),
    ):
        figure = draw(plt, values[name])
        figure.tight_layout(rect=(0, 0.15 if name == "training" else 0, 1, 1))
        figure.savefig(folder / f"{name}.svg", facecolor="white", metadata={"Date": None})
    text = json.dumps(values, indent=1, ensure_ascii=False)
    (folder / "values.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
