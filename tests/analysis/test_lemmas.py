"""Lemmas 4.1 and 4.2 on small settings, with margins that seeds do not use up."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import torch

from fairseq_kerbs.analysis import lemmas
from fairseq_kerbs.analysis.lemmas import (
    Training,
    learn_senses,
    learn_theta,
    spearman,
    spread_directions,
    theta_correlations,
)
from fairseq_kerbs.utils.errors import UserError

QUICK = Training(steps=400, lr=0.05)


def test_words_end_with_as_many_senses_as_clusters() -> None:
    """Lemma 4.1: 1 to 4 clusters a word; by chance every word has 2.5 senses."""
    training = Training(dim=8, steps=500, lr=0.04)
    found = learn_senses(*("balanced", "context", training), interval=20, words_each=2, width=0.5)
    fixed = learn_senses("none", "keep", training, words_each=2, width=0.5)
    assert found["exact"] >= 0.75 > fixed["exact"]
    assert [found[f"senses_{k}"] for k in (1, 2, 3, 4)] == pytest.approx([1, 2, 3, 4], abs=0.51)
    assert found["correlation"] > 0.8 > fixed["correlation"] + 0.2
    assert found["covered"] >= 0.9 > fixed["covered"]
    assert found["distinct"] > fixed["distinct"]
    assert found["placed"] >= 0.9
    assert found["loss"] < fixed["loss"]
    assert fixed["moves"] == 0 < found["moves"]


def test_theta_grows_with_the_width_of_the_cluster() -> None:
    """Lemma 4.2, in the sign of Eq. 9: from well below 0 to above it."""
    found = learn_theta([0.6, 0.8, 1.0, 1.3], QUICK, words_each=5, seed=0)
    theta = [one["theta"] for one in found]
    assert theta == sorted(theta)
    assert theta[0] < -1.0
    assert theta[-1] - theta[0] > 2.0
    assert all(one["cosine"] > 0.95 for one in found)
    held = learn_theta([0.6, 1.3], QUICK, words_each=10, norm=2.0, seed=0)
    assert [one["norm"] for one in held] == pytest.approx([2.0, 2.0], rel=1e-4)
    assert held[1]["theta"] - held[0]["theta"] > 2.0
    every, unsure = theta_correlations([*held, {"width": 0.1, "theta": 9.0, "unsure": 0.0}])
    assert (every, unsure) == pytest.approx((-0.5, 1.0))


def test_rank_correlation_and_directions() -> None:
    assert spearman([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx(0.8)
    assert spearman([1, 1, 2, 2], [1, 2, 3, 4]) == pytest.approx(2 / math.sqrt(5))
    assert math.isnan(spearman([1, 1], [1, 2]))
    g = torch.Generator().manual_seed(0)
    far = spread_directions(12, 6, g)
    cosine = far @ far.t() - torch.eye(12)
    assert cosine.max() < 0.61
    with pytest.raises(UserError, match="--dim 2"):
        spread_directions(12, 2, g)


def test_command_prints_tables_and_writes_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--steps", "3", "--seeds", "0", "-o"]
    assert lemmas.main([*short, str(tmp_path / "r.json")]) == 0
    assert "balanced  context" in capsys.readouterr().out
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["lemma"] for row in rows] == ["4.1"] * 5 + ["4.2"] * 8
    assert lemmas.main([*short, str(tmp_path / "r.csv")]) == 0
    with (tmp_path / "r.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert float(table[-1]["theta"]) == rows[-1]["theta"]
    assert lemmas.main([*short, "table.txt"]) == 2
    assert lemmas.main(["--dim", "2"]) == 2
    assert "--output table.txt must end" in capsys.readouterr().err
