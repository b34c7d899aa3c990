"""Mistakes of the user's, as one sentence each; everything else is a defect of the program."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeGuard


class UserError(Exception):
    """Wrong input: the message is one sentence that names the flag or file and says what to do.

    The command line prints it after ``fairseq-kerbs: error:`` and ends with exit status 2, also for
    what the machine refuses (`refused_by_system`) and what is not installed (`missing_package`);
    every other exception is a defect: a traceback.
    """


class ProgramEnd(SystemExit):
    """End of a program of fairseq's with one ``sentence`` on stderr and exit status 1."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"fairseq_kerbs: error: {sentence}")
        self.sentence = sentence


def suggestion(wrong: Iterable[str], known: Iterable[str]) -> str:
    """The end of a sentence with the nearest names, such as ``; did you mean toy?``, or ""."""
    names = list(known)
    near = [name for word in wrong for name in get_close_matches(word, names, n=1)]
    return f"; did you mean {', '.join(near)}?" if near else ""


def reason_of(error: BaseException) -> str:
    """One line of an error of fairseq's or torch's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # the first line of torch's list says only that there is one
    return shorten(lines[1 if len(lines) > 1 else 0], 200) if lines else type(error).__name__


_REFUSALS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
)
"""Errors of the system that are no defects of the program."""


def missing_package(error: ImportError) -> UserError | None:
    """One sentence about a package that is not installed; None if it is one of ours."""
    name = (error.name or "").partition(".")[0]
    if name in ("", "fairseq_kerbs"):
        return None
    extras = "fairseq_kerbs[fairseq,analysis,tables]"
    return UserError(f"{name} is not installed; pip install '{extras}' brings it")


def refused_by_system(error: BaseException) -> TypeGuard[OSError]:
    """Whether a disk, a permission or a path stood in the way of reading or writing."""
    return isinstance(error, OSError) and error.errno in _REFUSALS


def system_cause(error: BaseException | None) -> OSError | None:
    """The system's own refusal that another error came of: torch wraps what a disk says."""
    while error is not None and not refused_by_system(error):
        error = error.__cause__ or error.__context__
    return error


def system_refusal(
    error: OSError, path: Path | str | None = None, done: str = "written"
) -> UserError:
    """The system's refusal as one sentence, with the ``path`` as the user knows it (by default the
    one that the error names) and what could not be ``done`` with it."""
    named = path or error.filename or "the output"
    return UserError(f"{named} cannot be {done} ({error.strerror or error}); name another place")
