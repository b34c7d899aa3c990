"""How similar words and senses are to an output layer, and small clusters of similar words.

By vectors (Gao et al. 2019, Section 4.5, extended to senses and kernels). K(m, n) is the kernel
logit of sense n where the context is the vector of sense m. A softmax does not see what all its
logits have in common, so that is taken away: with G = (K + Kᵀ)/2 and its means over the senses
that are compared,

    S(m, n) = G(m, n) − mean G(m, ·) − mean G(·, n) + mean G,
    similarity of two senses = S(m, n) / √(S(m, m) S(n, n)),
    similarity of two words  = the greatest of any two of their senses.

For the inner product that is the cosine of vectors from which their mean was taken. Bare inner
products would make long vectors, and those that point to where all do, similar to every other one.
Kernels of a distance fit the same form. Senses that predict less than `LEAST_USAGE` of their word
are left out; one that has just moved counts as used until it is seen not to be (Eq. 13). The
components of a mixture map contexts, each in its own way; what is compared here are its word
vectors, by inner product.

By confusions. d(i, j) is the probability that word j gets at the occurrences of word i, summed over
them and divided by their number plus `DOUBT`, so that one or two of them prove little; of several
models it is the mean. The similarity is √(d(i, j) d(j, i)): a frequent word that is guessed
everywhere is not similar to rare ones, which are never guessed in its place.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from fairseq_kerbs.analysis.predictions import Predictions
from fairseq_kerbs.output_layers import OutputLayer

LEAST_USAGE = 0.05
DOUBT = 2.0
NEAREST = 16  # words kept beside each
MOST_WORDS = 8  # of a cluster: Gao et al. show five
_MEANS = 4096  # senses over which means are taken, at most
_SCORES = 4 << 20  # logits that are kept at a time


@torch.no_grad()
def nearest_senses(
    layer: OutputLayer, senses: Sequence[int], number: int, ignored: Sequence[int] = ()
) -> Iterator[list[tuple[int, float]]]:
    """For each sense the others with the highest kernel logits, were its vector the context.

    Args:
        layer: output layer.
        senses: numbers of senses, any number of them.
        number: how many others; fewer where there are not as many.
        ignored: words whose senses are never named, such as fairseq's special symbols.

    Yields:
        for each of ``senses`` its neighbours and their logits K(w, w'; θ'), the highest first.
    """
    hidden = torch.zeros(layer.vocab_size, dtype=torch.bool)
    hidden[torch.tensor(list(ignored), dtype=torch.long)] = True
    left_out = hidden[layer.word_of_sense.cpu()]  # [M]
    number = max(0, min(number, int((~left_out).sum()) - 1))
    if not number:
        yield from ([] for _ in senses)
        return
    rows, everything = max(1, _SCORES // layer.total_senses), torch.arange(layer.total_senses)
    for part in torch.tensor(list(senses), dtype=torch.long).split(rows):
        contexts = layer.as_contexts(layer.weight[part].float())  # [n, d]
        logits = layer.sense_logits(contexts, everything)  # [n, M]
        logits[:, left_out] = -torch.inf
        logits.scatter_(1, part.unsqueeze(1), -torch.inf)  # itself
        scores, found = logits.topk(number, dim=1)
        for row in zip(found.tolist(), scores.tolist(), strict=True):
            yield [(sense, score) for sense, score in zip(*row, strict=True) if score > -torch.inf]


class Similarity:
    """Similarity of words, symmetric, 0 where there is none."""

    def graph(self) -> Any:
        """Each word's nearest ones, [V, V], sparse and symmetric, nothing on the diagonal."""
        raise NotImplementedError

    def among(self, words: Sequence[int]) -> NDArray[np.float64]:
        """Similarity of all pairs of n words, [n, n], 0 on the diagonal."""
        result: NDArray[np.float64] = self.graph()[list(words)][:, list(words)].toarray()
        return result


class ConfusionSimilarity(Similarity):
    """Similarity by what models confuse, see the head of this file.

    Args:
        found: predictions of one model or several, of the same words.
        words: [V] which words of the dictionary to compare.
    """

    def __init__(self, found: Sequence[Predictions], words: Tensor) -> None:
        shape, numbers = (len(words), len(words)), found[0].word
        total = sparse.csr_matrix(shape)
        for one in found:
            rows = numbers.unsqueeze(1).expand_as(one.guesses)  # [N, k]
            kept = (rows != one.guesses) & words[rows] & words[one.guesses]
            places = (rows[kept].numpy(), one.guesses[kept].numpy())
            total += sparse.csr_matrix((one.guessed[kept].double().numpy(), places), shape)
        times = np.bincount(numbers.numpy(), minlength=len(words))
        given = sparse.diags(1.0 / (len(found) * (times + DOUBT))) @ total
        self._graph = given.multiply(given.T).sqrt().tocsr()

    def graph(self) -> Any:
        """See :class:`Similarity`."""
        return self._graph


