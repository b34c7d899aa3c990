"""Senses induced by a model against gold senses: V-measure (Rosenberg and Hirschberg 2007),
adjusted Rand index and adjusted mutual information (Vinh et al. 2010) of each word.

Beside the senses of the model stand, of the same occurrences: its senses permuted, which have what
chance has; k-means with as many clusters as the word has senses, fitted on contexts of the training
data, which is what the contexts offer without labels; and the predictions of a linear classifier
(discriminants) of the contexts in cross-validation, trained on the labels, which is the ceiling.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.cluster import KMeans
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, v_measure_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from tabulate import tabulate

from fairseq_kerbs.analysis.occurrences import Occurrence
from fairseq_kerbs.clusters import ContextSample
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines
from fairseq_kerbs.utils.processes import progress

GoldSenses = Mapping[tuple[int, int, str], str]
"""Gold senses by number of the line, occurrence of the word in it (both from 0), and word."""


def purity(gold: NDArray[np.int64], induced: NDArray[np.int64]) -> float:
    """Share of occurrences whose gold sense is the most frequent one of their induced sense."""
    return float(contingency_matrix(gold, induced).max(0).sum() / len(gold))


MEASURES = {
    "purity": purity,
    "v_measure": v_measure_score,
    "ari": adjusted_rand_score,
    "ami": adjusted_mutual_info_score,
}
PARTITIONS = ("senses", "permuted", "kmeans", "probe")
LEAST_OCCURRENCES = 6  # of a word, and three of each of at least two of its gold senses
PERMUTATIONS = 20
RESAMPLES = 2000  # of words, for the intervals
CONTEXTS = 1000  # of a word that k-means is fitted on, at most
LEAST_USE = 0.01  # share of a word's occurrences below which a sense counts as unused
FOLDS = 5


class Labelled(NamedTuple):
    """Occurrences of a word whose gold senses are known, n in all."""

    gold: NDArray[np.int64]  # [n] number of the gold sense
    induced: NDArray[np.int64]  # [n] number of the model's most probable sense within the word
    contexts: NDArray[np.float32]  # [n, d]
    senses: int  # how many the model has of the word


def read_gold_senses(path: Path) -> GoldSenses:
    """Gold senses from lines of number of the line, occurrence, word and sense between tabs; a
    UserError if there are none, or a line has another form."""
    gold: dict[tuple[int, int, str], str] = {}
    for number, row in enumerate(read_lines(path), start=1):
        fields = row.split("\t")
        if len(fields) != 4 or not (fields[0].isdigit() and fields[1].isdigit()):
            raise UserError(
                f"{path}, line {number}: expected line, occurrence, word and sense between tabs"
            )
        gold[int(fields[0]), int(fields[1]), fields[2]] = fields[3]
    if not gold:
        raise UserError(f"{path} is empty")
    return gold


def lines_as_samples(task: Any) -> None:
    """Let a language model's splits come a line a sample, since gold senses count lines."""
    if hasattr(getattr(task, "args", None), "sample_break_mode"):
        task.args.sample_break_mode = "eos"


def labels_of_senses(
    occurrences: Iterable[Occurrence], gold: GoldSenses
) -> dict[int, Counter[str]]:
    """How often each gold sense is met with each sense of the model, by its row."""
    found: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for occurrence in occurrences:
        if (at := (occurrence.line, occurrence.index, occurrence.word)) in gold:
            found[occurrence.sense][gold[at]] += 1
    return found


