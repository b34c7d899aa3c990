"""Tables as Markdown and plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tabulate import tabulate

from fairseq_kerbs.evaluation.texts import escape_markdown


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
