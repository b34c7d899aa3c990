"""Subcommands of ``fairseq-kerbs``, by subject; `fairseq_kerbs.cli` lists them.

A subcommand is a function of the parsed arguments, which `command` gives a name and its flags.
Whatever is slow to import is imported in the function.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from math import inf
from os.path import realpath
from pathlib import Path, PosixPath
from typing import Any, TypeVar

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write

Part = Callable[[Any], object]
"""Adds flags to a parser or a group of one; of a command, its parser to those of others."""
Run = Callable[[argparse.Namespace], "int | None"]
Number = TypeVar("Number", int, float)


def command(
    name: str, *parts: Part, defaults: Mapping[str, Any] | None = None, **options: Any
) -> Callable[[Run], Part]:
    """Make a function, which may return an exit status, a subcommand with these flags and
    ``defaults``. The first paragraph of its docstring is its help, the rest the description."""

    def decorate(run: Run) -> Part:
        text, _, more = (inspect.getdoc(run) or "").replace("%", "%%").partition("\n\n")

        def add(commands: Any) -> None:
            text_of = {"help": text.rstrip("."), "description": more or text}
            # a flag passed on to fairseq must not be taken for the beginning of one of ours
            parser = commands.add_parser(name, allow_abbrev=False, **text_of, **options)
            for part in parts:
                part(parser)
            parser.set_defaults(run=run, **(defaults or {}))

        return add

    return decorate


def nested(name: str, text: str, description: str, metavar: str, *commands: Part) -> Part:
    """A subcommand that has commands of its own."""

    def add(above: Any) -> None:
        parser = above.add_parser(name, help=text, description=description, allow_abbrev=False)
        below = parser.add_subparsers(required=True, metavar=metavar)
        for part in commands:
            part(below)

    return add


class OutputPath(PosixPath):
    """Type of a flag that names a file to be written; see `refuse_overwriting`."""


def flag(*names: str, **options: Any) -> Part:
    """What `add_argument` takes."""
    return lambda parser: parser.add_argument(*names, **options)


def switch(name: str, text: str) -> Part:
    """A flag without a value."""
    return flag(name, action="store_true", help=text)


def file(name: str, text: str | None = None, metavar: str | None = "FILE", **options: Any) -> Part:
    """A file or folder that is read."""
    return flag(name, help=text, metavar=metavar, **{"type": Path, **options})


def output(text: str | None = None, metavar: str = "FILE", required: bool = True) -> Part:
    """``-o``, the file to write."""
    options: dict[str, Any] = {"type": OutputPath, "metavar": metavar, "required": required}
    return flag("-o", "--output", help=text, **options)


def number(
    name: str, default: Number, text: str = "", least: float | None = 0, metavar: str = "N"
) -> Part:
    """A number of the default's kind, at least so large."""
    kind: Any = at_least(type(default), least) if least is not None else type(default)
    text = f"{text} [%(default)s]".lstrip()
    return flag(name, type=kind, default=default, metavar=metavar, help=text)


def at_least(kind: Callable[[str], Number], least: float) -> Callable[[str], Number]:
    """argparse's type of numbers that are at least so large."""

    def bounded(text: str) -> Number:
        if not least <= kind(text) < inf:
            raise argparse.ArgumentTypeError(f"must be at least {least:g}, not {text}")
        return kind(text)

    bounded.__name__ = kind.__name__  # argparse says "invalid int value"
    return bounded


def group(title: str, *parts: Part, description: str | None = None) -> Part:
    """Flags under a title of their own."""

    def add(parser: Any) -> None:
        inside = parser.add_argument_group(title, description)
        for part in parts:
            part(inside)

    return add


def either(*parts: Part) -> Part:
    """Flags of which one may be given."""

    def add(parser: Any) -> None:
        inside = parser.add_mutually_exclusive_group()
        for part in parts:
            part(inside)

    return add


TRUST = switch(
    "--trust-checkpoint",
    "load a checkpoint even if it holds more than tensors and settings, which could run a "
    "program: only for files whose maker you trust",
)
"""For every command that only reads a model."""


def refuse_overwriting(given: Mapping[str, object]) -> None:
    """Raise a UserError if one of the arguments ``given`` by name is an `OutputPath` and names the
    same file as another."""
    named = [(name, path) for name, value in given.items() for path in _paths(value)]
    for (name, path), (other, same) in permutations(named, 2):
        if isinstance(path, OutputPath) and realpath(path) == realpath(same):
            raise UserError(f"--{name} {path} is the {other} itself; name another file")


def _paths(value: object) -> Iterator[Path]:
    """The paths of an argument, which may be a list of them or of NAME=FILE."""
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, Path):
            yield item
        elif isinstance(item, str) and "=" in item:
            yield Path(item.partition("=")[2])


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
