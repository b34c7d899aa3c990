"""How many clusters a cloud of vectors has: k-means, silhouettes, and a test against one Gaussian.

The silhouette of a point compares its mean distance a to the other points of its cluster with its
mean distance b to those of the nearest other cluster: (b − a)/max(a, b). Its mean over the points
says how well k clusters fit, but not whether there is more than one: any elongated cloud can be cut
in two. So the best k ≥ 2 counts only if its silhouette is above those that samples of one Gaussian
with the cloud's own covariance reach in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SAMPLES = 19  # of the Gaussian: one cloud of it in 20 is taken for several clusters
STARTS, ROUNDS = 8, 50
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
    generator = torch.Generator().manual_seed(seed)
    axes, deviations = _principal(points)  # [n, r], [r]
    one = torch.zeros(len(points), dtype=torch.long)
    if len(points) < 3 or float(deviations.max()) <= 1e-9 * float(points.abs().max()):
        return Clusters(1, one, 0.0)
    number, labels, silhouette = _best(axes, most, generator)
    for _ in range(samples):
        noise = torch.randn(axes.shape, generator=generator, dtype=axes.dtype)
        if _best(noise * deviations, most, generator)[2] >= silhouette:
            return Clusters(1, one, silhouette)
    return Clusters(number, labels, silhouette)


def _principal(points: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates along the principal axes, and the deviation along each."""
    centered = points.double() - points.double().mean(0)
    left, values, _ = torch.linalg.svd(centered, full_matrices=False)
    values = values[:_MOST_AXES]
    return left[:, : len(values)] * values, values / max(1, len(points) - 1) ** 0.5


def _best(points: Tensor, most: int, generator: torch.Generator) -> tuple[int, Tensor, float]:
    distances = torch.cdist(points, points)
    best = (1, torch.zeros(len(points), dtype=torch.long), -1.0)
    for number in range(2, min(most, len(points) - 1) + 1):
        labels = k_means(points, number, generator)
        silhouette = mean_silhouette(distances, labels)
        if silhouette > best[2]:
            best = (number, labels, silhouette)
    return best


def k_means(points: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Lloyd's algorithm from several k-means++ starts at once; the best of them.

    Args:
        points: [n, d].
        number: clusters k ≤ n.
        generator: source of the starts.

    Returns:
        [n] cluster of each point; where points coincide, clusters may be empty.
    """
    centers = _starts(points, number, generator)  # [starts, k, d]
    labels = torch.cdist(points, centers).argmin(2)  # [starts, n]
    for _ in range(ROUNDS):
        member = torch.nn.functional.one_hot(labels, number).to(points.dtype)  # [starts, n, k]
        sizes = member.sum(1).unsqueeze(2)  # [starts, k, 1]
        means = member.transpose(1, 2) @ points / sizes.clamp_min(1.0)
        centers = torch.where(sizes > 0, means, centers)
        moved = torch.cdist(points, centers).argmin(2)
        if torch.equal(moved, labels):
            break
        labels = moved
    spread = torch.cdist(points, centers).amin(2).square().sum(1)  # [starts]
    return labels[spread.argmin()]


def _starts(points: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Centers drawn one by one, each with the chance of its squared distance to those before."""
    first = torch.randint(len(points), (STARTS, 1), generator=generator)
    chosen = points[first]  # [starts, 1, d]
    for _ in range(number - 1):
        chance = torch.cdist(points, chosen).amin(2).square()  # [starts, n]
        drawn = torch.multinomial(chance + 1e-300, 1, generator=generator)
        chosen = torch.cat([chosen, points[drawn]], 1)
    return chosen


def mean_silhouette(distances: Tensor, labels: Tensor) -> float:
    """Mean silhouette; that of a cluster's only point is 0.

    Args:
        distances: [n, n] between points.
        labels: [n] cluster of each point.

    Returns:
        −1 where all points are in one cluster.
    """
    used = labels.unique()
    if len(used) < 2:
        return -1.0
    member = (labels.unsqueeze(1) == used).to(distances.dtype)  # [n, k]
    sums, sizes = distances @ member, member.sum(0)  # [n, k], [k]
    own = member.bool()
    inside = sums[own] / (sizes.expand_as(sums)[own] - 1).clamp_min(1.0)  # [n]
    outside = (sums / sizes).masked_fill(own, torch.inf).amin(1)
    values = (outside - inside) / torch.maximum(inside, outside).clamp_min(1e-300)
    return float(torch.where(sizes.expand_as(sums)[own] > 1, values, 0.0).mean())
