"""Order of the calls, statistics, and peak memory held to known allocations."""

from __future__ import annotations

import gc
import os
import signal
from functools import partial

import pytest
import torch

from fairseq_kerbs.benchmarks.comparison import Workload, alternate, first_loss, summary
from fairseq_kerbs.benchmarks.memory import peak_memory
from fairseq_kerbs.benchmarks.report import spread, spread_name

MEGABYTE = 1_000_000
FEW = 4 * MEGABYTE


def test_contestants_alternate_and_nobody_keeps_a_neighbour() -> None:
    calls: list[str] = []

    def workload(name: str) -> Workload:
        def run() -> None:
            assert not gc.isenabled()
            calls.append(name)

        return Workload(run=run, reset=lambda: calls.append("reset"))

    times = alternate({name: workload(name) for name in "abc"}, 4, "cpu")
    assert calls[::2] == ["reset"] * 12
    assert "".join(calls[1::2]) == "abc" + "bca" + "cab" + "abc"
    assert [len(times[name]) for name in "abc"] == [4, 4, 4]
    assert gc.isenabled()


def test_first_losses_are_means_that_json_can_hold() -> None:
    assert first_loss(Workload(run=lambda: torch.tensor(6.0), losses=4)) == 1.5
    assert first_loss(Workload(run=lambda: None)) is None
    assert first_loss(Workload(run=lambda: float("nan"))) == "nan"


def test_statistics() -> None:
    figures = summary([4.0, 1.0, 2.0, 3.0, 5.0])
    assert figures == {"median": 3.0, "q1": 2.0, "q3": 4.0, "lowest": 1.0, "highest": 5.0}
    assert set(summary([7.0]).values()) == {7.0}
    # quartiles from five repetitions up, else the range, and the column says which
    assert (spread_name(5), spread(figures, str, 5)) == ("quartiles", "2.0–4.0")
    assert (spread_name(4), spread(figures, str, 4)) == ("range", "1.0–5.0")


def allocating(kept: int, temporary: int, times: int) -> Workload:
    """Keeps ``kept`` bytes, and ``times`` one after the other takes and frees ``temporary``."""
    results: list[torch.Tensor] = []

    def run() -> None:
        results.append(torch.ones(kept, dtype=torch.uint8))
        for _ in range(times):
            torch.ones(temporary, dtype=torch.uint8)

    return Workload(run=run, reset=results.clear, gradient_bytes=kept)


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "temporary", "times"), [(100, 0, 0), (30, 100, 3)])
def test_peak_memory_of_known_allocations(kept: int, temporary: int, times: int) -> None:
    arguments = {"kept": kept * MEGABYTE, "temporary": temporary * MEGABYTE, "times": times}
    answer = peak_memory(partial(allocating, **arguments), threads=1)
    assert answer["extra_bytes"] == pytest.approx((kept + temporary) * MEGABYTE, abs=FEW)
    assert answer["without_gradients_bytes"] == pytest.approx(temporary * MEGABYTE, abs=FEW)
    assert answer["gradient_bytes"] == kept * MEGABYTE


@pytest.mark.slow
def test_memory_that_cannot_be_measured_gives_a_reason() -> None:
    answer = peak_memory(partial(allocating, kept=1), threads=1)
    assert set(answer) == {"error"}
    assert "temporary" in answer["error"]


def dying() -> Workload:
    """Ends as the system ends who takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.mark.slow
def test_a_process_that_was_killed_gives_a_reason() -> None:
    before = dict(os.environ)
    assert "was killed" in peak_memory(dying, threads=1)["error"]
    assert dict(os.environ) == before
