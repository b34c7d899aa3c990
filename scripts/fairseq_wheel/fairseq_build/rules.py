"""Rules that edit Python source, located by its syntax tree, and their application to a folder.

A rule is a function of a `Source` and its arguments, the first of which is the name or line that it
looks for; it yields one `Replacement` for each place.
"""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

_Definition = ast.FunctionDef | ast.ClassDef
_Place = ast.expr | ast.stmt | ast.keyword


class EditError(Exception):
    """The source is not what an edit was written for."""


class Replacement(NamedTuple):
    """Put `text` in the place of the bytes from `start` up to, without, `end`."""

    start: int
    end: int
    text: str


class Source:
    """The text of one file, its lines, and its syntax tree, whose columns count bytes."""

    def __init__(self, text: str) -> None:
        self.bytes = text.encode()
        self.lines = self.bytes.splitlines(keepends=True)
        self._starts = [0, *itertools.accumulate(map(len, self.lines))]

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree; a file that is no Python has none."""
        return ast.parse(self.bytes.decode())

    def span(self, node: _Place) -> tuple[int, int]:
        """Where the text of `node` starts and ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def in_lines(self, first: int, last: int, text: str) -> Replacement:
        """`text` in the place of the lines `first` to `last` (from 1; none if `last` < `first`)."""
        return Replacement(self._starts[first - 1], self._starts[last], text)

    def edited(self, replacements: Iterable[Replacement]) -> str:
        """The text with all replacements made."""
        result = self.bytes
        for start, end, text in sorted(replacements, reverse=True):
            result = result[:start] + text.encode() + result[end:]
        return result.decode()


Rule = Callable[..., Iterable[Replacement]]


@dataclass(frozen=True)
class Edit:
    """A rule with its arguments, the files it is for (a glob), and the places it must find."""

    files: str
    places: int
    rule: Rule
    arguments: tuple[str, ...]


def apply_edits(tree: Path, edits: Sequence[Edit]) -> None:
    """Apply `edits` in turn to the source below `tree`.

    Raises:
        EditError: an edit found another number of places than it names, so that this is not the
            source that it was written for; or it broke the syntax.
    """
    for edit in edits:
        name = f"{edit.rule.__name__}{edit.arguments}"
        last = edit.arguments[0].rpartition(".")[2]
        clues = (edit.arguments[0], f"def {last}")
        places = 0
        for path in sorted(tree.glob(edit.files)):
            text = path.read_text(encoding="utf-8")
            if not any(clue in text for clue in clues):
                continue  # reading the syntax of every file for every rule would take its time
            source = Source(text)
            if found := list(edit.rule(source, *edit.arguments)):
                text = source.edited(found)
                try:
                    ast.parse(text if path.suffix == ".py" else "")
                except SyntaxError as error:
                    raise EditError(f"{name} leaves {path} with a syntax error: {error}") from None
                path.write_text(text, encoding="utf-8")
            places += len(found)
        if places != edit.places:
            raise EditError(
                f"{name} found {places} places instead of {edit.places} in {edit.files}: this is "
                "not the source of fairseq that the edit was written for"
            )


# ------------------------------------------------------------------ lines, names and calls


def change_line(source: Source, old: str, new: str) -> Iterator[Replacement]:
    """Write `new` in every line that reads `old`, in a file of any kind."""
    for number, line in enumerate(source.lines, start=1):
        if line.decode().strip() == old:
            yield source.in_lines(number, number, f"{new}\n")


