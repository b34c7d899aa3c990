"""Find and run programs, and stop them together with this process."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO

from fairseq_kerbs.utils.errors import UserError

PLUGIN_FOLDER = Path(__file__).resolve().parent.parent
"""Folder of this package, the value of ``--user-dir``."""

UTF8 = {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8"}
"""Environment variables for child processes, so that they write UTF-8 in any locale."""

SAFE = ("-P",) if sys.version_info >= (3, 11) else ()
"""Flags for a Python that imports nothing from the working folder, if it supports this."""

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_LIBC = ctypes.CDLL(None)


def find_program(name: str) -> str:
    """Path of a program such as ``fairseq-train``, beside this Python or on PATH.

    Raises a UserError if it is in neither place.
    """
    beside = Path(sys.executable).parent / name
    program = str(beside) if beside.is_file() else shutil.which(name)
    if program is None:
        raise UserError(
            f"{name} is neither beside {sys.executable} nor on PATH; run scripts/install.sh"
        )
    return program


def quoted(command: Sequence[str | Path]) -> str:
    """The command as one line for a shell."""
    return shlex.join(str(part) for part in command)


def run_program(
    command: Sequence[str],
    stdout: IO[str] | None = None,
    stderr: int | None = None,
    folder: Path | None = None,
    keep_open: IO[str] | None = None,
) -> int:
    """Run a program in a folder, and return its exit status. It is stopped if this process ends.

    The program inherits the file ``keep_open``.
    """
    # no signal between the start of the program and the block that stops it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_ENDING})

    def begin() -> None:
        # the kernel sends SIGTERM when the parent ends, even if it was killed
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        # a new session, so that Ctrl-C does not reach the program and cause a traceback there
        with subprocess.Popen(
            list(command),
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
            pass_fds=() if keep_open is None else (keep_open.fileno(),),
            start_new_session=True,
            preexec_fn=begin,
            env={**os.environ, **UTF8},
        ) as process:
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                return process.wait()
            except BaseException:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop_on_signals() -> None:
    """Raise SystemExit on SIGTERM and SIGHUP, to stop programs and remove temporary files."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, stop)


def usable_cores() -> int:
    """Number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))
