"""The figures of results/ show what the raw files beside them say."""

from __future__ import annotations

import gzip
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
FIGURES = RESULTS / "figures"


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    shown: dict[str, Any] = json.loads((FIGURES / "values.json").read_text())
    return shown


def text(path: str) -> str:
    file = RESULTS / path
    return file.read_text() if file.exists() else gzip.open(f"{file}.gz", "rt").read()


def test_figures_are_small_and_drawn_from_what_lies_here_now(
    drawn: dict[str, Any], tmp_path: Path
) -> None:
    runpy.run_path(str(ROOT / "scripts/figures.py"))["main"]([str(tmp_path)])
    assert json.loads((tmp_path / "values.json").read_text()) == drawn
    names = {"training.svg", "price.svg", "lemma41.svg", "values.json"}
    assert {file.name for file in tmp_path.iterdir()} == names
    assert {file.name for file in FIGURES.iterdir()} == names
    assert all(file.stat().st_size < 150_000 for file in FIGURES.iterdir())


@pytest.mark.parametrize(
    ("label", "log", "update"),
    [
        ("softmax", "tables/layers_small/transformer_softmax_s{}.train.log", 3000),
        ("softmax, 4,350 updates", "tables/layers_small/transformer_longer_s{}.train.log", 4350),
        ("softmax, widened", "tables/layers_small/transformer_widened_s{}.train.log", 3000),
        ("KerBS from the start", "tables/layers_small/transformer_clusters_3v_s{}.train.log", 3000),
        ("senses placed after 1,200 updates", "clusters/at0.4_s{}.train.log", 1800),
    ],
)
def test_losses_are_those_of_the_logs(
    drawn: dict[str, Any], label: str, log: str, update: int
) -> None:
    losses = []
    for seed in (1, 2, 3):
        lines = [line for line in text(log.format(seed)).splitlines() if "valid on 'valid'" in line]
        assert f"num_updates {update}" in lines[-1]
        losses.append(float(lines[-1].split("nll_loss ")[1].split()[0]))
    assert drawn["training"][label]["loss"][-1] == pytest.approx(sum(losses) / 3, abs=1e-4)


def test_the_page_has_the_values_of_the_figures(drawn: dict[str, Any]) -> None:
    page = (RESULTS / "README.md").read_text() + (RESULTS / "clusters/README.md").read_text()
    for shown in drawn["training"].values():
        assert f"{shown['loss'][-1]:.3f} ± " in page
        assert f"{shown['bleu']:.2f} ± {shown['deviation']:.2f}" in page
    for row in (RESULTS / "clusters/price.tsv").read_text().splitlines()[1:]:
        name, time, file = row.split("\t")
        shown, line = drawn["price"][name], f"{drawn['price'][name]['v']:.3f} ["
        assert shown["time"] == float(time)
        assert line in text(f"clusters/{file}")
        assert line in page.replace("**", "")
        assert f"| {time} |" in page
    lemma = (RESULTS / "lemmas/lemmas.txt").read_text().splitlines()
    for policy, shown in drawn["lemma41"].items():
        row = next(line for line in lemma if line.startswith(policy))
        assert [float(x) for x in row.split()[2:6]] == pytest.approx(shown["senses"], abs=0.005)
