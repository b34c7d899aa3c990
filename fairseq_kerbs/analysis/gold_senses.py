"""Senses induced by a model against gold senses: V-measure (Rosenberg and Hirschberg 2007),
adjusted Rand index and adjusted mutual information (Vinh et al. 2010) of each word.

Beside the senses of the model stand, of the same occurrences: its senses permuted, which have what
chance has; k-means with as many clusters as the word has senses, fitted on contexts of the training
data, which is what the contexts offer without labels; and the predictions of a linear classifier
(discriminants) of the contexts in cross-validation, trained on the labels, which is the ceiling.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame
from scipy.stats import binomtest, bootstrap
from sklearn.cluster import KMeans
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, v_measure_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from fairseq_kerbs.analysis.teacher_forcing import Text
from fairseq_kerbs.analysis.words import sense_numbers
from fairseq_kerbs.output_layers import OutputLayer
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


def label_occurrences(
    text: Text, gold: GoldSenses, layer: OutputLayer, numbers: Mapping[str, int]
) -> tuple[dict[str, Labelled], dict[int, Counter[str]]]:
    """Occurrences of every word whose gold senses are known, in the order of words; and how often
    each gold sense is met with each sense of the model, by its row.

    Args:
        text: with the contexts of all words that have ``numbers`` in the dictionary.

    Raises a UserError if no word is labelled.
    """
    tokens = text.tokens[text.tokens["entry"].isin([*numbers.values()])]  # [C], as `text.contexts`
    labels: dict[str, list[Any]] = defaultdict(list)
    met: dict[int, Counter[str]] = defaultdict(Counter)
    columns = (tokens[name].tolist() for name in ("line", "place", "sense"))
    for context, (line, place, row) in enumerate(zip(*columns)):
        word = text.words[line][place]
        occurrence = text.words[line][:place].count(word)
        if sense := gold.get((text.number[line], occurrence, word)):
            labels[word].append((sense, row, context))
            met[row][sense] += 1
    if not labels:
        raise UserError(
            "--gold names no word of the split that is a single token of the model; name with "
            "--split the one that the file was made for"
        )
    labelled: dict[str, Labelled] = {}
    for word, occurrences in sorted(labels.items()):
        senses, rows, contexts = zip(*occurrences)
        in_order = sense_numbers(layer, numbers[word])
        induced, those = np.array([*map(in_order.index, rows)]), text.contexts[list(contexts)]
        kinds = np.unique(senses, return_inverse=True)[1]
        labelled[word] = Labelled(kinds, induced, those.numpy(), len(in_order))
    return labelled, met


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
    rows: dict[str, dict[str, Any]] = {}
    for word, occurrences in progress(labelled.items(), "gold senses", " words"):
        counts = np.bincount(occurrences.gold)
        if counts.sum() >= LEAST_OCCURRENCES and (counts >= 3).sum() >= 2:
            contexts = training.get(word, occurrences.contexts[:0])
            rows[word] = _compare_word(occurrences, contexts, seed)
    return {"words": rows, "all": _over_words(list(rows.values()), seed) if rows else {}}


def _compare_word(word: Labelled, training: NDArray[np.float32], seed: int) -> dict[str, Any]:
    gold, induced, contexts = word.gold, word.induced, word.contexts
    draw = np.random.default_rng(seed)
    permuted = DataFrame(agreement(gold, draw.permutation(induced)) for _ in range(PERMUTATIONS))
    clusters = np.zeros_like(gold)
    if min(word.senses, len(training)) > 1:
        kmeans = KMeans(min(word.senses, len(training)), n_init=10, random_state=seed)
        clusters = kmeans.fit(training).predict(contexts)
    known = np.bincount(gold)[gold] >= 3  # two of each for every fold's training part
    folds = min(FOLDS, int(np.bincount(gold[known])[gold[known]].min()))
    # shrinkage of Ledoit and Wolf
    probe = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    predicted = cross_val_predict(probe, contexts[known], gold[known], cv=parts)
    partitions = {
        "senses": agreement(gold, induced),
        "permuted": permuted.mean().to_dict(),
        "kmeans": agreement(gold, clusters),
        "probe": agreement(gold[known], predicted),
    }
    use = np.bincount(induced, minlength=word.senses) / len(gold)
    counts = {"occurrences": len(gold), "gold": int(gold.max()) + 1, "senses": word.senses}
    counts["used"] = int((use >= LEAST_USE).sum())
    return counts | {
        f"{who}.{name}": value for who, row in partitions.items() for name, value in row.items()
    }


def agreement(gold: NDArray[np.int64], induced: NDArray[np.int64]) -> dict[str, float]:
    """:data:`MEASURES` of induced senses [n] against gold ones [n]."""
    return {name: float(measure(gold, induced)) for name, measure in MEASURES.items()}


def _over_words(rows: Sequence[Mapping[str, int | float]], seed: int) -> dict[str, Any]:
    table = DataFrame(rows)
    summary: dict[str, Any] = table[["occurrences", "senses", "used"]].sum().to_dict()
    scores = table.filter(like=".")
    low = high = mean = scores.mean()
    if len(table) > 1:
        how = {"n_resamples": RESAMPLES, "method": "percentile", "random_state": seed}
        low, high = bootstrap((scores,), np.mean, axis=0, **how).confidence_interval
    figures = DataFrame({"mean": mean, "low": low, "high": high}, scores.columns)
    summary |= figures.to_dict("index")
    for name in MEASURES:
        difference = table[f"senses.{name}"] - table[f"permuted.{name}"]
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
    short = {"v_measure": "V", "ari": "ARI", "ami": "AMI", "purity": "purity"}
    titles = {"senses": "", "kmeans": " k-means", "probe": " probe"}
    columns = {"occurrences": "n", "gold": "gold", "senses": "senses", "used": "used"}
    for measure, name in list(short.items())[:3]:
        columns |= {f"{who}.{measure}": name + title for who, title in titles.items()}
    words = DataFrame.from_dict(comparison["words"], orient="index")[[*columns]]
    words = words.rename(columns=columns).rename_axis("word").reset_index()
    every, means = comparison["all"], []
    for measure, name in short.items():
        figures = [every[f"{partition}.{measure}"] for partition in PARTITIONS]
        cells = ["{mean:.3f} [{low:.3f}, {high:.3f}]".format(**figure) for figure in figures]
        means.append(
            [name, *cells, "{higher} of {of}, p = {p:.2g}".format(**every[f"sign.{measure}"])]
        )
    head = [f"mean of {len(words)} words, {every['occurrences']} occurrences", "senses", "permuted"]
    head += ["k-means, training contexts", "linear probe (ceiling)", "senses above permuted"]
    means = DataFrame(means, columns=head)
    return (
        f"{words.to_markdown(index=False, tablefmt='simple', floatfmt='.3f')}\n\n"
        f"{means.to_markdown(index=False, tablefmt='simple', disable_numparse=True)}"
    )
