"""Geometry of a word's context vectors (Section 1 of the paper): clusters, variance, projections.

The functions apply to any fairseq model with a decoder. In softmax models, contexts of a word form
several clusters of different variance, which motivates several senses with a parameter θ each.

Clusters are found by k-means. Their mean silhouette selects k ≥ 2, but does not show that there is
more than one cluster, as any elongated distribution can be divided. Therefore the silhouette must
exceed those of samples from one Gaussian with the same covariance.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score
from sklearn.preprocessing import normalize
from torch import Tensor

from fairseq_kerbs.analysis.words import sense_numbers, sense_of, usage_shares
from fairseq_kerbs.output_layers import OutputLayer

SAMPLES = 19  # of the Gaussian, for an error of 1 in 20
STARTS = 8  # initializations of k-means
_MOST_AXES = 50
Points = NDArray[np.float64]


class Clusters(NamedTuple):
    """Clusters of n points."""

    number: int  # number of clusters
    labels: NDArray[np.int64]  # cluster of each point, [n]
    silhouette: float  # mean silhouette of the best k ≥ 2, even if number is 1


def find_clusters(points: Points, most: int, seed: int = 1) -> Clusters:
    """Find the clusters of points in their first 50 principal components.

    Args:
        points: [n, d].
        most: maximum number of clusters.
        seed: random seed.
    """
    whole = Clusters(1, np.zeros(len(points), np.int64), 0.0)
    if len(points) < 3 or points.std(0).max() <= 1e-9 * np.abs(points).max():
        return whole
    pca = PCA(min(_MOST_AXES, *points.shape), svd_solver="full")
    axes = pca.fit_transform(points)  # [n, r]
    best, draw = _best(axes, most, seed), np.random.default_rng(seed)
    for _ in range(SAMPLES):
        noise = draw.normal(size=axes.shape) * np.sqrt(pca.explained_variance_)
        if _best(noise, most, seed).silhouette >= best.silhouette:
            return whole._replace(silhouette=best.silhouette)
    return best


def _best(points: Points, most: int, seed: int) -> Clusters:
    """Clusters with the best mean silhouette for k ≥ 2, or one cluster with −1 without any."""
    best = Clusters(1, np.zeros(len(points), np.int64), -1.0)
    for number in range(2, min(most, len(points) - 1) + 1):
        with warnings.catch_warnings():
            # equal points can give fewer clusters
            warnings.simplefilter("ignore", ConvergenceWarning)
            labels = KMeans(number, n_init=STARTS, random_state=seed).fit_predict(points)
        if 2 <= len(np.unique(labels)) < len(points):
            silhouette = float(silhouette_score(points, labels))
            if silhouette > best.silhouette:
                best = Clusters(number, labels, silhouette)
    return best


def relative_variance(points: Points) -> float:
    """Mean squared distance of points [n, d] from their mean, over their mean squared norm."""
    return float(points.var(0).sum() / max(np.square(points).sum(1).mean(), 1e-300))


def measure_word(
    vectors: Tensor, most: int, seed: int = 1, layer: OutputLayer | None = None, word: int = 0
) -> dict[str, Any]:
    """Clusters and variance of a word's contexts.

    Args:
        vectors: contexts, [n, d].
        most: maximum number of clusters.
        seed: random seed.
        layer: output layer with senses.
        word: index of the word in the dictionary.

    Returns:
        number of ``contexts`` and ``clusters``, ``sizes`` of clusters in descending order,
        ``silhouette``, ``variance`` (mean squared distance from the mean), ``relative`` (variance
        over mean squared norm), ``within`` (share of the variance within clusters). With ``layer``,
        else None: number of ``senses``, number of ``used`` ones, mean ``theta`` weighted by usage.
    """
    points = vectors.double().numpy()
    clusters = find_clusters(points, most, seed)
    variance = points.var(0).sum()
    parts = DataFrame(points).groupby(clusters.labels)
    within = float((parts.var(ddof=0).sum(axis=1) * parts.size()).sum())
    figures: dict[str, Any] = {
        "contexts": len(points),
        "clusters": clusters.number,
        "sizes": parts.size().sort_values(ascending=False).tolist(),
        "silhouette": clusters.silhouette,
        "variance": float(variance),
        "relative": relative_variance(points),
        "within": within / len(points) / float(variance) if variance > 0 else 0.0,
        **dict.fromkeys(("senses", "used", "theta")),
    }
    if layer is not None:
        senses = sense_numbers(layer, word)
        figures["senses"] = len(senses)
        figures["used"] = len(sense_of(layer, word, vectors).unique())
        if layer.has_theta:
            theta = layer.kernel.theta_of(layer.theta[senses].detach())
            figures["theta"] = float((theta * usage_shares(layer, senses)).sum())
    return figures


def geometry_as_text(table: DataFrame) -> str:
    """Table with a row per word, results of :func:`measure_word`, for a terminal."""
    table = table.drop(columns="sizes").dropna(axis="columns", how="all")
    text = table.to_markdown(index=False, tablefmt="plain", floatfmt=".3g", disable_numparse=[0])
    several, relative = (table["clusters"] > 1).sum(), table["relative"]
    return (
        f"{text}\n{several} of {len(table)} words have more than one cluster; the variance of all "
        f"is {relative.min():.1%} to {relative.max():.1%} of the mean squared norm"
    )


class Projection(NamedTuple):
    """Contexts and senses of a word, projected onto a plane."""

    contexts: Points  # [n, 2], with mean 0
    senses: Points  # [K, 2], NaN for a sense without contexts
    axes: tuple[str, str]  # labels with shares of the variance


def discriminate(points: Points, labels: NDArray[np.int64], senses: int) -> Projection:
    """Project contexts onto the linear discriminants (Fisher 1936) of their senses.

    The covariance is shrunk (Ledoit and Wolf 2004). For two senses, the second axis is the first
    principal component orthogonal to the discriminant. A sense is at the mean of its contexts.

    Args:
        points: contexts, [n, d].
        labels: sense of each context, with two or more different values, [n].
        senses: number of senses.
    """
    model = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(points, labels)
    plane = model.transform(points)[:, :2]
    between = model.explained_variance_ratio_[: len(model.classes_) - 1]
    shares = between / between.sum()  # of the variance between senses
    first, second = f"first discriminant ({shares[0]:.0%})", "first principal component of the rest"
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
    # a second dimension for d = 1
    points, vectors = (np.pad(rows, ((0, 0), (0, 1))) for rows in (points, scaled))
    with np.errstate(invalid="ignore"):  # equal contexts have no variance
        pca = PCA(2, svd_solver="full").fit(points)
    first, second = np.nan_to_num(pca.explained_variance_ratio_).tolist()
    axes = f"first principal component ({first:.0%} of the variance)", f"second ({second:.0%})"
    marks = pca.transform(vectors) if len(vectors) else np.empty((0, 2))
    return Projection(pca.transform(points), marks, axes)
