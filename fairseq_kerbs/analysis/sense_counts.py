"""Does each word have the right number of senses? B-cubed F over all words, ambiguous or not.

A V-measure of ambiguous words alone rewards splitting everything. Here all words with enough gold
senses count, and most have one meaning. Three partitions of the occurrences of a word are compared
with the gold senses (:mod:`fairseq_kerbs.senses.partitions`):

- *senses*: those of the model;
- *one sense per word*, which the model has to beat;
- *the best number by the labels*: of k-means into 1 to 4 clusters of training contexts, the one
  with the highest B-cubed F of each word. This is the ceiling of rules for the number of clusters.

Whole words and pieces of words (BPE) are apart, because a piece such as *-ated* ends many words. An
occurrence of a piece has the gold sense of its word.

The number of senses should rise with the entropy of gold senses, not with the frequency of the
word. The partial correlation of x and y given z is

    (r_xy − r_xz r_yz) / √((1 − r_xz²) (1 − r_yz²))

with r the correlation over words. Intervals are percentile bootstraps over words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pandas import DataFrame, factorize
from scipy import stats

from fairseq_kerbs.analysis.occurrences import Text
from fairseq_kerbs.analysis.words import has_letter, sense_numbers
from fairseq_kerbs.data.gold import GoldSenses, occurrence_of
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.reallocation.context_sample import ContextSample
from fairseq_kerbs.reallocation.kmeans import cluster
from fairseq_kerbs.reallocation.placement import whiten
from fairseq_kerbs.senses.partitions import Integers, bcubed, paired

LEAST_LABELS = 25
"""Minimum number of occurrences of a word, or piece, with a gold sense."""
MOST_CLUSTERS = 4
SEED = 1
RESAMPLES = 1000  # bootstrap samples of words
PARTITIONS = {
    "senses": "senses of the model",
    "one": "one sense per word",
    "best": "best number by the labels",
}
KINDS = {"words": "whole words", "pieces": "pieces of words"}

Floats = NDArray[np.float64]


class CountedWord(NamedTuple):
    """n occurrences of a word, or of a piece, with gold senses."""

    name: str
    piece: bool
    frequency: int  # occurrences in the text
    senses: int  # number of senses in the model
    gold: Integers  # gold senses, [n]
    induced: Integers  # senses of the model, [n]
    entry: int  # in the dictionary
    contexts: torch.Tensor  # [n, d]
    clusterings: Sequence[Integers] = ()  # clusters of contexts, into 1, 2, …, [n]


def counted_words(
    text: Text, gold: GoldSenses, layer: OutputLayer, symbols: Sequence[str]
) -> list[CountedWord]:
    """Words and pieces with at least :data:`LEAST_LABELS` gold senses, without clusters.

    Args:
        text: a text that was read with pieces, and with the contexts of its tokens.
        gold: gold senses (:func:`.read_gold_senses`).
        layer: output layer of the model.
        symbols: entries of the dictionary, [V].
    """
    tokens = text.tokens
    senses = []
    for line, place in zip(tokens["line"].tolist(), tokens["place"].tolist()):
        key = occurrence_of(text.number[line], text.words[line], place)
        senses.append(gold.get(key, ""))
    known = np.array(senses, object)
    found = []
    for (entry, piece), where in tokens.groupby(["entry", "piece"]).indices.items():
        labelled = where[known[where] != ""]
        if len(labelled) < LEAST_LABELS or not has_letter(symbols[entry]):
            continue
        rows = sense_numbers(layer, entry)
        induced = tokens["sense"].to_numpy()[labelled]
        found.append(
            CountedWord(
                symbols[entry],
                bool(piece),
                len(where),
                len(rows),
                factorize(known[labelled], sort=True)[0],
                np.array([rows.index(row) for row in induced]),
                int(entry),
                text.contexts[torch.tensor(labelled)].float(),
            )
        )
    return found


def cluster_training(words: Sequence[CountedWord], training: ContextSample) -> list[CountedWord]:
    """Words with the clusters of their contexts, which are fitted on training contexts.

    Args:
        words: words without clusters.
        training: sample of the training contexts of these words, as ``convert`` takes it.

    Returns:
        the words, where an occurrence is in the cluster of the nearest center, after whitening.
        A word with few training contexts has a single cluster.
    """
    basis = whiten(training)[0]
    centers: dict[int, list[torch.Tensor]] = {}
    clustered = []
    for word in words:
        if word.entry not in centers:
            points = training.contexts(word.entry) @ basis
            found = cluster([points], MOST_CLUSTERS)[0] if len(points) else []
            centers[word.entry] = [_centers(points, of_k.labels) for of_k in found[1:]]
        whitened = word.contexts @ basis
        labels = [np.zeros(len(word.gold), np.int64)]
        labels += [torch.cdist(whitened, of_k).argmin(1).numpy() for of_k in centers[word.entry]]
        clustered.append(word._replace(clusterings=labels))
    return clustered


def _centers(points: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Means of the points of each cluster, [k, d]."""
    kinds = range(int(labels.max()) + 1)
    return torch.stack([points[labels == kind].mean(0) for kind in kinds])


