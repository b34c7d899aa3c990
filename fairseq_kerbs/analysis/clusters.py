"""How many clusters a cloud of vectors has: k-means, silhouettes, and a test against one Gaussian.

The silhouette of a point compares its mean distance a to the other points of its cluster with its
mean distance b to those of the nearest other cluster: (b − a)/max(a, b). Its mean over the points
says how well k clusters fit, but not whether there is more than one: any elongated cloud can be cut
in two. So the best k ≥ 2 counts only if its silhouette is above those that samples of one Gaussian
with the cloud's own covariance reach in the same way.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SAMPLES = 19  # of the Gaussian: one cloud of it in 20 is taken for several clusters
STARTS = 8  # of k-means
_MOST_AXES = 50


@dataclass(frozen=True)
class Clusters:
    """Clusters of n points.

    Attributes:
        number: how many.
        labels: [n] cluster of each point.
        silhouette: mean silhouette of the best k ≥ 2, also where one cluster was found.
    """

    number: int
    labels: Tensor
    silhouette: float


def find_clusters(points: Tensor, most: int, seed: int = 1, samples: int = SAMPLES) -> Clusters:
    """Choose the number of clusters.

    Args:
        points: [n, d]; of d the first 50 principal axes are used.
        most: most clusters; at most n − 1 are tried.
        seed: of k-means and of the samples.
        samples: of the Gaussian; 0 leaves the comparison out.
    """
    axes, deviations = _principal(points)  # [n, r], [r]
    one = torch.zeros(len(points), dtype=torch.long)
    if len(points) < 3 or float(deviations.max()) <= 1e-9 * float(points.abs().max()):
        return Clusters(1, one, 0.0)
    number, labels, silhouette = _best(axes.numpy(), most, seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(samples):
        noise = torch.randn(axes.shape, generator=generator, dtype=axes.dtype)
        if _best((noise * deviations).numpy(), most, seed)[2] >= silhouette:
            return Clusters(1, one, silhouette)
    return Clusters(number, torch.tensor(labels), silhouette)


def _principal(points: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates along the principal axes, and the deviation along each."""
    centered = points.double() - points.double().mean(0)
    left, values, _ = torch.linalg.svd(centered, full_matrices=False)
    values = values[:_MOST_AXES]
    return left[:, : len(values)] * values, values / max(1, len(points) - 1) ** 0.5


def _best(points: NDArray[np.float64], most: int, seed: int) -> tuple[int, list[int], float]:
    """The k ≥ 2 with the best mean silhouette, its labels, and that silhouette; −1 without any."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import pairwise_distances, silhouette_score

    distances = pairwise_distances(points)
    np.fill_diagonal(distances, 0.0)  # rounding leaves traces there
    best = (1, [0] * len(points), -1.0)
    for number in range(2, min(most, len(points) - 1) + 1):
        with warnings.catch_warnings():
            # where points coincide there may be fewer clusters than asked for
            warnings.simplefilter("ignore", ConvergenceWarning)
            labels = KMeans(number, n_init=STARTS, random_state=seed).fit_predict(points)
        if not 2 <= len(np.unique(labels)) < len(points):
            continue
        silhouette = float(silhouette_score(distances, labels, metric="precomputed"))
        if silhouette > best[2]:
            best = (number, labels.tolist(), silhouette)
    return best
