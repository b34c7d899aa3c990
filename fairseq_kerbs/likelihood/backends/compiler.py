"""Compiling ``csrc/`` at first use, where the package came without its compiled library."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sysconfig
from pathlib import Path

from fairseq_kerbs.utils.files import partial_name, put_in_place

logger = logging.getLogger(__name__)

CSRC = Path(__file__).parent / "csrc"
LONGEST_COMPILATION = 300  # seconds; it takes a few


def cached_library() -> Path:
    """The library in the user's cache folder, compiled now if it is not there.

    Its name has a digest of all that it depends on. Processes that start together compile it once:
    one does, the others wait.

    Raises:
        OSError: there is no compiler, it failed, the cache cannot be written, or somebody else
            may have written what is in it.
    """
    sources = sorted(CSRC.iterdir())
    digest = hashlib.sha256(repr((sysconfig.get_platform(), platform.libc_ver())).encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    # a relative path there is to be ignored (XDG Base Directory Specification)
    given = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(given if os.path.isabs(given) else os.path.expanduser("~/.cache"))
    folder = cache / "fairseq_kerbs"
    path = folder / f"passes-{digest.hexdigest()[:32]}.so"
    if not path.exists():
        command = _compiler()
        cache.mkdir(parents=True, exist_ok=True)
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
    asked = shlex.split(os.environ.get("CC", ""))
    for command in [asked] if asked else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    raise OSError(f"no C compiler '{asked[0]}' ($CC)" if asked else "no C compiler")


def _compile(command: list[str], path: Path) -> None:
    partial = partial_name(path)
    flags = (CSRC / "flags").read_text().split()  # setup.py compiles with the same
    command = [*command, *flags, "-shared", "-fPIC", "-o", str(partial), str(CSRC / "passes.c")]
    try:
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=LONGEST_COMPILATION,
            umask=0o077,  # nobody else can write to the file, not even before it has its name
        )
        put_in_place(partial, path)
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip() or f"exit status {error.returncode}").splitlines()
        raise OSError(f"'{shlex.join(command)}' failed: {said[-1]}") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"'{shlex.join(command)}' took over {LONGEST_COMPILATION} s") from None
    finally:
        partial.unlink(missing_ok=True)


def _check_owner(path: Path) -> None:
    """Only what nobody but this user could have written is run."""
    found = path.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{path} belongs to somebody else or others can write to it")
