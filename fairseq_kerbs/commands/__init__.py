"""Subcommands of ``fairseq-kerbs``, by subject; `fairseq_kerbs.cli` lists them.

A subcommand is a function that adds its parser and sets ``run``, a function of the parsed arguments
that returns the exit status. Whatever is slow to import is imported in ``run``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from os.path import realpath
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write

if TYPE_CHECKING:
    from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class OutputPath(PosixPath):
    """Type of a flag that names a file to be written; see `refuse_overwriting`."""


def refuse_overwriting(given: Mapping[str, object]) -> None:
    """Raise a UserError if one of the arguments ``given`` by name is an `OutputPath` and names the
    same file as another."""
    named = [(name, path) for name, value in given.items() for path in _paths(value)]
    for (flag, output), (name, path) in permutations(named, 2):
        if isinstance(output, OutputPath) and realpath(output) == realpath(path):
            raise UserError(f"--{flag} {output} is the {name} itself; name another file")


def _paths(value: object) -> Iterator[Path]:
    """The paths of an argument, which may be a list of them or of NAME=FILE."""
    for one in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(one, Path):
            yield one
        elif isinstance(one, str) and "=" in one:
            yield Path(one.partition("=")[2])


def whole_number(least: int) -> Callable[[str], int]:
    """argparse's type of whole numbers that are at least `least`."""

    def integer(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {text}")
        return int(text)

    return integer


def add_trust_flag(parser: argparse.ArgumentParser) -> None:
    """``--trust-checkpoint``, for every command that only reads a model."""
    parser.add_argument(
        "--trust-checkpoint",
        action="store_true",
        help="load a checkpoint even if it holds more than tensors and settings, which could run a "
        "program: only for files whose maker you trust",
    )


def write_output(path: Path | None, content: str, what: str = "") -> None:
    """Write UTF-8 to a file, and say so, or to standard output."""
    if path is None:
        sys.stdout.buffer.write(content.encode("utf-8"))
        sys.stdout.buffer.flush()
        return
    with atomic_write(path) as stream:
        stream.write(content)
    say_written(path, what)


def say_written(path: Path, what: str = "") -> None:
    """The line about a file or folder that a command has written."""
    print(f"wrote {path}" + (f": {what}" if what else ""))


def announce(files: tuple[Path, ...], command: str) -> None:
    """Print the command, ready to be pasted, under a line that says where its flags come from."""
    print(f"# flags: {', '.join(map(str, files))}; command line\n{command}", flush=True)