def judge_counts(words: Sequence[CountedWord]) -> dict[str, Any]:
    """Figures of whole words and of pieces.

    Returns:
        for "words" and "pieces", unless there are none: the number of words "of"; for each of
        :data:`PARTITIONS` the mean number of "senses", "bcubed" and "paired" F with intervals,
        B-cubed "precision" and "recall", "minus_one", which is the mean difference of B-cubed F
        from one sense per word, with an interval, and the numbers of words where B-cubed F is
        "better" and "worse" than with one sense; and "correlations" of the number of senses
        "with_entropy" given log frequency, and "with_frequency" given entropy. These are None if
        all words have as many senses.
    """
    judged = {}
    for kind in KINDS:
        of_kind = [word for word in words if word.piece == (kind == "pieces")]
        if of_kind:
            judged[kind] = _judge(of_kind)
    return judged


def _judge(words: Sequence[CountedWord]) -> dict[str, Any]:
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in PARTITIONS}
    for word in words:
        scores = [bcubed(word.gold, labels).f for labels in word.clusterings]
        best = int(np.argmax(scores))
        rows["senses"].append(_scores(word, word.induced, word.senses))
        rows["one"].append(_scores(word, np.zeros_like(word.gold), 1))
        rows["best"].append(_scores(word, word.clusterings[best], best + 1))
    one = DataFrame(rows["one"])["bcubed"]
    judged: dict[str, Any] = {"of": len(words)}
    for name, of_words in rows.items():
        table = DataFrame(of_words)
        difference = (table["bcubed"] - one).round(9)
        judged[name] = {
            "senses": float(table["senses"].mean()),
            "bcubed": interval(table["bcubed"].to_numpy()),
            "paired": interval(table["paired"].to_numpy()),
            "precision": float(table["precision"].mean()),
            "recall": float(table["recall"].mean()),
            "minus_one": interval(difference.to_numpy()),
            "better": int((difference > 0).sum()),
            "worse": int((difference < 0).sum()),
        }
    senses = np.array([word.senses for word in words], float)
    entropies = np.array([entropy(word.gold) for word in words])
    frequencies = np.log([word.frequency for word in words])
    judged["correlations"] = {
        "with_entropy": correlation(senses, entropies, frequencies),
        "with_frequency": correlation(senses, frequencies, entropies),
    }
    return judged


def _scores(word: CountedWord, induced: Integers, senses: int) -> dict[str, float]:
    found = bcubed(word.gold, induced)
    return {
        "senses": senses,
        "bcubed": found.f,
        "precision": found.precision,
        "recall": found.recall,
        "paired": paired(word.gold, induced).f,
    }