def by_word(occurrences: Iterable[Occurrence], gold: GoldSenses) -> dict[str, Labelled]:
    """Occurrences of every word whose gold senses are known, in the order of words; a UserError if
    there are none."""
    rows: defaultdict[str, list[tuple[str, Occurrence]]] = defaultdict(list)
    for occurrence in occurrences:
        sense = gold.get((occurrence.line, occurrence.index, occurrence.word))
        if sense is not None:
            rows[occurrence.word].append((sense, occurrence))
    if not rows:
        raise UserError(
            "--gold names no word of the split that is a single token of the model; name with "
            "--split the one that the file was made for"
        )
    labelled = {}
    for word, pairs in sorted(rows.items()):
        senses = np.unique([sense for sense, _ in pairs], return_inverse=True)[1]
        induced = np.array([o.senses.index(o.sense) for _, o in pairs])
        contexts = torch.stack([o.context for _, o in pairs]).numpy()
        labelled[word] = Labelled(senses, induced, contexts, len(pairs[0][1].senses))
    return labelled


def sample_contexts(
    occurrences: Iterable[Occurrence], words: Sequence[str], seed: int = 1
) -> dict[str, NDArray[np.float32]]:
    """At most :data:`CONTEXTS` contexts [n, d] of each of some words, drawn at random."""
    numbers = {word: number for number, word in enumerate(words)}
    sample: ContextSample | None = None
    whole = (o for o in occurrences if o.index >= 0 and o.word in numbers)
    while part := list(islice(whole, 1000)):
        contexts = torch.stack([o.context for o in part])
        if sample is None:
            room, dim = torch.full((len(words),), CONTEXTS), contexts.shape[1]
            sample = ContextSample(room, dim, CONTEXTS, 2 * dim * int(room.sum()), 0, seed)
        sample.add(torch.tensor([numbers[o.word] for o in part]), contexts)
    return {} if sample is None else {w: sample.contexts(n).numpy() for w, n in numbers.items()}


def compare_with_gold(
    labelled: Mapping[str, Labelled], training: Mapping[str, NDArray[np.float32]], seed: int = 1
) -> dict[str, Any]:
    """Agreement by word, and in all.

    Words with fewer than :data:`LEAST_OCCURRENCES`, or without two gold senses of three occurrences
    each, are left out.

    Args:
        training: contexts [m, d] of each word, which k-means is fitted on. A word without any has
            a single cluster.
        seed: of permutations, k-means, folds and resampled words.

    Returns:
        "words": by word "occurrences", "gold" and "senses" (numbers of them), "used", and of each
        of :data:`PARTITIONS` each of :data:`MEASURES`, such as "senses.ari". "all": sums of counts;
        of each measure "mean" over words, "low" and "high", a 95 % interval by bootstrap over
        words; and "sign.ari" etc., the sign test of senses against their permuted ones: words where
        they are "higher", "of" how many where they differ, "p" (two-sided). Both are empty where no
        word is left.
    """
    rows = {}
    for word, occurrences in progress(labelled.items(), "gold senses", " words"):
        counts = np.bincount(occurrences.gold)
        if counts.sum() >= LEAST_OCCURRENCES and (counts >= 3).sum() >= 2:
            contexts = training.get(word, occurrences.contexts[:0])
            rows[word] = _compare_word(occurrences, contexts, seed)
    return {"words": rows, "all": _over_words(list(rows.values()), seed) if rows else {}}


def _compare_word(
    word: Labelled, training: NDArray[np.float32], seed: int
) -> dict[str, int | float]:
    gold, induced, contexts = word.gold, word.induced, word.contexts
    draw = np.random.default_rng(seed)
    permuted = [agreement(gold, draw.permutation(induced)) for _ in range(PERMUTATIONS)]
    clusters = np.zeros_like(gold)
    if min(word.senses, len(training)) > 1:
        kmeans = KMeans(min(word.senses, len(training)), n_init=10, random_state=seed)
        clusters = kmeans.fit(training).predict(contexts)
    known = np.bincount(gold)[gold] >= 3  # two of each for every fold's training part
    folds = min(FOLDS, int(np.bincount(gold[known])[gold[known]].min()))
    partitions = {
        "senses": agreement(gold, induced),
        "permuted": {name: float(np.mean([p[name] for p in permuted])) for name in MEASURES},
        "kmeans": agreement(gold, clusters),
        "probe": agreement(gold[known], _probe(contexts[known], gold[known], folds, seed)),
    }
    use = np.bincount(induced, minlength=word.senses) / len(gold)
    figures: dict[str, int | float] = {
        "occurrences": len(gold),
        "gold": int(gold.max()) + 1,
        "senses": word.senses,
        "used": int((use >= LEAST_USE).sum()),
    }
    for partition, values in partitions.items():
        figures |= {f"{partition}.{name}": value for name, value in values.items()}
    return figures


