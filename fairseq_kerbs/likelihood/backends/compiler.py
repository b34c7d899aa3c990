"""Compiling ``csrc/`` at first use, where the package came without its compiled library."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

from fairseq_kerbs.utils.files import partial_name, put_in_place

logger = logging.getLogger(__name__)
CSRC = Path(__file__).parent / "csrc"


def cached_library() -> Path:
    """The library in the user's cache folder, compiled now if it is not there.

    Of processes that start together one compiles, and the others wait.

    Raises:
        OSError: there is no compiler, it failed, the cache cannot be written, or somebody else
            could have written what is in it.
    """
    digest = hashlib.sha256(repr((sysconfig.get_platform(), platform.libc_ver())).encode())
    for source in sorted(CSRC.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # to be ignored, says the XDG Base Directory Specification
        cache = os.path.expanduser("~/.cache")
    folder = Path(cache) / "fairseq_kerbs"
    path = folder / f"passes-{digest.hexdigest()[:32]}.so"
    if not path.exists():
        command = _compiler()
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_owner(folder)
        with (folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _compile(command, path)
                logger.info("compiled the passes of the likelihood into %s", path)
    _check_owner(folder)
    _check_owner(path)
    return path


def _compiler() -> list[str]:
    asked = os.environ.get("CC", "").strip()
    for name in [asked] if asked else ["cc", "gcc", "clang"]:
        command = shlex.split(name)
        if shutil.which(command[0]):
            return command
    raise OSError(f"no C compiler {asked}".strip())


def _compile(command: list[str], path: Path) -> None:
    partial = partial_name(path)
    flags = (CSRC / "flags").read_text().split()  # setup.py compiles with the same
    command = [*command, *flags, "-shared", "-fPIC", "-o", str(partial), str(CSRC / "passes.c")]
    try:
        # the mask: nobody else can write to the file, not even before it has its name
        ended = subprocess.run(command, capture_output=True, text=True, umask=0o077)
        if ended.returncode != 0:
            said = ended.stderr.strip() or f"exit status {ended.returncode}"
            raise OSError(f"'{shlex.join(command)}' failed: {said.splitlines()[-1]}")
        put_in_place(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _check_owner(path: Path) -> None:
    """Only what nobody but this user could have written is run."""
    found = path.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{path} belongs to somebody else, or others can write to it")
