"""Words that an output layer can hardly tell apart (Gao et al. 2019, Section 4.5 and Table 4).

`fairseq_kerbs.analysis.similarity` says how similar two words are, by the vectors of the output
layer or by what it confuses in a text. Words are joined to clusters by the mean similarity of their
pairs, down to what half of all words have to their nearest one. Clusters come in the order of what
a word of theirs has to all others of its cluster together, on average.

Confusions of two models are taken together to find clusters. Clusters of one model's confusions
would be chosen by its own errors, and the other would look better there even if it were as good.

Then each cluster's occurrences in the text are counted: where the most probable word is the right
one, where it is another one of the cluster, and where one of two models alone is right. Examples
show the occurrences where one model is right and the other takes the word for another of the
cluster, or else for any other word, those first where their probabilities of the right word lie
farthest apart; of one model those where it takes a word for another of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.analysis.predictions import Predictions
from fairseq_kerbs.analysis.similarity import (
    ConfusionSimilarity,
    Similarity,
    cluster_words,
    usual_similarity,
)
from fairseq_kerbs.analysis.tables import as_csv, as_lines
from fairseq_kerbs.analysis.words import in_context

_CONTEXT = 8  # words shown on either side
_NAME = 18  # letters of a model's name
_WORDS = 44  # of a cluster's words


@dataclass(frozen=True)
class Counts:
    """Occurrences of some words; by model, but for ``times``."""

    times: int  # how many
    right: dict[str, int]  # where the word is the most probable one
    within: dict[str, int]  # where another word of its cluster is
    alone: dict[str, int]  # where it is right and the other model is not; empty of one model
    ahead: dict[str, int]  # sentences with more of these words right than the other model has

    @property
    def sign_test(self) -> float:
        """Two-tailed p of the numbers of sentences (words of one sentence are not independent)."""
        from scipy.stats import binomtest

        first, second = self.ahead.values()
        return float(binomtest(first, first + second).pvalue) if first + second else 1.0


@dataclass(frozen=True)
class Guess:
    """What a model predicts at one occurrence."""

    word: str  # the most probable word
    probability: float  # its probability
    truth: float  # that of the right word


@dataclass(frozen=True)
class Example:
    """One occurrence of a word."""

    right: str | None  # the model that is right; None where there is one model, which is wrong
    sentence: int  # number of its sentence (in a language model: its block) in the split, from 1
    word: str
    text: str  # words around it, itself in brackets
    guesses: dict[str, Guess]  # by model


@dataclass
class Cluster:
    """Words that are hard to tell apart."""

    words: list[str]  # the most frequent ones first
    of: str | None  # the model whose vectors show it; None where it is by confusions
    likeness: dict[str, float]  # mean similarity of its pairs, by model
    counts: Counts | None = None  # of its occurrences, where there are data
    examples: list[Example] = field(default_factory=list)


@dataclass
class Neighbours:
    """Clusters of one model or two."""

    names: list[str]  # of the models
    by: str  # "vectors" or "confusions"
    clusters: list[Cluster]  # the first ones
    found: dict[str, int]  # how many there are in all, by ``Cluster.of`` ("" for None)
    words: dict[str, int]  # words in them
    everything: Counts | None = None  # of all words of the split, where there are data
    clustered: dict[str, Counts] = field(default_factory=dict)  # of the words in all clusters


def find_neighbours(
    similarity: Mapping[str, Similarity],
    symbols: Sequence[str],
    frequency: Sequence[int],
    *,
    by: str,
    words: Tensor,
    predictions: Mapping[str, Predictions],
    top: int = 8,
    examples: int = 1,
) -> Neighbours:
    """Find clusters, and count and show their occurrences.

    Args:
        similarity: of words, by model.
        symbols: [V] entries of the dictionary.
        frequency: [V] occurrences in the training data.
        by: "vectors" or "confusions", what ``similarity`` is made of.
        words: [V] which words are compared.
        predictions: by model, all of the same words; empty where there are no data.
        top: clusters to show, of each model where they are by vectors; 0 for all.
        examples: most examples of a cluster, for each model that is right.
    """
    graphs: dict[str, Any]
    if by == "confusions":
        graphs = {"": ConfusionSimilarity(list(predictions.values()), words).graph()}
    else:
        graphs = {name: one.graph() for name, one in similarity.items()}
    result = Neighbours(list(similarity), by, [], {}, {})
    for origin, graph in graphs.items():
        found = cluster_words(graph, usual_similarity(graph))
        # what a word has to the others of its cluster, on average
        found.sort(key=lambda own: (-float(graph[own][:, own].sum()) / len(own), own))
        result.found[origin], result.words[origin] = len(found), sum(map(len, found))
        cluster_of = torch.full((len(symbols),), -1)  # [V]
        for number, members in enumerate(found):
            cluster_of[members] = number
        text = _Text(predictions, cluster_of, symbols)
        for number, members in enumerate(found[: top or None]):
            members.sort(key=lambda word: (-frequency[word], word))
            pairs = len(members) * (len(members) - 1)
            means = {n: float(one.among(members).sum()) / pairs for n, one in similarity.items()}
            cluster = Cluster([symbols[word] for word in members], origin or None, means)
            if predictions:
                cluster.counts = text.count(text.cluster == number)
                cluster.examples = text.examples(text.cluster == number, examples)
            result.clusters.append(cluster)
        if predictions:
            result.everything = text.count(torch.ones_like(text.cluster, dtype=torch.bool))
            result.clustered[origin] = text.count(text.cluster >= 0)
    return result


class _Text:
    """Occurrences in a split, and the clusters of their words.

    Args:
        predictions: by model, all of the same N words.
        cluster_of: [V] number of each word's cluster, −1 for none.
        symbols: [V] entries of the dictionary.
    """

    def __init__(
        self, predictions: Mapping[str, Predictions], cluster_of: Tensor, symbols: Sequence[str]
    ) -> None:
        self._models, self._symbols = predictions, symbols
        self._right = {name: one.right for name, one in predictions.items()}  # [N] each
        self._within = {}  # [N] each: another word of the cluster is predicted
        self.cluster = torch.empty(0)  # [N]
        for name, one in predictions.items():
            self.cluster = cluster_of[one.word]
            same = (cluster_of[one.guesses[:, 0]] == self.cluster) & (self.cluster >= 0)
            self._within[name] = same & ~one.right
        names = list(predictions)
        # each of two models, and the other one
        self._pairs = list(zip(names, names[::-1], strict=True)) if len(names) == 2 else []

    def count(self, inside: Tensor) -> Counts:
        """Of the occurrences ``inside`` [N]."""
        right = {name: one & inside for name, one in self._right.items()}
        alone = {name: right[name] & ~self._right[other] for name, other in self._pairs}
        more = {}  # [sentences] each: how many of these occurrences there are
        for name, one in alone.items():
            sentence = self._models[name].sentence
            more[name] = sentence[one].bincount(minlength=int(sentence.max()) + 1)
        return Counts(
            int(inside.sum()),
            {name: int(one.sum()) for name, one in right.items()},
            {name: int((one & inside).sum()) for name, one in self._within.items()},
            {name: int(one.sum()) for name, one in alone.items()},
            {name: int((more[name] > more[other]).sum()) for name, other in self._pairs},
        )

    def examples(self, inside: Tensor, most: int) -> list[Example]:
        """See the head of this file."""
        if not self._pairs:
            ((name, model),) = self._models.items()
            margin = model.guessed[:, 0] - model.probability
            return self._best(inside & self._within[name], margin, most, None)
        found = []
        for name, other in self._pairs:
            chosen = inside & self._right[name] & ~self._right[other]
            margin = self._models[name].probability - self._models[other].probability
            # a difference of probabilities is at most 1
            found += self._best(chosen, margin + 2.0 * self._within[other], most, name)
        return found

    def _best(self, chosen: Tensor, score: Tensor, most: int, right: str | None) -> list[Example]:
        """Examples of the occurrences ``chosen`` [N] with the highest scores [N]."""
        where = chosen.nonzero()[:, 0]
        order = score[where].argsort(descending=True, stable=True)
        return [self._example(at, right) for at in where[order[:most]].tolist()]

    def _example(self, at: int, right: str | None) -> Example:
        one = next(iter(self._models.values()))
        sentence, word = int(one.sentence[at]), self._symbols[int(one.word[at])]
        guesses = {
            name: Guess(
                self._symbols[int(model.guesses[at, 0])],
                float(model.guessed[at, 0]),
                float(model.probability[at]),
            )
            for name, model in self._models.items()
        }
        text = in_context(one.tokens[sentence], int(one.place[at]), _CONTEXT)
        return Example(right, sentence + 1, word, text, guesses)


# ------------------------------------------------------------------------- tables


def neighbours_as_csv(found: Neighbours) -> str:
    """One row an example, or a cluster that has none; a cluster's figures are on each row."""
    names, counted = found.names, found.everything is not None
    head = ["cluster", "of", "words", *(f"likeness {name}" for name in names)]
    if counted:
        head += ["times", *(f"right {name}" for name in names)]
        head += [f"within {name}" for name in names]
        head += [f"alone {name}" for name in names if len(names) == 2]
        head += ["right", "sentence", "word", "text"]
        for name in names:
            head += [f"{column} {name}" for column in ("guess", "probability", "truth")]
    rows: list[list[object]] = []
    for number, cluster in enumerate(found.clusters, 1):
        figures: list[object] = [number, cluster.of, " ".join(cluster.words)]
        figures += cluster.likeness.values()
        if cluster.counts is not None:
            counts = cluster.counts
            figures += [counts.times, *counts.right.values(), *counts.within.values()]
            figures += counts.alone.values()
        cells: list[list[object]] = [
            [one.right, one.sentence, one.word, one.text]
            + [x for guess in one.guesses.values() for x in vars(guess).values()]
            for one in cluster.examples
        ]
        empty: list[object] = [None] * (len(head) - len(figures))
        rows += [[*figures, *example] for example in cells or [empty]]
    return as_csv(head, rows, digits=6)


