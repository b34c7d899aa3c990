"""Words that an output layer can hardly tell apart (Gao et al. 2019, Section 4.5 and Table 4).

Two senses are as similar as the cosine of their vectors, from which the mean over the senses was
taken: a softmax does not see what all its logits have in common. Two words are as similar as the
most similar two of their senses. Senses that predict less than `LEAST_USAGE` of their word are left
out. Words are joined to clusters by the mean similarity of their pairs, down to what half of all
words have to their nearest one. Clusters come in the order of what a word of theirs has to all
others of its cluster together, on average.

Each cluster's occurrences in the text are counted: ``times`` in all, and by model ``right`` (where
the word is the most probable one), ``within`` (where another word of its cluster is), of two models
``alone`` (where it is right and the other is not). Examples show where one model is right and the
other takes the word for another of the cluster, or else for any other, those first where their
probabilities of it lie farthest apart; of one model where it takes a word for another of the
cluster.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
import torch
from pandas import DataFrame, concat
from scipy import sparse
from scipy.stats import binomtest
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_kerbs.analysis.teacher_forcing import Text
from fairseq_kerbs.analysis.words import in_context, records
from fairseq_kerbs.output_layers import OutputLayer

LEAST_USAGE = 0.05
NEAREST = 16  # senses kept beside each, times the most senses of a word
MOST_WORDS = 8  # of a cluster: Gao et al. show five
_CONTEXT = 8  # words shown on either side
_WORDS = 44  # letters of a cluster's words
_SHOWN = {"likeness": "similarity", "times": "times", "right": "right"}
_SHOWN |= {"within": "one for another", "alone": "alone right"}


# --- similarity -----------------------------------------------------------------------------------


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


# --- clusters and their occurrences ---------------------------------------------------------------


class Neighbours(NamedTuple):
    """Clusters of similar words, and what models make of them; NAME stands for that of a model."""

    found: dict[str, str]  # by model whose vectors show them, how many clusters and words
    clusters: DataFrame
    """A row a cluster: its number, ``of`` (the model whose vectors show it), ``words`` (the most
    frequent first), ``likeness NAME`` (mean similarity of pairs, 0 for those that are not among the
    nearest); with data ``times``, and ``right``, ``within`` and ``alone NAME``."""
    totals: DataFrame  # with data the same counts of all clusters ``of`` a model, and of all words
    examples: DataFrame
    """A row an occurrence: its ``cluster``, the model that is ``right`` (none: the only one, which
    is wrong), ``sentence`` (of a language model: block) from 1, ``word``, ``text`` around it,
    ``guess NAME``, its ``probability NAME``, and that of the word, ``truth NAME``."""
    ahead: dict[str, int]  # of two models, sentences with more words right

    def table(self) -> DataFrame:
        """One row an example, or a cluster that has none; a cluster's figures are on each row."""
        return self.clusters.merge(self.examples, "left", "cluster")

    def as_json(self) -> dict[str, Any]:
        """All of it, tables as lists of rows."""
        parts = self._asdict().items()
        return {k: records(part) if isinstance(part, DataFrame) else part for k, part in parts}


def find_neighbours(
    layers: Mapping[str, OutputLayer], texts: Mapping[str, Text], words: Tensor,
    symbols: Sequence[str], frequency: Sequence[int], *, top: int = 8, examples: int = 1,
) -> Neighbours:  # fmt: skip
    """Find clusters, and count and show their occurrences.

    Args:
        layers: output layers by model, to compare words by their vectors.
        texts: by model, all of the same words, with guesses; empty where there are no data.
        words, symbols, frequency: [V] of the dictionary's entries which are compared, their names,
            and their occurrences in the training data.
        top, examples: most clusters of each model (0 for all), and most examples of one for each
            model that is right.
    """
    graphs = {name: similarity_graph(layer, words) for name, layer in layers.items()}
    found, totals, shown, seen = {}, [], [], DataFrame()
    rows: list[dict[str, Any]] = []
    for origin, graph in graphs.items():
        clusters = cluster_words(graph, usual_similarity(graph))
        # what a word has to the others of its cluster, on average
        clusters.sort(key=lambda words: (-float(graph[words][:, words].sum()) / len(words), words))
        chosen = clusters[: top or None]
        found[origin] = f"{len(clusters)} with {sum(map(len, clusters))} words, {len(chosen)} shown"
        if texts:
            seen = _occurrences(texts, clusters, len(symbols))
            everything = {"(all clusters)": seen[seen["cluster"] >= 0], "(all words)": seen}
            totals += [{"of": origin, "words": w} | _count(all_) for w, all_ in everything.items()]
        for number, members in enumerate(chosen):
            members.sort(key=lambda word: (-frequency[word], word))
            row = {"cluster": len(rows) + 1, "of": origin}
            row["words"] = " ".join(symbols[word] for word in members)
            pairs = len(members) * (len(members) - 1)
            for name, alike in graphs.items():
                row[f"likeness {name}"] = alike[members][:, members].sum() / pairs
            if texts:
                inside = seen[seen["cluster"] == number]
                row |= _count(inside)
                best = _examples(inside, list(texts), examples)
                shown += [table.assign(cluster=row["cluster"]) for table in best]
            rows.append(row)
    ahead = {}
    if len(texts) == 2:
        alone = seen.groupby("line")[[f"alone {name}" for name in texts]].sum().to_numpy()
        ahead = dict(zip(texts, [int((alone @ sign > 0).sum()) for sign in ([1, -1], [-1, 1])]))
    said = _as_examples(shown, texts, symbols) if shown else DataFrame(columns=["cluster"])
    return Neighbours(found, DataFrame(rows), DataFrame(totals), said, ahead)


