"""How similar words and senses are to an output layer, and small clusters of similar words.

After Gao et al. (2019, Section 4.5), extended to senses and kernels. K(m, n) is the kernel
logit of sense n where the context is the vector of sense m. A softmax does not see what all its
logits have in common, so that is taken away: with G = (K + Kᵀ)/2 and its means over the senses,

    S(m, n) = G(m, n) − mean G(m, ·) − mean G(·, n) + mean G,
    similarity of two senses = S(m, n) / √(S(m, m) S(n, n)),
    similarity of two words  = the greatest of any two of their senses.

For the inner product that is the cosine of vectors from which their mean was taken. Senses that
predict less than `LEAST_USAGE` of their word are left out. The components of a mixture map
contexts, each in its own way; what is compared here are its word vectors, by inner product.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.processes import progress

LEAST_USAGE = 0.05
NEAREST = 16  # words kept beside each
MOST_WORDS = 8  # of a cluster: Gao et al. show five
_MEANS = 4096  # senses over which means are taken, at most
_SCORES = 4 << 20  # logits that are kept at a time


@torch.no_grad()
def nearest_senses(
    layer: OutputLayer, senses: Sequence[int], number: int, ignored: Sequence[int] = ()
) -> Iterator[list[tuple[int, float]]]:
    """The ``number`` senses with the highest logits, were the vector of another one the context.

    Yields for each of ``senses`` the others with their logits K(w, w'; θ'), the highest first; none
    of the words ``ignored``, such as fairseq's special symbols.
    """
    left_out = torch.isin(
        layer.word_of_sense.cpu(), torch.tensor(list(ignored), dtype=torch.long)
    )  # [M]
    number = max(0, min(number, int((~left_out).sum()) - 1))
    rows, everything = max(1, _SCORES // layer.total_senses), torch.arange(layer.total_senses)
    parts = torch.tensor(list(senses), dtype=torch.long).split(rows)
    for part in progress(parts, "nearest senses", " parts"):
        contexts = layer.as_contexts(layer.weight[part].float())  # [n, d]
        logits = layer.sense_logits(contexts, everything)  # [n, M]
        logits[:, left_out] = -torch.inf
        logits.scatter_(1, part.unsqueeze(1), -torch.inf)  # itself
        scores, nearest = logits.topk(number, dim=1)
        for row in zip(nearest.tolist(), scores.tolist()):
            yield list(zip(*row))


class VectorSimilarity:
    """Similarity by output vectors of the words of a dictionary, [V], that are to be compared."""

    @torch.no_grad()
    def __init__(self, layer: OutputLayer, words: Tensor) -> None:
        owners, usage = layer.word_of_sense.cpu(), layer.usage.float().cpu()
        totals = torch.zeros(layer.vocab_size).index_add_(0, owners, usage)
        used = usage >= LEAST_USAGE * totals[owners]
        senses = (used & words[owners]).nonzero()[:, 0]
        self._senses = senses[owners[senses].sort(stable=True).indices]  # by word
        self._layer, self._word = layer, owners[self._senses]  # [M]
        count = len(senses)
        self._rows = max(1, _SCORES // max(1, count))
        sample = torch.arange(0, count, -(-count // _MEANS) or 1)
        parts = torch.arange(count).split(self._rows)
        self._mean = torch.cat([self._symmetric(part, sample).mean(1) for part in parts])
        self._grand = self._mean[sample].mean()
        parts = torch.arange(count).split(min(self._rows, 1024))
        square = torch.cat([self._centered(part, part).diagonal() for part in parts])
        # a sense without a norm is like no other
        self._norm = torch.where(square > 0, square, torch.inf).sqrt()

    def _symmetric(self, some: Tensor, others: Tensor) -> Tensor:
        """G of n senses and n' others, [n, n']."""
        layer, first, second = self._layer, self._senses[some], self._senses[others]
        contexts = [layer.as_contexts(layer.weight[part].float()) for part in (first, second)]
        there = layer.sense_logits(contexts[0], second)
        back = layer.sense_logits(contexts[1], first)
        return (there + back.T) / 2

    def _centered(self, some: Tensor, others: Tensor) -> Tensor:
        """S of n senses and n' others, [n, n']."""
        means = self._mean[some].unsqueeze(1) + self._mean[others]
        return self._symmetric(some, others) - means + self._grand

    def _of_words(self, some: Tensor, others: Tensor) -> NDArray[np.float32]:
        """Similarity of the words of n senses and those of n' others, in order, [w, w']."""
        similarity = (
            self._centered(some, others) / self._norm[some].unsqueeze(1) / self._norm[others]
        )
        rows, columns = (
            np.unique(self._word[part].numpy(), return_index=True)[1] for part in (some, others)
        )
        return np.maximum.reduceat(np.maximum.reduceat(similarity.numpy(), rows, 0), columns, 1)

    @torch.no_grad()
    def graph(self) -> sparse.csr_matrix:
        """Each word's nearest ones, [V, V], symmetric; minutes for tens of thousands of senses."""
        words, everything = self._word.unique(), torch.arange(len(self._senses))
        number = min(NEAREST, len(words) - 1)
        size = (self._layer.vocab_size, self._layer.vocab_size)
        graph = sparse.csr_matrix(size)
        parts = words.split(max(1, self._rows // self._layer.max_senses))
        for part in progress(parts, "similar words", " parts"):
            near = self._of_words(everything[torch.isin(self._word, part)], everything)  # [w, W]
            near[np.arange(len(part)), np.searchsorted(words, part)] = -np.inf
            value, place = torch.from_numpy(near).topk(number, dim=1)  # [w, k]
            row, alike = part.unsqueeze(1).expand_as(place), value > 0
            where = row[alike].numpy(), words[place[alike]].numpy()
            graph += sparse.csr_matrix((value[alike].double().numpy(), where), size)
        return graph.maximum(graph.T)

    @torch.no_grad()
    def among(self, words: Sequence[int]) -> NDArray[np.float64]:
        """Similarity of all pairs of n words, [n, n], 0 on the diagonal."""
        asked = torch.tensor(words)
        senses = torch.isin(self._word, asked).nonzero()[:, 0]
        order = asked.argsort().argsort().numpy()
        pairs = self._of_words(senses, senses)[np.ix_(order, order)].astype(np.float64)
        np.fill_diagonal(pairs, 0.0)
        return pairs


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
