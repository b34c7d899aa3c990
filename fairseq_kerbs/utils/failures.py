"""What a program of fairseq's leaves for the command of ours that runs it, if it fails.

Python ends a program with status 1 and a traceback, whatever went wrong. By :data:`REPORTS` the
command tells apart what this package refused there, and what fairseq itself could not do. Under
``--user-dir`` the program imports this package, which then replaces the traceback by a file.
"""

from __future__ import annotations

import ast
import errno
import json
import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType

REPORTS = "FAIRSEQ_KERBS_REPORTS"
"""Environment variable: the folder of the files below."""
REFUSAL = "refusal"
"""A file that is there after a UserError."""
FAILURE = "failure.json"
"""A file with a :class:`Failure`."""
BEGUN = "begun"
"""A file that is there after the first update of a training."""

_FRAME = re.compile(r'^\s*File "(.+?)", line (\d+), in (\S+)', re.MULTILINE)
_STEPS = frozenset(("train_step", "valid_step", "inference_step"))
_FAIRSEQ = re.compile(r"[/\\](?:fairseq|fairseq_cli|fairseq_kerbs)[/\\]")
_WORDS = re.compile(r"\w+(?:-\w+)*")
_LONGEST = 300
FULL = "No space left on device"
"""What exceptions say if a disk is full."""
_OF_SYSTEM = (
    "out of memory",
    "can't allocate memory",
    "CUDA error",
    "CUDNN_STATUS",
    "cuDNN error",
    "NCCL",
    "killed by signal",
    "file write failed",
    FULL,
)
"""What exceptions say if memory, a disk or a device failed, or another process."""
_noted = False  # whether an update has been noted


@dataclass(frozen=True)
class Failure:
    """How a program failed."""

    error: str
    """The exception and what it says, such as ``KeyError: 'steps'``."""
    of_system: bool
    """Whether memory, a disk or a device failed, or numbers diverged: no flag is to blame."""
    at_start: bool
    """Whether no batch has been computed, so that a flag is likely to blame."""
    places: list[list[str]]
    """Words of the sentence, then those of the failing lines in fairseq, the innermost first."""
    text: str
    """The whole traceback."""


def report_failures() -> None:
    """Replace the traceback of this program by a file, if a command of ours runs it."""
    if REPORTS in os.environ:
        sys.excepthook = partial(_report, Path(os.environ[REPORTS]))


def note_update() -> None:
    """Note that an update is done, for the command of ours that runs this program."""
    global _noted
    if not _noted and REPORTS in os.environ:
        with suppress(OSError):
            Path(os.environ[REPORTS], BEGUN).touch()
    _noted = True


def read_failure(folder: Path) -> Failure | None:
    """The failure that a program has left in a folder, or None."""
    try:
        return Failure(**json.loads((folder / FAILURE).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):  # none, or one that could not be written
        return None


def _report(
    folder: Path, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Write a failure. It is printed as Python does if it is no failure or cannot be written."""
    if isinstance(error, Exception):
        text = "".join(traceback.format_exception(kind, error, trace))
        try:
            content = json.dumps(asdict(failure_of(error, text)))
            part = folder / f"{FAILURE}.part"
            part.write_text(content, encoding="utf-8")
            part.replace(folder / FAILURE)
            return
        except OSError:
            pass
    sys.__excepthook__(kind, error, trace)


def lines_of(error: BaseException) -> list[str]:
    """Lines of what an exception says that are not blank."""
    return [line.strip() for line in str(error).splitlines() if line.strip()]


def informative_line(lines: Sequence[str]) -> str:
    """The line of an exception that says most: the first one, or the second after a heading.

    The first line of torch's lists is a heading.

    Args:
        lines: lines that are not blank, at least one.
    """
    if lines[0].endswith(":") and len(lines) > 1:
        return lines[1]
    return lines[0]


def failure_of(error: Exception, text: str) -> Failure:
    """Describe an exception.

    Args:
        error: the exception.
        text: its traceback.
    """
    lines = lines_of(error)
    places = [*_places(text)]
    if "Traceback (most recent call last)" in str(error):  # of another process
        sentence = lines[-1]
    elif lines:
        sentence = f"{type(error).__name__}: {informative_line(lines)}"
    else:  # an assertion without a message
        frames = traceback.extract_tb(error.__traceback__)
        line = frames[-1].line if frames else ""
        sentence = f"{type(error).__name__}: {line}"
    if len(sentence) > _LONGEST:
        sentence = sentence[: _LONGEST - 1] + "…"
    return Failure(
        error=sentence,
        of_system=_is_of_system(error),
        at_start=_is_at_start(error, text),
        places=[_words_of(str(error)), *places],
        text=text,
    )


def _is_at_start(error: Exception, text: str) -> bool:
    """Tell whether no batch was being computed, or the first one, and no update is done."""
    if Path(os.environ.get(REPORTS, ""), BEGUN).exists():
        return False
    if _STEPS.isdisjoint(function for _, _, function in _FRAME.findall(text)):
        return True
    counters = {"train": "i", "_main": "num_sentences"}  # in the loops of fairseq's programs
    return any(
        frame.f_code.co_name in counters and frame.f_locals.get(counters[frame.f_code.co_name]) == 0
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _is_of_system(error: Exception) -> bool:
    if isinstance(error, OSError):  # other libraries derive errors of their own from it
        return error.errno not in (None, errno.ENOENT, errno.EISDIR)
    if isinstance(error, (MemoryError, FloatingPointError)):  # the latter if a training diverges
        return True
    return any(words in str(error) for words in _OF_SYSTEM)


def _words_of(text: str) -> list[str]:
    """Words of a text in lower case, those with dashes as names of Python and by parts, too."""
    words = []
    for word in _WORDS.findall(text.lower()):
        words.append(word.replace("-", "_"))
        if "-" in word:
            words += word.split("-")
    return words


def _places(text: str) -> Iterator[list[str]]:
    """Words of the lines of a traceback that are in fairseq, from the innermost outwards.

    The conditions on which a line is reached belong to it, and the name of its file.
    """
    for path, number, _ in reversed(_FRAME.findall(text)):
        if _FAIRSEQ.search(path):
            conditions = _conditions(path, int(number))
            line = linecache.getline(path, int(number))
            yield _words_of(" ".join([Path(path).stem, line, *conditions]))


@lru_cache(maxsize=64)
def _tree(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def _conditions(path: str, number: int) -> list[str]:
    """Conditions of the blocks that a line is in."""
    found = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, (ast.If, ast.While)):
            last = node.body[-1]
            if node.body[0].lineno <= number <= (last.end_lineno or last.lineno):
                found.append(ast.unparse(node.test))
    return found
