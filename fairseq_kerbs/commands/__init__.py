"""Subcommands of ``fairseq-kerbs``, by subject; `fairseq_kerbs.cli` lists them.

A subcommand is a function that adds its parser and sets ``run``, a function of the parsed arguments
that returns the exit status. Whatever is slow to import is imported in ``run``.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_trust_flag(parser: argparse.ArgumentParser) -> None:
    """``--trust-checkpoint``, for every command that only reads a model."""
    parser.add_argument(
        "--trust-checkpoint",
        action="store_true",
        help="load a checkpoint even if it holds more than tensors and settings, which could run a "
        "program: only for files whose maker you trust",
    )
