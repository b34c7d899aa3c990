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


def cpu_name() -> str:
    """The model of the CPU, or its kind where Linux does not name it."""
    model = re.search("^model name.*?: *(.+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return model[1].strip() if model else platform.machine()


def describe_machine(device: str) -> dict[str, Any]:
    """CPU, threads, memory in bytes and load, and the GPU if ``device`` is "cuda"."""
    import torch

    gpu = None
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        tf32 = torch.backends.cuda.matmul.allow_tf32
        gpu = {"name": properties.name, "memory_bytes": properties.total_memory, "tf32": tf32}
    return {
        "cpu": cpu_name(),
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
    return versions | {"cuda": torch.version.cuda, "revision": revision_of(PLUGIN_FOLDER)}


def revision_of(folder: Path) -> str | None:
    """The git revision of a folder, with ``+changes`` if files differ from it.

    None without git, and where git does not have the folder's files: a package in a virtual
    environment may lie inside of another repository.
    """
    git = ["git", "-C", str(folder)]
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", "."], capture_output=True)
        if tracked.returncode != 0:
            return None
        describe = ["describe", "--always", "--dirty=+changes", "--abbrev=40", "--exclude=*"]
        described = subprocess.run([*git, *describe], capture_output=True, text=True)
    except FileNotFoundError:  # git is not installed
        return None
    return described.stdout.strip() or None
