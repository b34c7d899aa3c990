"""Tables as CSV, Markdown and plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tabulate import tabulate

from fairseq_kerbs.evaluation.texts import csv_text, escape_markdown, harmless_cell


def as_csv(head: Sequence[str], rows: Iterable[Sequence[Any]], digits: int | None = None) -> str:
    """CSV; texts cannot be taken for formulas, None is an empty cell.

    ``digits`` are the significant digits of floating-point numbers; by default all.
    """

    def cell(value: Any) -> Any:
        if isinstance(value, float) and digits is not None:
            return f"{value:.{digits}g}"
        return harmless_cell(value) if isinstance(value, str) else value

    return csv_text([head, *([cell(value) for value in row] for row in rows)])


def as_markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; markup in cells is made harmless."""
    cells = [[escape_markdown(cell) for cell in row] for row in rows]
    return tabulate(cells, head, tablefmt="github", disable_numparse=True) + "\n"


def as_lines(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a table for a terminal: the first ``left`` columns flush left, the others right."""
    if not rows:
        return []
    sides = [*(["left"] * left), *(["right"] * (len(head) - left))]
    text = tabulate(rows, head, tablefmt="plain", disable_numparse=True, colalign=sides)
    return [line.rstrip() for line in text.splitlines()]
