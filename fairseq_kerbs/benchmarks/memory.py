"""Peak memory of one call.

On CUDA torch's allocator counts. On the CPU the call runs alone in a fresh process: what the
system counts as its resident memory includes buffers that no profiler of torch sees (those of the
matrix library, for one). A first call, not counted, loads code and makes what is made once. glibc
is told to take every block of 64 KiB or more from the system and to give it back when it is freed,
and MKL to keep no buffers; else what the first call left would be used again, uncounted.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import multiprocessing
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fairseq_kerbs.utils.processes import end_with_parent

if TYPE_CHECKING:
    from fairseq_kerbs.benchmarks.comparison import Workload

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 10),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 10),
    "MALLOC_MMAP_MAX_": str(1 << 20),
    "MKL_DISABLE_FAST_MM": "1",
}


def peak_memory(
    make: Callable[[], Workload], threads: int, workload: Workload | None = None
) -> dict[str, Any]:
    """Bytes that one call takes at its peak, beyond what was there before it.

    Args:
        make: makes the workload; it is pickled.
        threads: threads of torch.
        workload: the same, already made, on a CUDA device; None measures in a fresh process.

    Returns:
        ``extra_bytes``, gradients included; ``gradient_bytes``; ``without_gradients_bytes``, the
        difference; ``method``. Where it could not be measured only ``error``, with the reason.
    """
    if workload is not None:
        return _measure(workload, "cuda")
    if not _STATUS.exists():
        return {"error": "peak memory on the CPU is read from Linux's /proc, which is not here"}
    fresh = multiprocessing.get_context("spawn")
    before = dict(os.environ)
    os.environ.update(_ENVIRONMENT)  # the process inherits it; glibc reads it before Python starts
    try:
        with ProcessPoolExecutor(1, mp_context=fresh) as process:
            return process.submit(_alone, make, threads).result()
    except BrokenProcessPool:
        return {"error": "the process was killed, most likely because memory ran out"}
    except Exception as error:  # whatever it is, the times that were taken are kept
        return {"error": f"the process failed: {type(error).__name__}: {error}"}
    finally:
        os.environ.clear()
        os.environ.update(before)


def quiet() -> None:
    """What torch and fairseq say about their own futures does not belong between the tables."""
    warnings.filterwarnings("ignore")
    logging.getLogger("fairseq").setLevel(logging.ERROR)


def _alone(make: Callable[[], Workload], threads: int) -> dict[str, Any]:
    end_with_parent()
    quiet()
    torch.set_num_threads(threads)
    return _measure(make(), "cpu")


def _measure(workload: Workload, device: str) -> dict[str, Any]:
    """Peak of one call in this process, which nothing else may be using."""
    workload.reset()
    workload.run()
    workload.reset()
    workload.forget()
    gc.collect()
    method = "torch.cuda.max_memory_allocated"
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = workload.run()
        torch.cuda.synchronize()
        extra = torch.cuda.max_memory_allocated() - before
    else:
        method = "peak resident memory of a fresh process"
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)
        _CLEAR.write_text("5")  # forgets the peak so far
        before = _resident("VmRSS")
        result = workload.run()
        extra = _resident("VmHWM") - before
    del result
    workload.reset()
    return {
        "extra_bytes": extra,
        "gradient_bytes": workload.gradient_bytes,
        "without_gradients_bytes": max(0, extra - workload.gradient_bytes),
        "method": method,
    }


def _resident(field: str) -> int:
    """Resident memory of this process now (VmRSS) or at its peak (VmHWM), in bytes."""
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))
