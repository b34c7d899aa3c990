"""Timing contestants next to each other: times, ratios of times, losses, memory."""

from __future__ import annotations

import gc
import math
import sys
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_kerbs.benchmarks.memory import peak_memory


@dataclass
class Workload:
    """One thing to measure.

    Attributes:
        run: the measured call; returns the sum of ``losses`` losses, in ``loss_unit``, if any.
        reset: brings back the state before the first call (no gradients); not measured.
        forget: drops what calls keep for the next one, before memory is measured.
        amount: ``unit``s of work in one call, for the rate.
        gradient_bytes: size of the gradients that a call leaves.
    """

    run: Callable[[], Tensor | float | None]
    reset: Callable[[], object] = lambda: None
    forget: Callable[[], object] = lambda: None
    amount: float = 1.0
    unit: str = "calls"
    gradient_bytes: int = 0
    losses: float = 1.0
    loss_unit: str = "nats"


@dataclass(frozen=True)
class Settings:
    """What all benchmarks share; ``contestants`` names those that take part, None for all."""

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    repetitions: int = 5
    seed: int = 1
    memory: bool = True
    contestants: tuple[str, ...] | None = None

    def inputs(self) -> dict[str, Any]:
        """What every workload takes besides its sizes."""
        return {"dtype": self.dtype, "device": self.device, "seed": self.seed}

    def chosen(self, names: Iterable[str]) -> list[str]:
        """The contestants that take part, in their own order."""
        return [name for name in names if self.contestants is None or name in self.contestants]


Entry = tuple[str, Callable[[], Workload]]
"""A contestant: what it is, in one line, and a picklable function that makes its workload."""


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and extremes of at least one value."""
    figures = np.percentile(values, (50, 25, 75, 0, 100)).tolist()
    return dict(zip(("median", "q1", "q3", "lowest", "highest"), figures, strict=True))


def time_once(workload: Workload, device: str) -> float:
    """Seconds of one call, from an idle device to an idle device, without garbage collection."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def call() -> object:
        result = workload.run()
        wait()
        return result

    workload.reset()
    gc.collect()
    wait()
    return timeit.timeit(call, number=1)


def alternate(
    workloads: Mapping[str, Workload], repetitions: int, device: str
) -> dict[str, list[float]]:
    """Time every workload once in each repetition: seconds by name.

    The order is rotated from repetition to repetition, so that nobody always runs after the same
    neighbour, and what the machine does besides falls on all alike.
    """
    names = list(workloads)
    times: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(repetitions):
        shift = repetition % max(1, len(names))
        for name in names[shift:] + names[:shift]:
            progress(f"repetition {repetition + 1}/{repetitions}: {name}")
            times[name].append(time_once(workloads[name], device))
    return times


def first_loss(workload: Workload) -> float | str | None:
    """The mean loss of an untimed call, the warm-up; text where JSON has no such number."""
    workload.reset()
    result = workload.run()
    workload.reset()
    value = None if result is None else float(result) / workload.losses
    return value if value is None or math.isfinite(value) else str(value)


def compare(
    entries: Mapping[str, Entry], pairs: Iterable[tuple[str, str]], settings: Settings
) -> dict[str, Any]:
    """Run all contestants next to each other.

    Args:
        entries: the contestants by name.
        pairs: (of, over) names whose ratio is wanted; pairs of absent contestants are left out.
        settings: repetitions, threads, …

    Returns:
        ``contestants`` by name and the list ``ratios``, such as JSON can hold.
    """
    workloads = {}
    for name, (_, make) in entries.items():
        progress(f"warm-up: {name}")
        workloads[name] = make()
    losses = {name: first_loss(workload) for name, workload in workloads.items()}
    times = alternate(workloads, settings.repetitions, settings.device)
    contestants: dict[str, Any] = {}
    for name, (label, make) in entries.items():
        workload, figures = workloads[name], summary(times[name])
        progress(f"memory: {name}")
        here = workload if settings.device == "cuda" else None
        contestants[name] = {
            "label": label,
            "seconds": times[name],
            **figures,
            "rate": workload.amount / figures["median"],
            "rate_unit": f"{workload.unit}/s",
            "loss": losses[name],
            "loss_unit": workload.loss_unit,
            "memory": peak_memory(make, settings.threads, here) if settings.memory else None,
        }
    progress("")
    ratios = [_ratio(contestants, *pair) for pair in pairs if set(pair) <= set(contestants)]
    return {"contestants": contestants, "ratios": ratios}


def _ratio(contestants: dict[str, Any], of: str, over: str) -> dict[str, Any]:
    """Quotients of times that were taken in the same repetition, and of peak memory."""
    pairs = zip(contestants[of]["seconds"], contestants[over]["seconds"], strict=True)
    values = [mine / theirs for mine, theirs in pairs]
    mine, theirs = ((contestants[name]["memory"] or {}).get("extra_bytes") for name in (of, over))
    memory = mine / theirs if mine and theirs else None
    return {"of": of, "over": over, "per_repetition": values, **summary(values), "memory": memory}


def progress(text: str) -> None:
    """Overwrite the progress line of a terminal; nothing where stderr is none."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
