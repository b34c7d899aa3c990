"""Measuring systems next to each other: times, ratios of times, losses, peak memory.

Times of different machines, or of one machine at different hours, cannot be compared. So all
systems run in one process, one after the other within each repetition, and ratios are of times
that were taken next to each other.

On CUDA torch's allocator counts memory. On the CPU it is the resident memory of the process, which
includes buffers that no profiler of torch sees (those of the matrix library, for one).
"""

from __future__ import annotations

import ctypes
import gc
import logging
import timeit
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor
from torch.utils.benchmark import timer  # waits for the device

from fairseq_kerbs.utils.progress import progress


@dataclass
class Workload:
    """One thing to measure."""

    run: Callable[[], Tensor | float | None]  # the measured call; returns the loss, if any
    reset: Callable[[], object] = lambda: None  # brings back the state before; not measured
    amount: float = 1.0  # of work in one call, in units
    unit: str = "call"
    reuses: bool = False  # whether calls share buffers: peak memory would say nothing


Entries = Mapping[str, tuple[str, Callable[[], Workload]]]
"""Systems by name: what each is, in one line, and a maker of its workload."""


def alternate(workloads: Mapping[str, Workload], repetitions: int) -> dict[str, list[float]]:
    """Time every workload once in each repetition, without garbage collection: seconds by name.

    The order is rotated, so that no system always runs after the same one.
    """
    names = list(workloads)
    times: dict[str, list[float]] = {name: [] for name in names}
    for repetition in progress(range(repetitions), "repetitions", ""):
        for name in np.roll(names, -repetition).tolist():
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
    memory: bool = True,
) -> dict[str, Any]:
    """Run all systems next to each other.

    Args:
        entries: the systems.
        pairs: names (of, over) of two systems, whose ratio is computed.
        repetitions: how often everything is timed.
        device: "cpu" or "cuda".
        memory: measure peak memory, too.

    Returns:
        ``contestants``, the figures of each system by name, and the list ``ratios``. The result
        can be written as JSON. Pairs with a system that did not run are left out.
    """
    workloads = {name: make() for name, (_, make) in entries.items()}
    losses = {name: work.run() for name, work in progress(workloads.items(), "warming up", "")}
    times = alternate(workloads, repetitions)
    contestants: dict[str, Any] = {}
    for name, work in progress(workloads.items(), "memory", ""):
        contestants[name] = {"label": entries[name][0], "seconds": times[name]}
        contestants[name] |= summary(times[name])
        contestants[name] |= {
            "unit": work.unit,
            "seconds_per_unit": contestants[name]["median"] / work.amount,
            "loss": None if losses[name] is None else float(losses[name]),
            "peak_bytes": peak_memory(work, device) if memory and not work.reuses else None,
        }
    ratios = []
    for of, over in (pair for pair in pairs if {*pair} <= {*contestants}):
        each = np.divide(times[of], times[over]).tolist()
        peak = contestants[of]["peak_bytes"]
        base = contestants[over]["peak_bytes"]
        memories = {"memory": peak / base if peak and base else None}
        ratios.append({"of": of, "over": over, "per_repetition": each, **summary(each)} | memories)
    return {"contestants": contestants, "ratios": ratios}


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and extremes."""
    return {"median": float(np.median(values)), "lowest": min(values), "highest": max(values)}


def tables(result: Mapping[str, Any]) -> str:
    """What `compare` returned, for a terminal: systems and ratios."""
    rows = [
        {
            "contestant": name,
            **{f"{key} s": entry[key] for key in ("median", "lowest", "highest")},
            f"µs a {entry['unit']}": 1e6 * entry["seconds_per_unit"],
            "loss": entry["loss"],
            "peak MB": _megabytes(entry["peak_bytes"]),
            "what": entry["label"],
        }
        for name, entry in result["contestants"].items()
    ]
    columns = ("median", "lowest", "highest", "memory")
    ratios = [
        {"ratio": f"{ratio['of']} ÷ {ratio['over']}"} | {key: ratio[key] for key in columns}
        for ratio in result["ratios"]
    ]
    style: dict[str, Any] = {"headers": "keys", "tablefmt": "plain", "missingval": "–"}
    digits = (("", *[".4g"] * 4, ".5f", ".1f", ""), ("", *[".2f"] * 3, ".3f"))
    parts = [tabulate(table, floatfmt=d, **style) for table, d in zip((rows, ratios), digits)]
    return "\n\n".join(filter(None, parts))


def _megabytes(count: int | None) -> float | None:
    """A number of bytes in megabytes, None if it was not measured."""
    if count is None:
        return None
    return count / 1e6


def peak_memory(workload: Workload, device: str) -> int:
    """Bytes that one call takes at its peak beyond what was there before it, gradients included.

    Nothing else may be using this process.
    """
    workload.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        workload.run()
        return torch.cuda.max_memory_allocated() - before
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # what earlier calls left
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = _resident("VmRSS")
    workload.run()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    """Resident memory of this process now (VmRSS) or at its peak (VmHWM), in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def quiet() -> None:
    """Hide deprecation warnings of torch and fairseq."""
    warnings.filterwarnings("ignore")
    logging.getLogger("fairseq").setLevel(logging.ERROR)
