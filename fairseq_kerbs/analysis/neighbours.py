"""Words that an output layer can hardly tell apart (Gao et al. 2019, Section 4.5).

Words are joined to clusters by the similarity of their output vectors. Gao et al. write that "the
pairwise word distances are calculated using inner product", and not how clusters follow from these.
There are two similarities of senses:

- ``inner-product``, as in the paper.
- ``cosine``, ours: the cosine after the mean over the senses is subtracted. A softmax does not see
  what all its logits have in common.

The rest is ours. The similarity of two words is that of their most similar senses. Senses with less
than `LEAST_USAGE` of their word's usage are left out. Words are joined to clusters by the mean
similarity of their pairs, down to what half of all words have to their nearest one. Clusters are
sorted by the mean over their words of the summed similarity to the others.

For each cluster the occurrences of its words in a text are counted: ``times`` in all, ``right``
where the word is the most probable one, ``within`` where another word of the cluster is. Examples
show the latter, sorted by the difference of the two probabilities.

With the predictions of a second model, as in Table 4 of Gao et al., the clusters are still those of
the first. There are four more counts: ``other_right`` and ``other_within`` of the second model,
``resolved`` where the first predicts another word of the cluster and the second the right one, and
``introduced`` where it is the other way round. Examples show the resolved ones.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Sequence
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
import torch
from pandas import DataFrame, concat
from scipy import sparse
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_kerbs.analysis.occurrences import Text
from fairseq_kerbs.analysis.words import first_items, in_context, records
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.errors import UserError

LEAST_USAGE = 0.05
# for each sense as many nearest senses are kept as this number times the most senses of a word
NEAREST = 16
MOST_WORDS = 8  # of a cluster: Gao et al. show five
_CONTEXT = 8  # words shown on either side
_WORDS = 44  # letters of a cluster's words
_ROWS = 1024  # senses whose similarities to all others are computed at a time
_COUNTS = ["times", "right", "within"]
_OTHER_COUNTS = ["other_right", "other_within", "resolved", "introduced"]
SIMILARITIES = ("cosine", "inner-product")


def similarity_graph(
    layer: OutputLayer, words: Tensor, similarity: str = "cosine"
) -> sparse.csr_matrix:
    """Similarity of words to their nearest ones, a symmetric matrix [V, V].

    ``words`` [V] is true for those that are to be compared. ``similarity`` is one of
    `SIMILARITIES`, otherwise a ValueError is raised. What is not above 0 is left out.
    """
    if similarity not in SIMILARITIES:
        raise ValueError(
            f"`similarity` is '{similarity}'; it must be one of {', '.join(SIMILARITIES)}."
        )
    owners = layer.word_of_sense.cpu()
    usage = layer.usage.float().cpu()
    totals = torch.zeros(layer.vocab_size).index_add_(0, owners, usage)
    used = (usage >= LEAST_USAGE * totals[owners]) & words[owners]
    vectors = layer.weight.detach().float()[used, : layer.embed_dim - layer.biased]  # [n, d]
    if similarity == "cosine":
        vectors = normalize(vectors - vectors.mean(0))
    if not len(vectors):
        return sparse.csr_matrix((layer.vocab_size, layer.vocab_size), dtype=np.float64)
    most = min(NEAREST * layer.max_senses, len(vectors) - 1)
    near = [_nearest(vectors, first, most) for first in range(0, len(vectors), _ROWS)]
    alike = torch.cat([values for values, _ in near])  # [n, most]
    columns = torch.cat([numbers for _, numbers in near])  # [n, most]
    word = owners[used]
    pairs = DataFrame(
        {
            "word": word.repeat_interleave(most).numpy(),
            "other": word[columns].flatten().numpy(),
            "alike": alike.flatten().numpy(),
        }
    )
    pairs = pairs[(pairs["alike"] > 0) & (pairs["word"] != pairs["other"])]
    pairs = pairs.groupby(["word", "other"], as_index=False).max()
    size = layer.vocab_size, layer.vocab_size
    where = pairs["word"], pairs["other"]
    graph = sparse.csr_matrix((pairs["alike"], where), size, np.float64)
    return graph.maximum(graph.T)


def _nearest(vectors: Tensor, first: int, most: int) -> tuple[Tensor, Tensor]:
    """The largest inner products of some vectors with the others, and the numbers of these.

    ``vectors`` is [n, d], of which the `_ROWS` from ``first`` on are compared. Both results are
    [rows, most].
    """
    scores = vectors[first : first + _ROWS] @ vectors.t()  # [rows, n]
    row = torch.arange(len(scores))
    scores[row, first + row] = -torch.inf  # a sense is not its own neighbour
    largest = scores.topk(most)
    return largest.values, largest.indices


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
    rows, columns, values = sparse.find(graph)
    for left, right, value in zip(rows.tolist(), columns.tolist(), values.tolist()):
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
        first = sums.pop(left)
        second = sums.pop(right)
        for near in (first | second).keys() - {left, right}:
            value = sums[near].pop(left, 0.0) + sums[near].pop(right, 0.0)
            sums[number][near] = sums[near][number] = value
            mean = value / (len(members[number]) * len(members[near]))
            if mean >= least:
                heapq.heappush(queue, (-mean, near, number))
        number += 1
    return [words for words in members.values() if len(words) > 1]


class Cluster(NamedTuple):
    """Words that are similar to each other."""

    words: list[int]  # entries of the dictionary, the most frequent first
    similarity: float  # mean over its pairs, 0 for those that are not among the nearest


def find_clusters(
    layer: OutputLayer, words: Tensor, frequency: Sequence[int], similarity: str = "cosine"
) -> list[Cluster]:
    """Clusters of words, those whose words are most similar to the others first.

    Args:
        layer: output layer whose vectors are compared.
        words: [V], whether an entry of the dictionary is compared.
        frequency: [V], occurrences of the entries in the training data.
        similarity: one of `SIMILARITIES`.

    Raises:
        UserError: no two words are similar.
    """
    graph = similarity_graph(layer, words, similarity)
    found = cluster_words(graph, usual_similarity(graph))
    if not found:
        raise UserError("no two words have similar output vectors")
    sums = {min(members): float(graph[members][:, members].sum()) for members in found}
    # what a word has to the others of its cluster, on average
    found.sort(key=lambda members: (-sums[min(members)] / len(members), members))
    clusters = []
    for members in found:
        ordered = sorted(members, key=lambda word: (-frequency[word], word))
        pairs = len(members) * (len(members) - 1)
        clusters.append(Cluster(ordered, sums[min(members)] / pairs))
    return clusters


class Neighbours(NamedTuple):
    """Clusters of similar words, and what one model or two predict where they occur."""

    found: str  # how many clusters and words
    clusters: DataFrame
    """A row a cluster: its number, ``words`` (the most frequent first), ``similarity`` (mean of its
    pairs, 0 for those that are not among the nearest); with a text ``times``, ``right`` and
    ``within``; with a second model ``other_right``, ``other_within``, ``resolved`` and
    ``introduced``."""
    totals: DataFrame  # with a text the same counts of all clusters, and of all words
    examples: DataFrame
    """A row an occurrence: its ``cluster``, ``sentence`` (of a language model: block) from 1,
    ``word``, ``text`` around it, ``guess`` with its ``probability``, and that of the word,
    ``truth``; with a second model also that of the word by it, ``other_truth``."""

    def table(self) -> DataFrame:
        """One row an example, or a cluster that has none; a cluster's figures are on each row."""
        return self.clusters.merge(self.examples, "left", "cluster")

    def as_json(self) -> dict[str, Any]:
        """All of it, tables as lists of rows."""
        parts = self._asdict().items()
        return {k: records(part) if isinstance(part, DataFrame) else part for k, part in parts}


