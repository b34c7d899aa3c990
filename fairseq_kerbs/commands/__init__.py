"""Subcommands of ``fairseq-kerbs``, by subject; `fairseq_kerbs.cli` lists them.

A subcommand is a function of the parsed arguments, which `command` gives a name and its flags.
Whatever is slow to import is imported in the function.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq_kerbs.commands.arg import Part, add
from fairseq_kerbs.utils.files import atomic_write

Run = Callable[[argparse.Namespace], "int | None"]


def command(
    name: str, *parts: Part, passes_on: bool = False, **options: Any
) -> Callable[..., Part]:
    """Make a function, which may return an exit status, a subcommand with these flags; with
    ``passes_on`` unknown ones go to fairseq. The first paragraph of its docstring is its help, the
    rest the description."""

    def decorate(run: Run) -> Part:
        text, _, more = (inspect.getdoc(run) or "").replace("%", "%%").partition("\n\n")

        def add_command(commands: Any) -> None:
            text_of = {"help": text.rstrip("."), "description": more or text}
            # a flag passed on to fairseq must not be taken for the beginning of one of ours
            parser = commands.add_parser(name, allow_abbrev=False, **text_of, **options)
            add(parser, *parts)
            parser.set_defaults(run=run, passes_on=passes_on, error=parser.error)

        return add_command

    return decorate


def nested(name: str, text: str, description: str, metavar: str, *commands: Part) -> Part:
    """A subcommand that has commands of its own."""

    def add_command(above: Any) -> None:
        parser = above.add_parser(name, help=text, description=description, allow_abbrev=False)
        add(parser.add_subparsers(required=True, metavar=metavar), *commands)

    return add_command


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
