"""How alike words are to an output layer: by its vectors alone, or by what it confuses in a text.

Vectors (Gao et al. 2019, Section 4.5, extended to senses and kernels). K(m, n) is the kernel
logit of sense n where the context is the vector of sense m. A softmax does not see what all its
logits have in common, so that is taken away: with G = (K + Kᵀ)/2 and its means over the senses
that are compared,

    S(m, n) = G(m, n) − mean G(m, ·) − mean G(·, n) + mean G,
    likeness of two senses = S(m, n) / √(S(m, m) S(n, n)),
    likeness of two words  = the greatest of any two of their senses.

For the inner product that is the cosine of vectors from which their mean was taken. Bare inner
products would make long vectors, and those that point to where all do, alike to every other one.
Kernels of a distance fit the same form. Senses that predict less than `LEAST_USAGE` of their word
are left out; one that has just moved counts as used until it is seen not to be (Eq. 13).

Confusions. d(i, j) is the probability that word j gets at the occurrences of word i, summed over
them and divided by their number plus `DOUBT`, so that one or two of them prove little; of several
models it is the mean. The likeness is √(d(i, j) d(j, i)): a frequent word that is guessed
everywhere is not alike to rare ones, which are never guessed in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from fairseq_kerbs.analysis.predictions import Predictions
from fairseq_kerbs.kernels import kernel_logits
from fairseq_kerbs.output_layers import OutputLayer

LEAST_USAGE = 0.05
DOUBT = 2.0
NEAREST = 16  # words kept beside each
_MEANS = 4096  # senses over which means are taken, at most
_SCORES = 4 << 20  # logits that are kept at a time


class Likeness(Protocol):
    """Likeness of words, symmetric, 0 where there is none."""

    def graph(self) -> Any:
        """Each word's nearest ones, [V, V], sparse and symmetric, nothing on the diagonal."""

    def among(self, words: Sequence[int]) -> NDArray[np.float64]:
        """Likeness of all pairs of n words, [n, n], 0 on the diagonal."""


class ConfusionLikeness:
    """Likeness by what models confuse, see the head of this file.

    Args:
        found: predictions of one model or several, of the same words.
        words: [V] which words of the dictionary to compare.
    """

    def __init__(self, found: Sequence[Predictions], words: Tensor) -> None:
        size = len(words)
        numbers = found[0].word
        total = sparse.csr_matrix((size, size))
        for one in found:
            rows = numbers.unsqueeze(1).expand_as(one.guesses)  # [N, k]
            kept = (rows != one.guesses) & words[rows] & words[one.guesses]
            places = (rows[kept].numpy(), one.guesses[kept].numpy())
            total = total + sparse.csr_matrix(
                (one.guessed[kept].double().numpy(), places), shape=(size, size)
            )
        times = np.bincount(numbers.numpy(), minlength=size)
        given = sparse.diags(1.0 / (len(found) * (times + DOUBT))) @ total
        self._graph = given.multiply(given.T).sqrt().tocsr()

    def graph(self) -> Any:
        """See :class:`Likeness`."""
        return self._graph

    def among(self, words: Sequence[int]) -> NDArray[np.float64]:
        """See :class:`Likeness`."""
        result: NDArray[np.float64] = self._graph[list(words)][:, list(words)].toarray()
        return result


