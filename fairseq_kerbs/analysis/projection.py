"""Context vectors of words on a plane, and how much they vary (Section 1 of the paper)."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.preprocessing import normalize

Points = NDArray[np.float64]


def relative_variance(points: Points) -> float:
    """Mean squared distance of points [n, d] from their mean, over their mean squared norm."""
    return float(points.var(0).sum() / max(np.square(points).sum(1).mean(), 1e-300))


class Projection(NamedTuple):
    """Contexts and senses of a word, projected onto a plane."""

    contexts: Points  # [n, 2], with mean 0
    senses: Points  # [K, 2], NaN for a sense without contexts
    axes: tuple[str, str]  # labels with shares of the variance


def discriminate(points: Points, labels: NDArray[np.int64], senses: int) -> Projection | None:
    """Project contexts onto the linear discriminants (Fisher 1936) of their senses.

    The covariance is shrunk (Ledoit and Wolf 2004). For two senses, the second axis is the first
    principal component orthogonal to the discriminant. A sense is at the mean of its contexts.

    Args:
        points: contexts, [n, d].
        labels: sense of each context, with two or more different values, [n].
        senses: number of senses.

    Returns:
        the projection, or None if there are too few contexts, or those of a sense do not differ.
    """
    model = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto")
    if len(points) <= len(np.unique(labels)):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a sense has one context
            model.fit(points, labels)
    except np.linalg.LinAlgError:  # no variance within senses
        return None
    plane = model.transform(points)[:, :2]
    between = model.explained_variance_ratio_[: len(model.classes_) - 1]
    shares = between / between.sum()  # of the variance between senses
    first = f"first discriminant ({shares[0]:.0%})"
    second = "first principal component of the rest"
    if len(shares) > 1:
        second = f"second discriminant ({shares[1]:.0%})"
    if plane.shape[1] < 2:
        direction = normalize(model.scalings_[:, :1], axis=0)
        rest = points - points @ direction @ direction.T
        plane = np.concatenate([plane, PCA(1).fit_transform(rest)], 1)
    plane = DataFrame(plane - plane.mean(0))
    marks = plane.groupby(labels).mean().reindex(range(senses))
    return Projection(plane.to_numpy(), marks.to_numpy(), (first, second))


def project(points: Points, senses: Points | None = None) -> Projection:
    """Project contexts [n, d] onto their first two principal components.

    The labels of the axes have the share of the contexts' variance that each component explains.

    Args:
        points: contexts, [n, d].
        senses: sense embeddings, [K, d]. They are scaled to the mean norm of contexts, as kernels
            compare directions. By default there are none.
    """
    scaled = np.empty((0, points.shape[1]))
    if senses is not None:
        scaled = normalize(senses) * np.linalg.norm(points, axis=1).mean()
    second_dimension = ((0, 0), (0, 1))  # for d = 1
    points = np.pad(points, second_dimension)
    vectors = np.pad(scaled, second_dimension)
    with np.errstate(invalid="ignore"):  # equal contexts have no variance
        pca = PCA(2, svd_solver="full").fit(points)
    first, second = np.nan_to_num(pca.explained_variance_ratio_).tolist()
    axes = f"first principal component ({first:.0%} of the variance)", f"second ({second:.0%})"
    marks = pca.transform(vectors) if len(vectors) else np.empty((0, 2))
    return Projection(pca.transform(points), marks, axes)
