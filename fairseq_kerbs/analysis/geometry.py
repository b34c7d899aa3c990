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
import torch
from numpy.typing import NDArray
from pandas import DataFrame
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_kerbs.analysis.words import sense_numbers, sense_of, usage_shares
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
    whole = Clusters(1, torch.zeros(len(points), dtype=torch.long), 0.0)
    points = points.double()
    if len(points) < 3 or float(points.std(0).max()) <= 1e-9 * float(points.abs().max()):
        return whole
    pca = PCA(min(_MOST_AXES, *points.shape), svd_solver="full")
    axes = pca.fit_transform(points.numpy())  # [n, r]
    deviations = np.sqrt(pca.explained_variance_)  # [r]
    best = _best(axes, most, seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(samples):
        noise = torch.randn(axes.shape, generator=generator, dtype=torch.double).numpy()
        if _best(noise * deviations, most, seed).silhouette >= best.silhouette:
            return whole._replace(silhouette=best.silhouette)
    return best


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
    clusters, vectors = find_clusters(vectors, most, seed), vectors.double()
    parts = [vectors[clusters.labels == label] for label in clusters.labels.unique()]
    variance = float(vectors.var(0, correction=0).sum())
    inside = sum(float(part.var(0, correction=0).sum()) * len(part) for part in parts)
    figures: dict[str, Any] = {
        "contexts": len(vectors),
        "clusters": clusters.number,
        "sizes": sorted(map(len, parts), reverse=True),
        "silhouette": clusters.silhouette,
        "variance": variance,
        "relative": variance / max(float(vectors.square().sum(1).mean()), 1e-300),
        "within": inside / len(vectors) / variance if variance > 0 else 0.0,
        **dict.fromkeys(("senses", "used", "theta")),
    }
    if layer is not None:
        senses = sense_numbers(layer, word)
        figures["senses"] = len(senses)
        figures["used"] = len(sense_of(layer, word, vectors.float()).unique())
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

    contexts: Tensor  # [n, 2] along two axes, mean 0
    senses: Tensor  # [K, 2]; NaN for a sense without a mark
    axes: tuple[str, str]  # what they are, with the share of the variance that they show


def discriminate(contexts: Tensor, labels: Tensor, senses: int) -> Projection:
    """Context vectors [n, d] on the directions that part their senses most, by linear discriminants
    (Fisher 1936; covariance after Ledoit and Wolf 2004).

    Args:
        labels: the sense of each, one of ``senses``, [n], two different ones at least. Where only
            two occur, the second axis is the first principal component of what the discriminant
            leaves. The marks are means.
    """
    points, kinds = contexts.double().numpy(), labels.numpy()
    present = np.unique(kinds)
    model = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(points, kinds)
    plane = model.transform(points)[:, :2]
    between = model.explained_variance_ratio_[: len(present) - 1]
    shares = between / between.sum()  # of what parts the senses
    axes = [
        f"{name} discriminant ({share:.0%})" for name, share in zip(("first", "second"), shares)
    ]
    if plane.shape[1] < 2:
        direction = model.scalings_[:, :1] / np.linalg.norm(model.scalings_[:, :1])
        rest = points - points @ direction @ direction.T
        plane = np.concatenate([plane, PCA(1).fit_transform(rest)], 1)
        axes.append("first principal component of the rest")
    plane = plane - plane.mean(0)
    marks = np.full((senses, 2), np.nan)
    for kind in present:
        marks[kind] = plane[kinds == kind].mean(0)
    return Projection(torch.from_numpy(plane), torch.from_numpy(marks), (axes[0], axes[1]))


def project(contexts: Tensor, senses: Tensor) -> Projection:
    """Principal components of context vectors [n, d], two at least, and sense vectors [K, d] on
    them, scaled to the contexts' mean length, since a kernel compares directions."""
    scaled = normalize(senses.double()) * contexts.double().norm(dim=1).mean()
    # vectors of one dimension lie on a line of the plane
    points, vectors = (np.pad(each.double(), ((0, 0), (0, 1))) for each in (contexts, scaled))
    with np.errstate(invalid="ignore"):  # contexts that are all the same have no variance
        pca = PCA(2, svd_solver="full").fit(points)
    plane, marks = (torch.from_numpy(pca.transform(each)) for each in (points, vectors))
    first, second = np.nan_to_num(pca.explained_variance_ratio_).tolist()
    axes = f"first principal component ({first:.0%} of the variance)", f"second ({second:.0%})"
    return Projection(plane, marks, axes)
