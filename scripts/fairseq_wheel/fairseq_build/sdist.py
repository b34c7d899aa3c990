"""Get the one source archive of fairseq 0.12.2 that the edits were made for.

It comes from the package index that pip is configured for, so proxies, mirrors and credentials work
as they do for every other package; the variable FAIRSEQ_SDIST names a file that is already here.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

RELEASE = "0.12.2"
ARCHIVE = f"fairseq-{RELEASE}.tar.gz"
SHA256 = "34f1b18426bf3844714534162f065ab733e049597476daa35fffb4d06a92b524"
FILE_VARIABLE = "FAIRSEQ_SDIST"

# `pip download` asks the build backend of a source archive for its metadata, which would run the
# archive's own setup script, in a build environment of its own, before anything has checked the
# file. fairseq names setuptools as that backend; this stand-in answers the question instead.
_STAND_IN_BACKEND = f"""
import os

def prepare_metadata_for_build_wheel(directory, config_settings=None):
    name = "fairseq-{RELEASE}.dist-info"
    os.mkdir(os.path.join(directory, name))
    with open(os.path.join(directory, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: fairseq\\nVersion: {RELEASE}\\n")
    return name
"""


class SdistError(Exception):
    """The source archive is missing, cannot be downloaded, or is not the released one."""


def fetch_sdist(folder: Path, sha256: str = SHA256) -> Path:
    """Return the path of the checked archive: the user's own file, or one downloaded to `folder`.

    Raises:
        SdistError: no such file, no download, or another checksum than `sha256`.
    """
    given = os.environ.get(FILE_VARIABLE)
    archive = Path(given).expanduser() if given else _download(folder)
    if not archive.is_file():
        raise SdistError(f"{FILE_VARIABLE} names {archive}, which is not a file")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise SdistError(
            f"{archive} has the sha256 {found} instead of {sha256}: it is not the {ARCHIVE} that "
            f"fairseq's authors released; remove it or set {FILE_VARIABLE} to the right file"
        )
    return archive


def unpack_sdist(archive: Path, folder: Path) -> Path:
    """Unpack `archive` into `folder` and return the path of its top folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / ARCHIVE.removesuffix(".tar.gz")


def nested_pip_environment(outer: Mapping[str, str], stand_in: Path) -> dict[str, str]:
    """Return the environment for a pip that runs inside a build started by another pip.

    The outer one's build hooks talk through `_PYPROJECT_HOOKS_*`, which the inner one's hooks would
    take for their own; its constraints and its demand for a virtual environment are not meant here.
    """
    unwanted = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "PIP_REQUIRE_VIRTUALENV")
    env = {
        name: value
        for name, value in outer.items()
        if not name.startswith("_PYPROJECT_HOOKS_") and name not in unwanted
    }
    index = outer.get("UV_DEFAULT_INDEX") or outer.get("UV_INDEX_URL")
    if index:
        env.setdefault("PIP_INDEX_URL", index)
    paths = [str(stand_in), outer.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return env


def _download(folder: Path) -> Path:
    """Download the archive into `folder` with pip, whose message is shown where it fails."""
    with tempfile.TemporaryDirectory() as stand_in:
        backend = Path(stand_in, "setuptools")
        backend.mkdir()
        (backend / "__init__.py").touch()
        (backend / "build_meta.py").write_text(_STAND_IN_BACKEND)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation",
                   "--no-binary", "fairseq", "--disable-pip-version-check", "--dest", str(folder),
                   f"fairseq=={RELEASE}"]  # fmt: skip
        result = subprocess.run(
            command,
            env=nested_pip_environment(os.environ, Path(stand_in)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if result.returncode:
        sys.stderr.write(result.stdout)
        raise SdistError(
            f"{ARCHIVE} could not be downloaded from the package index (pip's message is above); "
            f"set {FILE_VARIABLE} to a copy of the file if you have one"
        )
    return folder / ARCHIVE
