"""The command: every benchmark end to end at tiny sizes, and one sentence for wrong flags."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_kerbs.benchmarks import command
from tests.helpers import HANGS

ROOT = Path(__file__).resolve().parents[2]
TINY_MODEL = ["--dim", "16", "--vocab", "60", "--ffn", "24", "--layers", "1"]
FEW = ["--quick", "--repetitions", "2", "--threads", "1", "--no-memory"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "quiet", lambda: None)  # it would silence the tests that follow
    monkeypatch.setattr(gc, "collect", lambda: 0)  # slow beside all that pytest keeps


def benchmark(name: str, *flags: str) -> dict[str, Any]:
    """Run a benchmark in this process; what it wrote, checked for what all have."""
    command.main([name, *FEW, *flags])
    document: dict[str, Any] = json.loads(Path(f"benchmark-{name}.json").read_text())
    check_document(document, name)
    return document


def check_document(document: dict[str, Any], name: str) -> None:
    assert document["benchmark"] == name
    assert {"cpu", "cores", "threads", "gpu", "load_average"} <= set(document["machine"])
    assert document["versions"]["torch"] == torch.__version__
    assert (document["settings"]["seed"], document["settings"]["threads"]) == (1, 1)
    assert document["settings"]["FAIRSEQ_KERBS_COMPILE"] == os.environ.get("FAIRSEQ_KERBS_COMPILE")
    for entry in document["contestants"].values():
        assert len(entry["seconds"]) == 2
        assert 0.0 < entry["lowest"] <= entry["median"] <= entry["highest"]
    for ratio in document["ratios"]:
        of, over = (document["contestants"][ratio[key]] for key in ("of", "over"))
        expected = [a / b for a, b in zip(of["seconds"], over["seconds"])]
        assert ratio["per_repetition"] == pytest.approx(expected)
        assert min(expected) == ratio["lowest"] <= ratio["median"] <= ratio["highest"]


@pytest.mark.slow
def test_likelihood_as_users_run_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "scripts" / "benchmark.py"), "likelihood", *FEW),
            *("--output", str(tmp_path / "found.json")),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stderr
    (written,) = tmp_path.iterdir()
    document = json.loads(written.read_text())
    assert str(tmp_path) not in written.read_text()  # results are published
    check_document(document, "likelihood")
    entries = document["contestants"]
    assert tuple(entries) == command.BENCHMARKS["likelihood"][1]
    for one, other in (("kerbs", "naive"), ("lean", "stock")):
        assert entries[one]["loss"] == pytest.approx(entries[other]["loss"], rel=1e-5)
    assert "kerbs ÷ naive" in done.stdout
    assert "load average" in done.stdout


def test_step() -> None:
    document = benchmark("step", *TINY_MODEL, "--tokens", "128", "--contestants", "stock", "kerbs")
    assert [(ratio["of"], ratio["over"]) for ratio in document["ratios"]] == [("kerbs", "stock")]
    for entry in document["contestants"].values():
        assert entry["loss"] > 0.0
        assert entry["peak_bytes"] is None


def test_decode(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*TINY_MODEL, "--batch", "2", "--contestants", "kerbs", "stock"]
    for entry in benchmark("decode", *flags)["contestants"].values():
        assert entry["seconds_per_unit"] == pytest.approx(entry["median"] / 2)
    assert "a sentence" in capsys.readouterr().out


def test_scaling() -> None:
    entries = benchmark("scaling", "--dim", "8", "--vocab", "400", "--tokens", "64")["contestants"]
    assert [name.split()[::2] for name in entries] == [
        *(["400", "64"], ["800", "64"], ["1200", "64"]),
        *(["1200", "16"], ["1200", "32"], ["1200", "128"], ["1200", "256"]),
    ]
    one = entries["800 senses, 64 tokens"]
    assert one["seconds_per_unit"] == pytest.approx(one["median"] / (800 * 64))


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(command.BENCHMARKS))
def test_on_cuda(name: str) -> None:
    document = benchmark(name, "--device", "cuda")
    assert document["machine"]["gpu"]["name"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["likelihood", "--tokens", "many"], "--tokens: invalid int value: 'many'"),
        (["likelihood", "--heads", "2"], "--heads"),
        (["likelihood", "--contestants", "nobody"], "--contestants: invalid choice: 'nobody'"),
        ([], "BENCHMARK"),
    ],
)
def test_wrong_flags_give_one_sentence(
    flags: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(flags)
    assert expected in capsys.readouterr().err
