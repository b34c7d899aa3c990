"""Timing contestants next to each other: times, ratios of times, losses, memory."""

from __future__ import annotations

import gc
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tabulate import tabulate
from torch import Tensor
from torch.utils.benchmark import timer

from fairseq_kerbs.benchmarks.memory import peak_memory
from fairseq_kerbs.utils.processes import progress


@dataclass
class Workload:
    """One thing to measure."""

    run: Callable[[], Tensor | float | None]  # the measured call; returns the loss, if any
    reset: Callable[[], object] = lambda: None  # brings back the state before; not measured
    amount: float = 1.0  # of work in one call, in units
    unit: str = "call"
    reuses: bool = False  # whether calls share buffers: peak memory would say nothing


Entries = Mapping[str, tuple[str, Callable[[], Workload]]]
"""Contestants by name: what each is, in one line, and a picklable maker of its workload."""


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and extremes."""
    return {"median": float(np.median(values)), "lowest": min(values), "highest": max(values)}


def alternate(workloads: Mapping[str, Workload], repetitions: int) -> dict[str, list[float]]:
    """Time every workload once in each repetition: seconds by name.

    A call is timed from an idle device to an idle device, without garbage collection. The order is
    rotated from repetition to repetition, so that nobody always runs after the same neighbour, and
    what the machine does besides falls on all alike.
    """
    names = list(workloads)
    times: dict[str, list[float]] = {name: [] for name in names}
    for repetition in progress(range(repetitions), "repetitions", ""):
        shift = repetition % len(names)
        for name in names[shift:] + names[:shift]:
            workloads[name].reset()
            gc.collect()
            times[name].append(timeit.timeit(workloads[name].run, timer=timer, number=1))
    return times


def compare(
    entries: Entries,
    pairs: Iterable[tuple[str, str]],
    *,
    repetitions: int,
    device: str = "cpu",
    threads: int = 1,
    memory: bool = True,
) -> dict[str, Any]:
    """Run all contestants next to each other, as ``threads`` threads where memory is measured.

    Returns:
        ``contestants`` by name and the list ``ratios``, such as JSON can hold; of the ``pairs``
        (of, over) whose ratio is wanted those of absent contestants are left out.
    """
    workloads, losses = {}, {}
    for name, (_, make) in progress(entries.items(), "warming up", ""):
        workloads[name] = make()
        losses[name] = workloads[name].run()
    times = alternate(workloads, repetitions)
    contestants: dict[str, Any] = {}
    for name, (label, make) in progress(entries.items(), "memory", ""):
        workload, loss, figures = workloads[name], losses[name], summary(times[name])
        measured = memory and not workload.reuses
        contestants[name] = {
            "label": label,
            "seconds": times[name],
            **figures,
            "unit": workload.unit,
            "seconds_per_unit": figures["median"] / workload.amount,
            "loss": None if loss is None else float(loss),
            "peak_bytes": peak_memory(make, threads, device) if measured else None,
        }
    ratios = [_ratio(contestants, *pair) for pair in pairs if set(pair) <= set(contestants)]
    return {"contestants": contestants, "ratios": ratios}


def _ratio(contestants: Mapping[str, Any], of: str, over: str) -> dict[str, Any]:
    """Quotients of times that were taken in the same repetition, and of peak memory."""
    mine, theirs = contestants[of], contestants[over]
    values = [a / b for a, b in zip(mine["seconds"], theirs["seconds"])]
    memory = None
    if mine["peak_bytes"] and theirs["peak_bytes"]:
        memory = mine["peak_bytes"] / theirs["peak_bytes"]
    return {"of": of, "over": over, "per_repetition": values, **summary(values), "memory": memory}


def tables(result: Mapping[str, Any], over: Mapping[str, str]) -> str:
    """What `compare` returned, for a terminal: contestants, ratios, and what each is ``over``."""
    contestants = result["contestants"]
    unit = next(iter(contestants.values()))["unit"]
    header = ["contestant", "median s", "lowest", "highest", f"µs a {unit}", "loss", "peak MB", ""]
    rows = [
        [
            *(name, one["median"], one["lowest"], one["highest"], 1e6 * one["seconds_per_unit"]),
            *(one["loss"], one["peak_bytes"] and one["peak_bytes"] / 1e6, one["label"]),
        ]
        for name, one in contestants.items()
    ]
    style: dict[str, Any] = {"tablefmt": "plain", "missingval": "–"}
    text = tabulate(rows, header, floatfmt=("", *[".4g"] * 4, ".5f", ".1f", ""), **style)
    ratios = [
        [f"{one['of']} ÷ {one['over']}"]
        + [one[figure] for figure in ("median", "lowest", "highest", "memory")]
        for one in result["ratios"]
    ]
    if ratios:
        header = ["ratio", "time", "lowest", "highest", "peak memory"]
        text += "\n\n" + tabulate(ratios, header, floatfmt=("", *[".2f"] * 3, ".3f"), **style)
        text += "\n"
    for one in result["ratios"]:
        of, what = one["of"], over[one["over"]]
        text += f"\n{of} ÷ {one['over']}: the time of {of} divided by that of {what}."
    return text
