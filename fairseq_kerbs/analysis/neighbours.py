"""Words that an output layer can hardly tell apart (Gao et al. 2019, Section 4.5).

The similarity of two senses is the cosine of their vectors after the mean over the senses is
subtracted: a softmax does not see what all its logits have in common. The similarity of two words
is that of their most similar senses. Senses with less than `LEAST_USAGE` of their word's usage are
left out. Words are joined to clusters by the mean similarity of their pairs, down to what half of
all words have to their nearest one. Clusters are sorted by the mean over their words of the summed
similarity to the others.

For each cluster the occurrences of its words in a text are counted: ``times`` in all, ``right``
where the word is the most probable one, ``within`` where another word of the cluster is. Examples
show the latter, sorted by the difference of the two probabilities.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
import torch
from pandas import DataFrame, concat
from scipy import sparse
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_kerbs.analysis.teacher_forcing import Text
from fairseq_kerbs.analysis.words import in_context, records
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.errors import UserError

LEAST_USAGE = 0.05
NEAREST = 16  # senses kept beside each, times the most senses of a word
MOST_WORDS = 8  # of a cluster: Gao et al. show five
_CONTEXT = 8  # words shown on either side
_WORDS = 44  # letters of a cluster's words
_COUNTS = ["times", "right", "within"]


def similarity_graph(layer: OutputLayer, words: Tensor) -> sparse.csr_matrix:
    """Similarity of each of the ``words`` [V] that are to be compared to its nearest ones, [V, V],
    symmetric; minutes for tens of thousands of senses."""
    owners, usage = layer.word_of_sense.cpu(), layer.usage.float().cpu()
    totals = torch.zeros(layer.vocab_size).index_add_(0, owners, usage)
    used = (usage >= LEAST_USAGE * totals[owners]) & words[owners]
    vectors = layer.weight.detach().float()[used, : layer.embed_dim - layer.biased]
    points = normalize(vectors - vectors.mean(0)).numpy()  # [n, d]
    most = min(NEAREST * layer.max_senses, len(points) - 1)
    search = NearestNeighbors(n_neighbors=most, metric="cosine", algorithm="brute").fit(points)
    near, word = search.kneighbors_graph(mode="distance").tocoo(), owners[used].numpy()
    pairs = DataFrame({"word": word[near.row], "other": word[near.col], "alike": 1 - near.data})
    pairs = pairs[(pairs["alike"] > 0) & (pairs["word"] != pairs["other"])]
    pairs = pairs.groupby(["word", "other"], as_index=False).max()
    size = layer.vocab_size, layer.vocab_size
    where = pairs["word"], pairs["other"]
    graph = sparse.csr_matrix((pairs["alike"], where), size, np.float64)
    return graph.maximum(graph.T)


def usual_similarity(graph: sparse.csr_matrix) -> float:
    """The similarity to the nearest word that half of the words with any neighbour reach."""
    nearest = graph.max(axis=1).toarray()  # [V, 1]
    return float(np.median(nearest[nearest > 0])) if nearest.any() else 0.0


def cluster_words(
    graph: sparse.csr_matrix, least: float, most: int = MOST_WORDS
) -> list[list[int]]:
    """Join words, the most similar first, by the mean similarity of all pairs (average linkage).

    ``graph`` [V, V] is symmetric; what is not there is 0. Groups are joined down to a mean of
    ``least``, to clusters of at most ``most`` words; words that stay alone are left out.
    """
    sums: dict[int, dict[int, float]] = defaultdict(dict)  # of groups, over pairs of their words
    queue = []
    for left, right, value in zip(*map(np.ndarray.tolist, sparse.find(graph))):
        sums[left][right] = value
        if left < right and value >= least:
            queue.append((-value, left, right))
    heapq.heapify(queue)
    members = {word: [word] for word in sorted(sums)}
    number = graph.shape[0]  # a group that is made gets a number of its own
    while queue:
        _, left, right = heapq.heappop(queue)
        if left not in members or right not in members:
            continue
        if len(members[left]) + len(members[right]) > most:
            continue
        members[number] = members.pop(left) + members.pop(right)
        first, second = sums.pop(left), sums.pop(right)
        for near in (first | second).keys() - {left, right}:
            value = sums[near].pop(left, 0.0) + sums[near].pop(right, 0.0)
            sums[number][near] = sums[near][number] = value
            mean = value / (len(members[number]) * len(members[near]))
            if mean >= least:
                heapq.heappush(queue, (-mean, near, number))
        number += 1
    return [words for words in members.values() if len(words) > 1]


class Neighbours(NamedTuple):
    """Clusters of similar words, and what a model predicts where they occur."""

    found: str  # how many clusters and words
    clusters: DataFrame
    """A row a cluster: its number, ``words`` (the most frequent first), ``similarity`` (mean of its
    pairs, 0 for those that are not among the nearest); with a text ``times``, ``right`` and
    ``within``."""
    totals: DataFrame  # with a text the same counts of all clusters, and of all words
    examples: DataFrame
    """A row an occurrence: its ``cluster``, ``sentence`` (of a language model: block) from 1,
    ``word``, ``text`` around it, ``guess`` with its ``probability``, and that of the word,
    ``truth``."""

    def table(self) -> DataFrame:
        """One row an example, or a cluster that has none; a cluster's figures are on each row."""
        return self.clusters.merge(self.examples, "left", "cluster")

    def as_json(self) -> dict[str, Any]:
        """All of it, tables as lists of rows."""
        parts = self._asdict().items()
        return {k: records(part) if isinstance(part, DataFrame) else part for k, part in parts}


