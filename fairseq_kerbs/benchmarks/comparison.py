"""Measuring contestants next to each other: times, ratios of times, losses, peak memory.

On CUDA torch's allocator counts memory. On the CPU a call runs alone in a fresh process, whose
resident memory includes buffers that no profiler of torch sees (those of the matrix library, for
one). glibc is told to give back what an earlier call left.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import multiprocessing
import sys
import timeit
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import Tensor
from torch.utils.benchmark import timer

from fairseq_kerbs.utils.processes import end_with_parent, progress


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
    entries: Entries, pairs: Iterable[tuple[str, str]], *,
    repetitions: int, device: str = "cpu", threads: int = 1, memory: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Run all contestants next to each other, as ``threads`` threads where memory is measured.

    Returns:
        ``contestants`` by name and the list ``ratios``, such as JSON can hold; of the ``pairs``
        (of, over) whose ratio is wanted those of absent contestants are left out.
    """
    workloads = {name: make() for name, (_, make) in entries.items()}
    losses = {name: work.run() for name, work in progress(workloads.items(), "warming up", "")}
    times = alternate(workloads, repetitions)
    contestants: dict[str, Any] = {}
    for name, (label, make) in progress(entries.items(), "memory", ""):
        work, loss, figures = workloads[name], losses[name], summary(times[name])
        contestants[name] = {
            "label": label,
            "seconds": times[name],
            **figures,
            "unit": work.unit,
            "seconds_per_unit": figures["median"] / work.amount,
            "loss": None if loss is None else float(loss),
            "peak_bytes": peak_memory(make, threads, device)
            if memory and not work.reuses
            else None,
        }
    ratios = []
    for of, over in (pair for pair in pairs if {*pair} <= {*contestants}):
        # of times that were taken in the same repetition
        quotients = list(map(truediv, times[of], times[over]))
        peaks = [contestants[name]["peak_bytes"] for name in (of, over)]
        ratio = {"of": of, "over": over, "per_repetition": quotients, **summary(quotients)}
        ratios.append(ratio | {"memory": peaks[0] / peaks[1] if all(peaks) else None})
    return {"contestants": contestants, "ratios": ratios}


def tables(result: Mapping[str, Any], over: Mapping[str, str]) -> str:
    """What `compare` returned, for a terminal: contestants, ratios, and what each is ``over``."""
    contestants, ratios = result["contestants"], result["ratios"]
    unit = next(iter(contestants.values()))["unit"]
    header = ["contestant", "median s", "lowest", "highest", f"µs a {unit}", "loss", "peak MB", ""]
    rows = [
        [
            *(name, entry["median"], entry["lowest"], entry["highest"]),
            *(1e6 * entry["seconds_per_unit"], entry["loss"]),
            *(entry["peak_bytes"] and entry["peak_bytes"] / 1e6, entry["label"]),
        ]
        for name, entry in contestants.items()
    ]
    style: dict[str, Any] = {"tablefmt": "plain", "missingval": "–"}
    text = tabulate(rows, header, floatfmt=("", *[".4g"] * 4, ".5f", ".1f", ""), **style)
    if ratios:
        figures = ("median", "lowest", "highest", "memory")
        rows = [[f"{r['of']} ÷ {r['over']}", *(r[figure] for figure in figures)] for r in ratios]
        header = ["ratio", "time", "lowest", "highest", "peak memory"]
        text += "\n\n" + tabulate(rows, header, floatfmt=("", *[".2f"] * 3, ".3f"), **style) + "\n"
    for base in dict.fromkeys(ratio["over"] for ratio in ratios):
        text += f"\n÷ {base}: divided by the time of {over[base]}."
    return text


def peak_memory(make: Callable[[], Workload], threads: int, device: str) -> int | None:
    """Bytes that one call takes at its peak beyond what was there before it, gradients included.

    ``make`` is pickled. None where it could not be measured; the reason goes to stderr, so that
    the times are kept.
    """
    if device == "cuda":
        return _measure(make(), device)
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            return process.submit(_measure_alone, make, threads).result()
    except Exception as error:  # one that is killed for want of memory, for instance
        print(f"memory not measured: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def quiet() -> None:
    """What torch and fairseq say about their own futures does not belong between the tables."""
    warnings.filterwarnings("ignore")
    logging.getLogger("fairseq").setLevel(logging.ERROR)


def _measure_alone(make: Callable[[], Workload], threads: int) -> int:
    end_with_parent()
    quiet()
    torch.set_num_threads(threads)
    return _measure(make(), "cpu")


def _measure(workload: Workload, device: str) -> int:
    """Peak of one call in this process, which nothing else may be using. A first call, not
    counted, loads code and makes what is made once."""
    workload.run()
    workload.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        workload.run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = _resident("VmRSS")
    workload.run()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    """Resident memory of this process now (VmRSS) or at its peak (VmHWM), in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))
