"""Clusters and variance of context vectors, and planes to draw them in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.metrics import silhouette_score

from fairseq_kerbs.analysis.geometry import discriminate, find_clusters, measure_word, project
from fairseq_kerbs.checkpoints import load_layer
from tests.analysis.conftest import Reported, Trained

DRAW = np.random.default_rng(1)


def clouds(number: int, each: int, dim: int, distance: float, stretch: float = 1.0) -> np.ndarray:
    """Gaussian clouds of deviation 1 around corners, one axis stretched."""
    points = DRAW.normal(size=(number, each, dim)) + distance * np.eye(dim)[:number, None]
    points[..., -1] *= stretch
    return points.reshape(-1, dim)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_clusters_are_found(number: int) -> None:
    points = clouds(number, 30, 12, 9.0)
    found = find_clusters(points, 6)
    assert found.number == number
    assert found.silhouette == pytest.approx(silhouette_score(points, found.labels))
    firsts = found.labels[::30]
    assert sorted(firsts) == [*range(number)]
    assert found.labels.tolist() == firsts.repeat(30).tolist()


def test_one_cloud_is_one_cluster_however_long() -> None:
    """A silhouette alone would cut a long cloud in two; of 6 clouds one may be taken for more."""
    found = [find_clusters(clouds(1, 60, 8, 0.0, stretch=8.0), 4, seed) for seed in range(6)]
    assert all(clusters.silhouette > 0.3 for clusters in found)
    assert sum(clusters.number > 1 for clusters in found) <= 1


def test_degenerate_clouds() -> None:
    for points in (np.ones((9, 3)), DRAW.normal(size=(2, 4)), np.ones((1, 4)), np.zeros((5, 2))):
        found = find_clusters(points, 6)
        assert (found.number, found.labels.tolist()) == (1, [0] * len(points))
    doubled = np.array([[0.0, 0.0], [9.0, 9.0]]).repeat(8, 0)
    assert find_clusters(doubled, 3).number == 2


def test_variance_of_a_word() -> None:
    vectors = torch.from_numpy(clouds(2, 40, 6, 12.0) + 5)
    word = measure_word(vectors, most=4)
    assert word["sizes"] == [40, 40]
    variance = float(vectors.var(0, unbiased=False).sum())
    assert word["variance"] == pytest.approx(variance)
    assert word["relative"] == pytest.approx(variance / float(vectors.square().sum(1).mean()))
    halves = torch.stack([half.var(0, unbiased=False).sum() for half in vectors.split(40)])
    assert word["within"] == pytest.approx(float(halves.mean()) / variance)


def test_projection_is_that_of_the_covariance() -> None:
    contexts = DRAW.normal(size=(40, 7)) * np.array([3.0, 0.1, 1.5, 0.2, 0.1, 0.3, 0.2]) + 2
    senses = DRAW.normal(size=(3, 7))
    plane = project(contexts, senses)
    values, axes = np.linalg.eigh(np.cov(contexts.T))
    length = np.linalg.norm(contexts, axis=1).mean()
    scaled = senses / np.linalg.norm(senses, axis=1, keepdims=True) * length
    for number in (0, 1):
        axis, value = axes[:, -1 - number], values[-1 - number]
        assert f"({value / values.sum():.0%}" in plane.axes[number]
        expected = (contexts - contexts.mean(0)) @ axis
        sign = np.sign(plane.contexts[:, number] @ expected)
        np.testing.assert_allclose(plane.contexts[:, number], sign * expected, atol=1e-9)
        other = (scaled - contexts.mean(0)) @ axis
        np.testing.assert_allclose(plane.senses[:, number], sign * other, atol=1e-9)
    for few in (np.ones((5, 4)), np.ones((2, 1)), np.eye(2)):
        plane = project(few, np.zeros((2, few.shape[1])))
        assert plane.contexts.shape == (len(few), 2)
        assert np.isfinite([*plane.contexts, *plane.senses]).all()


@pytest.mark.parametrize("senses", [2, 3, 4])
def test_discriminants_part_senses_that_the_widest_directions_do_not(senses: int) -> None:
    labels = np.arange(40 * senses) % senses
    contexts = DRAW.normal(size=(len(labels), 8)) * np.array([5.0, 5.0, *[0.3] * 6])
    contexts[:, 2:] += 3 * np.eye(4, 6)[labels]
    plane = discriminate(contexts, labels, senses + 1)
    assert np.abs(plane.contexts.mean(0)).max() < 1e-6
    assert np.isnan(plane.senses[senses]).all()
    used = min(2, senses - 1)
    nearest = cdist(plane.contexts[:, :used], plane.senses[:senses, :used]).argmin(1)
    assert (nearest == labels).mean() > (0.95 if senses < 4 else 0.7)
    drawn = project(contexts, contexts[:senses]).contexts
    means = [drawn[labels == k].mean(0) for k in range(senses)]
    assert (cdist(drawn, means).argmin(1) == labels).mean() < 0.7


def test_the_second_axis_of_two_senses_shows_what_the_first_leaves() -> None:
    labels = np.arange(60) % 2
    contexts = DRAW.normal(size=(60, 3)) * np.array([0.5, 3.0, 0.5])
    contexts[:, 0] += 20 * labels
    plane = discriminate(contexts, labels, 2)
    assert abs(np.corrcoef(plane.contexts[:, 1], contexts[:, 1])[0, 1]) > 0.9
    assert plane.axes[1] == "first principal component of the rest"


@pytest.mark.parametrize("kind", ["kerbs", "softmax"])
def test_the_command_measures_any_model(trained: Trained, kind: str, reported: Reported) -> None:
    given = "geometry", getattr(trained, kind), "--data", trained.data
    text, report, rows = reported(*given, "--top", 3, "--most", 30, "--max-clusters", 3)
    for row, word, entry in zip(rows, report["words"], (4, 5, 6), strict=True):
        assert row["word"] == word["word"] == load_layer(trained.kerbs)[1][entry]
        assert row["sizes"].split() == [*map(str, word["sizes"])]
        assert (row["senses"] == "") == (word["senses"] is None) == (kind == "softmax")
    head = next(line for line in text.splitlines() if line.startswith("word "))
    assert ("senses" in head) == (kind == "kerbs")
    text, *_ = reported(*given, "--word", "the", "madeupword0000")
    assert "fewer than 10 contexts: madeupword0000 (0)" in text
