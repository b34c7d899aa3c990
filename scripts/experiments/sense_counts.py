"""Compare rules for the number of senses of a word, by B-cubed F over all words.

    python scripts/experiments/sense_counts.py SOFTMAX.pt ... --data BIN --gold GOLD.tsv -o FOLDER

Each SOFTMAX.pt is a softmax model of another seed. GOLD.tsv has gold senses of all words in its
training text (``fairseq-kerbs gold-translations --all-words``). The contexts of each word are
clustered as ``fairseq-kerbs convert`` does, and each rule chooses the number of clusters. A rule's
parameter is chosen on one half of the words, the *selection* half. FOLDER receives
``candidates.csv``, with figures on both halves, ``parameters.csv``, with B-cubed F of whole words
on the selection half for each parameter, and ``words.csv``, with B-cubed F of each word.

The dip test needs ``pip install diptest``. Without it the rule is left out, and a line says so.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# the checkout that this script belongs to, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import click
import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame, concat, factorize
from scipy.special import logsumexp

from fairseq_kerbs.analysis.evidence import ParallelLines
from fairseq_kerbs.analysis.gold_senses import read_gold_senses
from fairseq_kerbs.analysis.sense_counts import (
    LEAST_LABELS,
    entropy,
    interval,
    partial_correlation,
)
from fairseq_kerbs.analysis.words import has_letter
from fairseq_kerbs.checkpoints.contexts import sample_split
from fairseq_kerbs.checkpoints.conversion import read_softmax_model
from fairseq_kerbs.cli.output import write_output
from fairseq_kerbs.cli.parameters import FILE, Command
from fairseq_kerbs.cli.program import main as run
from fairseq_kerbs.reallocation.evidence import (
    LEAST_INFORMATION,
    LEAST_LABELLED,
    information,
    number_of_senses,
)
from fairseq_kerbs.reallocation.kmeans import cluster
from fairseq_kerbs.reallocation.placement import whiten
from fairseq_kerbs.senses.partitions import Integers, bcubed
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.progress import progress

MOST = 4
CONTEXTS = 600
HALVES = ("selection", "report")
DIP_TEST = "dip test"
HAS_DIPTEST = importlib.util.find_spec("diptest") is not None
SHRINKAGE = 0.5
LEAST_OF_A_PAIR = 10  # minimum contexts of two clusters for the dip test


@dataclass(frozen=True)
class Case:
    """A word, or the pieces with the same letters, and what rules know of it.

    All lists have an item for 1, 2, … clusters.
    """

    word: str
    kind: str  # "words" or "pieces"
    half: str
    frequency: int
    entropy: float  # of gold senses
    scores: list[float]  # B-cubed F
    distortion: list[float]
    likelihood: list[float]  # held-out gain, in standard errors
    strength: list[float]  # prediction strength
    dip: list[float]  # largest p of a pair of clusters
    sources: list[float]  # B-cubed F by source words
    neighbours: list[float]  # information about the clusters
    about_sources: float  # information of neighbours about source words
    rule: int  # what `fairseq-kerbs convert` would choose


def cases_of(checkpoint: Path, data: Path, gold_file: Path) -> list[Case]:
    """What rules know of the words of a model, and their scores by gold senses."""
    gold = read_gold_senses(gold_file)
    model = read_softmax_model(checkpoint, data)
    task = model.task
    sample = sample_split(model.model, task, "train", model.weight.shape[1], CONTEXTS, 2.0)
    lines = ParallelLines.read(task, "train")
    if lines is None:
        raise UserError(f"--data {data}: it has no source side in another language")
    basis = whiten(sample)[0]
    cases = []
    for entry in progress(sample.enough.nonzero().squeeze(1).tolist(), "rules", " words"):
        symbol = task.target_dictionary[entry]
        if not has_letter(symbol):
            continue
        tags = sample.tags_of(entry).numpy()
        occurrences = lines.occurrences(tags)
        senses = np.array([gold.get(occurrence, "") for occurrence in occurrences], object)
        piece = np.array([occurrence[2] != symbol for occurrence in occurrences])
        known = {
            kind: (senses != "") & (piece == (kind == "pieces")) for kind in ("words", "pieces")
        }
        if max(mask.sum() for mask in known.values()) < LEAST_LABELS:
            continue
        points = sample.contexts(entry) @ basis
        found = cluster([points], MOST)[0]
        labels = [of_k.labels.numpy() for of_k in found]
        sources = lines.sources(tags)
        beside = lines.neighbours(tags)
        aligned = sources >= 0
        by_sources = [1.0]
        if aligned.sum() >= LEAST_LABELLED:
            by_sources = [bcubed(sources[aligned], of_k[aligned]).f for of_k in labels]
        held_out = _held_out(points.numpy(), len(found))
        for kind, mask in known.items():
            if mask.sum() < LEAST_LABELS:
                continue
            numbers = factorize(senses[mask], sort=True)[0]
            cases.append(
                Case(
                    word=symbol,
                    kind=kind,
                    half=half_of(symbol),
                    frequency=int(sample.seen[entry]),
                    entropy=entropy(numbers),
                    scores=[bcubed(numbers, of_k[mask]).f for of_k in labels],
                    distortion=[of_k.distortion for of_k in found],
                    likelihood=held_out[0],
                    strength=held_out[1],
                    dip=held_out[2],
                    sources=by_sources,
                    neighbours=[information(beside, of_k) for of_k in labels],
                    about_sources=information(beside[aligned], sources[aligned])
                    if aligned.any()
                    else 0.0,
                    rule=number_of_senses(found, sources, beside),
                )
            )
    return cases


def half_of(word: str) -> str:
    """Half of a word, by its letters alone, so that all models and texts have the same halves."""
    return HALVES[hashlib.sha256(word.encode()).digest()[-1] % 2]


def _held_out(
    points: NDArray[np.float32], most: int
) -> tuple[list[float], list[float], list[float]]:
    """Likelihood, prediction strength and dip of clusters of one half, on the other half.

    Likelihood is that of normal distributions with one covariance, against a single one.
    Prediction strength (Tibshirani and Walther 2005) is the share of pairs in a cluster of the
    other half that the first half's centers keep together, in the worst cluster.

    Args:
        points: whitened contexts of a word, [n, d].
        most: maximum number of clusters.

    Returns:
        three lists with a value for each number of clusters.
    """
    import torch

    order = np.random.default_rng(0).permutation(len(points))
    fit = points[order[: len(points) // 2]]
    test = points[order[len(points) // 2 :]]
    fitted = cluster([torch.from_numpy(fit)], most)[0]
    own = cluster([torch.from_numpy(test)], most)[0]
    likelihood = [0.0]
    strength = [1.0]
    dip = [0.0]
    single: NDArray[np.float64] = np.zeros(0)
    for number, (of_fit, of_test) in enumerate(zip(fitted, own), start=1):
        groups = of_fit.labels.numpy()
        centers = np.stack([fit[groups == i].mean(0) for i in range(number)])
        within = fit - centers[groups]
        scatter = within.T @ within / len(fit)
        level = np.trace(scatter) / len(scatter) * np.eye(len(scatter))
        precision = np.linalg.inv((1 - SHRINKAGE) * scatter + SHRINKAGE * level)
        offsets = test[:, None] - centers  # [n, k, d]
        distances = np.einsum("nkd,de,nke->nk", offsets, precision, offsets)
        shares = np.log(np.bincount(groups, minlength=number) / len(groups))
        constant = 0.5 * np.linalg.slogdet(precision)[1]
        density = logsumexp(constant + shares - 0.5 * distances, axis=1)
        if number == 1:
            single = density
            continue
        gain = density - single
        likelihood.append(float(gain.mean() / (gain.std() / np.sqrt(len(gain)) + 1e-9)))
        nearest = (offsets**2).sum(2).argmin(1)
        strength.append(min(_together(nearest[of_test.labels.numpy() == i]) for i in range(number)))
        dip.append(_largest_dip(test, nearest, centers @ precision))
    return likelihood, strength, dip


def _together(groups: Integers) -> float:
    """Share of pairs of different members that are in one group."""
    counts = np.bincount(groups)
    pairs = len(groups) * (len(groups) - 1)
    return float((counts * (counts - 1)).sum() / pairs) if pairs else 0.0


def _largest_dip(
    points: NDArray[np.float32], groups: Integers, discriminants: NDArray[np.float64]
) -> float:
    """Largest p of Hartigan's dip test, over pairs of clusters along their discriminant.

    Args:
        points: contexts of the other half, [n, d].
        groups: cluster of each, [n].
        discriminants: centers of the clusters times the inverse covariance, [k, d].
    """
    if not HAS_DIPTEST:
        return 1.0  # of a rule that is left out
    from diptest import diptest  # type: ignore[import-not-found]

    values = []
    for first in range(len(discriminants)):
        for second in range(first):
            pair = (groups == first) | (groups == second)
            along = points[pair] @ (discriminants[first] - discriminants[second])
            large = len(along) >= LEAST_OF_A_PAIR
            values.append(diptest(np.sort(along.astype(float)))[1] if large else 1.0)
    return max(values)


# ------------------------------------------------------------------ rules

Rule = Callable[[Case, float], int]
"""Number of senses of a case, given a parameter."""


def _largest(values: Sequence[float], passes: Callable[[float], bool]) -> int:
    """The largest number of clusters, from 2, whose value passes, or 1."""
    return max([1, *(k for k, value in enumerate(values, start=1) if k > 1 and passes(value))])


def _by_sources(case: Case, margin: float) -> int:
    best = int(np.argmax(case.sources))
    return best + 1 if case.sources[best] - case.sources[0] > margin else 1


def _and_neighbours(case: Case, least: float) -> int:
    number = _by_sources(case, 0.0)
    return number if number > 1 and case.neighbours[number - 1] >= least else 1


def _and_both(case: Case, least: float) -> int:
    return _and_neighbours(case, least) if case.about_sources >= least else 1


def _by_radius(case: Case, radius: float) -> int:
    within = [k for k, value in enumerate(case.distortion, start=1) if value <= radius]
    return min(within, default=len(case.distortion))


RULES: dict[str, tuple[Rule, Sequence[float]]] = {
    "one sense per word": (lambda case, _: 1, [0.0]),
    "as many as frequency allows (before)": (lambda case, _: len(case.scores), [0.0]),
    "one radius for all words": (_by_radius, [60, 75, 90, 100, 110, 120, 130, 150]),
    DIP_TEST: (
        lambda case, p: _largest(case.dip, lambda value: value < p),
        [0.05, 0.01, 0.001, 0.0001],
    ),
    "held-out likelihood, shared covariance": (
        lambda case, errors: _largest(case.likelihood, lambda value: value > errors),
        [3, 6, 10, 15, 20, 30],
    ),
    "prediction strength": (
        lambda case, least: _largest(case.strength, lambda value: value > least),
        [0.8, 0.9, 0.95, 0.99],
    ),
    "neighbours": (
        lambda case, least: _largest(case.neighbours, lambda value: value >= least),
        [0.05, 0.1, 0.2, 0.4, 0.6, 0.8],
    ),
    "source words": (_by_sources, [0.0, 0.05, 0.1, 0.2, 0.3]),
    "source words, neighbours tell clusters": (_and_neighbours, [0.0, 0.02, 0.05, 0.1, 0.2]),
    "source words, neighbours tell both": (_and_both, [0.0, 0.02, 0.05, 0.1, 0.2]),
    "as above, as in the package": (lambda case, _: case.rule, [LEAST_INFORMATION]),
    "best number by the labels (ceiling)": (lambda case, _: int(np.argmax(case.scores)) + 1, [0.0]),
}


def compare(
    cases: Sequence[Case], rules: Mapping[str, tuple[Rule, Sequence[float]]] = RULES
) -> dict[str, DataFrame]:
    """Figures of each rule, of its parameters, and of each word, for cases of all models.

    The parameter of a rule is the one with the highest B-cubed F of whole words on the selection
    half. Figures of a word are means over models, and intervals are over words.
    """
    candidates = []
    tried = []
    words = []
    for name, (rule, parameters) in rules.items():
        scored = {value: _scored(cases, rule, value) for value in parameters}
        mean = {
            value: table[(table["kind"] == "words") & (table["half"] == HALVES[0])]["f"].mean()
            for value, table in scored.items()
        }
        chosen = max(parameters, key=lambda value: mean[value])
        tried += [
            {"rule": name, "parameter": value, "f": f, "chosen": value == chosen}
            for value, f in mean.items()
        ]
        table = scored[chosen]
        words.append(table.assign(rule=name))
        for (kind, half), group in table.groupby(["kind", "half"]):
            minus_one = interval(group["minus_one"].to_numpy())
            candidates.append(
                {"rule": name, "parameter": chosen, "kind": kind, "half": half}
                | {"words": len(group), "senses": group["senses"].mean()}
                | {f"f_{key}": value for key, value in interval(group["f"].to_numpy()).items()}
                | {f"minus_one_{key}": value for key, value in minus_one.items()}
                | {"better": int((group["minus_one"] > 1e-9).sum())}
                | {"worse": int((group["minus_one"] < -1e-9).sum())}
                | _correlations(group)
            )
    return {
        "candidates.csv": DataFrame(candidates),
        "parameters.csv": DataFrame(tried),
        "words.csv": concat(words),
    }


def _scored(cases: Sequence[Case], rule: Rule, parameter: float) -> DataFrame:
    rows = []
    for case in cases:
        number = min(rule(case, parameter), len(case.scores))
        rows.append(
            {
                "kind": case.kind,
                "half": case.half,
                "word": case.word,
                "frequency": case.frequency,
                "entropy": case.entropy,
                "senses": number,
                "f": case.scores[number - 1],
                "minus_one": case.scores[number - 1] - case.scores[0],
            }
        )
    return DataFrame(rows).groupby(["kind", "half", "word"], as_index=False).mean()


def _correlations(group: DataFrame) -> dict[str, float]:
    senses = group["senses"].to_numpy()
    frequencies = np.log(group["frequency"].to_numpy())
    entropies = group["entropy"].to_numpy()
    return {
        "with_entropy": float(partial_correlation(senses, entropies, frequencies)),
        "with_frequency": float(partial_correlation(senses, frequencies, entropies)),
    }


@click.command("sense_counts.py", cls=Command)
@click.argument("checkpoints", type=FILE, nargs=-1, required=True, metavar="SOFTMAX.pt...")
@click.option("--data", type=FILE, metavar="BIN", required=True, help="folder of binarized data")
@click.option(
    "--gold", type=FILE, metavar="GOLD.tsv", required=True, help="gold senses of the training text"
)
@click.option("-o", "--output", type=FILE, metavar="FOLDER", required=True, help="output folder")
def sense_counts(checkpoints: tuple[Path, ...], data: Path, gold: Path, output: Path) -> None:
    """Compare rules for the number of senses of a word."""
    cases = [case for checkpoint in checkpoints for case in cases_of(checkpoint, data, gold)]
    if not cases:
        raise UserError(
            f"--gold: no word of the training text has {LEAST_LABELS} labels among its contexts; "
            "make the file with gold-translations --all-words"
        )
    rules = {**RULES}
    if not HAS_DIPTEST:
        del rules[DIP_TEST]
        print("diptest is not installed, so the dip test is left out", file=sys.stderr)
    output.mkdir(parents=True, exist_ok=True)
    for name, table in compare(cases, rules).items():
        text = table.to_csv(index=False, float_format="%.5f", lineterminator="\n")
        write_output(output / name, text, f"{len(table)} rows")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison; return its exit status."""
    command: Any = sense_counts
    return run(argv, command, "sense_counts.py")


if __name__ == "__main__":
    sys.exit(main())
