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
