"""What the build needs beside Python packages: a supported Python, its headers, a C++ compiler.

Run as a module it prints what is missing, one sentence, and exits with status 1.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 13)


def missing_tool() -> str | None:
    """Return one sentence on the first thing that this Python lacks, None if nothing is missing."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        return (
            f"Python {version} ({sys.executable}) is not supported: use Python "
            f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        )
    # what setuptools will call
    command = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++"
    compiler = shlex.split(command)[0]
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler ({compiler}): install the Debian package g++"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return f"{header} is missing: install the Debian package python{version}-dev"
    return None


if __name__ == "__main__":
    sys.exit(missing_tool())
