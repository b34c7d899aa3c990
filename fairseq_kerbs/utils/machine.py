"""What a measurement depends on: the machine, and the versions of the software."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.processes import usable_cores

_ROOT = Path(__file__).resolve().parents[2]


def describe_machine(device: str) -> dict[str, Any]:
    """CPU, threads, memory, load, and the GPU where one is used."""
    import torch

    gpu = None
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        gpu = {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "tf32": torch.backends.cuda.matmul.allow_tf32,
        }
    named = re.search("^model name.*?: *(.+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": named[1].strip() if named else platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": load_average(),
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": gpu,
    }


def load_average() -> list[float]:
    """Running processes over the last 1, 5 and 15 minutes. Above the number of threads used here,
    somebody else is working, too."""
    return [round(load, 2) for load in os.getloadavg()]


def describe_versions() -> dict[str, Any]:
    """Versions of Python, torch, fairseq and this project, with its git revision if any."""
    import torch

    found: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("fairseq", "fairseq_kerbs"):
        installed = importlib.metadata.distributions(name=name)
        found[name] = next((each.version for each in installed), None)
    return found | {"cuda": torch.version.cuda, "revision": _revision()}


def _revision() -> str | None:
    """The commit of this checkout, with "+changes" where files differ from it or are new."""
    found = []
    for command in (("rev-parse", "HEAD"), ("status", "--porcelain")):
        try:
            told = subprocess.check_output(
                ["git", "-C", _ROOT, *command], stderr=subprocess.DEVNULL, text=True
            )
        except (OSError, subprocess.CalledProcessError):
            return None
        found.append(told.strip())
    return found[0] + "+changes" * bool(found[1])