def find_neighbours(
    clusters: Sequence[Cluster],
    symbols: Sequence[str],
    text: Text | None = None,
    other: Text | None = None,
    *,
    wanted: Collection[int] = (),
    top: int = 8,
    examples: int = 1,
) -> Neighbours:
    """Count and show the occurrences of the words of clusters.

    Args:
        clusters: what :func:`find_clusters` returns.
        symbols: [V], names of the dictionary's entries.
        text: text with predictions, if any.
        other: the same text with the predictions of a second model, if any.
        wanted: entries of the dictionary whose clusters are shown. By default the first are shown.
        top: maximum number of clusters without ``wanted``, 0 for all.
        examples: maximum number of examples of a cluster.

    Returns:
        the clusters that are shown, where each has its examples in the order of the difference
        between the probabilities of the guess and of the word, the largest first.

    Raises:
        UserError: a wanted word is in no cluster, or the texts differ.
    """
    alone = set(wanted).difference(*(cluster.words for cluster in clusters))
    if alone:
        names = ", ".join(sorted(symbols[word] for word in alone))
        raise UserError(
            f"--word: {names}: in no cluster, as no other word is similar enough; name another word"
        )
    numbers = [
        n for n, cluster in enumerate(clusters) if not wanted or {*wanted} & {*cluster.words}
    ]
    if not wanted:
        numbers = first_items(numbers, top)
    words = sum(len(cluster.words) for cluster in clusters)
    found = f"{len(clusters)} with {words} words, {len(numbers)} shown"
    table = DataFrame(
        [
            {
                "cluster": number + 1,
                "words": " ".join(symbols[word] for word in clusters[number].words),
                "similarity": clusters[number].similarity,
            }
            for number in numbers
        ]
    )
    if text is None:
        return Neighbours(found, table, DataFrame(), DataFrame(columns=["cluster"]))
    seen = _occurrences(text, clusters, len(symbols))
    counted = _COUNTS
    if other is not None:
        seen = _beside(seen, _occurrences(other, clusters, len(symbols)))
        counted = [*_COUNTS, *_OTHER_COUNTS]
    counts = seen.groupby("cluster")[counted].sum().reindex(table["cluster"], fill_value=0)
    groups = {"(all clusters)": seen[seen["cluster"] > 0], "(all words)": seen}
    totals = [{"words": name, **group[counted].sum()} for name, group in groups.items()]
    inside = seen[seen["within" if other is None else "resolved"]]
    inside = inside[inside["cluster"].isin(table["cluster"])]
    inside = inside.sort_values("margin", ascending=False, kind="stable")
    shown = inside.groupby("cluster").head(examples).sort_values("cluster", kind="stable")
    table = table.join(counts, on="cluster")
    return Neighbours(found, table, DataFrame(totals), _as_examples(shown, text, symbols))


