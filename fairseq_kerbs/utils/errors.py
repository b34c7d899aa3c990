"""Mistakes of the user's, as one sentence each; everything else is a defect of the program."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import get_close_matches
from textwrap import shorten


class UserError(SystemExit):
    """Wrong input: one sentence that names the flag or file and says what to do.

    ``fairseq-kerbs`` prints it and ends with status 2 (`sentence_of`). In a program of fairseq's it
    is the end, too: Python prints :attr:`code` there, and the status is 1.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.code = f"fairseq_kerbs: error: {sentence}"


_REFUSALS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
)
"""Errors of the system that are no defects of the program."""


def sentence_of(error: BaseException) -> str | None:
    """The sentence of a UserError, and one about a package that is not installed, or what a disk, a
    permission or a path has refused; None for a defect, which deserves its traceback."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package not in ("", "fairseq_kerbs"):
            extras = "fairseq_kerbs[fairseq,analysis,tables]"
            return f"{package} is not installed; pip install '{extras}' brings it"
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        path = error.filename or "the output"
        return f"{path} cannot be written ({error.strerror}); name another place"
    return None


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