def _occurrences(texts: Mapping[str, Text], clusters: list[list[int]], words: int) -> DataFrame:
    """Those in a split, with the number of the ``cluster``, −1 for none."""
    cluster_of = np.full(words, -1)
    for number, members in enumerate(clusters):
        cluster_of[members] = number
    tokens = {name: text.tokens for name, text in texts.items()}
    seen = next(iter(tokens.values()))[["line", "place", "entry"]].copy()
    seen["cluster"] = cluster_of[seen["entry"]]
    for name, table in tokens.items():
        seen[f"guess {name}"] = table["guess"]
        seen[f"probability {name}"], seen[f"truth {name}"] = table["guessed"], table["probability"]
        seen[f"right {name}"] = table["guess"] == seen["entry"]
    for name, table in tokens.items():
        same = (cluster_of[table["guess"]] == seen["cluster"]) & (seen["cluster"] >= 0)
        seen[f"within {name}"] = same & ~seen[f"right {name}"]
    for name, other in zip(texts, [*texts][::-1]) if len(texts) == 2 else ():
        seen[f"alone {name}"] = seen[f"right {name}"] & ~seen[f"right {other}"]
    return seen


def _count(seen: DataFrame) -> dict[str, int]:
    return {"times": len(seen), **seen.select_dtypes(bool).sum().to_dict()}


def _examples(seen: DataFrame, names: list[str], most: int) -> Iterator[DataFrame]:
    """By model the best examples among the occurrences of a cluster."""
    for name, other in zip(names, names[::-1]):
        if name != other:
            chosen = seen[seen[f"alone {name}"]]
            margin = chosen[f"truth {name}"] - chosen[f"truth {other}"]
            margin = margin + 2.0 * chosen[f"within {other}"]  # a margin is at most 1
        else:
            chosen = seen[seen[f"within {name}"]]
            margin = chosen[f"probability {name}"] - chosen[f"truth {name}"]
        best = margin.sort_values(ascending=False, kind="stable").index[:most]
        yield chosen.loc[best].assign(right=name if name != other else None)


def _as_examples(
    shown: list[DataFrame], texts: Mapping[str, Text], symbols: Sequence[str]
) -> DataFrame:
    """Occurrences as `Neighbours.examples` has them."""
    table, words = concat(shown, ignore_index=True), next(iter(texts.values())).words
    table["sentence"] = table["line"] + 1
    table["word"] = [symbols[entry] for entry in table["entry"]]
    places = zip(table["line"], table["place"])
    table["text"] = [in_context(words[line], place, _CONTEXT) for line, place in places]
    columns = ["cluster", "right", "sentence", "word", "text"]
    for name in texts:
        table[f"guess {name}"] = [symbols[entry] for entry in table[f"guess {name}"]]
        columns += [f"{column} {name}" for column in ("guess", "probability", "truth")]
    return table[columns]


def neighbours_as_text(result: Neighbours) -> str:
    """For a terminal: a table of clusters, and examples; a slash between models' figures."""
    names = list(result.found)
    parts = [" / ".join(names)] if len(names) > 1 else []
    for origin, number in result.found.items():
        parts.append(f"clusters by output vectors of {origin}: {number}")
        clusters = result.clusters[result.clusters["of"] == origin]
        rows = [clusters]
        if len(result.totals):
            rows.append(result.totals[result.totals["of"] == origin])
        rows = concat(rows)
        shown = DataFrame({"words": [shorten(w, _WORDS, placeholder=" …") for w in rows["words"]]})
        for column, title in _SHOWN.items():
            values = rows.filter(regex=f"^{column}( |$)").to_numpy()
            if values.size:
                form = "{:.2f}" if column == "likeness" else "{:.0f}"
                joined = (" / ".join(form.format(v) for v in each if v == v) for each in values)
                shown[title] = list(joined)
        parts.append(shown.to_markdown(index=False, tablefmt="plain", disable_numparse=True))
        for cluster, words in zip(clusters["cluster"], clusters["words"]):
            examples = records(result.examples[result.examples["cluster"] == cluster])
            lines = [line for example in examples for line in _example_lines(example, names)]
            parts += ["\n".join([words, *lines])] if lines else []
    if result.ahead:
        first, second = result.ahead.values()
        # of sentences: words of one are not independent
        p = binomtest(first, first + second).pvalue if first + second else 1.0
        parts.append(f"sentences with more words right: {first} / {second}, sign test p = {p:.2g}")
    return "\n\n".join(parts)


def _example_lines(example: dict[str, Any], names: list[str]) -> Iterator[str]:
    yield "  {sentence:>6}  {text}".format(**example)
    for name in names:
        guess, word = example[f"guess {name}"], example["word"]
        line = f"          {name:<{max(map(len, names))}}  {guess} "
        line += f"{example[f'probability {name}']:.2f}"
        yield line if guess == word else f"{line}, {word} {example[f'truth {name}']:.2f}"
