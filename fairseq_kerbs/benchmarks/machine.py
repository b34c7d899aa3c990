"""What a measurement depends on: the machine, and the versions of the software."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import fairseq_kerbs

_ROOT = Path(__file__).resolve().parents[2]


def describe_machine(device: str) -> dict[str, Any]:
    """CPU, threads, memory, load, and the GPU where one is used."""
    description: dict[str, Any] = {
        "cpu": _cpu_model(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        # above the number of threads used here, somebody else is working, too
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": None,
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        description["gpu"] = {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "tf32": torch.backends.cuda.matmul.allow_tf32,
        }
    return description


def describe_versions() -> dict[str, Any]:
    """Versions of Python, torch, fairseq and this project, with its git revision if any."""
    try:
        fairseq: str | None = importlib.metadata.version("fairseq")
    except importlib.metadata.PackageNotFoundError:
        fairseq = None
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "fairseq": fairseq,
        "fairseq_kerbs": fairseq_kerbs.__version__,
        "revision": _revision(),
    }


def free_bytes(device: str) -> int:
    """Memory that is free now, on the device (0 where that is unknown)."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def _revision() -> str | None:
    """The commit of this checkout, with "+changes" where files differ from it."""
    revision = _git("rev-parse", "HEAD")
    if revision is None:
        return None
    return revision + ("+changes" if _git("status", "--porcelain") else "")
