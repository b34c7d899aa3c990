"""Words that an output layer can hardly tell apart (Gao et al. 2019, Section 4.5 and Table 4).

`fairseq_kerbs.analysis.likeness` says how alike two words are, by the vectors of the output layer
or by what it confuses in a text. Words are joined to clusters by the mean likeness of their pairs,
down to what half of all words have to their nearest one. Clusters come in the order of what a word
of theirs has to all others of its cluster together, on average.

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
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.analysis.likeness import ConfusionLikeness, Likeness
from fairseq_kerbs.analysis.predictions import Predictions
from fairseq_kerbs.analysis.word_clusters import cluster_words, usual_nearness

_CONTEXT = 8  # words shown on either side


@dataclass(frozen=True)
class Counts:
    """Occurrences of some words.

    Attributes:
        times: how many.
        right: by model, where the word is the most probable one.
        within: by model, where another word of its cluster is.
        alone: by model, where it is right and the other model is not; empty of one model.
        ahead: by model, sentences of which it has more of these words right than the other model.
    """

    times: int
    right: dict[str, int]
    within: dict[str, int]
    alone: dict[str, int]
    ahead: dict[str, int]

    @property
    def sign_test(self) -> float:
        """Two-tailed p of the numbers of sentences (words of one sentence are not independent)."""
        from scipy.stats import binomtest

        first, second = self.ahead.values()
        return float(binomtest(first, first + second).pvalue) if first + second else 1.0


@dataclass(frozen=True)
class Guess:
    """What a model predicts at one occurrence.

    Attributes:
        word: the most probable word.
        probability: its probability.
        truth: that of the right word.
    """

    word: str
    probability: float
    truth: float


@dataclass(frozen=True)
class Example:
    """One occurrence of a word.

    Attributes:
        right: the model that is right; None where there is one model, which is wrong.
        sentence: number of its sentence in the split, from 1 (of its block, in a language model).
        word: the word.
        text: words around it, itself in brackets.
        guesses: by model.
    """

    right: str | None
    sentence: int
    word: str
    text: str
    guesses: dict[str, Guess]


@dataclass
class Cluster:
    """Words that are hard to tell apart.

    Attributes:
        words: the most frequent ones first.
        of: the model whose vectors show it; None where it is by the confusions of all.
        likeness: mean likeness of its pairs, by model.
        counts: its occurrences, where there are data.
        examples: some of them.
    """

    words: list[str]
    of: str | None
    likeness: dict[str, float]
    counts: Counts | None = None
    examples: list[Example] = field(default_factory=list)


@dataclass
class Neighbours:
    """Clusters of one model or two.

    Attributes:
        names: names of the models.
        by: "vectors" or "confusions".
        clusters: the first ones.
        found: how many there are in all, by ``Cluster.of`` ("" for None).
        words: words in them.
        everything: counts of all words of the split, where there are data.
        clustered: counts of the words in all clusters, also by ``Cluster.of``.
    """

    names: list[str]
    by: str
    clusters: list[Cluster]
    found: dict[str, int]
    words: dict[str, int]
    everything: Counts | None = None
    clustered: dict[str, Counts] = field(default_factory=dict)


def find_neighbours(
    likeness: Mapping[str, Likeness],
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
        likeness: of words, by model.
        symbols: [V] entries of the dictionary.
        frequency: [V] occurrences in the training data.
        by: "vectors" or "confusions", what ``likeness`` is made of.
        words: [V] which words are compared.
        predictions: by model, all of the same words; empty where there are no data.
        top: clusters to show, of each model where they are by vectors; 0 for all.
        examples: most examples of a cluster, for each model that is right.
    """
    graphs: dict[str, Any]
    if by == "confusions":
        graphs = {"": ConfusionLikeness(list(predictions.values()), words).graph()}
    else:
        graphs = {name: one.graph() for name, one in likeness.items()}
    result = Neighbours(list(likeness), by, [], {}, {})
    for origin, graph in graphs.items():
        found = cluster_words(graph, usual_nearness(graph))
        found.sort(key=lambda cluster: (-_strength(graph, cluster), cluster))
        result.found[origin], result.words[origin] = len(found), sum(map(len, found))
        cluster_of = torch.full((len(symbols),), -1)  # [V]
        for number, members in enumerate(found):
            cluster_of[members] = number
        text = _Text(predictions, cluster_of, symbols)
        for number, members in enumerate(found[: top or None]):
            members.sort(key=lambda word: (-frequency[word], word))
            means = {name: _mean(one.among(members)) for name, one in likeness.items()}
            cluster = Cluster([symbols[word] for word in members], origin or None, means)
            if predictions:
                cluster.counts = text.count(number)
                cluster.examples = text.examples(number, examples)
            result.clusters.append(cluster)
        if predictions:
            result.everything, result.clustered[origin] = text.count(), text.count(clustered=True)
    return result


