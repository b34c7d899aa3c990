"""Mistakes of the user's, as one sentence each; everything else is a defect of the program."""

from __future__ import annotations

import argparse
import errno
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten
from typing import NoReturn, TypeGuard


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


def argument_error(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """End the program with argparse's message and what could have been meant, and exit status 2."""
    said = ""
    if choice := re.search(r"invalid choice: '(.*)'( \(choose from (.*)\))", message):
        said = suggestion([choice[1]], re.findall(r"[^', ]+", choice[3]))
        message = message.replace(choice[2], "") if said else message
    elif message.startswith("unrecognized arguments: "):
        wrong = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
        said = suggestion(wrong, parser._option_string_actions)
    said = said or f"; see {parser.prog} --help"
    parser.exit(2, f"{parser.prog}: error: {message}{said}\n")


def interruption(place: object) -> str:
    """What is said after Ctrl-C: how to go on, and from which `place` if its text says so."""
    known = f" to go on from {place}" if str(place) else ""
    return f"interrupted; run the same command again{known}"


def reason_of(error: BaseException) -> str:
    """One line of an error of fairseq's or torch's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # the first line of torch's list says only that there is one
    return shorten(lines[1 if len(lines) > 1 else 0], 200) if lines else type(error).__name__


_SPACE = "free space there, or name another place"
_FOLDER = "a part of its path is a file: name another place"
_RIGHT = "name another place, or ask for the right to use this one"
_ADVICE = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or name another place",
    errno.EIO: "see whether the disk is sound, or name another place",
    errno.EACCES: _RIGHT,
    errno.EPERM: _RIGHT,
    errno.EROFS: _RIGHT,
    errno.EEXIST: _FOLDER,
    errno.ENOTDIR: _FOLDER,
    errno.EISDIR: "name a file",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "remove the link that leads to itself, or name another place",
}
"""What to do about an error of the system that is no defect of the program."""


_EXTRAS = {
    "analysis": ("jinja2", "matplotlib", "plotly", "scipy", "sklearn", "snowballstemmer"),
    "fairseq": (
        *("fairseq", "fairseq_cli", "omegaconf", "sacrebleu", "sacremoses", "shtab"),
        *("subword_nmt", "tabulate", "tensorboard", "tqdm", "yaml"),
    ),
}
"""What setup.py's extras of these names bring, by the names they are imported by."""


def missing_package(error: ImportError) -> UserError | None:
    """One sentence about a package of an extra that is not installed; None if it is another."""
    name = (error.name or "").partition(".")[0]
    for extra in (extra for extra, names in _EXTRAS.items() if name in names):
        return UserError(f"{name} is not installed; pip install 'fairseq_kerbs[{extra}]' brings it")
    return None


def refused_by_system(error: BaseException) -> TypeGuard[OSError]:
    """Whether a disk, a permission or a path stood in the way of reading or writing."""
    return isinstance(error, OSError) and error.errno in _ADVICE


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
    advice = _ADVICE.get(error.errno or 0, "name another place")
    return UserError(f"{named} cannot be {done} ({error.strerror or error}); {advice}")
