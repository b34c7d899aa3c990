"""PEP 517 hooks: fetch fairseq's released source, edit it, and let setuptools build the wheel.

pip and uv call `prepare_metadata_for_build_wheel` and `build_wheel`, each in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from setuptools import build_meta

from fairseq_build.edits import EDITS, VERSION
from fairseq_build.rules import EditError, apply_edits
from fairseq_build.sdist import SdistError, fetch_sdist, unpack_sdist
from fairseq_build.toolchain import missing_tool

_OWN_SETUP = Path(__file__).with_name("wheel_setup.py")
_LITERALS = Path(__file__).parents[3] / "fairseq_kerbs" / "utils" / "literals.py"

Settings = dict[str, Any] | None


class UnsupportedOperation(Exception):
    """Raised, as PEP 517 asks, by a hook that this backend does not offer."""


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """Write the wheel's `.dist-info` into `metadata_directory` and return its name."""
    with _edited_source():
        return build_meta.prepare_metadata_for_build_wheel(metadata_directory)


def build_wheel(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel into `wheel_directory` and return its file name.

    Raises:
        SystemExit: see `_edited_source`; or a compiler or a header is missing.
    """
    if message := missing_tool():
        raise SystemExit(f"fairseq_wheel: {message}")
    wheel_directory = os.path.abspath(wheel_directory)
    with _edited_source():
        return build_meta.build_wheel(wheel_directory)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> NoReturn:
    """Refuse: the source distribution of fairseq is the one its authors released."""
    raise UnsupportedOperation("this folder builds wheels only")


@contextlib.contextmanager
def _edited_source() -> Iterator[None]:
    """Work inside a temporary copy of fairseq's source that is ready for setuptools.

    Raises:
        SystemExit: the source could not be had, or is not the one that the edits were made for.
    """
    with tempfile.TemporaryDirectory(prefix="fairseq-wheel-") as folder:
        try:
            tree = unpack_sdist(fetch_sdist(Path(folder)), Path(folder))
            apply_edits(tree, EDITS)
            shutil.copyfile(_LITERALS, tree / "fairseq" / "literals.py")
        except (SdistError, EditError) as error:
            # A traceback would bury the one sentence that the user needs.
            raise SystemExit(f"fairseq_wheel: {error}") from None
        # our build description in the place of fairseq's, whose pins no longer resolve
        for name in ("pyproject.toml", "setup.cfg", "MANIFEST.in"):
            (tree / name).unlink()
        for stale in tree.glob("*.egg-info"):
            shutil.rmtree(stale)
        shutil.copyfile(_OWN_SETUP, tree / "setup.py")
        (tree / "fairseq" / "version.txt").write_text(f"{VERSION}\n")
        (tree / "fairseq" / "version.py").write_text(f'__version__ = "{VERSION}"\n')
        with contextlib.chdir(tree):
            yield
