"""Geometry of context vectors (Section 1 of the paper): clusters and variance, word by word.

Any fairseq model with a decoder can be looked at; what softmax models show is why a word should
have several senses, each with a variance of its own.

Clusters are those of k-means. The silhouette of a point compares its mean distance a to the other
points of its cluster with its mean distance b to those of the nearest other cluster:
(b − a)/max(a, b). Its mean over the points says how well k clusters fit, but not whether there is
more than one: any elongated cloud can be cut in two. So the best k ≥ 2 counts only if its
silhouette is above those that samples of one Gaussian with the cloud's own covariance reach in the
same way.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairseq_kerbs.analysis.context_vectors import sense_numbers, sense_of, usage_shares
from fairseq_kerbs.analysis.tables import as_csv, as_lines
from fairseq_kerbs.output_layers import OutputLayer

SAMPLES = 19  # of the Gaussian: one cloud of it in 20 is taken for several clusters
STARTS = 8  # of k-means
_MOST_AXES = 50


class Clusters(NamedTuple):
    """Clusters of n points."""

    number: int  # how many
    labels: Tensor  # [n] cluster of each point
    silhouette: float  # mean silhouette of the best k ≥ 2, also where one cluster was found


def find_clusters(points: Tensor, most: int, seed: int = 1, samples: int = SAMPLES) -> Clusters:
    """Choose the number of clusters.

    Args:
        points: [n, d]; of d the first 50 principal axes are used.
        most: most clusters; at most n − 1 are tried.
        seed: of k-means and of the samples.
        samples: of the Gaussian; 0 leaves the comparison out.
    """
    from sklearn.decomposition import PCA

    one = Clusters(1, torch.zeros(len(points), dtype=torch.long), 0.0)
    points = points.double()
    if len(points) < 3 or float(points.std(0).max()) <= 1e-9 * float(points.abs().max()):
        return one
    analysis = PCA(min(_MOST_AXES, *points.shape), svd_solver="full")
    axes = analysis.fit_transform(points.numpy())  # [n, r]
    deviations = torch.from_numpy(np.sqrt(analysis.explained_variance_))  # [r]
    found = _best(axes, most, seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(samples):
        noise = torch.randn(axes.shape, generator=generator, dtype=torch.double)
        if _best((noise * deviations).numpy(), most, seed).silhouette >= found.silhouette:
            return one._replace(silhouette=found.silhouette)
    return found


def _best(points: NDArray[np.float64], most: int, seed: int) -> Clusters:
    """The k ≥ 2 with the best mean silhouette; one cluster with −1 where there is none."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import pairwise_distances, silhouette_score

    distances = pairwise_distances(points)
    np.fill_diagonal(distances, 0.0)  # rounding leaves traces there
    best = Clusters(1, torch.zeros(len(points), dtype=torch.long), -1.0)
    for number in range(2, min(most, len(points) - 1) + 1):
        with warnings.catch_warnings():
            # where points coincide there may be fewer clusters than asked for
            warnings.simplefilter("ignore", ConvergenceWarning)
            labels = KMeans(number, n_init=STARTS, random_state=seed).fit_predict(points)
        if not 2 <= len(np.unique(labels)) < len(points):
            continue
        silhouette = float(silhouette_score(distances, labels, metric="precomputed"))
        if silhouette > best.silhouette:
            best = Clusters(number, torch.from_numpy(labels).long(), silhouette)
    return best


@dataclass(frozen=True)
class WordGeometry:
    """Context vectors of one word; the last three of a KerBS model only."""

    word: str
    contexts: int  # how many were looked at
    clusters: int  # how many were found
    sizes: list[int]  # contexts in each, the largest first
    silhouette: float  # mean silhouette of the best division into two or more
    variance: float  # mean squared distance to the mean vector
    relative: float  # variance as a share of the mean squared length
    within: float  # variance within the clusters, as a share of the variance
    senses: int | None = None  # of the word
    used: int | None = None  # how many of them these contexts use
    theta: float | None = None  # mean θ of the senses, by usage


@dataclass(frozen=True)
class Geometry:
    """Words, and those that could not be measured."""

    words: list[WordGeometry]  # in the order asked for
    few: dict[str, int]  # words with too few contexts, and how many
    least: int  # contexts that a word must have