def agreement(gold: NDArray[np.int64], induced: NDArray[np.int64]) -> dict[str, float]:
    """:data:`MEASURES` of induced senses [n] against gold ones [n]."""
    return {name: float(measure(gold, induced)) for name, measure in MEASURES.items()}


def _probe(
    contexts: NDArray[np.float32], gold: NDArray[np.int64], folds: int, seed: int
) -> NDArray[np.int64]:
    """Gold senses as a linear classifier predicts them that has not seen them, [n]."""
    classifier = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")  # Ledoit and Wolf
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    predicted: NDArray[np.int64] = cross_val_predict(classifier, contexts, gold, cv=parts)
    return predicted


def _over_words(rows: list[dict[str, int | float]], seed: int) -> dict[str, Any]:
    counts = ("occurrences", "senses", "used")
    summary: dict[str, Any] = {name: sum(row[name] for row in rows) for name in counts}
    draws = np.random.default_rng(seed).integers(len(rows), size=(RESAMPLES, len(rows)))
    for name in MEASURES:
        values = {who: np.array([row[f"{who}.{name}"] for row in rows]) for who in PARTITIONS}
        for partition, value in values.items():
            low, high = np.quantile(value[draws].mean(1), (0.025, 0.975)).tolist()
            mean = float(value.mean())
            summary[f"{partition}.{name}"] = {"mean": mean, "low": low, "high": high}
        difference = values["senses"] - values["permuted"]
        higher, differ = int((difference > 0).sum()), int((difference != 0).sum())
        p = float(binomtest(higher, differ).pvalue) if differ else 1.0
        summary[f"sign.{name}"] = {"higher": higher, "of": differ, "p": p}
    return summary


def comparison_as_text(comparison: Mapping[str, Any]) -> str:
    """A table with a line a word, and one with a line a measure."""
    if not comparison["words"]:
        return (
            f"no word has {LEAST_OCCURRENCES} occurrences in the split and two gold senses with "
            "three each, so that nothing is compared with gold senses"
        )
    short = {"v_measure": "V", "ari": "ARI", "ami": "AMI"}
    titles = {"senses": "", "kmeans": " k-means", "probe": " probe"}
    header, keys = ["word", "n", "gold", "senses", "used"], []
    for measure, name in short.items():
        header += [name + title for title in titles.values()]
        keys += [f"{partition}.{measure}" for partition in titles]
    keys = ["occurrences", "gold", "senses", "used", *keys]
    rows = [[word, *(row[key] for key in keys)] for word, row in comparison["words"].items()]
    every = comparison["all"]
    means = []
    for measure, name in {**short, "purity": "purity"}.items():
        figures = [every[f"{partition}.{measure}"] for partition in PARTITIONS]
        cells = ["{mean:.3f} [{low:.3f}, {high:.3f}]".format(**figure) for figure in figures]
        sign = "{higher} of {of}, p = {p:.2g}".format(**every[f"sign.{measure}"])
        means.append([name, *cells, sign])
    head = [f"mean of {len(rows)} words, {every['occurrences']} occurrences"]
    head += ["senses", "permuted", "k-means, training contexts", "linear probe (ceiling)"]
    parts = (
        tabulate(rows, header, floatfmt=".3f"),
        tabulate(means, [*head, "senses above permuted"], disable_numparse=True),
    )
    return "\n\n".join(parts)
