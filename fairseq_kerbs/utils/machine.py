"""Describe the machine and the software versions of a measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, usable_cores


def describe_machine(device: str) -> dict[str, Any]:
    """CPU, threads, memory in bytes and load, and the GPU if ``device`` is "cuda"."""
    import torch

    gpu = None
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        tf32 = torch.backends.cuda.matmul.allow_tf32
        gpu = {"name": properties.name, "memory_bytes": properties.total_memory, "tf32": tf32}
    model = re.search("^model name.*?: *(.+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpu": model[1].strip() if model else platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        # of the last 1, 5 and 15 minutes; more than the number of threads shows other processes
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": gpu,
    }


def describe_versions() -> dict[str, Any]:
    """Versions of Python, torch, CUDA, fairseq and this package, and its git revision or None."""
    import torch

    versions: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("fairseq", "fairseq_kerbs"):
        installed = importlib.metadata.distributions(name=name)
        versions[name] = next((package.version for package in installed), None)
    command = ["git", "-C", str(PLUGIN_FOLDER.parent), "describe", "--always", "--dirty=+changes"]
    command += ["--abbrev=40", "--exclude=*"]
    try:
        git = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:  # git is not installed
        git = ""
    return versions | {"cuda": torch.version.cuda, "revision": git or None}
