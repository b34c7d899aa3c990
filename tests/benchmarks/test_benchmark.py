"""scripts/benchmark.py: every benchmark at tiny sizes, the order of calls, memory."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_kerbs.benchmarks.comparison import Workload, alternate, compare, peak_memory, tables
from scripts import benchmark
from tests.helpers import HANGS

ROOT = Path(__file__).resolve().parents[2]
TINY_MODEL = ["--dim", "16", "--vocab", "60", "--ffn", "24", "--layers", "1"]
FEW = ["--quick", "--repetitions", "2", "--threads", "1"]
MEGABYTE = 1_000_000


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmark, "quiet", lambda: None)  # it would silence the tests that follow
    monkeypatch.setattr(gc, "collect", lambda: 0)  # slow beside all that pytest keeps


def check(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The contestants of a document that has what all have."""
    assert document["benchmark"] == name
    assert {"cpu", "cores", "threads", "gpu", "load_average"} <= set(document["machine"])
    assert document["versions"]["torch"] == torch.__version__
    assert (document["settings"]["seed"], document["settings"]["threads"]) == (1, 1)
    assert "FAIRSEQ_KERBS_COMPILE" in document["settings"]
    for entry in document["contestants"].values():
        assert 0.0 < entry["lowest"] <= entry["median"] <= entry["highest"]
    for ratio in document["ratios"]:
        of, over = (document["contestants"][ratio[key]]["seconds"] for key in ("of", "over"))
        expected = [a / b for a, b in zip(of, over, strict=True)]
        assert len(expected) == 2
        assert ratio["per_repetition"] == pytest.approx(expected)
        assert min(expected) == ratio["lowest"] <= ratio["median"] <= ratio["highest"]
    contestants: dict[str, Any] = document["contestants"]
    return contestants


def run(name: str, *flags: str) -> dict[str, Any]:
    benchmark.main([name, *FEW, *flags])
    return check(json.loads(Path(f"benchmark-{name}.json").read_text()), name)


@pytest.mark.slow
def test_likelihood_as_users_run_it(tmp_path: Path) -> None:
    script, file = str(ROOT / "scripts" / "benchmark.py"), tmp_path / "found.json"
    command = [sys.executable, script, "likelihood", *FEW, "--output", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    assert [*tmp_path.iterdir()] == [file]
    assert str(tmp_path) not in file.read_text()  # results are published
    entries = check(json.loads(file.read_text()), "likelihood")
    assert tuple(entries) == benchmark.BENCHMARKS["likelihood"][1]
    for name, other in (("kerbs", "naive"), ("lean", "stock")):
        assert entries[name]["loss"] == pytest.approx(entries[other]["loss"], rel=1e-5)
    assert "kerbs ÷ naive" in done.stdout
    assert "load average" in done.stdout


def test_step_and_decode(capsys: pytest.CaptureFixture[str]) -> None:
    stock_and_kerbs = ["--contestants", "stock", "kerbs"]
    entries = run("step", *TINY_MODEL, "--tokens", "128", *stock_and_kerbs)
    assert "kerbs ÷ stock" in capsys.readouterr().out
    assert all(entry["loss"] > 0 and entry["peak_bytes"] is None for entry in entries.values())
    for entry in run("decode", *TINY_MODEL, "--batch", "2", *stock_and_kerbs).values():
        assert entry["seconds_per_unit"] == pytest.approx(entry["median"] / 2)
    assert "a sentence" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(benchmark.BENCHMARKS))
def test_on_cuda(name: str) -> None:
    run(name, "--device", "cuda", "--memory")


def test_contestants_alternate_and_nobody_keeps_a_neighbour() -> None:
    calls: list[str] = []

    def workload(name: str) -> Workload:
        def run() -> None:
            assert not gc.isenabled()
            calls.append(name)

        return Workload(run, reset=lambda: calls.append("reset"))

    times = alternate({name: workload(name) for name in "abc"}, 4)
    assert calls[::2] == ["reset"] * 12
    assert "".join(calls[1::2]) == "abc" + "bca" + "cab" + "abc"
    assert [len(times[name]) for name in "abc"] == [4, 4, 4]
    assert gc.isenabled()


def test_figures_and_their_table() -> None:
    work = partial(Workload, lambda: torch.tensor(1.5), amount=10.0, unit="token", reuses=True)
    entries = {"a": ("first", work), "b": ("second", partial(Workload, lambda: None, unit="token"))}
    result = compare(entries, [("a", "b"), ("a", "c")], repetitions=3)
    assert [entry["loss"] for entry in result["contestants"].values()] == [1.5, None]
    peaks = [entry["peak_bytes"] for entry in result["contestants"].values()]
    assert (peaks[0], type(peaks[1])) == (None, int)  # it says nothing of calls that share buffers
    assert [(ratio["of"], ratio["memory"]) for ratio in result["ratios"]] == [("a", None)]
    first, row, *_, last = tables(result).splitlines()
    assert "µs a token" in first
    assert row.split()[-3:] == ["1.50000", "–", "first"]
    assert last.startswith("a ÷ b ")


@pytest.mark.slow
def test_peak_memory_of_known_allocations() -> None:
    results: list[torch.Tensor] = []

    def run() -> None:
        results.append(torch.ones(30 * MEGABYTE, dtype=torch.uint8))
        for _ in range(3):
            torch.ones(100 * MEGABYTE, dtype=torch.uint8)

    run()
    peak = peak_memory(Workload(run, reset=results.clear), "cpu")
    assert peak == pytest.approx(130 * MEGABYTE, abs=4 * MEGABYTE)
