"""The PEP 517 hook: fetch fairseq's released source, edit it, and let setuptools build the wheel.

pip and uv take the metadata from the wheel, since there is no hook for them alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from setuptools import build_meta

from fairseq_build import BuildError
from fairseq_build.edits import EDITS, apply_edits
from fairseq_build.sdist import unpacked_source
from fairseq_build.toolchain import missing_tool

_HERE = Path(__file__).parent


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel into `wheel_directory` and return its file name; a BuildError if a compiler
    or a header is missing, or the source is not there, or not the one that the edits are for."""
    if message := missing_tool():
        raise BuildError(message)
    target = os.path.abspath(wheel_directory)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(edited_source(Path(folder)))  # of this process of pip's alone
        return build_meta.build_wheel(target)


def edited_source(folder: Path) -> Path:
    """A copy of fairseq's source below `folder` that is ready for setuptools; raises what
    `unpacked_source` and `apply_edits` raise."""
    tree = unpacked_source(folder)
    apply_edits(tree, EDITS)
    # our build description in the place of fairseq's, whose pins no longer resolve
    for name in ("setup.cfg", "MANIFEST.in"):
        (tree / name).unlink()
    shutil.rmtree(tree / "fairseq.egg-info")
    shutil.copy(_HERE.parent / "pyproject.toml", tree)
    shutil.copy(_HERE / "wheel_setup.py", tree / "setup.py")
    return tree
