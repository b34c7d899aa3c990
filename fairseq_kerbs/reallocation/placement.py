"""Place senses on the clusters of a word's contexts. The kernel is the inner product.

The contexts of a word form clusters, for example one per meaning. Every cluster receives a sense,
in four steps:

1. sample contexts of each word (:mod:`.context_sample`);
2. cluster them by k-means (:mod:`.kmeans`), after :func:`whiten` has reduced the weight of
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

from fairseq_kerbs.reallocation.context_sample import ContextSample
from fairseq_kerbs.reallocation.kmeans import Clustering, cluster

SHRINKAGE = 0.3
"""Shrinkage of the scatter within clusters towards a multiple of the identity."""

WHITENING = 0.5
"""The same for the scatter of all words in :func:`whiten`."""

BATCH = 20_000
"""Contexts that are clustered together on a GPU, more if one word has more."""

Progress = Callable[[Iterable[Any]], Iterable[Any]]
"""Wrapper of an iterable that shows how far it is, such as ``tqdm.tqdm``."""


def no_progress(items: Iterable[Any]) -> Iterable[Any]:
    """Show nothing."""
    return items


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

    There are two purposes. *Senses that lower the loss*: without ``number`` the senses go where the
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
