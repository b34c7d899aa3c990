"""What the build needs beside Python packages: a supported Python, its headers, a C++ compiler.

Run as a module it prints what is missing, one sentence, and exits with status 1. It must run under
an older Python to say so.
"""

import os
import shlex
import shutil
import sys
import sysconfig

OLDEST, NEWEST = (3, 9), (3, 13)


def missing_tool() -> str:
    """One sentence on the first thing that this Python lacks; empty if nothing is missing."""
    version = "{}.{}".format(*sys.version_info)
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        supported = "{}.{} to {}.{}".format(*OLDEST, *NEWEST)
        return f"{sys.executable} is Python {version}: use Python {supported}"
    # what setuptools will call
    compiler = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")[0]
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler ({compiler}): install the Debian package g++"
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.isfile(header):
        return f"{header} is missing: install the Debian package python{version}-dev"
    return ""


if __name__ == "__main__":
    sys.exit(missing_tool() or 0)
