"""Flags of commands: each is a function that adds it to a parser, or to a group of one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, TypeVar

Part = Callable[[Any], object]
Number = TypeVar("Number", int, float)


def add(parser: Any, *parts: Part) -> None:
    """Add flags to a parser or a group, or commands to its subparsers."""
    for part in parts:
        part(parser)


def flag(*names: str, **options: Any) -> Part:
    """What `add_argument` takes."""

    return lambda parser: parser.add_argument(*names, **options)


def switch(name: str, text: str) -> Part:
    """A flag without a value."""
    return flag(name, action="store_true", help=text)


def value(name: str, text: str, metavar: str | None = None, **options: Any) -> Part:
    """A text, by default as it is given."""
    return flag(name, help=text, metavar=metavar, **options)


def choice(name: str, text: str, *values: str) -> Part:
    """One of some values, by default the first."""
    return flag(name, help=f"{text} [%(default)s]".lstrip(), choices=values, default=values[0])


def file(name: str, text: str = "", metavar: str | None = "FILE", **options: Any) -> Part:
    """A file or folder."""
    return value(name, text, metavar, type=Path, **options)


def output(text: str = "file [standard output]", metavar: str = "FILE", **options: Any) -> Part:
    """``-o``, the file to write."""
    return flag("-o", "--output", type=Path, help=text, metavar=metavar, **options)


def number(
    name: str, default: Number, text: str = "", least: float = 0, metavar: str = "N"
) -> Part:
    """A number of the default's kind, at least so large."""
    kind: Any = at_least(type(default), least)
    return flag(name, type=kind, default=default, metavar=metavar, help=f"{text} [%(default)s]")


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
    return lambda parser: add(parser.add_argument_group(title, description), *parts)


def either(*parts: Part) -> Part:
    """Flags of which one may be given."""
    return lambda parser: add(parser.add_mutually_exclusive_group(), *parts)
