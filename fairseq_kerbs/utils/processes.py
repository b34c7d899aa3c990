"""Finding and starting fairseq's own programs, and sharing work between processes."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

from fairseq_kerbs.utils.errors import UserError

PLUGIN_FOLDER = Path(__file__).resolve().parent.parent
"""What ``--user-dir`` must name: the folder of this package."""

UTF8 = {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8"}
"""Environment of our children: what they write is read as UTF-8, whatever the locale is."""

SAFE = ("-P",) if sys.version_info >= (3, 11) else ()
"""Flags of a Python that is to import nothing from the working folder; older ones have none."""

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_LIBC = ctypes.CDLL(None)


def find_program(name: str) -> str:
    """Path of a program such as ``fairseq-train``: beside this Python first, then on PATH; a
    UserError if it is in neither place."""
    beside = Path(sys.executable).parent / name
    program = str(beside) if beside.is_file() else shutil.which(name)
    if program is None:
        raise UserError(
            f"{name} is neither beside {sys.executable} nor on PATH; run scripts/install.sh"
        )
    return program


def quoted(command: Sequence[str | Path]) -> str:
    """The command as one line that can be pasted into a shell."""
    return shlex.join(str(part) for part in command)


def replace_process(command: Sequence[str]) -> None:
    """Become `command`: signals, exit status and terminal are its own. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ.update(UTF8)
    os.execv(command[0], list(command))


def run_program(
    command: Sequence[str], stdout: IO[str] | None = None, stderr: int | None = None,
    folder: Path | None = None,
) -> int:  # fmt: skip
    """Run a program to its end, in a folder, and return its exit status; it ends with us, however
    we end."""
    # a signal must not come between the program's start and what would stop it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_ENDING})

    def begin() -> None:
        end_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        # in a session of its own, or Ctrl-C would reach it, too, which it answers with a traceback
        with subprocess.Popen(
            list(command), stdout=stdout, stderr=stderr, cwd=folder, start_new_session=True,
            preexec_fn=begin, env={**os.environ, **UTF8},
        ) as process:  # fmt: skip
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
    """SIGTERM and SIGHUP end this process by an exception: programs are stopped, files removed."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, stop)


def end_with_parent() -> None:
    """In a child process: be sent SIGTERM when the parent dies, even by SIGKILL."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def usable_cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def progress(items: Iterable[Any], what: str, unit: str, total: int | None = None) -> Any:
    """The items under a progress bar, which only a terminal shows and which leaves nothing; without
    tqdm, which the output layers do not need, the items alone."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return items
    tqdm.monitor_interval = 0  # no monitor thread: processes may be forked beside it
    return tqdm(items, what, total, unit=unit, leave=False, disable=None)
