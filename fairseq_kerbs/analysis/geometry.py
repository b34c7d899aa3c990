"""Geometry of context vectors (Section 1 of the paper): clusters, variance, and planes to draw
them in, word by word.

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

SAMPLES = 19  # of the Gaussian: one cloud of it in 20 is taken for several clusters
STARTS = 8  # of k-means
_MOST_AXES = 50
Points = NDArray[np.float64]


class Clusters(NamedTuple):
    """Clusters of n points."""

    number: int  # how many
    labels: NDArray[np.int64]  # [n] cluster of each point
    silhouette: float  # mean silhouette of the best k ≥ 2, also where one cluster was found


def find_clusters(points: Points, most: int, seed: int = 1, samples: int = SAMPLES) -> Clusters:
    """Choose the number of clusters of points [n, d], at most ``most`` and n − 1. Of d the first 50
    principal axes are used; no ``samples`` of the Gaussian: no comparison."""
    whole = Clusters(1, np.zeros(len(points), np.int64), 0.0)
    if len(points) < 3 or points.std(0).max() <= 1e-9 * np.abs(points).max():
        return whole
    pca = PCA(min(_MOST_AXES, *points.shape), svd_solver="full")
    axes = pca.fit_transform(points)  # [n, r]
    best, draw = _best(axes, most, seed), np.random.default_rng(seed)
    for _ in range(samples):
        noise = draw.normal(size=axes.shape) * np.sqrt(pca.explained_variance_)
        if _best(noise, most, seed).silhouette >= best.silhouette:
            return whole._replace(silhouette=best.silhouette)
    return best


def _best(points: Points, most: int, seed: int) -> Clusters:
    """The k ≥ 2 with the best mean silhouette; one cluster with −1 where there is none."""
    best = Clusters(1, np.zeros(len(points), np.int64), -1.0)
    for number in range(2, min(most, len(points) - 1) + 1):
        with warnings.catch_warnings():
            # where points coincide there may be fewer clusters than asked for
            warnings.simplefilter("ignore", ConvergenceWarning)
            labels = KMeans(number, n_init=STARTS, random_state=seed).fit_predict(points)
        if 2 <= len(np.unique(labels)) < len(points):
            silhouette = float(silhouette_score(points, labels))
            if silhouette > best.silhouette:
                best = Clusters(number, labels, silhouette)
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
    points = vectors.double().numpy()
    clusters, variance = find_clusters(points, most, seed), points.var(0).sum()
    parts = DataFrame(points).groupby(clusters.labels)
    inside = float((parts.var(ddof=0).sum(axis=1) * parts.size()).sum())
    figures: dict[str, Any] = {
        "contexts": len(points),
        "clusters": clusters.number,
        "sizes": parts.size().sort_values(ascending=False).tolist(),
        "silhouette": clusters.silhouette,
        "variance": float(variance),
        "relative": float(variance / max(np.square(points).sum(1).mean(), 1e-300)),
        "within": inside / len(points) / float(variance) if variance > 0 else 0.0,
        **dict.fromkeys(("senses", "used", "theta")),
    }
    if layer is not None:
        senses = sense_numbers(layer, word)
        figures["senses"] = len(senses)
        figures["used"] = len(sense_of(layer, word, vectors).unique())
        if layer.has_theta:
            theta = layer.theta[senses].detach()
            figures["theta"] = float((theta * usage_shares(layer, senses)).sum())
    return figures


def geometry_table(words: Sequence[dict[str, Any]]) -> DataFrame:
    """One row a word; sizes of clusters with spaces between them."""
    return DataFrame([word | {"sizes": " ".join(map(str, word["sizes"]))} for word in words])


def geometry_as_text(table: DataFrame) -> str:
    """`geometry_table` for a terminal, and what it comes to."""
    shown = table.drop(columns="sizes").dropna(axis="columns", how="all")
    text = shown.to_markdown(index=False, tablefmt="plain", floatfmt=".3g", disable_numparse=[0])
    several, relative = (table["clusters"] > 1).sum(), table["relative"]
    return (
        f"{text}\n{several} of {len(table)} words have more than one cluster; their variance, "
        "relative to the mean squared length, lies between "
        f"{relative.min():.1%} and {relative.max():.1%}"
    )


# --- planes ---------------------------------------------------------------------------------------


class Projection(NamedTuple):
    """Context vectors of a word in a plane, and a mark of each of its senses there."""

    contexts: Points  # [n, 2] along two axes, mean 0
    senses: Points  # [K, 2]; NaN for a sense without a mark
    axes: tuple[str, str]  # what they are, with the share of the variance that they show


def discriminate(points: Points, labels: NDArray[np.int64], senses: int) -> Projection:
    """Context vectors [n, d] on the directions that part their senses most, by linear discriminants
    (Fisher 1936; covariance after Ledoit and Wolf 2004).

    Args:
        labels: the sense of each, one of ``senses``, [n], two different ones at least. Where only
            two occur, the second axis is the first principal component of what the discriminant
            leaves. The marks are means.
    """
    model = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(points, labels)
    plane = model.transform(points)[:, :2]
    between = model.explained_variance_ratio_[: len(model.classes_) - 1]
    shares = between / between.sum()  # of what parts the senses
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


def project(points: Points, senses: Points) -> Projection:
    """Principal components of context vectors [n, d], two at least, and sense vectors [K, d] on
    them, scaled to the contexts' mean length, since a kernel compares directions."""
    scaled = normalize(senses) * np.linalg.norm(points, axis=1).mean()
    # vectors of one dimension lie on a line of the plane
    points, vectors = (np.pad(each, ((0, 0), (0, 1))) for each in (points, scaled))
    with np.errstate(invalid="ignore"):  # contexts that are all the same have no variance
        pca = PCA(2, svd_solver="full").fit(points)
    first, second = np.nan_to_num(pca.explained_variance_ratio_).tolist()
    axes = f"first principal component ({first:.0%} of the variance)", f"second ({second:.0%})"
    return Projection(pca.transform(points), pca.transform(vectors), axes)
