"""What commands print and write."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.files import STDOUT, atomic_write, write_json

# control characters but the end of a line, and those that change the direction of all that follows
_CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def write_output(path: Path | None, content: str, what: str = "") -> None:
    """Write UTF-8 to a file, and say so, or to standard output."""
    # names of files may have bytes that are no UTF-8
    content = content.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if path is None:
        sys.stdout.buffer.write(content.encode("utf-8"))
        sys.stdout.buffer.flush()
        return
    with atomic_write(path) as stream:
        stream.write(content)
    say_written(path, what)


def write_files(json_file: Path | None, csv_file: Path | None, result: Any, csv: str) -> None:
    """Write what ``--json`` and ``--csv`` ask for."""
    if json_file is not None:
        write_json(json_file, result)
        say_written(json_file)
    if csv_file is not None:
        write_output(csv_file, csv)


def say_written(path: Path, what: str = "") -> None:
    """Print the line about a file or folder that a command has written, if that is not stdout."""
    if str(path) == STDOUT:
        return
    print(f"wrote {path}" + (f": {what}" if what else ""))


def announce(
    files: Sequence[Path], command: str, dropped: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Print the command, ready to be pasted, under a line that says where its flags come from.

    Flags of the configuration that the command line has made meaningless (``dropped``, see
    :class:`.programs.Call`) are named below it.
    """
    print(f"# flags: {', '.join(map(str, files))}; command line")
    for choice, flags in (dropped or {}).items():
        print(f"# left out of the configuration, by {choice}: {', '.join(flags)}")
    print(command, flush=True)


def show(text: str) -> None:
    """Print a text with words of a corpus, with U+FFFD for what could control a terminal."""
    print(_CONTROLS.sub("\ufffd", text))
