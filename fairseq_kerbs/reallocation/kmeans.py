"""Clusters of the contexts of many words at once, by k-means."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

CONTEXTS_A_SENSE = 20
"""Minimum number of contexts per sense."""

STARTS = 5
"""Initializations of k-means. With 2, some words had a worse optimum."""

ROUNDS = 300
"""Maximum rounds of Lloyd's algorithm."""


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
        labels, distortions = _k_means(points, mask, k)
        labels = labels.cpu()
        distortions = distortions.cpu()
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
