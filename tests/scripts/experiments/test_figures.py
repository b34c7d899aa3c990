"""Figures of results/ are drawn from what lies there."""

import json
from pathlib import Path

import pytest

from scripts.experiments import figures
from scripts.experiments.figures import read

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"
FIGURES = RESULTS / "figures"


def test_figures_are_small_and_drawn_from_what_lies_here_now(tmp_path: Path) -> None:
    figures.main([str(tmp_path)])
    drawn = json.loads((FIGURES / "values.json").read_text())
    assert json.loads((tmp_path / "values.json").read_text()) == drawn
    names = {"training.svg", "price.svg", "lemma41.svg", "outliers.svg", "values.json"}
    assert {file.name for file in tmp_path.iterdir()} == names
    assert {file.name for file in FIGURES.iterdir()} == names
    assert all(file.stat().st_size < 150_000 for file in FIGURES.iterdir())
    page = (RESULTS / "README.md").read_text() + (RESULTS / "clusters/README.md").read_text()
    for shown in drawn["training"].values():
        assert f"{shown['loss'][-1]:.3f} ± " in page
        assert f"{shown['bleu']:.2f} ± {shown['deviation']:.2f}" in page
    for row in read("clusters/price.tsv").splitlines()[1:]:
        name, time, file = row.split("\t")
        shown, line = drawn["price"][name], f"{drawn['price'][name]['v']:.3f} ["
        assert shown["time"] == float(time)
        assert line in read(f"clusters/{file}")
        assert line in page.replace("**", "")
        assert f"| {time} |" in page
    lemma = read("lemmas/lemmas.txt").splitlines()
    for policy, shown in drawn["lemma41"].items():
        row = next(line for line in lemma if line.split()[:1] == [policy])
        assert [float(x) for x in row.split()[2:6]] == pytest.approx(shown["senses"], abs=0.005)
