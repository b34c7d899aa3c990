r"""Which words have many senses: the frequent ones, or those with many translations?

    python scripts/experiments/sense_numbers.py words.csv KERBS.pt ... \
        --dict dict.en.txt --released sense_num.txt --text train.en -o FOLDER

words.csv is that of ``sense_counts.py``: frequency, entropy of gold senses, and the number of
senses by each rule, of all words with enough gold senses. Each KERBS.pt is a model of another seed,
trained with Algorithm 1 and with this dictionary. sense_num.txt has the numbers of senses that the
authors released, ``word<TAB>number`` a line, and ``--text`` is a text of their corpus, for
frequencies.

FOLDER receives

- ``number_of_senses.svg``, the mean number of senses by frequency and by entropy;
- ``numbers.csv`` with the values in the figure;
- ``correlations.csv`` with partial correlations of the number of senses, and of −log P of Eq. 12,
  with entropy at equal log frequency and with log frequency at equal entropy;
- ``senses.csv`` with frequency, entropy and number of senses of each word;
- ``below_epsilon.csv`` with frequency and entropy of the words with log P below ε of Algorithm 1,
  and of the others.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# the checkout that this script belongs to, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import click
import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame, concat, qcut, read_csv

from fairseq_kerbs.analysis.plots import save_figure
from fairseq_kerbs.analysis.sense_counts import correlation, interval
from fairseq_kerbs.checkpoints.reading import plain_settings, read_checkpoint
from fairseq_kerbs.cli.output import write_output
from fairseq_kerbs.cli.parameters import FILE, Command
from fairseq_kerbs.cli.program import main as run
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

BEFORE = "as many as frequency allows"
AFTER = "evidence (default of convert)"
ALGORITHM_1 = "Algorithm 1"
RELEASED = "authors' released numbers"
RULES = {
    "as many as frequency allows (before)": BEFORE,
    "as above, as in the package": AFTER,
}
"""Names of rules in words.csv, and in the figure."""
INVENTORY = "decoder.output.inventory"
BINS = 8  # of words, by quantiles
PANELS = {"frequency": "frequency of the word", "entropy": "entropy of its translations (nats)"}
LOOKS = {
    ALGORITHM_1: {"color": "#0072B2", "marker": "o"},
    RELEASED: {"color": "#E69F00", "marker": "s"},
    BEFORE: {"color": "#D55E00", "marker": "^"},
    AFTER: {"color": "#000000", "marker": "D"},
}

# ------------------------------------------------------------------ numbers of senses


def words_of_rules(table: DataFrame) -> DataFrame:
    """Whole words of words.csv with columns source, word, frequency, entropy and senses."""
    known = table[(table["kind"] == "words") & table["rule"].isin([*RULES])]
    named = known.assign(source=known["rule"].map(RULES))
    return named[["source", "word", "frequency", "entropy", "senses"]]


def words_of_models(checkpoints: Sequence[Path], symbols: Sequence[str]) -> DataFrame:
    """Columns model, word, senses, log_prob and below (ε) of all words of KerBS models.

    A UserError is raised if a model has another vocabulary, or was not trained with Algorithm 1.
    """
    tables = []
    for path in checkpoints:
        state = read_checkpoint(path)
        model = state["model"]
        log_prob = model.get(f"{INVENTORY}.log_prob")
        if log_prob is None or len(log_prob) != len(symbols):
            raise UserError(f"{path} is no KerBS model with the {len(symbols)} words of --dict")
        settings = plain_settings(state["cfg"]["model"])
        policy = settings.get("reallocation")
        if policy != "paper":
            raise UserError(
                f"{path} was trained with --reallocation {policy}; name models of --reallocation "
                "paper, which has an ε"
            )
        threshold = settings["log_prob_threshold"]
        counts = model[f"{INVENTORY}.word_of_sense"].bincount(minlength=len(symbols))
        tables.append(
            DataFrame(
                {
                    "model": str(path),
                    "word": symbols,
                    "senses": counts.double().numpy(),
                    "log_prob": log_prob.double().numpy(),
                    "below": (log_prob < threshold).numpy(),
                }
            )
        )
    return concat(tables)


def words_of_release(words: DataFrame, numbers: Mapping[str, int], text: list[str]) -> DataFrame:
    """Words with the released numbers of senses, and their frequencies in a text of that corpus.

    The released text was truecased: its words in lower case are taken. Words that differ in case
    alone are one word, the most frequent of them.
    """
    counts = Counter(word.lower() for line in text for word in re.findall(r"\w+", line))
    lower = words.assign(word=words["word"].str.lower())
    lower = lower.sort_values("frequency", ascending=False).drop_duplicates("word")
    there = lower[[word in numbers and counts[word] > 0 for word in lower["word"]]]
    return there.assign(
        source=RELEASED,
        senses=[float(numbers[word]) for word in there["word"]],
        frequency=[float(counts[word]) for word in there["word"]],
    )


def released_numbers(path: Path) -> dict[str, int]:
    """Numbers of senses from a file with ``word<TAB>number`` a line, or a UserError."""
    numbers = {}
    for number, line in enumerate(read_lines(path), start=1):
        word, _, senses = line.rpartition("\t")
        if not word or not senses.isdecimal():
            raise UserError(
                f"--released {path}, line {number}: {line[:40]!r} is not WORD<TAB>NUMBER; name the "
                "file sense_num.txt of the authors"
            )
        numbers[word] = int(senses)
    return numbers


# ------------------------------------------------------------------ what they follow


def correlations(words: DataFrame) -> list[dict[str, Any]]:
    """Rows of correlations.csv: for each source the two partial correlations with intervals."""
    rows = []
    for (source, of), group in words.groupby(["source", "of"], sort=False):
        values = group["value"].to_numpy(float)
        frequency = np.log(group["frequency"].to_numpy(float))
        entropy = group["entropy"].to_numpy(float)
        row = {"source": source, "of": of, "words": len(group)}
        for name, other, given in (
            ("with_entropy", entropy, frequency),
            ("with_frequency", frequency, entropy),
        ):
            found = correlation(values, other, given) or {}
            row |= {
                f"{name}_{key}": found.get(key, float("nan")) for key in ("mean", "low", "high")
            }
        rows.append(row)
    return rows


def binned(words: DataFrame) -> list[dict[str, Any]]:
    """Rows of numbers.csv: mean number of senses of each bin, with an interval over words."""
    rows = []
    for source, group in words.groupby("source", sort=False):
        for panel in PANELS:
            bins = qcut(group[panel], BINS, duplicates="drop")
            for _, members in group.groupby(bins, observed=True):
                found = interval(members["senses"].to_numpy(float))
                rows.append(
                    {"source": source, "by": panel, "at": members[panel].median()}
                    | {"words": len(members)}
                    | found
                )
    return rows


def below_epsilon(words: DataFrame, models: DataFrame) -> list[dict[str, Any]]:
    """Rows of below_epsilon.csv: what words Algorithm 1 takes for badly predicted, by model."""
    rows = []
    known = models[["model", "word", "below"]].merge(words, on="word")
    for number, (_, table) in enumerate(known.groupby("model", sort=False), start=1):
        for below, group in table.groupby("below"):
            entropy = interval(group["entropy"].to_numpy(float))
            rows.append(
                {
                    "model": number,
                    "log_prob": "below ε" if below else "not below ε",
                    "words": len(group),
                    "frequency_median": group["frequency"].median(),
                    "entropy_mean": entropy["mean"],
                    "entropy_low": entropy["low"],
                    "entropy_high": entropy["high"],
                }
            )
    return rows


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Figure of numbers.csv."""
    table = DataFrame(rows)
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (panel, title) in zip(panels, PANELS.items()):
        for source, look in LOOKS.items():
            part = table[(table["by"] == panel) & (table["source"] == source)]
            if len(part):
                spread = [part["mean"] - part["low"], part["high"] - part["mean"]]
                axes.errorbar(part["at"], part["mean"], spread, label=source, capsize=2, **look)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(xlabel=title, ylim=(0.9, 4.1))
    panels[0].set(xscale="log", ylabel="mean number of senses")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncol=2, frameon=False
    )
    return figure


