"""Python source together with its syntax tree, and replacements located by the tree."""

from __future__ import annotations

import ast
import io
import itertools
import textwrap
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass

_NO_TOKENS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER}


@dataclass(frozen=True, order=True)
class Replacement:
    """Put `text` in the place of the characters from `start` up to, without, `end`."""

    start: int
    end: int
    text: str


class SourceText:
    """One module's source, its lines (with their ends) and its syntax tree."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tree = ast.parse(source)
        self.lines = _lines(source)
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where the text of `node` starts and ends in the source."""
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword)
        end_line, end_column = node.end_lineno or 0, node.end_col_offset or 0
        return self._offset(node.lineno, node.col_offset), self._offset(end_line, end_column)

    def of(self, node: ast.AST) -> str:
        """Return the text of `node`."""
        start, end = self.span(node)
        return self.source[start:end]

    def last_token(self, start: int, end: int) -> tuple[str, int]:
        """Return the last token between two offsets that is no comment or line break, and its end.

        The text from `start` to `end` may leave brackets open.
        """
        text = self.source[start:end]
        line_starts = [0, *itertools.accumulate(map(len, _lines(text)))]
        last, last_end = "", start
        try:
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                if token.type not in _NO_TOKENS:
                    last = token.string
                    last_end = start + line_starts[token.end[0] - 1] + token.end[1]
        except tokenize.TokenError:
            pass  # the bracket left open: every token has been seen by then
        return last, last_end

    def replace_lines(self, first: int, last: int, text: str) -> Replacement:
        """Return the replacement of the lines `first` to `last` (from 1, both included).

        With `last` = `first` - 1 it inserts `text` before line `first`.
        """
        return Replacement(self._starts[first - 1], self._starts[last], text)

    def replace(self, replacements: Iterable[Replacement]) -> tuple[str, int]:
        """Return the source with all `replacements` made, and their number."""
        ordered = sorted(replacements, reverse=True)
        source = self.source
        for item in ordered:
            source = source[: item.start] + item.text + source[item.end :]
        return source, len(ordered)

    def _offset(self, line: int, column: int) -> int:
        # The syntax tree counts columns in bytes of UTF-8.
        prefix = self.lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(prefix)


def _lines(text: str) -> list[str]:
    """Split `text` where Python does; `str.splitlines` would also split at form feeds."""
    return io.StringIO(text).readlines()


def indented(code: str, columns: int) -> str:
    """Return `code`, without the indentation it has in common, indented by `columns` blanks."""
    return textwrap.indent(textwrap.dedent(code).strip("\n") + "\n", " " * columns)


def dotted(node: ast.AST) -> str | None:
    """Return `a.b.c` for a name or a chain of attributes of a name, None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else None
    return None