def rename(source: Source, old: str, new: str) -> Iterator[Replacement]:
    """Write `new` wherever the dotted name `old` is used."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name | ast.Attribute) and _dotted(node) == old:
            yield Replacement(*source.span(node), new)


def add_import(source: Source, name: str, module: str) -> Iterator[Replacement]:
    """Import `name` from `module` in every file that uses the name."""
    if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(source.tree)):
        first = next(
            node.lineno
            for node in source.tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            and getattr(node, "module", None) != "__future__"
        )
        yield source.in_lines(first, first - 1, f"from {module} import {name}\n")


def set_keyword(source: Source, call: str, keyword: str, value: str) -> Iterator[Replacement]:
    """Set the argument `keyword` in the calls of `call`.

    It is added to the calls without it; where `{}` stands in `value` for the old value, it is
    changed in those that have it; and an empty `value` takes it away where it is the last one.
    """
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or _dotted(node.func) != call:
            continue
        arguments: list[ast.expr | ast.keyword] = sorted(
            [*node.args, *node.keywords], key=source.span
        )
        present = next((one for one in node.keywords if one.arg == keyword), None)
        end = source.span(arguments[-1] if arguments else node.func)[1]
        if not value:
            if present is not None and present is arguments[-1] and len(arguments) > 1:
                yield Replacement(source.span(arguments[-2])[1], end, "")
        elif "{}" in value:
            if present is not None:
                old = slice(*source.span(present.value))
                text = value.format(source.bytes[old].decode())
                yield Replacement(old.start, old.stop, text)
        elif present is None:
            # brackets and a comma may follow the last argument, and comments, which are passed over
            rest = source.bytes[end : source.span(node)[1] - 1]
            rest = re.sub(rb"#.*", lambda comment: b" " * len(comment[0]), rest).rstrip()
            comma = " " if rest.endswith(b",") else ", " if arguments else ""
            end += len(rest)
            yield Replacement(end, end, f"{comma}{keyword}={value}")


# ------------------------------------------------------------------ statements


def write(source: Source, name: str, where: str, code: str) -> Iterator[Replacement]:
    """Write `code` into the function or class `name`.

    `where` is "body" or "asserts", which it replaces, or "end", where it is added.
    """
    for node in _definitions(source.tree, name):
        first, last = node.body[0], _last_line(node)
        if where == "asserts":
            lines = [(s.lineno, _last_line(s)) for s in node.body if isinstance(s, ast.Assert)]
        else:
            lines = [(first.lineno if where == "body" else last + 1, last)]
        gap = "\n" if where == "end" else ""
        for span in lines:
            yield source.in_lines(*span, gap + _indented(code, first.col_offset))


def add_after_assignment(source: Source, target: str, code: str) -> Iterator[Replacement]:
    """Add the statement `code` after every assignment to the plain name `target`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and [_dotted(one) for one in node.targets] == [target]:
            last = _last_line(node)
            yield source.in_lines(last + 1, last, _indented(code, node.col_offset))


def assume_false(source: Source, name: str, *flags: str) -> Iterator[Replacement]:
    """In the function `name`, take the dotted names `flags` for false and drop what cannot run.

    An `if` gives way to its `else` when its test is such a flag, or an `and` or `or` that becomes
    false with such flags.
    """

    def is_false(test: ast.expr) -> bool:
        if isinstance(test, ast.BoolOp):
            holds = any if isinstance(test.op, ast.And) else all
            return holds(map(is_false, test.values))
        return _dotted(test) in flags

    def is_dead(node: ast.stmt) -> bool:
        return isinstance(node, ast.If) and is_false(node.test)

    for node in _outermost(_definitions(source.tree, name), is_dead):
        kept = b""
        if orelse := getattr(node, "orelse", []):
            lines = source.lines[orelse[0].lineno - 1 : _last_line(orelse[-1])]
            surplus = orelse[0].col_offset - node.col_offset
            kept = b"".join(line[surplus:] if line.strip() else line for line in lines)
        yield _instead(source, node, kept.decode())


def drop_assignments(source: Source, name: str, *targets: str) -> Iterator[Replacement]:
    """In the function `name`, drop the statements that do nothing but assign to `targets`."""

    def is_dead(node: ast.stmt) -> bool:
        if isinstance(node, ast.If):
            return all(map(is_dead, [*node.body, *node.orelse]))
        return isinstance(node, ast.Assign) and all(_dotted(one) in targets for one in node.targets)

    for node in _outermost(_definitions(source.tree, name), is_dead):
        yield _instead(source, node, "")


def _dotted(node: ast.AST) -> str | None:
    """`a.b.c` for a name or a chain of attributes of a name, None for anything else."""
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return owner and f"{owner}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def _definitions(tree: ast.Module, name: str) -> list[_Definition]:
    """The definitions of the dotted `name`, from the module's top level downwards."""
    found: list[ast.Module | _Definition] = [tree]
    for part in name.split("."):
        inside = (child for node in found for child in node.body)
        found = [one for one in inside if isinstance(one, _Definition) and one.name == part]
    return [node for node in found if isinstance(node, _Definition)]


def _outermost(nodes: Iterable[ast.stmt], wanted: Callable[[ast.stmt], bool]) -> Iterator[ast.stmt]:
    """Statements below `nodes` that satisfy `wanted`, without looking inside those."""
    for node in nodes:
        if wanted(node):
            yield node
        else:
            for field in ("body", "orelse", "finalbody"):
                yield from _outermost(getattr(node, field, []), wanted)


def _instead(source: Source, node: ast.stmt, text: str) -> Replacement:
    """`text` in the place of a statement and of the comments right above it."""
    first = node.lineno
    while first > 1 and source.lines[first - 2].lstrip().startswith(b"#"):
        first -= 1
    return source.in_lines(first, _last_line(node), text)


def _last_line(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def _indented(code: str, columns: int) -> str:
    """`code`, without the indentation it has in common, indented by `columns` blanks."""
    return textwrap.indent(textwrap.dedent(code).strip("\n") + "\n", " " * columns)