# ------------------------------------------------------------------ the command


@click.command("sense_numbers.py", cls=Command)
@click.argument("words", type=FILE, metavar="words.csv")
@click.argument("checkpoints", type=FILE, nargs=-1, required=True, metavar="KERBS.pt...")
@click.option(
    "--dict", "dictionary", type=FILE, metavar="FILE", required=True, help="target dictionary"
)
@click.option("--released", type=FILE, metavar="FILE", help="numbers of senses by the authors")
@click.option("--text", type=FILE, metavar="FILE", help="text of the authors' corpus")
@click.option("-o", "--output", type=FILE, metavar="FOLDER", required=True, help="output folder")
def sense_numbers(
    words: Path,
    checkpoints: tuple[Path, ...],
    dictionary: Path,
    released: Path | None,
    text: Path | None,
    output: Path,
) -> None:
    """Show which words have many senses: frequent ones, or those with many translations."""
    from fairseq.data import Dictionary

    if (released is None) != (text is None):
        raise UserError("--released and --text belong together: give both, or none")
    read_lines(words)  # raises a UserError for a missing file
    of_rules = words_of_rules(read_csv(words))
    if of_rules.empty:
        raise UserError(f"{words} has no whole word; name words.csv of sense_counts.py")
    counted = of_rules.drop_duplicates("word")[["word", "frequency", "entropy"]]
    models = words_of_models(checkpoints, Dictionary.load(str(dictionary)).symbols)
    means = models.groupby("word", as_index=False)[["senses", "log_prob"]].mean()
    of_models = counted.merge(means, on="word").assign(source=ALGORITHM_1)
    parts = [of_models[of_rules.columns]]
    if released is not None and text is not None:
        parts.append(words_of_release(counted, released_numbers(released), read_lines(text)))
    numbers = concat([*parts, of_rules])
    numbers = numbers.assign(of="number of senses", value=numbers["senses"])
    badly = of_models.assign(of="-log P", value=-of_models["log_prob"])
    tables = {
        "numbers.csv": binned(numbers),
        "correlations.csv": correlations(concat([numbers, badly])),
        "below_epsilon.csv": below_epsilon(counted, models),
    }
    output.mkdir(parents=True, exist_ok=True)
    columns = ["source", "word", "frequency", "entropy", "senses"]
    for name, rows in (tables | {"senses.csv": numbers[columns]}).items():
        table = DataFrame(rows).to_csv(index=False, float_format="%.5f", lineterminator="\n")
        write_output(output / name, table, f"{len(rows)} rows")
    save_figure(draw(tables["numbers.csv"]), output / "number_of_senses.svg")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    command: Any = sense_numbers
    return run(argv, command, "sense_numbers.py")


if __name__ == "__main__":
    sys.exit(main())
