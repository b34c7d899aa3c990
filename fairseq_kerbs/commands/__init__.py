"""Subcommands of ``fairseq-kerbs``, by subject; `fairseq_kerbs.cli` lists them.

A subcommand is a function that adds its parser and sets ``run``, a function of the parsed arguments
that returns the exit status. Whatever is slow to import is imported in ``run``.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