def find_neighbours(
    layer: OutputLayer, text: Text | None, words: Tensor, symbols: Sequence[str],
    frequency: Sequence[int], *, top: int = 8, examples: int = 1,
) -> Neighbours:  # fmt: skip
    """Find clusters, and count and show their occurrences.

    Args:
        layer: output layer whose vectors are compared.
        text: text with predictions, if any.
        words, symbols, frequency: [V] of the dictionary's entries which are compared, their names,
            and their occurrences in the training data.
        top, examples: maximum number of clusters (0 for all), and of examples of one.
    """
    graph = similarity_graph(layer, words)
    clusters = cluster_words(graph, usual_similarity(graph))
    # what a word has to the others of its cluster, on average
    clusters.sort(key=lambda words: (-float(graph[words][:, words].sum()) / len(words), words))
    chosen = clusters[: top or None]
    if not chosen:
        raise UserError("no two words have similar output vectors")
    found = f"{len(clusters)} with {sum(map(len, clusters))} words, {len(chosen)} shown"
    rows = []
    for number, members in enumerate(chosen, start=1):
        members.sort(key=lambda word: (-frequency[word], word))
        alike = graph[members][:, members].sum() / (len(members) * (len(members) - 1))
        listed = " ".join(symbols[word] for word in members)
        rows.append({"cluster": number, "words": listed, "similarity": alike})
    table = DataFrame(rows)
    if text is None:
        return Neighbours(found, table, DataFrame(), DataFrame(columns=["cluster"]))
    seen = _occurrences(text, clusters, len(symbols))
    counts = seen.groupby("cluster")[_COUNTS].sum().reindex(table["cluster"], fill_value=0)
    groups = {"(all clusters)": seen[seen["cluster"] > 0], "(all words)": seen}
    totals = [{"words": name, **group[_COUNTS].sum()} for name, group in groups.items()]
    inside = seen[seen["within"] & (seen["cluster"] <= len(chosen))]
    shown = inside.groupby("cluster").head(examples).sort_values("cluster", kind="stable")
    table = table.join(counts, on="cluster")
    return Neighbours(found, table, DataFrame(totals), _as_examples(shown, text, symbols))


def _occurrences(text: Text, clusters: list[list[int]], words: int) -> DataFrame:
    """Tokens of a text, each with the number of its ``cluster``, 0 for none, sorted by how much
    more probable the guess is than the word."""
    cluster_of = np.zeros(words, np.int64)
    for number, members in enumerate(clusters, start=1):
        cluster_of[members] = number
    seen = text.tokens[["line", "place", "entry", "guess"]].copy()
    seen["cluster"] = cluster_of[seen["entry"]]
    seen["probability"], seen["truth"] = text.tokens["guessed"], text.tokens["probability"]
    seen["times"], seen["right"] = 1, seen["guess"] == seen["entry"]
    same = (cluster_of[seen["guess"]] == seen["cluster"]) & (seen["cluster"] > 0)
    seen["within"] = same & ~seen["right"]
    margin = seen["probability"] - seen["truth"]
    return seen.loc[margin.sort_values(ascending=False, kind="stable").index]


def _as_examples(table: DataFrame, text: Text, symbols: Sequence[str]) -> DataFrame:
    """Occurrences as `Neighbours.examples` has them."""
    places = zip(table["line"], table["place"])
    return table.assign(
        sentence=table["line"] + 1,
        word=[symbols[entry] for entry in table["entry"]],
        text=[in_context(text.words[line], place, _CONTEXT) for line, place in places],
        guess=[symbols[entry] for entry in table["guess"]],
    )[["cluster", "sentence", "word", "text", "guess", "probability", "truth"]]


def neighbours_as_text(result: Neighbours) -> str:
    """For a terminal: a table of clusters, and examples."""
    parts = [f"clusters by output vectors: {result.found}"]
    table = concat([result.clusters, result.totals])
    table["words"] = [shorten(words, _WORDS, placeholder=" …") for words in table["words"]]
    table["similarity"] = table["similarity"].map("{:.2f}".format, na_action="ignore")
    table = table.drop(columns="cluster").rename(columns={"within": "one for another"})
    parts.append(table.fillna("").to_markdown(index=False, tablefmt="plain", disable_numparse=True))
    form = "  {sentence:>6}  {text}\n          {guess} {probability:.2f}, {word} {truth:.2f}"
    for cluster, words in zip(result.clusters["cluster"], result.clusters["words"]):
        examples = records(result.examples[result.examples["cluster"] == cluster])
        if examples:
            parts.append("\n".join([words, *(form.format(**example) for example in examples)]))
    return "\n\n".join(parts)
