"""Senses of a softmax model, placed on the clusters of its contexts.

The contexts in which a word is right form clusters, one for each of its meanings. Every cluster
gets a sense, in four steps: a sample of each word's contexts (:class:`ContextSample`), k-means on
it (:func:`cluster`), numbers of senses (:func:`allocate`), and the senses (:func:`place_word`).
k-means is run after :func:`whiten`: directions in which the contexts of any word vary, as they do
with syntax and position, count less. It is ours, since training beside fairseq has no scikit-learn.

The senses of a word are the linear discriminants of its clusters, added to its vector and bias.
With c_k the center of cluster k, m the mean and π_k the shares of the clusters, S the scatter
within them, averaged over contexts,

    w_k = w + f P (c_k − m)
    b_k = b + f (½ (mᵀPm − c_kᵀPc_k) + log π_k) − E_h[log Σ_k exp(…)]
    P   = ((1 − s) S + s·tr(S)/d·I)⁻¹,   f = min(1, gap / max_k (c_k − m)ᵀP(c_k − m))

where (…) is what is added to the logit of sense k. A small f makes the discriminants flat: the most
probable sense does not depend on it, but elsewhere the word stays as probable as it was. The mean
of a word's log mass over its contexts does, too. Senses need the inner product: θ = 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fairseq_kerbs.utils.processes import progress

SHRINKAGE = 0.3  # s above
LEAST_CONTEXTS = 40  # a word with fewer keeps one sense, as special symbols do
CONTEXTS_A_SENSE = 20  # that each sense of a word asks for
STARTS = 5  # of k-means: with 2 some words were divided by less than what divides them most
WHITENING = 0.5  # how far the scatter of contexts is drawn towards a multiple of the identity


class ContextSample:
    """A random sample of the contexts of each word, gathered in one pass (Vitter's algorithm R).

    Args:
        counts: contexts that a word may have, [V]; one that has more is sampled all the same.
        dim: size d of contexts, which are kept in float16.
        most, memory: contexts of one word, and bytes of all, that are kept at most.
        special: the first words, special symbols, of which nothing is kept.

    Raises:
        ValueError: ``memory`` has no room for :data:`LEAST_CONTEXTS` contexts of each word.
    """

    def __init__(
        self, counts: Tensor, dim: int, most: int, memory: int, special: int = 4, seed: int = 1
    ) -> None:
        wanted = torch.where(counts >= LEAST_CONTEXTS, counts, 0).cpu()
        wanted[:special] = 0
        # Σ min(most, wanted) ≤ room, whichever words are those that have fewer
        ordered, room = wanted.sort().values, memory // (2 * dim)
        by_words = (room - ordered.cumsum(0) + ordered) // torch.arange(len(wanted), 0, -1)
        most, words = min(most, int(by_words.max())), int((wanted > 0).sum())
        if words and most < LEAST_CONTEXTS:
            have, need = memory / 1e9, 2e-9 * dim * LEAST_CONTEXTS * words
            raise ValueError(
                f"{have:.3g} GB have no room for {LEAST_CONTEXTS} contexts of each of {words} "
                f"words; {need:.2g} GB have."
            )
        self._make_room(wanted.clamp_max(most), dim, seed)

    def _make_room(self, size: Tensor, dim: int, seed: int) -> None:
        self.size, self.seed, self.seen = size, seed, torch.zeros_like(size)  # of each word, [V]
        self.start = size.cumsum(0) - size
        self.kept = torch.empty(int(size.sum()), dim, dtype=torch.float16)  # no memory till filled

    def _filled(self) -> Tensor:
        """Whether each place of :attr:`kept` holds a context."""
        place = torch.arange(len(self.kept)) - self.start.repeat_interleave(self.size)
        return place < self.seen.repeat_interleave(self.size)

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of a sample, for :meth:`from_state`."""
        kept, seed = self.kept[self._filled()], torch.tensor(self.seed)
        return {"size": self.size, "seen": self.seen, "kept": kept, "seed": seed}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> ContextSample:
        """A sample that goes on exactly where :meth:`state` was taken."""
        sample = cls.__new__(cls)
        sample._make_room(state["size"].cpu(), state["kept"].shape[1], int(state["seed"]))
        sample.seen += state["seen"].cpu()
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
        self.kept[filled] = rows.clamp(-65504, 65504).to(self.kept)  # float16's range

    def contexts(self, word: int) -> Tensor:
        """Those of a word, [n, d] in float32."""
        start, size = int(self.start[word]), int(self.size[word].minimum(self.seen[word]))
        return self.kept[start : start + size].float()


def whiten(sample: ContextSample) -> Tensor:
    """A map A [d, d] of contexts, x -> x A, with AᵀCA = I: C is the scatter of contexts around the
    mean of their word, drawn towards a multiple of the identity by :data:`WHITENING`."""
    eye = torch.eye(sample.kept.shape[1], dtype=torch.float64)
    scatter = torch.zeros_like(eye)
    for word in sample.enough.nonzero().squeeze(1).tolist():
        aside = sample.contexts(word).double()
        aside -= aside.mean(0)
        scatter += aside.t() @ aside
    level = (scatter.trace() / len(eye)).clamp_min(1e-30)
    values, vectors = torch.linalg.eigh(torch.lerp(scatter / level, eye, WHITENING))
    return (vectors * values.rsqrt()).float()


def cluster(contexts: Tensor, most: int) -> tuple[list[NDArray[Any]], list[float]]:
    """Contexts [n, d] by k-means in k = 1, 2 … ``most`` clusters, or as many as they suffice for:
    the cluster of each [n], and the mean square distance from its center, for each k."""
    points = contexts.numpy() - contexts.numpy().mean(0)
    rounding = 1e-10 * float(contexts.square().sum(1).mean())
    labels, distortions = [np.zeros(len(points), int)], [float(np.square(points).sum(1).mean())]
    for k in range(2, min(most, len(points) // CONTEXTS_A_SENSE) + 1):
        draw = np.random.RandomState(1)  # the same in every version of numpy
        starts = [_k_means(points, k, draw) for _ in range(STARTS)]
        best, distortion = min(starts, key=lambda start: start[1])
        if distortions[-1] <= rounding or len(np.unique(best)) < k:
            break
        labels.append(best)
        distortions.append(distortion)
    return labels, distortions


def _k_means(points: NDArray[Any], k: int, draw: np.random.RandomState) -> tuple[Any, float]:
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
    return labels, float(nearest.mean())


def allocate(falls: Mapping[int, Any], extra: int) -> Counter[int]:
    """Extra senses by word, ``extra`` in all at most: each goes where the distortion of all the
    word's occurrences falls most by it, ``falls[word][j]`` by extra sense j, if it falls at all."""
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
    share, mean = members.mean(0), points.mean(0)
    centers = members.t() @ points / members.sum(0).unsqueeze(1)
    inside, aside = points - members @ centers, centers - mean
    scatter, eye = inside.t() @ inside / len(points), torch.eye(points.shape[1]).double()
    # where nothing spreads inside the clusters, any P parts them
    level = (scatter.trace() / len(eye)).clamp_min(1e-30)
    covariance = torch.lerp(scatter, level * eye, SHRINKAGE)
    turn = torch.linalg.solve(covariance, aside.t()).t()  # P (c_k − m), [k, d]
    ahead = float((aside * turn).sum(1).max())
    flat = min(1.0, gap / ahead) if ahead > 0 else 1.0
    # ½ (mᵀPm − cᵀPc) = −½ (c − m)ᵀP(c + m)
    bias = flat * (share.log() - 0.5 * (turn * (centers + mean)).sum(1))
    rows = flat * turn
    bias -= (points @ rows.t() + bias).logsumexp(1).mean()
    return rows, bias, share


class Placement(NamedTuple):
    """Senses for a softmax over V words; the first V senses are those of words 0 … V − 1."""

    rows: Tensor  # to be added to the words' vectors, [M, d]
    bias: Tensor  # to be added to the words' biases, [M]
    word_of_sense: Tensor  # [M]
    share: Tensor  # of the word's contexts, [M]


def place_senses(
    sample: ContextSample, total_senses: int, max_senses: int = 4, gap: float | Tensor = 1.0
) -> Placement:
    """Place senses on the clusters of each word's contexts: ``total_senses`` in all and
    ``max_senses`` a word, at most. ``gap`` is that of :func:`place_word`, of all words or of each,
    [V]. Raises a ValueError if ``total_senses`` is below V."""
    words, basis = len(sample.size), whiten(sample)
    if total_senses < words:
        raise ValueError(f"`total_senses` is {total_senses}; {words} words need a sense each.")
    labels, falls = dict[int, list[NDArray[Any]]](), dict[int, NDArray[Any]]()
    for word in progress(sample.enough.nonzero().squeeze(1).tolist(), "clusters", " words"):
        labels[word], distortions = cluster(sample.contexts(word) @ basis, max_senses)
        falls[word] = -np.diff(distortions) * int(sample.seen[word])
    given, gaps = allocate(falls, total_senses - words), torch.as_tensor(gap).expand(words)
    owner = torch.tensor([*range(words), *sorted(given.elements())])
    rows = torch.zeros(len(owner), sample.kept.shape[1])
    bias, share = rows.new_zeros(len(owner)), rows.new_ones(len(owner))
    for word, extra in given.items():
        placed = place_word(sample.contexts(word), labels[word][extra], float(gaps[word]))
        senses = owner == word
        rows[senses], bias[senses], share[senses] = (value.float() for value in placed)
    return Placement(rows, bias, owner, share)
