"""Finding and starting fairseq's own programs."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from fairseq_kerbs.utils.errors import UserError

PLUGIN_FOLDER = Path(__file__).resolve().parent.parent
"""What ``--user-dir`` must name: the folder of this package."""

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def find_program(name: str) -> str:
    """Path of a program such as ``fairseq-train``: beside this Python first, then on PATH.

    Raises:
        UserError: it is in neither place, or belongs to a virtual environment that was moved.
    """
    beside = Path(sys.executable).parent / name
    if beside.is_file() and sys.prefix != sys.base_prefix:
        _check_home(beside)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise UserError(
            f"{name} is neither beside {sys.executable} nor on PATH; run scripts/install.sh"
        )
    return found


def _check_home(script: Path) -> None:
    """Refuse a script of a virtual environment that names the Python of another folder."""
    with script.open("rb") as stream:
        head = stream.read(1024)
    # where a path is long or has a space, /bin/sh is asked to run it
    named = re.match(rb'#!(?:/bin/sh\n.{3}exec. "?)?(/[^\n"]*)/python[\d.]*[\s"]', head)
    home = Path(os.fsdecode(named[1])) if named else script.parent
    if not (home.is_dir() and home.samefile(script.parent)):
        raise UserError(
            f"{sys.prefix} was made as {home.parent}, and its programs do not run where it is now; "
            "remove it and run scripts/install.sh again"
        )


def quoted(command: Sequence[str | Path]) -> str:
    """The command as one line that can be pasted into a shell."""
    return shlex.join(str(part) for part in command)


def replace_process(command: Sequence[str]) -> None:
    """Become `command`: signals, exit status and terminal are its own. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], list(command))


def run_program(
    command: Sequence[str], stdout: IO[str] | None = None, stderr: int | None = None
) -> int:
    """Run a program to its end and return its exit status; it ends with us on SIGINT or SIGTERM."""
    with (
        subprocess.Popen(
            list(command), stdout=stdout, stderr=stderr, preexec_fn=end_with_parent
        ) as process,
        _terminating(process),
    ):
        return process.wait()


def end_with_parent() -> None:
    """In a child process on Linux: be sent SIGTERM when the parent dies, even by SIGKILL."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def _terminating(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass SIGTERM on to the child, and end it when anything else interrupts the wait."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    try:
        previous = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: the caller handles signals
        previous = None
    try:
        yield
    except BaseException:
        process.terminate()
        process.wait()
        raise
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
