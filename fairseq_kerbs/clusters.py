"""Place senses on the clusters of a softmax model's contexts. Its kernel is the inner product.

The contexts of a word form clusters, for example one per meaning. Every cluster receives a sense:
sample contexts of each word (:class:`ContextSample`), cluster them by k-means (:func:`cluster`),
choose the number of senses of each word (:func:`allocate`), compute senses (:func:`place_word`).
Before k-means, :func:`whiten` reduces the weight of directions in which contexts of all words vary.

The senses of a word are the linear discriminants of its clusters, added to its embedding and bias.
Cluster k has center c_k and share π_k. m is the mean of all contexts, S the scatter in clusters:

    w_k = w + f P (c_k − m)
    b_k = b + f (½ (mᵀPm − c_kᵀPc_k) + log π_k) − E_h[log Σ_k exp(…)]
    P   = ((1 − s) S + s·tr(S)/d·I)⁻¹
    f   = min(1, gap / max_k (c_k − m)ᵀP(c_k − m), 2 gap / max_k σ_k)

(…) is the term added to the logit of sense k, s is :data:`SHRINKAGE`, and σ_k² the mean of
((c_k − m)ᵀP(x − m))² over contexts x of all words. f does not change which sense is most probable,
it limits changes in other words' contexts. The last term of b_k preserves the mean log mass.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_kerbs.utils.processes import progress

SHRINKAGE = 0.3  # of the scatter within clusters towards a multiple of the identity
LEAST_CONTEXTS = 40  # words with fewer contexts, and special symbols, keep one sense
CONTEXTS_A_SENSE = 20  # minimum number of contexts per sense
STARTS = 5  # initializations of k-means; with 2, some words had a worse optimum
BATCH = 20_000  # contexts that are clustered together on a GPU, more if one word has more
WHITENING = 0.5  # shrinkage of the scatter in whiten()


class ContextSample:
    """A random sample of the contexts of each word, drawn in one pass (Vitter's algorithm R).

    Args:
        counts: expected number of contexts of each word, [V]. There may be more.
        dim: size d of contexts. They are stored in float16.
        most: maximum number of contexts of a word.
        memory: maximum size of the sample in bytes.
        special: number of special symbols at the start of the vocabulary, which are not sampled.
        seed: random seed.

    Raises:
        ValueError: ``memory`` is too small for :data:`LEAST_CONTEXTS` contexts of each word.
    """

    def __init__(
        self, counts: Tensor, dim: int, most: int, memory: int, special: int = 4, seed: int = 1
    ) -> None:
        counts = torch.where(counts >= LEAST_CONTEXTS, counts, 0).cpu()
        counts[:special] = 0
        # the largest ``most`` with Σ min(most, counts) ≤ rows
        ordered, rows = counts.sort().values, memory // (2 * dim)
        limits = (rows - ordered.cumsum(0) + ordered) // torch.arange(len(counts), 0, -1)
        most, words = min(most, int(limits.max())), int((counts > 0).sum())
        if words and most < LEAST_CONTEXTS:
            need = f"{2e-9 * dim * LEAST_CONTEXTS * words:.2g} GB for {LEAST_CONTEXTS} contexts"
            raise ValueError(f"{memory / 1e9:.3g} GB are not enough: {words} words need {need}.")
        self._reset(counts.clamp_max(most), dim, seed)

    def _reset(self, size: Tensor, dim: int, seed: int) -> None:
        self.size, self.seen = size, torch.zeros_like(size)  # maximum and added contexts, [V] each
        self.seed, self.start = seed, size.cumsum(0) - size  # start: first row of each word, [V]
        self.kept = torch.empty(int(size.sum()), dim, dtype=torch.float16)
        self.device = self.kept.device  # of the contexts added last, where k-means runs

    def _filled(self) -> Tensor:
        """Mask of the rows of :attr:`kept` that have a context."""
        place = torch.arange(len(self.kept)) - self.start.repeat_interleave(self.size)
        return place < self.seen.repeat_interleave(self.size)

    def state(self) -> dict[str, Tensor]:
        """State for a checkpoint, see :meth:`from_state`."""
        kept, seed = self.kept[self._filled()], torch.tensor(self.seed)
        return {"size": self.size, "seen": self.seen, "kept": kept, "seed": seed}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> ContextSample:
        """Restore a sample from :meth:`state`. Sampling continues identically."""
        sample = cls.__new__(cls)
        sample._reset(state["size"].cpu(), state["kept"].shape[1], int(state["seed"]))
        sample.seen += state["seen"].cpu()
        sample.kept[sample._filled()] = state["kept"].cpu().half()
        return sample

    @property
    def enough(self) -> Tensor:
        """Mask of words with enough contexts for clusters, [V]."""
        return (self.seen >= LEAST_CONTEXTS) & (self.size > 0)

    def add(self, words: Tensor, contexts: Tensor) -> None:
        """Add contexts [n, d] of words [n]."""
        generator = torch.Generator().manual_seed(self.seed + int(self.seen.sum()))
        words, order = torch.sort(words.cpu(), stable=True)
        # number of each context among those of its word
        number = torch.arange(len(words)) - torch.searchsorted(words, words) + self.seen[words]
        self.seen += torch.bincount(words, minlength=len(self.seen))
        size, drawn = self.size[words], torch.rand(len(words), generator=generator)
        place = torch.where(number < size, number, (drawn.double() * (number + 1)).long())
        taken = (place < size).nonzero().squeeze(1)
        filled, which = (self.start[words] + place)[taken].unique(return_inverse=True)
        last = torch.zeros_like(filled).scatter_reduce(0, which, taken, "amax")  # of each slot
        rows = contexts[order[last].to(contexts.device)].float().clamp(-65504, 65504)  # of float16
        self.kept[filled], self.device = rows.to(self.kept), contexts.device

    def contexts(self, word: int) -> Tensor:
        """Sampled contexts of a word, [n, d] in float32."""
        start, size = int(self.start[word]), int(self.size[word].minimum(self.seen[word]))
        return self.kept[start : start + size].float()


def whiten(sample: ContextSample) -> tuple[Tensor, Tensor]:
    """Whitening matrix A [d, d] for contexts x -> x A, with AᵀCA = I. C is the scatter of contexts
    around the mean of their word, shrunk. Also returns the moments of :func:`place_word`."""
    eye = torch.eye(sample.kept.shape[1], dtype=torch.float64)
    scatter, moments = torch.zeros_like(eye), torch.zeros(len(eye) + 1, len(eye) + 1).double()
    for word in sample.enough.nonzero().squeeze(1).tolist():
        contexts = F.pad(sample.contexts(word).double(), (0, 1), value=1.0)
        moments += contexts.t() @ contexts * (int(sample.seen[word]) / len(contexts))
        contexts = (contexts - contexts.mean(0))[:, :-1]
        scatter += contexts.t() @ contexts
    level = (scatter.trace() / len(eye)).clamp_min(1e-30)
    values, vectors = torch.linalg.eigh(torch.lerp(scatter / level, eye, WHITENING))
    return (vectors * values.rsqrt()).float(), moments


def cluster(contexts: list[Tensor], most: int) -> list[list[tuple[Tensor, float]]]:
    """Cluster contexts [n, d] of each word, for k = 1 … ``most``, or fewer with few contexts. For
    each k, return the cluster of each context, [n], and the mean squared distance from centers."""
    points = pad_sequence([of_word - of_word.mean(0) for of_word in contexts], batch_first=True)
    mask = pad_sequence([of_word.new_ones(len(of_word)) for of_word in contexts], batch_first=True)
    found: list[list[tuple[Tensor, float]]] = [[] for _ in contexts]
    for k in range(1, min(most, points.shape[1] // CONTEXTS_A_SENSE) + 1):
        labels, means = (result.cpu() for result in _k_means(points, mask, k))
        for several, of_word, clusters, mean in zip(found, contexts, labels, means.tolist()):
            clusters, rounding = clusters[: len(of_word)], 1e-10 * of_word.square().sum(1).mean()
            enough = len(of_word) >= k * CONTEXTS_A_SENSE and len(several) == k - 1
            if enough and (k == 1 or several[-1][1] > rounding) and len(clusters.unique()) == k:
                several.append((clusters, mean))
    return found


def _k_means(points: Tensor, mask: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm from k-means++ for centered points [B, n, d] of B words, of which those
    with ``mask`` [B, n] 1 count. Returns clusters, [B, n], and mean squared distances, [B]."""
    draws = torch.rand(k, STARTS, 1, generator=torch.Generator().manual_seed(k)).to(points)
    mask, squares = mask.unsqueeze(1), points.square().sum(2).unsqueeze(1)  # [B, 1, n]
    centers = points.new_empty(len(points), STARTS, 0, points.shape[2])  # [B, STARTS, j, d]
    distances, labels = mask.repeat(1, STARTS, 1), -mask.repeat(1, STARTS, 1).long()
    for _ in range(300):
        if (j := centers.shape[2]) < k:  # a new center, with a probability by squared distance
            sums = distances.cumsum(2)
            places = torch.searchsorted(sums, draws[j] * sums[:, :, -1:])  # [B, STARTS, 1]
            centers = torch.cat([centers, points.take_along_dim(places, 1).unsqueeze(2)], 2)
        else:  # a cluster without members keeps its center
            members = torch.stack([labels == i for i in range(k)], 2) * mask.unsqueeze(1)
            counts = members.sum(3, keepdim=True)
            means = (members.flatten(1, 2) @ points).view_as(centers) / counts.clamp_min(1)
            centers = torch.where(counts > 0, means, centers)
        before, rows = labels, centers.flatten(1, 2)
        offsets = rows.square().sum(2, keepdim=True)
        apart = torch.baddbmm(offsets, rows, points.transpose(1, 2), alpha=-2)
        nearest, labels = apart.unflatten(1, (STARTS, -1)).min(2)
        distances = (nearest + squares).clamp_min(1e-30) * mask
        if torch.equal(labels, before):
            break
    mean, best = (distances.sum(2) / mask.sum(2)).min(1)
    return labels.take_along_dim(best.view(-1, 1, 1), 1).squeeze(1), mean


def allocate(falls: dict[int, list[float]], extra: int) -> Counter[int]:
    """Number of extra senses of each word, at most ``extra`` in total. Each goes to the word whose
    distortion decreases most, by ``falls[word][j]`` for extra sense j."""
    # the running minimum keeps the senses of a word in order
    minima = ((word, low) for word, fall in falls.items() for low in accumulate(fall, min))
    steps = sorted((-low, word) for word, low in minima if low > 0)
    return Counter(word for _, word in steps[: max(0, extra)])


def place_word(contexts: Tensor, labels: Tensor, gap: float, moments: Tensor) -> list[Tensor]:
    """Senses of a word, relative to its embedding and bias, by the equations above.

    Args:
        contexts, labels: contexts of the word, [n, d], and their clusters 0 … k − 1, [n].
        gap: maximum of f·(c_k − m)ᵀP(c_k − m) in nats, the preference of a sense for its cluster.
        moments: sum of [x, 1]ᵀ[x, 1] over contexts x of all words, [d + 1, d + 1].

    Returns w_k − w [k, d], b_k − b [k] and π_k [k], in float64.
    """
    points, members = contexts.double(), F.one_hot(labels).double()
    share, mean = members.mean(0), points.mean(0)
    centers = members.t() @ points / members.sum(0).unsqueeze(1)
    within, offsets = points - members @ centers, centers - mean
    scatter, eye = within.t() @ within / len(points), torch.eye(points.shape[1]).double()
    level = (scatter.trace() / len(eye)).clamp_min(1e-30)  # without scatter any P separates them
    discriminants = torch.linalg.solve(torch.lerp(scatter, level * eye, SHRINKAGE), offsets.t()).t()
    apart = F.linear(discriminants, torch.cat([eye, -mean.unsqueeze(0)]))  # for [x, 1], [k, d + 1]
    spread = (((apart @ moments) * apart).sum(1).max() / moments[-1, -1]).clamp_min(0).sqrt()
    factor = gap / max(gap, float((offsets * discriminants).sum(1).max()), float(spread) / 2)
    # ½ (mᵀPm − cᵀPc) = −½ (c − m)ᵀP(c + m)
    rows = factor * discriminants
    bias = factor * share.log() - 0.5 * (rows * (centers + mean)).sum(1)
    bias -= (points @ rows.t() + bias).logsumexp(1).mean()
    return [rows, bias, share]


class Placement(NamedTuple):
    """Senses for a softmax over V words. The first V senses belong to words 0 … V − 1."""

    rows: Tensor  # difference from the embedding of the word, [M, d]
    bias: Tensor  # difference from its bias, [M]
    word_of_sense: Tensor  # [M]
    share: Tensor  # share of the word's contexts, [M]


def place_senses(
    sample: ContextSample, total_senses: int, max_senses: int = 4, gap: float | Tensor = 1.0
) -> Placement:
    """Place senses on the clusters of each word's contexts: at most ``total_senses``, which is V or
    more, and ``max_senses`` of a word. ``gap``, a number or [V], is that of :func:`place_word`."""
    words, (basis, moments) = len(sample.size), whiten(sample)
    found, falls = dict[int, list[tuple[Tensor, float]]](), dict[int, list[float]]()
    sizes, order = sample.seen.minimum(sample.size).sort(stable=True)  # similar: little padding
    number = 1 if sample.device.type == "cpu" else max(1, BATCH // int(sizes[-1]))
    batches = [some for some in order[sample.enough[order]].split(number) if len(some)]
    for batch in progress(batches, "clusters", " batches"):
        whitened = [(sample.contexts(word) @ basis).to(sample.device) for word in batch.tolist()]
        for word, several in zip(batch.tolist(), cluster(whitened, max_senses)):
            found[word], seen = several, int(sample.seen[word])
            falls[word] = [seen * (a - b) for (_, a), (_, b) in zip(several, several[1:])]
    extra, gaps = allocate(falls, total_senses - words), torch.as_tensor(gap).expand(words).tolist()
    word_of_sense = torch.tensor([*range(words), *sorted(extra.elements())])
    rows = torch.zeros(len(word_of_sense), sample.kept.shape[1])
    bias, share = rows.new_zeros(len(rows)), rows.new_ones(len(rows))
    for word, number in extra.items():
        placed = place_word(sample.contexts(word), found[word][number][0], gaps[word], moments)
        senses = word_of_sense == word
        rows[senses], bias[senses], share[senses] = (value.float() for value in placed)
    return Placement(rows, bias, word_of_sense, share)
