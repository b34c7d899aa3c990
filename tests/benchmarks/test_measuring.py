"""Order of the calls, statistics, and peak memory held to known allocations."""

from __future__ import annotations

import gc

import pytest
import torch

from fairseq_kerbs.benchmarks.measuring import (
    Spread,
    Workload,
    alternate,
    first_losses,
    fit_line,
    ratios,
)
from fairseq_kerbs.benchmarks.memory import peak_memory

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
    workloads = {
        "sum of four": Workload(run=lambda: torch.tensor(6.0), losses=4),
        "none": Workload(run=lambda: None),
        "broken": Workload(run=lambda: float("nan")),
    }
    assert first_losses(workloads) == {"sum of four": 1.5, "none": None, "broken": "nan"}


def test_statistics() -> None:
    assert Spread.of([4.0, 1.0, 2.0, 3.0, 5.0]) == Spread(3.0, 2.0, 4.0, 1.0, 5.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0)
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]


def test_line_through_points() -> None:
    line = fit_line([10.0, 20.0, 50.0], [5.0, 8.0, 17.0])
    assert line["intercept"] == pytest.approx(2.0)
    assert line["slope"] == pytest.approx(0.3)
    assert line["largest_relative_error"] == pytest.approx(0.0, abs=1e-9)
    bent = fit_line([10.0, 20.0, 50.0], [5.0, 12.0, 17.0])
    assert bent["largest_relative_error"] > 0.1


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
    answer = peak_memory(f"{__name__}:allocating", arguments, threads=1)
    assert answer["extra_bytes"] == pytest.approx((kept + temporary) * MEGABYTE, abs=FEW)
    assert answer["without_gradients_bytes"] == pytest.approx(temporary * MEGABYTE, abs=FEW)
    assert answer["gradient_bytes"] == kept * MEGABYTE


@pytest.mark.slow
def test_memory_that_cannot_be_measured_gives_a_reason() -> None:
    answer = peak_memory(f"{__name__}:allocating", {"kept": 1}, threads=1)
    assert set(answer) == {"error"}
    assert "temporary" in answer["error"]
