"""Similarity of words by output vectors, and clusters of words, against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from fairseq_kerbs.analysis import similarity as similarity_module
from fairseq_kerbs.analysis.similarity import VectorSimilarity, cluster_words, usual_similarity
from fairseq_kerbs.kernels import kernel_logits
from fairseq_kerbs.output_layers import KerbsOutputLayer, OutputLayer
from fairseq_kerbs.output_layers.mixture import MixtureOutputLayer

# --- similarity by vectors ------------------------------------------------------------------------


def plain_similarity(layer: OutputLayer, words: list[int]) -> dict[tuple[int, int], float]:
    """The definition, pair by pair."""
    owners, usage = layer.word_of_sense.tolist(), layer.usage.tolist()
    total = {w: sum(u for u, o in zip(usage, owners, strict=True) if o == w) for w in words}
    senses = [m for m, o in enumerate(owners) if o in total and usage[m] >= 0.05 * total[o]]
    senses.sort(key=lambda m: owners[m])
    step = -(-len(senses) // similarity_module._MEANS)
    w, theta = layer.weight.detach().double(), layer.theta.detach().double()
    kernel = layer.kernel if isinstance(layer, KerbsOutputLayer) else "lin"
    k = kernel_logits(w[senses], w[senses], theta[senses], kernel)
    g = (k + k.T) / 2
    means = g[:, ::step].mean(1)
    s = g - means - means.unsqueeze(1) + means[::step].mean()
    found: dict[tuple[int, int], float] = {}
    for a, m in enumerate(senses):
        for b, n in enumerate(senses):
            pair = (owners[m], owners[n])
            if pair[0] != pair[1]:
                value = float(s[a, b] / (s[a, a] * s[b, b]).sqrt())
                found[pair] = max(found.get(pair, -9.0), value)
    return found


@pytest.mark.parametrize("kernel", ["lin", "kerbs", "kerbs_released", "log", "mog", "mixture"])
def test_similarity_by_vectors(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    layer: OutputLayer
    if kernel == "mixture":
        layer = MixtureOutputLayer(6, 23, ["lin", "log"])
    else:
        layer = KerbsOutputLayer(6, 23, 53, kernel=kernel)
        layer.inventory.usage.copy_(torch.rand(layer.total_senses) ** 4)  # some below a twentieth
    asked = [n for n in range(4, 23) if n != 11]
    if kernel == "lin":
        monkeypatch.setattr(similarity_module, "_MEANS", 15)  # means over some of the senses
    expected = plain_similarity(layer, asked)
    monkeypatch.setattr(similarity_module, "_SCORES", 200)  # chunks of few words
    monkeypatch.setattr(similarity_module, "NEAREST", 3)
    words = torch.zeros(23, dtype=torch.bool)
    words[asked] = True
    similarity = VectorSimilarity(layer, words)
    some = [17, 4, 9, 22]
    among = similarity.among(some)
    for a, one in enumerate(some):
        assert among[a, a] == 0
        for b, other in enumerate(some):
            if a != b:
                assert among[a, b] == pytest.approx(expected[one, other], abs=2e-4)
    graph = similarity.graph().toarray()
    np.testing.assert_array_equal(graph, graph.T)
    nearest = {i: sorted(asked, key=lambda j: -expected.get((i, j), -9.0))[:3] for i in asked}
    for i in range(23):
        for j in range(23):
            near = i in nearest and j in nearest and (j in nearest[i] or i in nearest[j])
            value = max(expected[i, j], 0.0) if near else 0.0
            assert graph[i, j] == pytest.approx(value, abs=2e-4), (i, j)


def test_similarity_does_not_see_lengths_and_what_all_have_in_common() -> None:
    layer = KerbsOutputLayer(4, 6, 6, kernel="lin", max_senses=1)
    rows = [[3.0, 1.0, 0, 0], [0.3, 0.1, 0, 0], [0, 0, 2.0, 1.0], [0, 0, 0.2, 0.1]]
    rows += [[-sum(column) for column in zip(*rows, strict=True)], [0.0] * 4]  # mean 0
    with torch.no_grad():
        layer.weight[layer.table.senses[:, 0]] = torch.tensor(rows)
    everything = torch.ones(6, dtype=torch.bool)
    one = VectorSimilarity(layer, everything).among(range(4))
    np.testing.assert_allclose(
        one, [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], atol=1e-5
    )
    with torch.no_grad():
        layer.weight.add_(torch.tensor([5.0, -3.0, 2.0, 1.0]))
    np.testing.assert_allclose(VectorSimilarity(layer, everything).among(range(4)), one, atol=1e-4)


# --- clusters -----------------------------------------------------------------------------------


def plain_clusters(matrix: Any, least: float, most: int) -> list[list[int]]:
    groups = [[n] for n in range(len(matrix))]
    while True:
        pairs = [
            (float(np.mean(matrix[np.ix_(a, b)])), i, j)
            for i, a in enumerate(groups)
            for j, b in enumerate(groups)
            if i < j and len(a) + len(b) <= most
        ]
        best = max(pairs, default=(-1.0, 0, 0))
        if best[0] < least or best[0] <= 0:
            return sorted(sorted(group) for group in groups if len(group) > 1)
        _, i, j = best
        groups[i] = groups[i] + groups.pop(j)


@pytest.mark.parametrize("seed", range(4))
def test_clusters_are_those_of_average_linkage(seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix = np.where(random.random((24, 24)) < 0.3, random.random((24, 24)), 0.0)
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    graph = sparse.csr_matrix(matrix)
    assert usual_similarity(graph) == np.median([row.max() for row in matrix if row.max() > 0])
    for least, most in ((0.5, 8), (0.1, 4), (0.05, 24)):
        found = sorted(sorted(group) for group in cluster_words(graph, least, most))
        assert found == plain_clusters(matrix, least, most)
    assert cluster_words(sparse.csr_matrix((5, 5)), 0.0) == []