class VectorLikeness:
    """Likeness by output vectors, see the head of this file.

    Args:
        layer: output layer. (The components of a mixture map contexts, each in its own way; what is
            compared here are its word vectors, by inner product.)
        words: [V] which words of the dictionary to compare.
    """

    @torch.no_grad()
    def __init__(self, layer: OutputLayer, words: Tensor) -> None:
        owners, usage = layer.inventory.word_of_sense.cpu(), layer.usage.float().cpu()
        totals = torch.zeros(layer.vocab_size).index_add_(0, owners, usage)
        used = usage >= LEAST_USAGE * totals[owners]
        senses = (used & words[owners]).nonzero()[:, 0]
        senses = senses[owners[senses].argsort(stable=True)]  # a word's senses side by side
        self._layer, self._size = layer, layer.vocab_size
        self._weight, self._theta = layer.weight[senses].float(), layer.theta[senses].float()
        self._words, self._word = owners[senses].unique_consecutive(return_inverse=True)  # [W], [M]
        count = len(senses)
        self._rows = max(1, _SCORES // max(1, count))
        sample = torch.arange(0, count, -(-count // _MEANS) or 1)
        self._mean = torch.cat([self._symmetric(part, sample).mean(1) for part in self._parts()])
        self._grand = self._mean[sample].mean()
        self._norm = torch.ones(count)  # [M]
        own = [self._alike(part, part).diagonal() for part in self._parts(1024)]
        self._norm = torch.cat(own).clamp_min(0.0).sqrt()
        self._norm[self._norm == 0] = torch.inf  # such a sense is like no other

    def _parts(self, most: int | None = None) -> tuple[Tensor, ...]:
        rows = min(self._rows, most or self._rows)
        return torch.arange(len(self._weight)).split(rows)

    def _symmetric(self, some: Tensor, others: Tensor) -> Tensor:
        """G of n senses and n' others, [n, n']."""
        weight, theta, kernel = self._weight, self._theta, self._layer.kernel
        contexts = self._layer.as_contexts
        there = kernel_logits(contexts(weight[some]), weight[others], theta[others], kernel)
        back = kernel_logits(contexts(weight[others]), weight[some], theta[some], kernel)
        return (there + back.T) / 2

    def _alike(self, some: Tensor, others: Tensor) -> Tensor:
        """Likeness of n senses to n' others, [n, n']."""
        centered = self._symmetric(some, others) - self._mean[some].unsqueeze(1)
        centered += self._grand - self._mean[others]
        return centered / self._norm[some].unsqueeze(1) / self._norm[others]

    def _words_alike(self, some: Tensor, others: Tensor) -> Tensor:
        """Likeness of the words that own n senses to those that own n' others, [w, w']."""
        found = self._alike(some, others)  # [n, n']
        for senses in (others, some):
            words, place = self._word[senses].unique_consecutive(return_inverse=True)
            if len(words) < len(senses):
                most = found.new_full((len(found), len(words)), -torch.inf)
                found = most.scatter_reduce(1, place.expand_as(found), found, "amax")
            found = found.T
        return found

    @torch.no_grad()
    def graph(self) -> Any:
        """See :class:`Likeness`; takes minutes for tens of thousands of senses."""
        everything = torch.arange(len(self._weight))
        number = min(NEAREST, len(self._words) - 1)
        values, places = [], []
        per_word = int(self._word.bincount().max()) if len(self._word) else 1
        for part in torch.arange(len(self._words)).split(max(1, self._rows // per_word)):
            senses = everything[torch.isin(self._word, part)]
            found = self._words_alike(senses, everything)  # [w, W]
            found[torch.arange(len(part)), part] = -torch.inf
            near = found.topk(max(0, number), dim=1)
            values.append(near.values)
            places.append(near.indices)
        value, place = torch.cat(values), torch.cat(places)  # [W, k]
        row = torch.arange(len(value)).unsqueeze(1).expand_as(place)
        kept = value > 0
        where = (self._words[row[kept]].numpy(), self._words[place[kept]].numpy())
        graph = sparse.csr_matrix(
            (value[kept].double().numpy(), where), shape=(self._size, self._size)
        )
        return graph.maximum(graph.T)

    @torch.no_grad()
    def among(self, words: Sequence[int]) -> NDArray[np.float64]:
        """See :class:`Likeness`."""
        asked = torch.tensor(words, dtype=torch.long)
        senses = torch.isin(self._words[self._word], asked).nonzero()[:, 0]
        found = self._words_alike(senses, senses)  # [n, n], in the order of the dictionary
        order = asked.argsort().argsort()
        result: NDArray[np.float64] = found[order][:, order].double().numpy()
        np.fill_diagonal(result, 0.0)
        return result
