"""Senses of a softmax model, placed on the clusters of its contexts.

A trained softmax has one output vector a word, and the contexts in which the word is right form
clusters, one for each of its meanings. Here every cluster gets a sense, in four steps: a sample of
the contexts of each word (:class:`ContextSample`), k-means on it (:func:`cluster`), numbers of
senses under one limit (:func:`allocate`), and the senses (:func:`place_word`).

k-means measures distances after :func:`whiten`. Directions in which the contexts of any word vary,
as they do with syntax and position, count less there than they do in contexts as they are.

The senses of a word are the linear discriminants of its clusters, added to its vector and bias.
With c_k the center of cluster k, m the mean and π_k the shares of the clusters, S the scatter
within them, averaged over contexts,

    w_k = w + f P (c_k − m)
    b_k = b + f (½ (mᵀPm − c_kᵀPc_k) + log π_k) − E_h[log Σ_k exp(…)]
    P   = ((1 − s) S + s·tr(S)/d·I)⁻¹,   f = min(1, gap / max_k (c_k − m)ᵀP(c_k − m))

where (…) is what is added to the logit of sense k. A small f makes the discriminants flat: which
sense is most probable does not depend on it, but in contexts of other words the word stays as
probable as it was. The mean over the word's contexts, those of the sample, of its log mass (Eq. 4
before normalization) stays what it was. Senses need the inner product: the KerBS kernel has it at
θ = 0.

A special symbol keeps one sense, and so does a word with few contexts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fairseq_kerbs.utils.processes import progress

SHRINKAGE = 0.3
"""s above: how far the scatter within clusters is drawn towards a multiple of the identity."""

LEAST_CONTEXTS = 40
"""Contexts of a word below which it keeps one sense."""

CONTEXTS_A_SENSE = 20
"""Contexts of a word that each of its senses asks for."""


STARTS = 5
"""Starts of k-means: with 2 some words were divided by less than what divides them most."""

WHITENING = 0.5
"""How far :func:`whiten` draws the scatter of contexts towards a multiple of the identity."""


class ContextSample:
    """A random sample of the contexts of each word, gathered in one pass (Vitter's algorithm R).

    Args:
        counts: contexts that a word may have, [V]; one that has more is sampled all the same.
        dim: size d of contexts.
        most: contexts of one word that are kept, at most.
        memory: bytes that all of them may take. They are kept in float16.
        special: the first words, which are special symbols: nothing of them is kept.
        seed: of the sampling.

    Raises:
        ValueError: ``memory`` has no room for :data:`LEAST_CONTEXTS` contexts of each word.
    """

    def __init__(
        self, counts: Tensor, dim: int, most: int, memory: int, special: int = 4, seed: int = 1
    ) -> None:
        wanted = torch.where(counts >= LEAST_CONTEXTS, counts, 0).cpu()
        wanted[:special] = 0
        words = int((wanted > 0).sum())
        most = min(most, _even_share(wanted, memory // (2 * dim)))
        if words and most < LEAST_CONTEXTS:
            least = 2 * dim * LEAST_CONTEXTS * words
            raise ValueError(
                f"{memory / 1e9:.3g} GB have no room for {LEAST_CONTEXTS} contexts of each of "
                f"{words} words; {least / 1e9:.2g} GB have."
            )
        self._make_room(wanted.clamp_max(most), dim, seed)

    def _make_room(self, size: Tensor, dim: int, seed: int) -> None:
        self.size, self.seed = size, seed  # [V] contexts that are kept
        self.start = size.cumsum(0) - size
        self.seen = torch.zeros_like(size)
        self.kept = torch.empty(int(size.sum()), dim, dtype=torch.float16)  # no memory till filled

    def _filled(self) -> Tensor:
        """Whether each place of :attr:`kept` holds a context."""
        filled = torch.minimum(self.seen, self.size)
        place = torch.arange(len(self.kept)) - self.start.repeat_interleave(self.size)
        return place < filled.repeat_interleave(self.size)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of a sample, for :meth:`from_state`."""
        seed = torch.tensor(self.seed)
        kept = self.kept[self._filled()]
        return {"size": self.size, "seen": self.seen, "kept": kept, "seed": seed}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> ContextSample:
        """A sample that goes on exactly where :meth:`state` was taken."""
        sample = cls.__new__(cls)
        sample._make_room(state["size"].cpu(), state["kept"].shape[1], int(state["seed"]))
        sample.seen = state["seen"].cpu().clone()
        sample.kept[sample._filled()] = state["kept"].cpu().half()
        return sample

    @property
    def enough(self) -> Tensor:
        """Whether the contexts of each word suffice for clusters, [V]."""
        return (self.seen >= LEAST_CONTEXTS) & (self.size > 0)

    def add(self, words: Tensor, contexts: Tensor) -> None:
        """Take contexts [n, d] of words [n]."""
        words = words.cpu()
        generator = torch.Generator().manual_seed(self.seed + int(self.seen.sum()))
        order = torch.sort(words, stable=True).indices
        words = words[order]
        number = torch.arange(len(words)) - torch.searchsorted(words, words)  # within its word
        number += self.seen[words]
        self.seen += torch.bincount(words, minlength=len(self.seen))
        size, drawn = self.size[words], torch.rand(len(words), generator=generator)
        place = torch.where(number < size, number, (drawn.double() * (number + 1)).long())
        taken = (place < size).nonzero().squeeze(1)
        slots = (self.start[words] + place)[taken]
        filled, which = slots.unique(return_inverse=True)  # the last context of a slot stays
        last = torch.zeros_like(filled).scatter_reduce(0, which, taken, "amax")
        rows = contexts[order[last].to(contexts.device)]
        limit = torch.finfo(torch.float16).max
        self.kept[filled] = rows.clamp(-limit, limit).to(self.kept)

    def contexts(self, word: int) -> Tensor:
        """Those of a word, [n, d] in float32."""
        start, size = int(self.start[word]), int(self.size[word].minimum(self.seen[word]))
        return self.kept[start : start + size].float()


def _even_share(wanted: Tensor, room: int) -> int:
    """The largest n for which Σ min(n, wanted) stays within ``room``."""
    low, high = 0, int(wanted.max()) if len(wanted) else 0
    while low < high:
        middle = (low + high + 1) // 2
        fits = int(wanted.clamp_max(middle).sum()) <= room
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def whiten(sample: ContextSample) -> Tensor:
    """A map [d, d] of contexts, x -> x A, after which the scatter of contexts around the mean of
    their word is about the same in all directions: AᵀCA = I with C the scatter, drawn towards a
    multiple of the identity by :data:`WHITENING`."""
    dim = sample.kept.shape[1]
    scatter, eye = torch.zeros(dim, dim, dtype=torch.float64), torch.eye(dim, dtype=torch.float64)
    for word in sample.enough.nonzero().squeeze(1).tolist():
        contexts = sample.contexts(word).double()
        aside = contexts - contexts.mean(0)
        scatter += aside.t() @ aside
    level = scatter.trace() / dim
    if not level > 0:
        return eye.float()
    values, vectors = torch.linalg.eigh(torch.lerp(scatter / level, eye, WHITENING))
    return (vectors * values.rsqrt()).float()


class Clustering(NamedTuple):
    """k-means of a word's contexts."""

    labels: NDArray[Any]  # [n] cluster of each context
    distortion: float  # mean square distance of a context from its center


def cluster(contexts: Tensor, most: int, seed: int = 1) -> list[Clustering]:
    """Contexts [n, d] in 1, 2 … ``most`` clusters, or as many as they suffice for."""
    points = contexts.numpy() - contexts.numpy().mean(0)
    rounding = 1e-10 * float(contexts.square().sum(1).mean())
    clusterings = [Clustering(np.zeros(len(points), int), float(np.square(points).sum(1).mean()))]
    for k in range(2, most + 1):
        if len(points) < CONTEXTS_A_SENSE * k or clusterings[-1].distortion <= rounding:
            break
        draw = np.random.RandomState(seed)  # the same in every version of numpy
        starts = [_k_means(points, k, draw) for _ in range(STARTS)]
        best = min(starts, key=lambda clustering: clustering.distortion)
        if len(np.unique(best.labels)) < k:
            break
        clusterings.append(best)
    return clusterings


def _k_means(points: NDArray[Any], k: int, draw: np.random.RandomState) -> Clustering:
    """Lloyd's algorithm in points [n, d] around 0, with first centers by k-means++."""
    squares, centers = np.square(points).sum(1), points[[draw.randint(len(points))]]
    before = np.full(len(points), -1)
    for _ in range(300):
        to_each = np.square(centers).sum(1) - 2 * (points @ centers.T)  # [n, k], less the squares
        labels, nearest = to_each.argmin(1), (to_each.min(1) + squares).clip(1e-30).astype(float)
        if len(centers) < k:
            place = draw.choice(len(points), p=nearest / nearest.sum())
            centers = np.concatenate([centers, points[[place]]])
        elif np.array_equal(labels, before):
            break
        else:
            before, members = labels, (labels == np.arange(k)[:, None]).astype(points.dtype)
            count = members.sum(1, keepdims=True)  # of each cluster; an empty one stays
            centers = np.where(count, members @ points / count.clip(1), centers)
    return Clustering(labels, float(nearest.mean()))


def allocate(
    falls: Mapping[int, Sequence[float] | NDArray[np.float64]], extra: int
) -> Counter[int]:
    """Extra senses by word, ``extra`` in all at most.

    ``falls[word][j]`` is how far the distortion of all the word's occurrences falls by its extra
    sense j. One sense after the other goes where that falls most, ties to the smaller number; none
    goes where it does not fall.
    """
    steps = [
        (-lowest, word)  # no sense before the one that the word gets first
        for word, fall in falls.items()
        for lowest in np.minimum.accumulate(fall)
        if lowest > 0
    ]
    return Counter(word for _, word in sorted(steps)[: max(0, extra)])


def place_word(contexts: Tensor, labels: NDArray[Any], gap: float) -> tuple[Tensor, Tensor, Tensor]:
    """What is added to a word's vector and bias for each of its senses, and their shares.

    Args:
        contexts: those of the word, [n, d].
        labels: the cluster of each, one of k, [n].
        gap: bound of f·(c_k − m)ᵀP(c_k − m), in nats: how far from flat the senses may be.

    Returns:
        [k, d], [k] and [k], float64; the shares sum to 1.
    """
    points = contexts.double()
    members = F.one_hot(torch.from_numpy(labels).long()).double()  # [n, k]
    share = members.mean(0)
    centers = members.t() @ points / members.sum(0).unsqueeze(1)
    inside = points - members @ centers
    scatter = inside.t() @ inside / len(points)
    ridge = torch.eye(len(scatter), dtype=torch.float64) * scatter.trace() / len(scatter)
    mean = points.mean(0)
    aside = centers - mean
    # P (c_k − m); where nothing spreads inside the clusters, any P parts them
    covariance = (1 - SHRINKAGE) * scatter + SHRINKAGE * ridge
    if not covariance.trace() > 0:
        covariance = torch.eye(len(scatter), dtype=torch.float64)
    turn = torch.linalg.solve(covariance, aside.t()).t()  # [k, d]
    ahead = (aside * turn).sum(1).max()
    flat = min(1.0, gap / float(ahead)) if ahead > 0 else 1.0
    # ½ (mᵀPm − cᵀPc) = −½ (c − m)ᵀP(c + m)
    bias = flat * (share.log() - 0.5 * (turn * (centers + mean)).sum(1))
    rows = flat * turn
    bias -= (points @ rows.t() + bias).logsumexp(1).mean()
    return rows, bias, share


class Placement(NamedTuple):
    """Senses for a softmax over V words; the first V senses are those of words 0 … V − 1."""

    rows: Tensor  # to be added to the vectors of their words, [M, d]
    bias: Tensor  # to be added to the biases of their words, [M]
    word_of_sense: Tensor  # [M]
    share: Tensor  # of the word's contexts, [M]


def place_senses(
    sample: ContextSample,
    total_senses: int,
    max_senses: int = 4,
    gap: float | Tensor = 1.0,
    seed: int = 1,
) -> Placement:
    """Place senses on the clusters of contexts.

    Args:
        sample: contexts of each word.
        total_senses: senses of all words, at most. Fewer are placed if the contexts of all words
            that have enough are clustered.
        max_senses: of one word.
        gap: see :func:`place_word`; of all words, or of each, [V].
        seed: of k-means.

    Raises:
        ValueError: there are fewer senses than words.
    """
    words, dim = len(sample.size), sample.kept.shape[1]
    if total_senses < words:
        raise ValueError(f"`total_senses` is {total_senses}; each of {words} words needs a sense.")
    clustered, basis = sample.enough.nonzero().squeeze(1).tolist(), whiten(sample)
    clusterings = {
        word: cluster(sample.contexts(word) @ basis, max_senses, seed)
        for word in progress(clustered, "clusters", " words")
    }
    falls = {
        word: -np.diff([clustering.distortion for clustering in by_k]) * int(sample.seen[word])
        for word, by_k in clusterings.items()
    }
    given = allocate(falls, total_senses - words)
    gaps = torch.as_tensor(gap).expand(words)
    owner = [*range(words), *(word for word in sorted(given) for _ in range(given[word]))]
    rows = torch.zeros(len(owner), dim, dtype=torch.float64)
    bias, share = rows.new_zeros(len(owner)), rows.new_ones(len(owner))
    start = words
    for word in sorted(given):
        at = [word, *range(start, start + given[word])]
        rows[at], bias[at], share[at] = place_word(
            sample.contexts(word), clusterings[word][given[word]].labels, float(gaps[word])
        )
        start += given[word]
    return Placement(rows.float(), bias.float(), torch.tensor(owner), share.float())
