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
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fairseq_kerbs.benchmarks.measuring import Workload, synchronize
from fairseq_kerbs.host import end_with_parent

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 10),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 10),
    "MALLOC_MMAP_MAX_": str(1 << 20),
    "MKL_DISABLE_FAST_MM": "1",
}


def build(factory: str, arguments: Mapping[str, Any]) -> Workload:
    """Call a factory by its name.

    Args:
        factory: ``module:function``; the function returns a :class:`Workload`.
        arguments: its keyword arguments, such as JSON can hold.
    """
    module, _, function = factory.partition(":")
    make: Callable[..., Workload] = getattr(importlib.import_module(module), function)
    return make(**arguments)


def peak_memory(
    factory: str, arguments: Mapping[str, Any], threads: int, workload: Workload | None = None
) -> dict[str, Any]:
    """Bytes that one call takes at its peak, beyond what was there before it.

    Args:
        factory: what makes the workload, see :func:`build`.
        arguments: its keyword arguments.
        threads: threads of torch.
        workload: the same, already made, on a CUDA device; None measures in a fresh process.

    Returns:
        ``extra_bytes``, gradients included; ``gradient_bytes``; ``without_gradients_bytes``, the
        difference; ``method``. Where it could not be measured only ``error``, with the reason.
    """
    if workload is not None:
        return _on_cuda(workload)
    if not _STATUS.exists():
        return {"error": "peak memory on the CPU is read from Linux's /proc, which is not here"}
    request = json.dumps({"factory": factory, "arguments": dict(arguments), "threads": threads})
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH")) if part)
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__],
        input=request,
        capture_output=True,
        text=True,
        env=os.environ | _ENVIRONMENT | {"PYTHONPATH": path},
        preexec_fn=end_with_parent,
    )
    if result.returncode != 0:
        return {"error": _reason(result)}
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def _reason(result: subprocess.CompletedProcess[str]) -> str:
    if result.returncode == -signal.SIGKILL:
        return "the process was killed, most likely because memory ran out"
    last = (result.stderr.strip().splitlines() or ["no message"])[-1]
    return f"the process ended with status {result.returncode}: {last}"


def _on_cuda(workload: Workload) -> dict[str, Any]:
    _prepare(workload)
    synchronize("cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = workload.run()
    synchronize("cuda")
    extra = torch.cuda.max_memory_allocated() - before
    del result
    workload.reset()
    return _answer(extra, workload, "torch.cuda.max_memory_allocated")


def _prepare(workload: Workload) -> None:
    workload.reset()
    workload.run()
    workload.reset()
    workload.forget()
    gc.collect()


def _answer(extra: int, workload: Workload, method: str) -> dict[str, Any]:
    return {
        "extra_bytes": extra,
        "gradient_bytes": workload.gradient_bytes,
        "without_gradients_bytes": max(0, extra - workload.gradient_bytes),
        "method": method,
    }


# ------------------------------------------------------------------ inside the fresh process


def _resident() -> tuple[int, int]:
    """Resident memory of this process now and at its peak, in bytes."""
    fields = dict(
        line.split(":", 1) for line in _STATUS.read_text().splitlines() if line.startswith("Vm")
    )
    now, peak = (int(fields[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM"))
    return now, peak


def _reset_peak() -> bool:
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def measure_here(workload: Workload) -> dict[str, Any]:
    """Peak resident memory of one call in this process, which nothing else may be using."""
    _prepare(workload)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    method = "peak resident memory of a fresh process"
    if not _reset_peak():
        # then the peak may be an earlier one: an upper bound
        method += " (upper bound: the peak could not be reset)"
    before, _ = _resident()
    result = workload.run()
    _, peak = _resident()
    del result
    return _answer(peak - before, workload, method)


def main() -> int:
    """Answer one request from standard input, as one line of JSON."""
    request = json.loads(sys.stdin.read())
    torch.set_num_threads(request["threads"])
    answer = measure_here(build(request["factory"], request["arguments"]))
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
