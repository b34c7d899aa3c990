"""Build the wheel of fairseq 0.12.2 from its released source, made to run on today's Python.

The PEP 517 backend of this folder. The source comes from the package index that pip is configured
for, so proxies, mirrors and credentials work as they do for every other package; the variable
FAIRSEQ_SDIST names a file that is already here. pip and uv take the metadata from the wheel.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta

from fairseq_edits import EDITS, BuildError, apply_edits

NAME = "fairseq-0.12.2"
SHA256 = "34f1b18426bf3844714534162f065ab733e049597476daa35fffb4d06a92b524"
_HERE = Path(__file__).parent

# `pip download` asks the build backend of a source archive for its metadata, which would run the
# archive's own setup script, in a build environment of its own, before anything has checked the
# file. fairseq names setuptools as that backend; this stand-in answers the question instead.
_STAND_IN_BACKEND = f"""
from pathlib import Path

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    folder = Path(directory, "{NAME}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: fairseq\\nVersion: 0.12.2\\n")
    return folder.name
"""


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel into `wheel_directory` and return its file name.

    A BuildError is raised if the source is not there, or not the one that the edits are for.
    """
    target = os.path.abspath(wheel_directory)
    with tempfile.TemporaryDirectory() as folder:
        tree = unpacked_source(Path(folder))
        apply_edits(tree, EDITS)
        # our build description in the place of fairseq's, whose pins no longer resolve
        for name in ("setup.cfg", "MANIFEST.in"):
            (tree / name).unlink()
        shutil.rmtree(tree / "fairseq.egg-info")
        shutil.copy(_HERE / "pyproject.toml", tree)
        shutil.copy(_HERE / "wheel_setup.py", tree / "setup.py")
        os.chdir(tree)  # of this process of pip's alone
        return build_meta.build_wheel(target)


def unpacked_source(folder: Path, sha256: str = SHA256) -> Path:
    """The top folder of the source, unpacked into `folder` from the user's own file or the index.

    A BuildError is raised if there is no such file, no download, or its checksum is not `sha256`.
    """
    given = os.environ.get("FAIRSEQ_SDIST")
    if given:
        archive = Path(given).expanduser()
        if not archive.is_file():
            raise BuildError(f"FAIRSEQ_SDIST names {archive}, which is not a file")
    else:
        archive = _download(folder)
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    if checksum != sha256:
        raise BuildError(
            f"{archive} has the sha256 {checksum} instead of {sha256}: it is not the {NAME}.tar.gz "
            "that fairseq's authors released; remove it or set FAIRSEQ_SDIST to the right file"
        )
    with tarfile.open(archive) as tar:
        # Python has filters since 3.9.17, 3.10.12 and 3.11.4
        options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(folder, **options)
    return folder / NAME


def nested_pip_environment(outer: Mapping[str, str], stand_in: str) -> dict[str, str]:
    """The environment for a pip that runs inside a build started by another pip.

    The outer one's build hooks talk through `_PYPROJECT_HOOKS_*`, which the inner one's hooks would
    take for their own; its constraints and its demand for a virtual environment are not meant here.
    """
    unwanted = ("_PYPROJECT_HOOKS_", "PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "PIP_REQUIRE_VIRT")
    env = {name: value for name, value in outer.items() if not name.startswith(unwanted)}
    index = outer.get("UV_DEFAULT_INDEX")
    if index:
        env.setdefault("PIP_INDEX_URL", index)
    paths = [stand_in]
    if outer.get("PYTHONPATH"):  # Python would read an empty entry as the working folder
        paths.append(outer["PYTHONPATH"])
    return env | {"PYTHONPATH": os.pathsep.join(paths)}


def _download(folder: Path) -> Path:
    """Download the archive into `folder` with pip, which says why where it fails."""
    with tempfile.TemporaryDirectory() as stand_in:
        backend = Path(stand_in, "setuptools")
        backend.mkdir()
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(_STAND_IN_BACKEND)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-build-isolation",
            "--no-binary",
            "fairseq",
            "--disable-pip-version-check",
            "--quiet",
            "--dest",
            str(folder),
            "fairseq==0.12.2",
        ]
        if subprocess.run(command, env=nested_pip_environment(os.environ, stand_in)).returncode:
            raise BuildError(
                f"{NAME}.tar.gz could not be downloaded from the package index (pip's message is "
                "above); set FAIRSEQ_SDIST to a copy of the file if you have one"
            )
    return folder / f"{NAME}.tar.gz"