def neighbours_as_text(found: Neighbours) -> str:
    """For a terminal: totals, a table of clusters, examples; a slash between models' figures."""
    short = {n: n if len(n) <= _NAME else f"{n[: _NAME - 1]}…" for n in found.names}
    parts = [[" / ".join(short.values())]] if len(short) > 1 else []
    if found.everything is not None:
        totals = [_total_line("all words", found.everything)]
        for origin, counts in found.clustered.items():
            title = "words in clusters" + (f" of {short[origin]}" if origin else "")
            totals.append(_total_line(title, counts))
        parts.append(totals)
    for origin, number in found.found.items():
        clusters = [cluster for cluster in found.clusters if (cluster.of or "") == origin]
        by = "confusions of both models" if len(short) > 1 else "confusions"
        by = f"output vectors of {short[origin]}" if origin else by
        words = found.words[origin]
        title = f"clusters by {by}: {number} with {words} words, {len(clusters)} shown"
        parts.append([title, *_table(clusters, found.by == "vectors")])
        parts += [_example_lines(cluster, short) for cluster in clusters if cluster.examples]
    return "\n\n".join("\n".join(part) for part in parts)


def _total_line(title: str, counts: Counts) -> str:
    times = max(1, counts.times)
    right = " / ".join(f"{number / times:.1%}" for number in counts.right.values())
    line = f"{title}: {counts.times} times, right {right}"
    if counts.alone:
        line += f", alone right {_slashed(counts.alone)}, ahead in {_slashed(counts.ahead)} "
        line += f"sentences (sign test p = {counts.sign_test:.2g})"
    return line


