"""Lemmas 4.1 and 4.2 on small scale."""

import json
from pathlib import Path

import pytest
import torch

from scripts.experiments import lemmas
from scripts.experiments.figures import read
from scripts.experiments.lemmas import Training, learn_senses, learn_theta
from tests.helpers.cli import Capsys


def test_words_end_with_as_many_senses_as_clusters() -> None:
    """Lemma 4.1: 1 to 4 clusters a word; by chance every word has 2.5 senses."""
    training = Training(dim=8, steps=300, lr=0.05)
    found = learn_senses("clusters", training, words_each=2)
    fixed = learn_senses("none", training, words_each=2)
    assert found["exact"] == 1.0 > fixed["exact"]
    assert [found[f"senses_{k}"] for k in (1, 2, 3, 4)] == pytest.approx([1, 2, 3, 4], abs=0.51)
    assert found["correlation"] > 0.8 > fixed["correlation"] + 0.2
    assert found["own"] >= 0.9 > fixed["own"]
    assert found["used"] >= 0.9 > fixed["used"]
    assert found["loss"] < fixed["loss"]
    assert fixed["moves"] == 0 < found["moves"]


def test_theta_grows_with_the_width_of_the_cluster() -> None:
    """Lemma 4.2, in the sign of Eq. 9: from well below 0 to above it."""
    found = learn_theta([0.6, 0.8, 1.0, 1.3], Training(steps=300, lr=0.06), words_each=5)
    theta = [one["theta"] for one in found]
    assert theta == sorted(theta)
    assert theta[0] < -1.0
    assert theta[-1] - theta[0] > 2.0
    assert all(one["cosine"] > 0.95 for one in found)
    certain = {"width": 0.1, "theta": 9.0, "unsure": 0.0}
    assert lemmas.theta_correlation([certain, *found]) == pytest.approx(0.0)
    assert lemmas.theta_correlation([certain, *found], lemmas.UNSURE) == pytest.approx(1.0)


def test_directions_are_spread() -> None:
    far = lemmas.spread_directions(12, 6, torch.Generator().manual_seed(0))
    assert (far @ far.t() - torch.eye(12)).max() < 0.61


def test_the_script_prints_tables_and_writes_a_file(tmp_path: Path, capsys: Capsys) -> None:
    lemmas.main(["--steps", "3", "--seeds", "0", "-o", str(tmp_path / "r.json")])
    assert "released" in capsys.readouterr().out
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    # of a revision that also had --new-sense split
    recorded = [
        row
        for row in json.loads(read("lemmas/lemmas.json"))["rows"]
        if row["seed"] == 0 and row.pop("new_sense", "keep") == "keep"
    ]
    assert [list(row) for row in rows] == [list(row) for row in recorded]
    assert rows[0]["loss"] == pytest.approx(learn_senses("none", Training(steps=3))["loss"])
    assert (rows[-1]["lemma"], rows[-1]["width"]) == ("4.2", 1.4)
