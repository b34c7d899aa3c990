"""Place senses on the clusters of a word's contexts. The kernel is the inner product.

The contexts of a word form clusters, for example one per meaning. Every cluster receives a sense,
in four steps:

1. sample contexts of each word (:class:`ContextSample`);
2. cluster them by k-means (:func:`cluster`), after :func:`whiten` has reduced the weight of
   directions in which contexts of all words vary;
3. choose the number of senses of each word (:class:`PlacementSettings`);
4. compute the senses (:func:`place_word`).

:func:`place_senses` runs steps 2 to 4. A training calls it through the policy ``clusters``, and
``fairseq-kerbs convert`` for a trained softmax. The latter is also the second of three steps of a
training that places senses in a half-trained softmax.

The senses of a word are the linear discriminants of its clusters, added to its embedding and bias.
Cluster k has center c_k and share π_k. m is the mean of all contexts, S the scatter in clusters:

    w_k = w + f P (c_k − m)
    b_k = b + f (½ (mᵀPm − c_kᵀPc_k) + log π_k) − E_h[log Σ_k exp(…)]
    P   = ((1 − s) S + s·tr(S)/d·I)⁻¹
    f   = min(1, gap / max_k (c_k − m)ᵀP(c_k − m), 2 gap / max_k σ_k)

(…) is the term added to the logit of sense k, s is :data:`SHRINKAGE`, and σ_k² the mean of
((c_k − m)ᵀP(x − m))² over contexts x of all words. f does not change which sense is most probable,
it limits changes in other words' contexts. The last term of b_k preserves the word's mean logit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

LEAST_CONTEXTS = 40
"""Words with fewer contexts keep one sense, and so do special symbols."""

CONTEXTS_A_SENSE = 20
"""Minimum number of contexts per sense."""

SHRINKAGE = 0.3
"""Shrinkage of the scatter within clusters towards a multiple of the identity."""

WHITENING = 0.5
"""The same for the scatter of all words in :func:`whiten`."""

STARTS = 5
"""Initializations of k-means. With 2, some words had a worse optimum."""

ROUNDS = 300
"""Maximum rounds of Lloyd's algorithm."""

BATCH = 20_000
"""Contexts that are clustered together on a GPU, more if one word has more."""

FLOAT16_MAX = 65504.0

Progress = Callable[[Iterable[Any]], Iterable[Any]]
"""Wrapper of an iterable that shows how far it is, such as ``tqdm.tqdm``."""


def no_progress(items: Iterable[Any]) -> Iterable[Any]:
    """Show nothing."""
    return items