def _slashed(numbers: dict[str, int]) -> str:
    return " / ".join(map(str, numbers.values()))


def _table(clusters: list[Cluster], with_similarity: bool) -> list[str]:
    """One row a cluster."""
    rows = []
    for cluster in clusters:
        row = {"words": shorten(" ".join(cluster.words), _WORDS, placeholder=" …")}
        if with_similarity:
            row["similarity"] = " / ".join(f"{value:.2f}" for value in cluster.likeness.values())
        if (counts := cluster.counts) is not None:
            row |= {"times": str(counts.times), "right": _slashed(counts.right)}
            row["one for another"] = _slashed(counts.within)
            row |= {"alone right": _slashed(counts.alone)} if counts.alone else {}
        rows.append(row)
    return as_lines(list(rows[0]), [list(row.values()) for row in rows], 2) if rows else []


def _example_lines(cluster: Cluster, short: dict[str, str]) -> list[str]:
    lines = [" ".join(cluster.words)]
    width = max(map(len, short.values()))
    for example in cluster.examples:
        lines.append(f"  {example.sentence:>6}  {example.text}")
        for name, guess in example.guesses.items():
            line = f"          {short[name]:<{width}}  {guess.word} {guess.probability:.2f}"
            wrong = guess.word != example.word
            lines.append(f"{line}, {example.word} {guess.truth:.2f}" if wrong else line)
    return lines
