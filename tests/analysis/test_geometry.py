"""Clusters and variance of context vectors, and planes to draw them in."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_score
from torch import Tensor

from fairseq_kerbs.analysis.geometry import discriminate, find_clusters, measure_word, project
from fairseq_kerbs.checkpoints import load_layer
from fairseq_kerbs.cli import main
from tests.analysis.conftest import Refused, Trained


def clouds(number: int, each: int, dim: int, distance: float, stretch: float = 1.0) -> Tensor:
    """Gaussian clouds of deviation 1 around corners, one axis stretched."""
    centers = distance * torch.eye(dim)[:number]
    points = torch.randn(number, each, dim)
    points[..., -1] *= stretch
    return (centers.unsqueeze(1) + points).flatten(0, 1)


@pytest.mark.parametrize("most", [2, 3, 5])
def test_the_silhouette_told_is_that_of_the_labels(most: int) -> None:
    points = torch.randn(17, 3)
    found = find_clusters(points, most, samples=0)
    assert 2 <= found.number <= most
    assert found.silhouette == pytest.approx(silhouette_score(points, found.labels))
    if most == 2:
        return
    # more clusters are taken only if they are told apart better
    assert found.silhouette >= find_clusters(points, most - 1, samples=0).silhouette


@pytest.mark.parametrize("number", [2, 3, 4])
def test_clusters_are_found(number: int) -> None:
    points = clouds(number, 30, 12, 9.0)
    found = find_clusters(points, 6)
    assert found.number == number
    for part in found.labels.view(number, 30):
        assert (part == part[0]).all()
    assert len(found.labels.unique()) == number


def test_one_cloud_is_one_cluster_however_long() -> None:
    """A silhouette alone would cut a long cloud in two; of 6 clouds one may be taken for more."""
    several = 0
    for seed in range(6):
        torch.manual_seed(seed)
        found = find_clusters(clouds(1, 60, 8, 0.0, stretch=8.0), 4, seed)
        assert found.silhouette > 0.4
        several += found.number > 1
    assert several <= 1


def test_degenerate_clouds() -> None:
    for points in (torch.ones(9, 3), torch.randn(2, 4), torch.randn(1, 4), torch.zeros(5, 2)):
        found = find_clusters(points, 6)
        assert (found.number, found.labels.tolist()) == (1, [0] * len(points))
    doubled = torch.tensor([[0.0, 0.0], [9.0, 9.0]]).repeat_interleave(8, 0)
    assert find_clusters(doubled, 3).number == 2


def test_variance_of_a_word() -> None:
    vectors = clouds(2, 40, 6, 12.0) + 5
    word = measure_word(vectors, most=4)
    assert word["sizes"] == [40, 40]
    variance = float(vectors.var(0, unbiased=False).sum())
    assert word["variance"] == pytest.approx(variance, rel=1e-5)
    assert word["relative"] == pytest.approx(variance / float(vectors.square().sum(1).mean()))
    halves = torch.stack([half.var(0, unbiased=False).sum() for half in vectors.split(40)])
    assert word["within"] == pytest.approx(float(halves.mean()) / variance, rel=1e-5)


def test_projection_is_that_of_the_covariance() -> None:
    contexts = torch.randn(40, 7) * torch.tensor([3.0, 0.1, 1.5, 0.2, 0.1, 0.3, 0.2]) + 2
    senses = torch.randn(3, 7)
    plane = project(contexts, senses)
    values, axes = np.linalg.eigh(np.cov(contexts.double().numpy().T))
    for number in (0, 1):
        axis, value = axes[:, -1 - number], values[-1 - number]
        assert f"({value / values.sum():.0%}" in plane.axes[number]
        expected = (contexts.double().numpy() - contexts.double().mean(0).numpy()) @ axis
        found = plane.contexts[:, number].numpy()
        sign = np.sign(found @ expected)
        np.testing.assert_allclose(found, sign * expected, atol=1e-9)
        length = contexts.double().norm(dim=1).mean()
        scaled = torch.nn.functional.normalize(senses.double()) * length
        other = (scaled - contexts.double().mean(0)).numpy() @ axis
        np.testing.assert_allclose(plane.senses[:, number].numpy(), sign * other, atol=1e-9)


def test_projection_of_few_or_equal_contexts() -> None:
    for contexts in (torch.ones(5, 4), torch.ones(2, 1), torch.eye(2)):
        plane = project(contexts, torch.zeros(2, contexts.shape[1]))
        assert plane.contexts.shape == (len(contexts), 2)
        assert plane.contexts.isfinite().all()
        assert plane.senses.isfinite().all()


@pytest.mark.parametrize("senses", [2, 3, 4])
def test_discriminants_part_senses_that_the_widest_directions_do_not(senses: int) -> None:
    labels = torch.arange(40 * senses) % senses
    contexts = torch.randn(len(labels), 8) * torch.tensor([5.0, 5.0, *[0.3] * 6])
    contexts[:, 2:] += 3 * torch.eye(4, 6)[labels]
    plane = discriminate(contexts, labels, senses + 1)
    assert plane.contexts.mean(0).abs().max() < 1e-6
    assert plane.senses[senses].isnan().all()
    used = min(2, senses - 1)
    nearest = torch.cdist(plane.contexts[:, :used], plane.senses[:senses, :used]).argmin(1)
    assert (nearest == labels).double().mean() > (0.95 if senses < 4 else 0.7)
    drawn = project(contexts, contexts[:senses]).contexts
    means = torch.stack([drawn[labels == k].mean(0) for k in range(senses)])
    assert (torch.cdist(drawn, means).argmin(1) == labels).double().mean() < 0.7


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize(
    ("command", "bars"),
    [
        ("geometry --top 2 --least 3", ("split test", "clusters")),
        ("senses --top 2", ("split train", "senses", "nearest senses")),
        ("report -o {}/r.html", ("split train", "senses")),
    ],
)
def test_long_readings_show_bars_to_a_terminal_alone(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    command: str, bars: tuple[str, ...], terminal: bool,
) -> None:  # fmt: skip
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    name, *flags = command.format(tmp_path).split()
    assert main([name, str(trained.kerbs), "--data", str(trained.data), *flags]) == 0
    shown = stderr.getvalue()
    assert all(f"{bar}: " in shown for bar in bars) if terminal else shown == ""


@pytest.mark.parametrize("kind", ["kerbs", "softmax"])
def test_the_command_measures_any_model(
    trained: Trained, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, files = getattr(trained, kind), (tmp_path / "a.json", tmp_path / "a.csv")
    flags = ["--data", trained.data, "--top", "3", "--most", "30", "--max-clusters", "3"]
    flags += ["--json", files[0], "--csv", files[1]]
    assert main(["geometry", str(checkpoint), *map(str, flags)]) == 0
    text = capsys.readouterr().out
    words = json.loads(files[0].read_text())["words"]
    rows = list(csv.DictReader(files[1].read_text().splitlines()))
    assert [row["word"] for row in rows] == [word["word"] for word in words]
    assert [row["sizes"].split() for row in rows] == [[*map(str, w["sizes"])] for w in words]
    assert all((row["senses"] == "") == (kind == "softmax") for row in rows)
    assert [word["word"] for word in words] == load_layer(trained.kerbs)[1].symbols[4:7]
    assert all((word["senses"] is None) == (kind == "softmax") for word in words)
    head = next(line for line in text.splitlines() if line.startswith("word "))
    assert ("senses" in head) == (kind == "kerbs")
    assert text.count("wrote ") == 2
    if kind == "softmax":
        return
    few = ["--word", "the", "madeupword0000"]
    assert main(["geometry", str(checkpoint), "--data", str(trained.data), *few]) == 0
    assert "fewer than 10 contexts: madeupword0000 (0)" in capsys.readouterr().out


def test_wrong_uses_are_one_sentence(trained: Trained, tmp_path: Path, refused: Refused) -> None:
    broken, other = tmp_path / "broken.pt", tmp_path / "bin"
    broken.write_bytes(trained.softmax.read_bytes()[:5000])
    shutil.copytree(trained.data, other)
    (other / "dict.en.txt").write_text("one 3\n")
    for checkpoint, data, flags, message in (
        (broken, trained.data, [], "no whole checkpoint"),
        (trained.softmax, other, [], "does not fit --data"),
        (trained.softmax, trained.data, ["--word", "nix"], "nix: no entry"),
        (trained.softmax, trained.data, ["--max-clusters", "1"], "--max-clusters"),
        (trained.softmax, trained.data, ["--most", "5"], "--most is 5"),
    ):
        refused(message, "geometry", checkpoint, "--data", data, *flags)
