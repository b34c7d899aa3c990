"""Small tables over the synthetic corpus: run, interrupted after the first cell, resumed."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus
from tests.helpers import HANGS

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
  reallocation-interval: 10
  log-interval: 10
  num-workers: 0
generate:
  beam: 2
  max-len-b: 12
  num-workers: 0
"""
LANGUAGE_MODEL = f"""
extends: {ROOT}/configs/wikitext2/gru_kerbs.yaml
train:
  embed-dim: 16
  hidden-size: 16
  max-update: 5
  total-num-update: 20
  num-workers: 0
"""
DATA = """
parallel:
  folders: [toy]
  prepare: [prepare, --train, "{raw}/train", --valid, "{raw}/valid", --test, "{raw}/test",
            --source-lang, de, --target-lang, en, --merges, "300", --workers, "1", --dest, "{dest}"]
  reference: "{raw}/test.en"
  source_language: de
text:
  folders: [toy]
  prepare: [prepare-lm, --train, "{raw}/train.en", --valid, "{raw}/valid.en",
            --test, "{raw}/test.en", --words, "300", --workers, "1", --dest, "{dest}"]
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
  lm:
    metric: perplexity
    small: {data: text, configs: {kerbs: lm.yaml}}
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


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + HANGS
    while not condition():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_synthetic_corpus(tmp_path / "raw" / "toy", train=300, valid=20, test=20)
    tables = tmp_path / "tables"
    tables.mkdir()
    pair = "{softmax: softmax.yaml, kerbs: kerbs.yaml}"
    for name, text in {
        "kerbs": KERBS,
        "softmax": "extends: kerbs.yaml\ntrain:\n  output-layer: softmax\n",
        "lm": LANGUAGE_MODEL,
        "data": DATA,
        "figures": FIGURES,
        "side": TEXTS.format(
            kind="examples", rows="{softmax: Plain, kerbs: KerBS}\nbaseline: softmax", configs=pair
        ),
        "words": TEXTS.format(kind="senses", rows="{kerbs: KerBS}", configs="{kerbs: kerbs.yaml}"),
    }.items():
        (tables / f"{name}.yaml").write_text(text)
    return tmp_path


def test_interrupted_and_resumed(folder: Path) -> None:
    command = [str(ROOT / "scripts" / "reproduce_tables.sh"), "--data", "raw"]
    for name in ("figures", "side", "words"):
        command += ["--table", f"tables/{name}.yaml"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    cells = folder / "runs" / "tables" / "cells"
    first, second = (cells / "parallel" / f"{name}-s1" for name in ("softmax", "kerbs"))
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        wait_for((second / "train.json").exists, process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=HANGS)
    assert process.returncode == 130, output
    assert "the same command goes on from here" in output
    assert json.loads((second / "train.json").read_text())["status"] == "running"
    made = (first / "checkpoints" / "checkpoint_best.pt").stat().st_mtime_ns

    done = subprocess.run(
        [*command, "--jobs", "2"], cwd=folder, env=environ, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (first / "checkpoints" / "checkpoint_best.pt").stat().st_mtime_ns == made
    assert json.loads((second / "train.json").read_text())["attempts"] == 2
    results = folder / "results" / "tables"
    rows = list(csv.DictReader((results / "figures_small.csv").open()))
    assert [(row["row"], row["column"], row["n"]) for row in rows] == [
        ("softmax", "mt", "1"), ("kerbs", "mt", "1"), ("kerbs", "lm", "1"),
    ]  # fmt: skip
    assert 1 < float(rows[2]["mean"]) < 1000
    assert 0 < float(rows[1]["p_values"]) <= 1
    for path in results.rglob("*"):
        assert path.is_dir() or str(folder) not in path.read_text(), path
        assert path.is_dir() or str(ROOT) not in path.read_text(), path
    copied = {path.name for path in (results / "figures_small").iterdir()}
    assert {"mt_kerbs_s1.train.log", "mt_kerbs_s1.hyp.en", "lm_kerbs_s1.evaluate.log"} <= copied
    assert "Source" in (results / "side_small.md").read_text()
    assert "| drawn at random |" in (results / "words_small.md").read_text()
    content = json.loads((results / "words_small.json").read_text())
    assert content["cells"][0]["cell"] == "parallel/kerbs-s1"

    # A change of a configuration is said, and nothing is trained anew.
    (folder / "tables" / "lm.yaml").write_text(LANGUAGE_MODEL.replace("16", "8"))
    again = subprocess.run(command, cwd=folder, env=environ, text=True, capture_output=True)
    assert again.returncode == 1
    assert "text/lm-s1: stale: configuration changed since train" in again.stdout
    assert "stale: configuration changed" in (results / "figures_small.md").read_text()
