"""Geometry of context vectors (Section 1 of the paper): clusters and variance, word by word.

Any fairseq model with a decoder can be looked at; what softmax models show is why a word should
have several senses, each with a variance of its own.

Clusters are those of k-means. Their mean silhouette says how well k clusters fit, but not whether
there is more than one: any elongated cloud can be cut in two. So the best k ≥ 2 counts only if its
silhouette is above those that samples of one Gaussian with the cloud's own covariance reach in the
same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score
from tabulate import tabulate
from torch import Tensor

from fairseq_kerbs.analysis.context_vectors import sense_numbers, sense_of, usage_shares
from fairseq_kerbs.evaluation.texts import table_as_csv
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
    """Choose the number of clusters of points [n, d], at most ``most`` and n − 1. Of d the first 50
    principal axes are used; no ``samples`` of the Gaussian: no comparison."""
    one = Clusters(1, torch.zeros(len(points), dtype=torch.long), 0.0)
    points = points.double()
    if len(points) < 3 or float(points.std(0).max()) <= 1e-9 * float(points.abs().max()):
        return one
    analysis = PCA(min(_MOST_AXES, *points.shape), svd_solver="full")
    axes = analysis.fit_transform(points.numpy())  # [n, r]
    deviations = np.sqrt(analysis.explained_variance_)  # [r]
    found = _best(axes, most, seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(samples):
        noise = torch.randn(axes.shape, generator=generator, dtype=torch.double).numpy()
        if _best(noise * deviations, most, seed).silhouette >= found.silhouette:
            return one._replace(silhouette=found.silhouette)
    return found


def _best(points: NDArray[np.float64], most: int, seed: int) -> Clusters:
    """The k ≥ 2 with the best mean silhouette; one cluster with −1 where there is none."""
    best = Clusters(1, torch.zeros(len(points), dtype=torch.long), -1.0)
    for number in range(2, min(most, len(points) - 1) + 1):
        with warnings.catch_warnings():
            # where points coincide there may be fewer clusters than asked for
            warnings.simplefilter("ignore", ConvergenceWarning)
            labels = KMeans(number, n_init=STARTS, random_state=seed).fit_predict(points)
        if 2 <= len(np.unique(labels)) < len(points):
            silhouette = float(silhouette_score(points, labels))
            if silhouette > best.silhouette:
                best = Clusters(number, torch.from_numpy(labels).long(), silhouette)
    return best


def measure_word(
    vectors: Tensor, most: int, seed: int = 1, layer: OutputLayer | None = None, word: int = 0
) -> dict[str, Any]:
    """Clusters (at most ``most``) and variance of a word's context vectors [n, d].

    Returns numbers of ``contexts`` and ``clusters``, ``sizes`` of these (the largest first),
    ``silhouette``, ``variance`` (mean squared distance to the mean vector), ``relative`` (as a
    share of the mean squared length) and ``within`` (that within clusters as a share of it); of the
    word's senses in ``layer``, else None: how many (``senses``), how many are ``used`` in these
    contexts, and their mean ``theta`` by usage.
    """
    found, vectors = find_clusters(vectors, most, seed), vectors.double()
    parts = [vectors[found.labels == label] for label in found.labels.unique()]
    variance = float(vectors.var(0, correction=0).sum())
    inside = sum(float(part.var(0, correction=0).sum()) * len(part) for part in parts)
    result: dict[str, Any] = {
        "contexts": len(vectors),
        "clusters": found.number,
        "sizes": sorted(map(len, parts), reverse=True),
        "silhouette": found.silhouette,
        "variance": variance,
        "relative": variance / max(float(vectors.square().sum(1).mean()), 1e-300),
        "within": inside / len(vectors) / variance if variance > 0 else 0.0,
        **dict.fromkeys(("senses", "used", "theta")),
    }
    if layer is not None:
        own = sense_numbers(layer, word)
        result["senses"] = len(own)
        result["used"] = len(sense_of(layer, word, vectors.float()).unique())
        if layer.has_theta:
            theta = layer.theta[own].detach()
            result["theta"] = float((theta * usage_shares(layer, own)).sum())
    return result


_COLUMNS = ["word", "contexts", "clusters", "sizes", "silhouette", "variance", "relative", "within"]
_COLUMNS += ["senses", "used", "theta"]


def geometry_as_csv(words: Sequence[dict[str, Any]]) -> str:
    """One row a word; sizes of clusters with spaces between them."""
    rows = [one | {"sizes": " ".join(map(str, one["sizes"]))} for one in words]
    return table_as_csv(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])


def geometry_as_text(words: Sequence[dict[str, Any]]) -> str:
    """A table of figures of words for a terminal, and what they come to."""
    names = [name for name in _COLUMNS if name != "sizes"]
    rows = [{name: one[name] for name in names if one[name] is not None} for one in words]
    relative = [word["relative"] for word in words]
    return (
        f"{tabulate(rows, 'keys', 'plain', floatfmt='.3g', disable_numparse=[0])}\n"
        f"{sum(word['clusters'] > 1 for word in words)} of {len(words)} words have more than one "
        "cluster; their variance, relative to the mean squared length, lies between "
        f"{min(relative):.1%} and {max(relative):.1%}"
    )