def _occurrences(text: Text, clusters: Sequence[Cluster], words: int) -> DataFrame:
    """Tokens of a text with two further columns.

    ``cluster`` is the number of the word's cluster, 0 for none. ``margin`` is by how much the guess
    is more probable than the word.
    """
    cluster_of = np.zeros(words, np.int64)
    for number, cluster in enumerate(clusters, start=1):
        cluster_of[cluster.words] = number
    seen = text.tokens[["line", "place", "entry", "guess"]].copy()
    seen["cluster"] = cluster_of[seen["entry"]]
    seen["probability"] = text.tokens["guessed"]
    seen["truth"] = text.tokens["probability"]
    seen["times"] = 1
    seen["right"] = seen["guess"] == seen["entry"]
    same = (cluster_of[seen["guess"]] == seen["cluster"]) & (seen["cluster"] > 0)
    seen["within"] = same & ~seen["right"]
    seen["margin"] = seen["probability"] - seen["truth"]
    return seen


def _beside(first: DataFrame, second: DataFrame) -> DataFrame:
    """Occurrences by a first model, with the columns about a second one."""
    places = ["line", "place", "entry"]
    if not np.array_equal(first[places].to_numpy(), second[places].to_numpy()):
        raise UserError(
            "--compare: the two models do not read the same words of this split; compare models "
            "that were trained on the same data"
        )
    right = second["right"].to_numpy()
    within = second["within"].to_numpy()
    return first.assign(
        other_right=right,
        other_within=within,
        other_truth=second["truth"].to_numpy(),
        resolved=first["within"] & right,
        introduced=first["right"] & within,
    )


def _as_examples(table: DataFrame, text: Text, symbols: Sequence[str]) -> DataFrame:
    """Occurrences as `Neighbours.examples` has them."""
    places = zip(table["line"], table["place"])
    shown = table.assign(
        sentence=table["line"] + 1,
        word=[symbols[entry] for entry in table["entry"]],
        text=[in_context(text.words[line], place, _CONTEXT) for line, place in places],
        guess=[symbols[entry] for entry in table["guess"]],
    )
    columns = ["cluster", "sentence", "word", "text", "guess", "probability", "truth"]
    columns += [name for name in ("other_truth",) if name in table]
    return shown[columns]


def neighbours_as_text(result: Neighbours) -> str:
    """For a terminal: a table of clusters, and examples."""
    parts = [f"clusters by output vectors: {result.found}"]
    table = concat([result.clusters, result.totals])
    table["words"] = [shorten(words, _WORDS, placeholder=" …") for words in table["words"]]
    table["similarity"] = table["similarity"].map("{:.2f}".format, na_action="ignore")
    heads = {name: name.replace("_", " ") for name in _OTHER_COUNTS}
    heads |= {"within": "one for another", "other_within": "other one for another"}
    table = table.drop(columns="cluster").rename(columns=heads)
    parts.append(table.fillna("").to_markdown(index=False, tablefmt="plain", disable_numparse=True))
    form = "  {sentence:>6}  {text}\n          {guess} {probability:.2f}, {word} {truth:.2f}"
    if "other_truth" in result.examples:
        form += ", by the other model {other_truth:.2f}"
    for cluster, words in zip(result.clusters["cluster"], result.clusters["words"]):
        examples = records(result.examples[result.examples["cluster"] == cluster])
        if examples:
            parts.append("\n".join([words, *(form.format(**example) for example in examples)]))
    return "\n\n".join(parts)
