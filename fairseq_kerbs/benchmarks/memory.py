"""Peak memory of one call.

On CUDA torch's allocator counts. On the CPU the call runs alone in a fresh process, whose resident
memory includes buffers that no profiler of torch sees (those of the matrix library, for one). A
first call, not counted, loads code and makes what is made once. glibc is told to give every block
back when it is freed, and MKL to keep none, or else what that call left would be used again.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fairseq_kerbs.utils.processes import end_with_parent

if TYPE_CHECKING:
    from fairseq_kerbs.benchmarks.comparison import Workload

ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 10),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 10),
    "MALLOC_MMAP_MAX_": str(1 << 20),
    "MKL_DISABLE_FAST_MM": "1",
}
"""What processes that measure start with; it changes nothing in a process that runs already."""


def peak_memory(make: Callable[[], Workload], threads: int, device: str) -> int | None:
    """Bytes that one call takes at its peak beyond what was there before it, gradients included.

    ``make`` is pickled. None where it could not be measured; the reason goes to stderr, so that
    the times are kept.
    """
    if device == "cuda":
        return _measure(make(), device)
    os.environ.update(ENVIRONMENT)
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            return process.submit(_alone, make, threads).result()
    except Exception as error:  # one that is killed for want of memory, for instance
        print(f"memory not measured: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def quiet() -> None:
    """What torch and fairseq say about their own futures does not belong between the tables."""
    warnings.filterwarnings("ignore")
    logging.getLogger("fairseq").setLevel(logging.ERROR)


def _alone(make: Callable[[], Workload], threads: int) -> int:
    end_with_parent()
    quiet()
    torch.set_num_threads(threads)
    return _measure(make(), "cpu")


def _measure(workload: Workload, device: str) -> int:
    """Peak of one call in this process, which nothing else may be using."""
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