class VectorSimilarity(Similarity):
    """Similarity by output vectors, see the head of this file.

    Args:
        layer: output layer.
        words: [V] which words of the dictionary to compare.
    """

    @torch.no_grad()
    def __init__(self, layer: OutputLayer, words: Tensor) -> None:
        owners, usage = layer.word_of_sense.cpu(), layer.usage.float().cpu()
        totals = torch.zeros(layer.vocab_size).index_add_(0, owners, usage)
        used = usage >= LEAST_USAGE * totals[owners]
        senses = (used & words[owners]).nonzero()[:, 0]
        senses = senses[owners[senses].argsort(stable=True)]  # a word's senses side by side
        self._layer, self._size = layer, layer.vocab_size
        self._senses = senses
        self._words, self._word = owners[senses].unique_consecutive(return_inverse=True)  # [W], [M]
        count = len(senses)
        self._rows = max(1, _SCORES // max(1, count))
        sample = torch.arange(0, count, -(-count // _MEANS) or 1)
        parts = torch.arange(count).split(self._rows)
        self._mean = torch.cat([self._symmetric(part, sample).mean(1) for part in parts])
        self._grand = self._mean[sample].mean()
        self._norm = torch.ones(count)  # [M]
        parts = torch.arange(count).split(min(self._rows, 1024))
        own = torch.cat([self._of_senses(part, part).diagonal() for part in parts])
        # a sense without one is like no other
        self._norm = torch.where(own > 0, own, torch.inf).sqrt()

    def _symmetric(self, some: Tensor, others: Tensor) -> Tensor:
        """G of n senses and n' others, [n, n']."""
        layer, first, second = self._layer, self._senses[some], self._senses[others]
        contexts = [layer.as_contexts(layer.weight[part].float()) for part in (first, second)]
        there = layer.sense_logits(contexts[0], second)
        back = layer.sense_logits(contexts[1], first)
        return (there + back.T) / 2

    def _of_senses(self, some: Tensor, others: Tensor) -> Tensor:
        """Similarity of n senses and n' others, [n, n']."""
        centered = self._symmetric(some, others) - self._mean[some].unsqueeze(1)
        centered += self._grand - self._mean[others]
        return centered / self._norm[some].unsqueeze(1) / self._norm[others]

    def _of_words(self, some: Tensor, others: Tensor) -> Tensor:
        """Similarity of the words of n senses and those of n' others, [w, w']."""
        found = self._of_senses(some, others)  # [n, n']
        for senses in (others, some):
            words, place = self._word[senses].unique_consecutive(return_inverse=True)
            if len(words) < len(senses):
                most = found.new_full((len(found), len(words)), -torch.inf)
                found = most.scatter_reduce(1, place.expand_as(found), found, "amax")
            found = found.T
        return found

    @torch.no_grad()
    def graph(self) -> Any:
        """See :class:`Similarity`; takes minutes for tens of thousands of senses."""
        everything = torch.arange(len(self._senses))
        number = max(0, min(NEAREST, len(self._words) - 1))
        per_word = int(self._word.bincount().max()) if len(self._word) else 1
        graph = sparse.csr_matrix((self._size, self._size))
        for part in torch.arange(len(self._words)).split(max(1, self._rows // per_word)):
            near = self._of_words(everything[torch.isin(self._word, part)], everything)  # [w, W]
            near[torch.arange(len(part)), part] = -torch.inf
            value, place = near.topk(number, dim=1)  # [w, k]
            row = part.unsqueeze(1).expand_as(place)
            kept = value > 0
            where = (self._words[row[kept]].numpy(), self._words[place[kept]].numpy())
            graph += sparse.csr_matrix((value[kept].double().numpy(), where), graph.shape)
        return graph.maximum(graph.T)

    @torch.no_grad()
    def among(self, words: Sequence[int]) -> NDArray[np.float64]:
        """See :class:`Similarity`."""
        asked = torch.tensor(words, dtype=torch.long)
        senses = torch.isin(self._words[self._word], asked).nonzero()[:, 0]
        found = self._of_words(senses, senses)  # [n, n], in the order of the dictionary
        order = asked.argsort().argsort()
        result: NDArray[np.float64] = found[order][:, order].double().numpy()
        np.fill_diagonal(result, 0.0)
        return result


def usual_similarity(graph: Any) -> float:
    """The similarity to the nearest word that half of the words with any neighbour reach.

    Args:
        graph: [V, V] sparse and symmetric, similarity of pairs above 0; what is not there is 0.
    """
    nearest = graph.max(axis=1).toarray()  # [V, 1]
    return float(np.median(nearest[nearest > 0])) if nearest.any() else 0.0


def cluster_words(graph: Any, least: float, most: int = MOST_WORDS) -> list[list[int]]:
    """Join words, the most similar first, by the mean similarity of all pairs (average linkage).

    Args:
        graph: as in :func:`usual_similarity`.
        least: mean similarity of all pairs between two groups that are joined.
        most: words of a cluster.

    Returns:
        clusters of two words or more.
    """
    sums: dict[int, dict[int, float]] = {}  # similarity of groups, summed over pairs of words
    queue = []
    for one, other, value in zip(*sparse.find(graph), strict=True):
        sums.setdefault(int(one), {})[int(other)] = float(value)
        if one < other and value >= least:
            queue.append((-float(value), int(one), int(other)))
    heapq.heapify(queue)
    members = {word: [word] for word in sorted(sums)}
    number = graph.shape[0]  # a group that is made gets a number of its own
    while queue:
        _, one, other = heapq.heappop(queue)
        if one not in members or other not in members:
            continue
        if len(members[one]) + len(members[other]) > most:
            continue
        members[number] = members.pop(one) + members.pop(other)
        first, second = sums.pop(one), sums.pop(other)
        sums[number] = {}
        for near in (first | second).keys() - {one, other}:
            value = sums[near].pop(one, 0.0) + sums[near].pop(other, 0.0)
            sums[number][near] = sums[near][number] = value
            mean = value / (len(members[number]) * len(members[near]))
            if mean >= least:
                heapq.heappush(queue, (-mean, near, number))
        number += 1
    return [words for words in members.values() if len(words) > 1]
