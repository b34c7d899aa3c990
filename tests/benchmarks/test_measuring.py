"""Order of the calls, statistics, and peak memory held to known allocations."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import pytest
import torch

from fairseq_kerbs.benchmarks import comparison, likelihood
from fairseq_kerbs.benchmarks.comparison import (
    Workload,
    alternate,
    compare,
    peak_memory,
    summary,
    tables,
)

MEGABYTE = 1_000_000
FEW = 4 * MEGABYTE


def test_contestants_alternate_and_nobody_keeps_a_neighbour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def workload(name: str) -> Workload:
        def run() -> None:
            assert not gc.isenabled()
            calls.append(name)

        return Workload(run=run, reset=lambda: calls.append("reset"))

    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    times = alternate({name: workload(name) for name in "abc"}, 4)
    assert calls[::3] == ["reset"] * 12
    assert calls[1::3] == ["collect"] * 12
    assert "".join(calls[2::3]) == "abc" + "bca" + "cab" + "abc"
    assert [len(times[name]) for name in "abc"] == [4, 4, 4]
    assert gc.isenabled()


def test_figures_and_their_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # slow beside all that pytest keeps
    assert summary([4.0, 1.0, 2.0]) == {"median": 2.0, "lowest": 1.0, "highest": 4.0}
    work = partial(Workload, run=lambda: torch.tensor(1.5), amount=10.0, unit="token")
    entries = {"a": ("first", work), "b": ("second", partial(Workload, lambda: None))}
    result = compare(entries, [("a", "b"), ("a", "c")], repetitions=3, memory=False)
    assert [one["loss"] for one in result["contestants"].values()] == [1.5, None]
    assert [(one["of"], one["over"]) for one in result["ratios"]] == [("a", "b")]
    lines = tables(result, {"b": "what b is"}).splitlines()
    assert "µs a token" in lines[0]
    assert lines[1].startswith("a ")
    assert lines[1].endswith("first")
    assert "1.50000" in lines[1]
    assert any(line.startswith("a ÷ b") for line in lines)
    assert "what b is" in lines[-1]


def test_no_memory_is_told_of_calls_that_share_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "peak_memory", lambda *_: 8)
    entries = {
        name: ("", partial(Workload, lambda: None, reuses=reuses))
        for name, reuses in (("a", False), ("b", True))
    }
    result = compare(entries, [("a", "b")], repetitions=1)
    assert [one["peak_bytes"] for one in result["contestants"].values()] == [8, None]
    assert result["ratios"][0]["memory"] is None


def allocating(kept: int, temporary: int, times: int) -> Workload:
    """Keeps ``kept`` bytes, and ``times`` one after the other takes and frees ``temporary``."""
    results: list[torch.Tensor] = []

    def run() -> None:
        results.append(torch.ones(kept, dtype=torch.uint8))
        for _ in range(times):
            torch.ones(temporary, dtype=torch.uint8)

    return Workload(run=run, reset=results.clear)


@pytest.mark.slow
def test_peak_memory_of_known_allocations() -> None:
    make = partial(allocating, kept=30 * MEGABYTE, temporary=100 * MEGABYTE, times=3)
    assert peak_memory(make, 1, "cpu") == pytest.approx(130 * MEGABYTE, abs=FEW)


@pytest.mark.slow
def test_kerbs_takes_no_memory_for_tokens_times_senses() -> None:
    inputs: dict[str, Any] = {"dim": 16, "vocab": 400, "senses_per_word": 3.0, "tokens": 16384}
    inputs |= {"dtype": "float32", "device": "cpu", "seed": 1}
    peak = peak_memory(partial(likelihood.workload, "kerbs", **inputs), 1, "cpu")
    assert peak is not None
    assert 4 * 16384 * 16 < peak < 4 * 16384 * 1200  # between dh and all logits
