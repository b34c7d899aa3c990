"""Subcommands of ``fairseq-kerbs``, by subject; `fairseq_kerbs.cli` lists them.

A subcommand is a function that adds its parser and sets ``run``, a function of the parsed arguments
that returns the exit status. Whatever is slow to import is imported in ``run``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TypeAlias

from fairseq_kerbs.utils.files import atomic_write

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


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
