"""Timing contestants next to each other, and the statistics of what was timed."""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def nothing() -> None:
    """Do nothing: the default of what a workload may leave out."""


@dataclass
class Workload:
    """One thing to measure.

    Attributes:
        run: the measured call; returns the loss it computed, if any.
        reset: brings back the state before the first call (no gradients); not measured.
        forget: drops what calls keep for the next one, before memory is measured.
        amount: units of work in one call, for the rate.
        unit: name of the unit.
        gradient_bytes: size of the gradients that a call leaves.
        losses: number of losses that ``run`` sums up.
        loss_unit: their unit.
    """

    run: Callable[[], Tensor | float | None]
    reset: Callable[[], None] = nothing
    forget: Callable[[], None] = nothing
    amount: float = 1.0
    unit: str = "calls"
    gradient_bytes: int = 0
    losses: float = 1.0
    loss_unit: str = "nats"


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and extremes of a sample."""

    median: float
    q1: float
    q3: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarize at least one value."""
        q1, median, q3 = (
            statistics.quantiles(values, n=4, method="inclusive")
            if len(values) > 1
            else (values[0],) * 3
        )
        return cls(median, q1, q3, min(values), max(values))

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return dict(vars(self))


def synchronize(device: str) -> None:
    """Wait until the device has done all that was asked of it."""
    if device == "cuda":
        torch.cuda.synchronize()


def time_once(workload: Workload, device: str) -> float:
    """Seconds of one call, from an idle device to an idle device, without garbage collection."""
    workload.reset()
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        synchronize(device)
        start = time.perf_counter()
        result = workload.run()
        synchronize(device)
        elapsed = time.perf_counter() - start
    finally:
        if enabled:
            gc.enable()
    del result
    return elapsed


def alternate(
    workloads: Mapping[str, Workload], repetitions: int, device: str
) -> dict[str, list[float]]:
    """Time every workload once in each repetition.

    The order is rotated from repetition to repetition, so that nobody always runs after the same
    neighbour, and what the machine does besides falls on all alike.

    Returns:
        seconds by name, in the order of the repetitions.
    """
    names = list(workloads)
    times: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(repetitions):
        shift = repetition % max(1, len(names))
        for name in names[shift:] + names[:shift]:
            progress(f"repetition {repetition + 1}/{repetitions}: {name}")
            times[name].append(time_once(workloads[name], device))
    progress("")
    return times


def first_losses(workloads: Mapping[str, Workload]) -> dict[str, float | str | None]:
    """Run every workload once, untimed, as a warm-up; the mean loss that each computed, by name."""
    losses: dict[str, float | str | None] = {}
    for name, workload in workloads.items():
        progress(f"warm-up: {name}")
        workload.reset()
        result = workload.run()
        value = None if result is None else float(result) / workload.losses
        # JSON has no infinity and no nan
        losses[name] = value if value is None or math.isfinite(value) else str(value)
        workload.reset()
    return losses


def ratios(of: Sequence[float], over: Sequence[float]) -> list[float]:
    """Quotients of times that were taken in the same repetition."""
    return [a / b for a, b in zip(of, over, strict=True)]


def fit_line(x: Sequence[float], y: Sequence[float]) -> dict[str, Any]:
    """Least-squares line y ≈ intercept + slope·x, weighted so that relative errors count.

    Times grow with the size of the work, and so do their errors.

    Returns:
        ``intercept``, ``slope``, and ``largest_relative_error`` of the line at the points.
    """
    points = torch.tensor(list(x), dtype=torch.float64)
    values = torch.tensor(list(y), dtype=torch.float64)
    design = torch.stack([1.0 / values, points / values], dim=1)  # [points, 2]
    solution = torch.linalg.lstsq(design, torch.ones(len(values), 1, dtype=torch.float64)).solution
    intercept, slope = solution.squeeze(1).tolist()
    errors = ((intercept + slope * points) / values - 1.0).abs()
    return {"intercept": intercept, "slope": slope, "largest_relative_error": float(errors.max())}


def progress(text: str) -> None:
    """Overwrite the progress line of a terminal; nothing where stderr is none."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
