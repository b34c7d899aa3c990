"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate


def as_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table for a terminal: the first column flush left, the others right."""
    if not rows:
        return []
    sides = ["left", *["right"] * (len(head) - 1)]
    text = tabulate(rows, head, tablefmt="plain", disable_numparse=True, colalign=sides)
    return [line.rstrip() for line in text.splitlines()]
