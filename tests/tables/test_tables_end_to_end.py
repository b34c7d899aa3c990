"""Small tables over the synthetic corpus, by the script."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.data.toy import write_toy_corpus

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

KERBS = f"""
extends: {ROOT}/configs/toy.yaml
train:
  encoder-embed-dim: 32
  decoder-embed-dim: 32
  encoder-ffn-embed-dim: 32
  decoder-ffn-embed-dim: 32
  max-update: 30
  validate-interval: 100
  save-interval: 100
  reallocation-interval: 10
  log-interval: 10
  num-workers: 0
generate:
  beam: 2
  max-len-b: 12
  num-workers: 0
"""
DATA = """
parallel:
  folders: [toy]
  prepare: [prepare, --train, "{raw}/train", --valid, "{raw}/valid", --test, "{raw}/test",
            --source-lang, de, --target-lang, en, --merges, "300", --workers, "1", --dest, "{dest}"]
  reference: "{raw}/test.en"
  source_language: de
"""
FIGURES = """
title: Figures
baseline: softmax
rows: {softmax: Plain, kerbs: KerBS}
columns:
  mt:
    metric: bleu4
    paper: {softmax: 25, kerbs: 26}
    small: {data: parallel, configs: {softmax: softmax.yaml, kerbs: kerbs.yaml}}
"""
TEXTS = """
title: Texts
kind: {kind}
rows: {rows}
columns:
  mt:
    metric: bleu4
    small: {{data: parallel, configs: {configs}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_toy_corpus(tmp_path / "raw" / "toy", train=300, valid=20, test=20)
    tables = tmp_path / "tables"
    tables.mkdir()
    pair = "{softmax: softmax.yaml, kerbs: kerbs.yaml}"
    for name, text in {
        "kerbs": KERBS,
        "softmax": "extends: kerbs.yaml\ntrain:\n  output-layer: softmax\n",
        "data": DATA,
        "figures": FIGURES,
        "side": TEXTS.format(
            kind="examples", rows="{softmax: Plain, kerbs: KerBS}\nbaseline: softmax", configs=pair
        ),
        "words": TEXTS.format(kind="senses", rows="{kerbs: KerBS}", configs="{kerbs: kerbs.yaml}"),
    }.items():
        (tables / f"{name}.yaml").write_text(text)
    return tmp_path


def test_run_and_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", "raw", "--jobs", "2"]
    for name in ("figures", "side", "words"):
        arguments += ["--table", f"tables/{name}.yaml"]
    command = [str(ROOT / "scripts" / "reproduce_tables.sh"), *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environ, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    results = folder / "results" / "tables"
    runs = json.loads((results / "figures_small.json").read_text())
    assert [run["run"] for run in runs] == ["figures/mt/softmax/s1", "figures/mt/kerbs/s1"]
    assert all(run["figures"]["value"] >= 0 for run in runs)
    assert 0 < runs[1]["figures"]["p_value"] <= 1
    for path in results.rglob("*"):
        assert path.is_dir() or str(folder) not in path.read_text(), path
        assert path.is_dir() or str(ROOT) not in path.read_text(), path
    copied = {path.name for path in (results / "figures_small").iterdir()}
    assert {"mt_kerbs_s1.train.log", "mt_kerbs_s1.hyp.en"} <= copied
    assert "Source" in (results / "side_small.md").read_text()
    assert "| drawn at random |" in (results / "words_small.md").read_text()

    # Finished runs are not made again where the work folder is gone.
    monkeypatch.chdir(folder)
    (folder / "runs").rename(folder / "aside")
    figures = ["tables", "--data", "raw", "--table", "tables/figures.yaml"]
    assert main(figures) == 0
    assert "parallel/kerbs-s1: kept in results/tables" in capsys.readouterr().out
    assert json.loads((results / "figures_small.json").read_text()) == runs
    assert copied == {path.name for path in (results / "figures_small").iterdir()}
    shutil.rmtree(folder / "runs")
    (folder / "aside").rename(folder / "runs")

    # A change of a configuration is said, and nothing is trained anew.
    softmax = "extends: kerbs.yaml\ntrain:\n  output-layer: softmax\n  seed: 2\n  lr: 1e-3\n"
    (folder / "tables" / "softmax.yaml").write_text(softmax)
    assert main(["tables", *arguments]) == 1
    assert "parallel/softmax-s1: stale: configuration changed since" in capsys.readouterr().out
    assert "stale: configuration changed" in (results / "figures_small.md").read_text()