def entropy(gold: Integers) -> float:
    """Entropy of gold senses [n] in nats."""
    return float(stats.entropy(np.bincount(gold)))


def partial_correlation(x: Floats, y: Floats, given: Floats, axis: int = -1) -> Any:
    """Correlation of x and y given a third variable, NaN if one is constant.

    Args:
        x, y, given: values of n words, [n], or of several samples of them, [samples, n].
        axis: axis of the words.

    Returns:
        the correlation, or one for each sample, [samples].
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        xy = _pearson(x, y, axis)
        xz = _pearson(x, given, axis)
        yz = _pearson(y, given, axis)
        return (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))


def _pearson(x: Floats, y: Floats, axis: int) -> Any:
    x = _centred(x, axis)
    y = _centred(y, axis)
    return (x * y).sum(axis) / np.sqrt((x**2).sum(axis) * (y**2).sum(axis))


def _centred(values: Floats, axis: int) -> Any:
    """Values minus their mean, exactly 0 where all are equal, although the mean is rounded."""
    constant = np.ptp(values, axis=axis, keepdims=True) == 0
    return np.where(constant, 0.0, values - values.mean(axis, keepdims=True))


def interval(values: Floats) -> dict[str, float]:
    """Mean of values of words [n], with a 95 % percentile bootstrap interval over words."""
    return _bootstrap((values,), np.mean, float(values.mean()))


def correlation(x: Floats, y: Floats, given: Floats) -> dict[str, float] | None:
    """Partial correlation over words [n] with a 95 % bootstrap interval.

    None if it is undefined: one of the three is constant, or there are too few words.
    """
    value = float(partial_correlation(x, y, given))
    if not np.isfinite(value):
        return None
    return _bootstrap((x, y, given), partial_correlation, value)


def _bootstrap(
    data: tuple[Floats, ...], statistic: Callable[..., Any], value: float
) -> dict[str, float]:
    if len(data[0]) < 2:
        return {"mean": value, "low": value, "high": value}
    drawn = np.random.default_rng(SEED).integers(len(data[0]), size=(RESAMPLES, len(data[0])))
    found = statistic(*(values[drawn] for values in data), axis=-1)
    # a resample in which all words have as many senses has no correlation
    low, high = np.nanquantile(found, [0.025, 0.975])
    return {"mean": value, "low": float(low), "high": float(high)}


def counts_as_text(judged: Mapping[str, Any]) -> str:
    """A table for whole words, one for pieces, and the correlations of each."""
    if not judged:
        return (
            f"no word has {LEAST_LABELS} labelled occurrences in the split, so numbers of senses "
            "are not compared with gold senses"
        )
    texts = []
    for kind, figures in judged.items():
        rows = []
        for name, title in PARTITIONS.items():
            row = figures[name]
            compared = "" if name == "one" else f"{row['better']}, {row['worse']}"
            cells = [_with_interval(row["bcubed"]), f"{row['precision']:.3f}, {row['recall']:.3f}"]
            cells += [_with_interval(row["paired"]), compared]
            rows.append([title, f"{row['senses']:.2f}", *cells])
        head = [f"{KINDS[kind]}, {figures['of']}", "senses each", "B-cubed F"]
        head += ["precision, recall", "paired F", "better, worse than one sense"]
        table = DataFrame(rows, columns=head)
        texts.append(table.to_markdown(index=False, tablefmt="simple", disable_numparse=True))
        entropies = figures["correlations"]["with_entropy"]
        frequencies = figures["correlations"]["with_frequency"]
        texts[-1] += (
            "\nnumber of senses, correlation with the entropy of gold senses at equal frequency: "
            f"{_with_interval(entropies)}; with log frequency at equal entropy: "
            f"{_with_interval(frequencies)}"
        )
    return "\n\n".join(texts)


def _with_interval(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return "undefined: too few words, or all are alike"
    return "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**figure)