def _strength(graph: Any, words: list[int]) -> float:
    """Sum of a word's likeness to the other words of a cluster, on average."""
    return float(graph[words][:, words].sum()) / len(words)


def _mean(pairs: Any) -> float:
    """Mean likeness of the pairs of n words, [n, n] with 0 on the diagonal."""
    return float(pairs.sum()) / (len(pairs) * (len(pairs) - 1))


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
        self._cluster, self._sentences = torch.empty(0), 0  # [N]
        for name, one in predictions.items():
            self._cluster, self._sentences = cluster_of[one.word], int(one.sentence.max()) + 1
            same = (cluster_of[one.guesses[:, 0]] == self._cluster) & (self._cluster >= 0)
            self._within[name] = same & ~one.right

    def count(self, number: int | None = None, clustered: bool = False) -> Counts:
        """Of the words of a cluster, or with ``clustered`` of all clusters, or of all there are."""
        inside = (
            self._cluster >= 0 if clustered else torch.ones_like(self._cluster, dtype=torch.bool)
        )
        if number is not None:
            inside = self._cluster == number
        right = {name: one & inside for name, one in self._right.items()}
        alone = {name: right[name] & ~self._right[other] for name, other in self._pairs()}
        more = self._more(alone)
        return Counts(
            int(inside.sum()),
            {name: int(one.sum()) for name, one in right.items()},
            {name: int((one & inside).sum()) for name, one in self._within.items()},
            {name: int(one.sum()) for name, one in alone.items()},
            {name: int((more[name] > more[other]).sum()) for name, other in self._pairs()},
        )

    def _more(self, alone: dict[str, Tensor]) -> dict[str, Tensor]:
        """By model and sentence, how many of the occurrences ``alone`` [N] there are."""
        return {
            name: self._models[name].sentence[one].bincount(minlength=self._sentences)
            for name, one in alone.items()
        }

    def _pairs(self) -> list[tuple[str, str]]:
        """Each of two models, and the other one."""
        names = list(self._models)
        return list(zip(names, reversed(names), strict=True)) if len(names) == 2 else []

    def examples(self, number: int, most: int) -> list[Example]:
        """See the head of this file."""
        inside = self._cluster == number
        if not self._pairs():
            ((name, model),) = self._models.items()
            margin = model.guessed[:, 0] - model.probability
            return self._best(inside & self._within[name], margin, most, None)
        found = []
        for name, other in self._pairs():
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
        sentence, place = int(one.sentence[at]), int(one.place[at])
        tokens, word = one.tokens[sentence], self._symbols[int(one.word[at])]
        before = tokens[max(0, place - _CONTEXT) : place]
        after = tokens[place + 1 : place + 1 + _CONTEXT]
        guesses = {
            name: Guess(
                self._symbols[int(model.guesses[at, 0])],
                float(model.guessed[at, 0]),
                float(model.probability[at]),
            )
            for name, model in self._models.items()
        }
        return Example(right, sentence + 1, word, " ".join([*before, f"[{word}]", *after]), guesses)
