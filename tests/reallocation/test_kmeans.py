"""Clusters of the contexts of a word."""

import pytest
import torch
from sklearn.cluster import KMeans

from fairseq_kerbs.reallocation.kmeans import CONTEXTS_A_SENSE, cluster
from tests.helpers.contexts import blobs


def test_words_of_other_sizes_beside_it_do_not_change_the_clusters_of_a_word() -> None:
    """Clusters are those of the nearest center, nearly as compact as those of scikit-learn."""
    sizes: list[tuple[int, ...]] = [(70, 40, 30), (25, 20), (30,), (90, 90)]
    contexts = [blobs(seed, each) for seed, each in enumerate(sizes)]
    for points, found in zip(contexts, cluster(contexts, 4), strict=True):
        assert len(found) == min(4, len(points) // CONTEXTS_A_SENSE)
        for k, (labels, mean) in enumerate(found, 1):
            assert torch.equal(labels, cluster([points], 4)[0][k - 1][0])
            best = KMeans(k, n_init=20, random_state=0).fit(points.numpy()).inertia_ / len(points)
            assert best * 0.9999 < mean < best * 1.02
            centers = torch.stack([points[labels == i].mean(0) for i in range(k)])
            distances = torch.cdist(points.double(), centers.double())
            assert torch.equal(distances.argmin(1), labels)
            assert distances.square().amin(1).mean().item() == pytest.approx(mean, rel=1e-5)


def test_equal_contexts_are_one_cluster() -> None:
    assert len(cluster([torch.ones(90, 3)], 4)[0]) == 1
    assert len(cluster([1.0 + 1e-7 * blobs(0)], 4)[0]) == 1  # equal but for rounding
    twice = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(50, 1)
    assert len(cluster([twice], 4)[0]) == 2