class ContextSample:
    """A random sample of the contexts of each word, drawn in one pass (Vitter's algorithm R).

    Args:
        counts: expected number of contexts of each word, [V]. There may be more. Words with fewer
            than :data:`LEAST_CONTEXTS` are not sampled.
        dim: size d of contexts. They are stored in float16.
        most: maximum number of contexts of a word.
        memory: maximum size of the sample in bytes.
        special: number of special symbols at the start of the vocabulary, which are not sampled.
        seed: random seed.

    Raises:
        ValueError: ``most`` is below :data:`LEAST_CONTEXTS`, or ``memory`` is too small for as many
            contexts of each word.
    """

    size: Tensor  # maximum number of contexts of each word, [V]
    seen: Tensor  # number of contexts of each word that were added, [V]
    start: Tensor  # first row of each word in `kept`, [V]
    kept: Tensor  # contexts, [Σ size, d] in float16
    tags: Tensor  # what the caller gave with each context, int64 [Σ size], −1 for nothing
    device: torch.device  # of the contexts added last

    def __init__(
        self, counts: Tensor, dim: int, most: int, memory: int, special: int = 4, seed: int = 1
    ) -> None:
        if most < LEAST_CONTEXTS:
            raise ValueError(
                f"`most` is {most}, but clusters need {LEAST_CONTEXTS} contexts a word."
            )
        counts = torch.where(counts >= LEAST_CONTEXTS, counts, 0).cpu()
        counts[:special] = 0
        rows = memory // (2 * dim)
        most = min(most, _equal_limit(counts, rows))
        words = int((counts > 0).sum())
        if words and most < LEAST_CONTEXTS:
            need = f"{2e-9 * dim * LEAST_CONTEXTS * words:.2g} GB for {LEAST_CONTEXTS} contexts"
            raise ValueError(f"{memory / 1e9:.3g} GB are not enough: {words} words need {need}.")
        self._reset(counts.clamp_max(most), dim, seed)

    def _reset(self, size: Tensor, dim: int, seed: int) -> None:
        self.seed = seed
        self.size = size
        self.seen = torch.zeros_like(size)
        self.start = size.cumsum(0) - size
        self.kept = torch.empty(int(size.sum()), dim, dtype=torch.float16)
        self.tags = torch.full((len(self.kept),), -1)
        self.device = self.kept.device

    def _filled(self) -> Tensor:
        """Mask of the rows of :attr:`kept` that have a context."""
        place = torch.arange(len(self.kept)) - self.start.repeat_interleave(self.size)
        return place < self.seen.repeat_interleave(self.size)

    def state(self) -> dict[str, Tensor]:
        """State for a checkpoint, see :meth:`from_state`."""
        return {
            "size": self.size,
            "seen": self.seen,
            "kept": self.kept[self._filled()],
            "seed": torch.tensor(self.seed),
        }

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> ContextSample:
        """Restore a sample from :meth:`state`. Sampling continues identically, without tags."""
        sample = cls.__new__(cls)
        sample._reset(state["size"].cpu(), state["kept"].shape[1], int(state["seed"]))
        sample.seen += state["seen"].cpu()
        sample.kept[sample._filled()] = state["kept"].cpu().half()
        return sample

    @property
    def dim(self) -> int:
        """Size d of contexts."""
        return self.kept.shape[1]

    @property
    def enough(self) -> Tensor:
        """Mask of words with enough contexts for clusters, [V]."""
        return (self.seen >= LEAST_CONTEXTS) & (self.size > 0)

    def add(self, words: Tensor, contexts: Tensor, tags: Tensor | None = None) -> None:
        """Add contexts [n, d] of words [n], each with an integer of ``tags`` [n] if it is given."""
        generator = torch.Generator().manual_seed(self.seed + int(self.seen.sum()))
        words, order = torch.sort(words.cpu(), stable=True)
        # number of each context among those of its word
        number = torch.arange(len(words)) - torch.searchsorted(words, words) + self.seen[words]
        self.seen += torch.bincount(words, minlength=len(self.seen))
        size = self.size[words]
        drawn = torch.rand(len(words), generator=generator)
        place = torch.where(number < size, number, (drawn.double() * (number + 1)).long())
        taken = (place < size).nonzero().squeeze(1)
        filled, which = (self.start[words] + place)[taken].unique(return_inverse=True)
        # of several contexts for the same row the last one stays
        last = torch.zeros_like(filled).scatter_reduce(0, which, taken, "amax")
        rows = contexts[order[last].to(contexts.device)].float().clamp(-FLOAT16_MAX, FLOAT16_MAX)
        self.kept[filled] = rows.to(self.kept)
        if tags is not None:
            self.tags[filled] = tags.cpu()[order[last]]
        self.device = contexts.device

    def contexts(self, word: int) -> Tensor:
        """Sampled contexts of a word, [n, d] in float32."""
        return self.kept[self._rows(word)].float()

    def tags_of(self, word: int) -> Tensor:
        """Tags of the sampled contexts of a word, [n]."""
        return self.tags[self._rows(word)]

    def _rows(self, word: int) -> slice:
        """Rows of :attr:`kept` that have a context of a word."""
        start = int(self.start[word])
        return slice(start, start + int(self.size[word].minimum(self.seen[word])))


