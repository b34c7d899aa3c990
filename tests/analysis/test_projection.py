"""Planes that contexts are drawn in, and how much the contexts of a word vary."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from fairseq_kerbs.analysis.projection import discriminate, project, relative_variance

DRAW = np.random.default_rng(1)


def test_variance_of_a_word() -> None:
    """Of two clouds; a word whose contexts are all the same has none."""
    clouds = DRAW.normal(size=(2, 40, 6)) + 12 * np.eye(6)[:2, None]
    points = clouds.reshape(-1, 6) + 5
    variance = np.square(points - points.mean(0)).sum(1).mean()
    assert relative_variance(points) == pytest.approx(variance / np.square(points).sum(1).mean())
    assert relative_variance(np.ones((9, 3))) == 0
    assert relative_variance(np.zeros((5, 2))) == 0


def test_projection_is_that_of_the_covariance() -> None:
    contexts = DRAW.normal(size=(40, 7)) * np.array([3.0, 0.1, 1.5, 0.2, 0.1, 0.3, 0.2]) + 2
    senses = DRAW.normal(size=(3, 7))
    plane = project(contexts, senses)
    values, axes = np.linalg.eigh(np.cov(contexts.T))
    length = np.linalg.norm(contexts, axis=1).mean()
    scaled = senses / np.linalg.norm(senses, axis=1, keepdims=True) * length
    for number in (0, 1):
        axis = axes[:, -1 - number]
        value = values[-1 - number]
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
    assert plane is not None
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
    assert plane is not None
    assert abs(np.corrcoef(plane.contexts[:, 1], contexts[:, 1])[0, 1]) > 0.9
    assert plane.axes[1] == "first principal component of the rest"


@pytest.mark.parametrize(
    ("different", "labels"),
    [
        (2, [0, 1]),
        (3, [0, 1, 2]),
        (3, [0, 0, 1]),
        (2, [0] * 20 + [1] * 20),  # the same line twenty times
    ],
)
def test_too_few_different_contexts_have_no_discriminants(
    different: int, labels: list[int]
) -> None:
    contexts = np.repeat(DRAW.normal(size=(different, 5)), len(labels) // different, axis=0)
    assert discriminate(contexts, np.array(labels), max(labels) + 1) is None