def measure_word(
    word: str,
    vectors: Tensor,
    most: int,
    seed: int = 1,
    *,
    layer: OutputLayer | None = None,
    number: int = 0,
) -> WordGeometry:
    """Clusters and variance of one word's contexts.

    Args:
        word: the word.
        vectors: [n, d] its context vectors, n ≥ 1.
        most: most clusters.
        seed: see `find_clusters`.
        layer: output layer of a model of ours.
        number: number of the word there.
    """
    found, vectors = find_clusters(vectors, most, seed), vectors.double()
    sizes = found.labels.bincount()
    variance = float(vectors.var(0, correction=0).sum())
    inside = sum(
        len(part) * float(part.var(0, correction=0).sum())
        for label in range(len(sizes))
        if len(part := vectors[found.labels == label])
    )
    result = WordGeometry(
        word,
        contexts=len(vectors),
        clusters=found.number,
        sizes=sorted(filter(None, sizes.tolist()), reverse=True),
        silhouette=found.silhouette,
        variance=variance,
        relative=variance / max(float(vectors.square().sum(1).mean()), 1e-300),
        within=inside / len(vectors) / variance if variance > 0 else 0.0,
    )
    if layer is None:
        return result
    own = sense_numbers(layer, number)
    theta = float((layer.theta[own].detach() * usage_shares(layer, own)).sum())
    return dataclasses.replace(
        result,
        senses=len(own),
        used=len(sense_of(layer, number, vectors.float()).unique()),
        theta=theta if layer.has_theta else None,
    )


def measure_words(
    vectors: Mapping[int, Tensor],
    words: Sequence[int],
    symbols: Sequence[str],
    *,
    most: int,
    least: int,
    seed: int = 1,
    layer: OutputLayer | None = None,
) -> Geometry:
    """Geometry of several words.

    Args:
        vectors: [n, d] context vectors by word.
        words: numbers of the words asked for.
        symbols: [V] entries of the dictionary.
        most: most clusters.
        least: contexts that a word must have.
        seed: see `find_clusters`.
        layer: output layer of a model of ours.
    """
    counts = {word: len(vectors[word]) if word in vectors else 0 for word in words}
    measured = [
        measure_word(symbols[word], vectors[word], most, seed, layer=layer, number=word)
        for word in words
        if counts[word] >= least
    ]
    few = {symbols[word]: count for word, count in counts.items() if count < least}
    return Geometry(measured, few, least)


def geometry_as_csv(geometry: Geometry) -> str:
    """One row a word; sizes of clusters with spaces between them."""
    rows = [vars(one) | {"sizes": " ".join(map(str, one.sizes))} for one in geometry.words]
    head = [field.name for field in dataclasses.fields(WordGeometry)]
    return as_csv(head, [list(row.values()) for row in rows])


def geometry_as_text(geometry: Geometry) -> str:
    """A table for a terminal, and what it comes to."""
    words, lines = geometry.words, []
    if words:
        head = ["word", "contexts", "clusters", "silhouette", "variance", "relative", "within"]
        rows = []
        for one in words:
            row = [one.word, str(one.contexts), str(one.clusters), f"{one.silhouette:.2f}"]
            row += [f"{one.variance:.4g}", f"{one.relative:.1%}", f"{one.within:.0%}"]
            if one.senses is not None:
                theta = "–" if one.theta is None else f"{one.theta:+.3f}"
                row += [str(one.senses), str(one.used), theta]
            rows.append(row)
        head += ["senses", "used", "θ"] if words[0].senses is not None else []
        several = sum(word.clusters > 1 for word in words)
        relative = [word.relative for word in words]
        lines = [
            *as_lines(head, rows),
            f"{several} of {len(words)} words have more than one cluster; their variance, "
            f"relative to the mean squared length, lies between {min(relative):.1%} and "
            f"{max(relative):.1%}",
        ]
    if geometry.few:
        counts = ", ".join(f"{word} ({count})" for word, count in geometry.few.items())
        lines.append(f"fewer than {geometry.least} contexts: {counts}")
    return "\n".join(lines)