def _equal_limit(counts: Tensor, rows: int) -> int:
    """The largest m with Σ_v min(m, counts_v) ≤ rows: of a word at most m contexts fit, [V] -> m.

    If the i smallest counts stay as they are, the other words divide the remaining rows. The
    largest of these quotients over i is m: a smaller i gives rows to words that do not need them,
    and a larger one leaves too few to the others.
    """
    ordered = counts.sort().values
    unlimited = ordered.cumsum(0) - ordered  # rows of the i smallest, for i = 0 … V − 1
    others = torch.arange(len(counts), 0, -1)
    return int(((rows - unlimited) // others).max())


def whiten(sample: ContextSample) -> tuple[Tensor, Tensor]:
    """Whitening matrix of contexts, and their second moments.

    Returns:
        A [d, d] in float32, for contexts x -> x A, with AᵀCA = I up to a factor. C is the scatter
        of contexts around the mean of their word, shrunk by :data:`WHITENING`. And the moments that
        :func:`place_word` reads, [d + 1, d + 1] in float64.
    """
    dim = sample.dim
    scatter = torch.zeros(dim, dim, dtype=torch.float64)
    moments = torch.zeros(dim + 1, dim + 1, dtype=torch.float64)
    for word in sample.enough.nonzero().squeeze(1).tolist():
        contexts = F.pad(sample.contexts(word).double(), (0, 1), value=1.0)
        # each sampled context stands for as many as were seen
        moments += contexts.t() @ contexts * (int(sample.seen[word]) / len(contexts))
        centered = (contexts - contexts.mean(0))[:, :-1]
        scatter += centered.t() @ centered
    level = (scatter.trace() / dim).clamp_min(1e-30)
    identity = torch.eye(dim, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(torch.lerp(scatter / level, identity, WHITENING))
    return (vectors * values.rsqrt()).float(), moments


class Clustering(NamedTuple):
    """Clusters of the n contexts of a word."""

    labels: Tensor  # cluster of each context, [n]
    distortion: float  # mean squared distance of contexts from the center of their cluster


def cluster(contexts: list[Tensor], most: int) -> list[list[Clustering]]:
    """Cluster the contexts [n, d] of each word into 1, 2, …, ``most`` clusters.

    Returns:
        for each word the clusterings into 1, 2, … clusters. There are fewer than ``most`` if a word
        has fewer than :data:`CONTEXTS_A_SENSE` contexts per cluster, or fewer different contexts.
    """
    centered = [of_word - of_word.mean(0) for of_word in contexts]
    points = pad_sequence(centered, batch_first=True)
    mask = pad_sequence([of_word.new_ones(len(of_word)) for of_word in contexts], batch_first=True)
    found: list[list[Clustering]] = [[] for _ in contexts]
    for k in range(1, min(most, points.shape[1] // CONTEXTS_A_SENSE) + 1):
        labels, distortions = (result.cpu() for result in _k_means(points, mask, k))
        for number, of_word in enumerate(contexts):
            clusterings = found[number]
            if len(of_word) < k * CONTEXTS_A_SENSE or len(clusterings) < k - 1:
                continue
            of_contexts = labels[number, : len(of_word)]
            rounding = 1e-10 * of_word.square().sum(1).mean()
            varies = k == 1 or bool(clusterings[-1].distortion > rounding)
            if varies and len(of_contexts.unique()) == k:
                clusterings.append(Clustering(of_contexts, distortions[number].item()))
    return found


def _k_means(points: Tensor, mask: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm from k-means++.

    Args:
        points: centered contexts of B words, [B, n, d].
        mask: 1 at contexts and 0 at padding, [B, n].
        k: number of clusters.

    Returns:
        the best of :data:`STARTS` clusterings: clusters [B, n] and mean squared distances [B].
    """
    draws = torch.rand(k, STARTS, 1, generator=torch.Generator().manual_seed(k)).to(points)
    mask = mask.unsqueeze(1)  # [B, 1, n]
    centers = _first_centers(points, mask, draws)
    labels, distances = _nearest(points, mask, centers)
    for _ in range(ROUNDS):
        before = labels
        centers = _means(points, mask, labels, centers)
        labels, distances = _nearest(points, mask, centers)
        if torch.equal(labels, before):
            break
    mean, best = (distances.sum(2) / mask.sum(2)).min(1)
    return labels.take_along_dim(best.view(-1, 1, 1), 1).squeeze(1), mean


def _first_centers(points: Tensor, mask: Tensor, draws: Tensor) -> Tensor:
    """Centers of k-means++: each is a context, drawn by its squared distance from those before.

    Args:
        points: contexts, [B, n, d].
        mask: 1 at contexts and 0 at padding, [B, 1, n].
        draws: random numbers from 0 to 1, [k, STARTS, 1].

    Returns:
        [B, STARTS, k, d].
    """
    centers = points.new_empty(len(points), STARTS, 0, points.shape[2])
    distances = mask.expand(-1, STARTS, -1)  # equal for the first center
    for draw in draws:
        sums = distances.cumsum(2)
        places = torch.searchsorted(sums, draw * sums[:, :, -1:])  # [B, STARTS, 1]
        centers = torch.cat([centers, points.take_along_dim(places, 1).unsqueeze(2)], 2)
        _, distances = _nearest(points, mask, centers)
    return centers


def _nearest(points: Tensor, mask: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest of the centers [B, STARTS, j, d] to each context, and squared distances.

    Returns:
        indices 0 … j − 1 and distances, [B, STARTS, n]. Distances are 0 at padding.
    """
    # |x − c|² − |x|² = |c|² − 2 c·x
    rows = centers.flatten(1, 2)  # [B, STARTS·j, d]
    offsets = rows.square().sum(2, keepdim=True)
    reduced = torch.baddbmm(offsets, rows, points.transpose(1, 2), alpha=-2)
    nearest, labels = reduced.unflatten(1, (STARTS, -1)).min(2)
    squares = points.square().sum(2).unsqueeze(1)  # [B, 1, n]
    return labels, (nearest + squares).clamp_min(1e-30) * mask


def _means(points: Tensor, mask: Tensor, labels: Tensor, centers: Tensor) -> Tensor:
    """Means of the clusters, [B, STARTS, k, d]. A cluster without members keeps its center."""
    clusters = range(centers.shape[2])
    members = torch.stack([labels == i for i in clusters], 2) * mask.unsqueeze(1)
    counts = members.sum(3, keepdim=True)
    means = (members.flatten(1, 2) @ points).view_as(centers) / counts.clamp_min(1)
    return torch.where(counts > 0, means, centers)


def distribute_senses(distortion_drops: dict[int, list[float]], budget: int) -> Counter[int]:
    """Number of extra senses of each word, at most ``budget`` in total.

    Args:
        distortion_drops: for each word, by how much its total distortion falls with its second,
            third, … sense.
        budget: maximum number of extra senses of all words.

    Returns:
        the words with extra senses and their numbers. Senses go where the distortion falls most.
    """
    steps = []
    for word, drops in distortion_drops.items():
        # the running minimum keeps the senses of a word in order
        for drop in accumulate(drops, min):
            if drop > 0:
                steps.append((-drop, word))
    steps.sort()
    return Counter(word for _, word in steps[: max(0, budget)])


class WordSenses(NamedTuple):
    """The k senses of a word, relative to its embedding w and bias b, in float64."""

    rows: Tensor  # w_k − w, [k, d]
    bias: Tensor  # b_k − b, [k]
    share: Tensor  # π_k, [k]


def place_word(contexts: Tensor, labels: Tensor, gap: float, moments: Tensor) -> WordSenses:
    """Senses of a word, by the equations above.

    Args:
        contexts: contexts of the word, [n, d].
        labels: their clusters 0 … k − 1, [n].
        gap: maximum of f·(c_k − m)ᵀP(c_k − m) in nats, the preference of a sense for its cluster.
        moments: sum of [x, 1]ᵀ[x, 1] over contexts x of all words with enough contexts, each
            counted as often as it was seen, [d + 1, d + 1].
    """
    points = contexts.double()
    members = F.one_hot(labels).double()  # [n, k]
    share = members.mean(0)
    mean = points.mean(0)
    centers = members.t() @ points / members.sum(0).unsqueeze(1)  # [k, d]
    within = points - members @ centers
    offsets = centers - mean
    scatter = within.t() @ within / len(points)
    identity = torch.eye(points.shape[1]).double()
    # without scatter any P separates the clusters
    level = (scatter.trace() / len(identity)).clamp_min(1e-30)
    shrunk = torch.lerp(scatter, level * identity, SHRINKAGE)
    discriminants = torch.linalg.solve(shrunk, offsets.t()).t()  # P (c_k − m), [k, d]
    # applied to [x, 1] it is (c_k − m)ᵀP(x − m), [k, d + 1]
    affine = F.linear(discriminants, torch.cat([identity, -mean.unsqueeze(0)]))
    variance = ((affine @ moments) * affine).sum(1).max() / moments[-1, -1]
    deviation = variance.clamp_min(0).sqrt()  # max_k σ_k
    preference = (offsets * discriminants).sum(1).max()
    factor = gap / max(gap, float(preference), float(deviation) / 2)
    # ½ (mᵀPm − cᵀPc) = −½ (c − m)ᵀP(c + m)
    rows = factor * discriminants
    bias = factor * share.log() - 0.5 * (rows * (centers + mean)).sum(1)
    bias -= (points @ rows.t() + bias).logsumexp(1).mean()
    return WordSenses(rows, bias, share)


NumberOfSenses = Callable[[int, "list[Clustering]"], int]
"""Number of senses of a word, given the word and its clusterings into 1, 2, … clusters."""


@dataclass(frozen=True)
class PlacementSettings:
    """What the caller of :func:`place_senses` chooses.

    There are two aims. *Rows that lower the loss*: without ``number`` the senses go where the
    distortion falls most, up to ``total_senses``. *Senses to read*: ``number`` says how many senses
    a word has, and ``total_senses`` is an upper limit.
    """

    total_senses: int  # maximum number of senses of all words, V or more
    max_senses: int = 4  # maximum number of senses of a word
    gap: float | Tensor = 1.0  # that of :func:`place_word` for all words, or of each, [V]
    number: NumberOfSenses | None = None  # see :mod:`.evidence`
    device: torch.device | None = None  # where k-means runs. Default: that of the last contexts


class Placement(NamedTuple):
    """Senses for a softmax over V words. The first V senses belong to words 0 … V − 1."""

    rows: Tensor  # difference from the embedding of the word, [M, d]
    bias: Tensor  # difference from its bias, [M]
    word_of_sense: Tensor  # [M]
    share: Tensor  # share of the word's contexts, [M]


def place_senses(
    sample: ContextSample, settings: PlacementSettings, progress: Progress = no_progress
) -> Placement:
    """Place senses on the clusters of each word's contexts.

    Args:
        sample: contexts of V words. Words without :attr:`ContextSample.enough` keep one sense.
        settings: numbers of senses, and how far they may be apart.
        progress: wrapper of the iterable of batches of words.

    Returns:
        the senses, of which there may be fewer than ``settings.total_senses``.
    """
    words = len(sample.size)
    device = settings.device or sample.device
    basis, moments = whiten(sample)
    clusterings: dict[int, list[Clustering]] = {}
    drops: dict[int, list[float]] = {}
    for batch in progress(_batches(sample, one_by_one=device.type == "cpu")):
        whitened = [(sample.contexts(word) @ basis).to(device) for word in batch]
        for word, found in zip(batch, cluster(whitened, settings.max_senses)):
            seen = int(sample.seen[word])
            if settings.number is not None:
                found = found[: settings.number(word, found)]
            clusterings[word] = found
            drops[word] = [
                seen * (fewer.distortion - more.distortion) for fewer, more in zip(found, found[1:])
            ]
    extra = distribute_senses(drops, settings.total_senses - words)
    gaps = torch.as_tensor(settings.gap).expand(words).tolist()
    word_of_sense = torch.tensor([*range(words), *sorted(extra.elements())])
    rows = torch.zeros(len(word_of_sense), sample.dim)
    bias = rows.new_zeros(len(rows))
    share = rows.new_ones(len(rows))
    for word, number in extra.items():
        labels = clusterings[word][number].labels
        placed = place_word(sample.contexts(word), labels, gaps[word], moments)
        senses = word_of_sense == word
        rows[senses] = placed.rows.float()
        bias[senses] = placed.bias.float()
        share[senses] = placed.share.float()
    return Placement(rows, bias, word_of_sense, share)


def _batches(sample: ContextSample, *, one_by_one: bool) -> list[list[int]]:
    """Words with enough contexts, in batches for :func:`cluster`: one word, or many.

    Words with similar numbers of contexts are together, because that needs little padding.
    """
    sizes, order = sample.seen.minimum(sample.size).sort(stable=True)
    number = 1 if one_by_one else max(1, BATCH // max(1, int(sizes[-1])))
    return [batch.tolist() for batch in order[sample.enough[order]].split(number) if len(batch)]
