"""Rules that add, replace or drop whole statements of a function or class."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fairseq_build.applying import Edited, EditError
from fairseq_build.source import SourceText, dotted, indented


@dataclass(frozen=True)
class ReplaceBody:
    """Replace the body of the function or method `name` (`Class.method`) by `code`."""

    name: str
    code: str

    @property
    def clue(self) -> str:
        return _last(self.name)

    def apply(self, source: str) -> Edited:
        text = SourceText(source)
        edits = []
        for function in _definitions(text.tree, self.name):
            lines = (function.body[0].lineno, function.body[-1].end_lineno or 0)
            edits.append(
                text.replace_lines(*lines, indented(self.code, function.body[0].col_offset))
            )
        return text.replace(edits)


@dataclass(frozen=True)
class AppendToBody:
    """Add `code` at the end of the body of the class or function `name`."""

    name: str
    code: str

    @property
    def clue(self) -> str:
        return _last(self.name)

    def apply(self, source: str) -> Edited:
        text = SourceText(source)
        edits = []
        for node in _definitions(text.tree, self.name):
            after = node.body[-1].end_lineno or 0
            code = "\n" + indented(self.code, node.body[0].col_offset)
            edits.append(text.replace_lines(after + 1, after, code))
        return text.replace(edits)


@dataclass(frozen=True)
class AddAfterAssignment:
    """Add the statement `code` after every assignment to the plain name `target`."""

    target: str
    code: str

    @property
    def clue(self) -> str:
        return self.target

    def apply(self, source: str) -> Edited:
        text = SourceText(source)
        edits = []
        for node in ast.walk(text.tree):
            if isinstance(node, ast.Assign) and [dotted(t) for t in node.targets] == [self.target]:
                after = node.end_lineno or 0
                code = indented(self.code, node.col_offset)
                edits.append(text.replace_lines(after + 1, after, code))
        return text.replace(edits)


@dataclass(frozen=True)
class AssumeFalse:
    """In the function `name`, take the dotted names `flags` for false and drop what cannot run.

    An `if` gives way to its `else` when its test is such a flag, or an `and` or `or` that becomes
    false with such flags.
    """

    name: str
    flags: frozenset[str]

    @property
    def clue(self) -> str:
        return _last(self.name)

    def apply(self, source: str) -> Edited:
        text = SourceText(source)
        edits = []
        for function in _definitions(text.tree, self.name):
            for node in _outermost(function.body, self._is_dead_branch):
                assert isinstance(node, ast.If)
                edits.append(text.replace_lines(*_with_comments(text, node), _else_of(text, node)))
        return text.replace(edits)

    def _is_dead_branch(self, node: ast.stmt) -> bool:
        return isinstance(node, ast.If) and self._is_false(node.test)

    def _is_false(self, test: ast.expr) -> bool:
        if isinstance(test, ast.BoolOp):
            parts = [self._is_false(value) for value in test.values]
            return any(parts) if isinstance(test.op, ast.And) else all(parts)
        return dotted(test) in self.flags


@dataclass(frozen=True)
class DropAssignments:
    """In the function `name`, drop the statements that do nothing but assign to `targets`."""

    name: str
    targets: frozenset[str]

    @property
    def clue(self) -> str:
        return _last(self.name)

    def apply(self, source: str) -> Edited:
        text = SourceText(source)
        edits = []
        for function in _definitions(text.tree, self.name):
            for node in _outermost(function.body, self._is_dead):
                edits.append(text.replace_lines(*_with_comments(text, node), ""))
        return text.replace(edits)

    def _is_dead(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.Assign):
            return all(dotted(target) in self.targets for target in node.targets)
        if isinstance(node, ast.If):
            return all(self._is_dead(child) for child in [*node.body, *node.orelse])
        return False


@dataclass(frozen=True)
class ReplaceAsserts:
    """Replace every `assert` directly in the body of the function `name` by `code`."""

    name: str
    code: str

    @property
    def clue(self) -> str:
        return _last(self.name)

    def apply(self, source: str) -> Edited:
        text = SourceText(source)
        edits = []
        for function in _definitions(text.tree, self.name):
            for node in function.body:
                if isinstance(node, ast.Assert):
                    lines = (node.lineno, node.end_lineno or node.lineno)
                    edits.append(text.replace_lines(*lines, indented(self.code, node.col_offset)))
        return text.replace(edits)


def _last(name: str) -> str:
    """Return the last part of a dotted name."""
    return name.rpartition(".")[2]


def _definitions(tree: ast.Module, name: str) -> list[ast.FunctionDef | ast.ClassDef]:
    """Return the definitions of the dotted `name`, from the module's top level downwards."""
    level: Iterable[ast.stmt] = tree.body
    found: list[ast.FunctionDef | ast.ClassDef] = []
    for part in name.split("."):
        found = [
            node
            for node in level
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part
        ]
        level = [child for node in found for child in node.body]
    return found


def _outermost(body: Iterable[ast.stmt], wanted: Callable[[ast.stmt], bool]) -> Iterator[ast.stmt]:
    """Yield the statements that satisfy `wanted`, without looking inside those."""
    for node in body:
        if wanted(node):
            yield node
            continue
        for field in ("body", "orelse", "finalbody"):
            yield from _outermost(getattr(node, field, []), wanted)


def _with_comments(text: SourceText, node: ast.stmt) -> tuple[int, int]:
    """Return the first and last line of a statement and of the comments right above it."""
    first = node.lineno
    while first > 1 and text.lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return first, node.end_lineno or first


def _else_of(text: SourceText, node: ast.If) -> str:
    """Return the lines of the `else` of `node`, moved to the left, or nothing without one."""
    if not node.orelse:
        return ""
    if text.lines[node.lineno - 1].lstrip().startswith("elif"):
        raise EditError(f"line {node.lineno} is an elif, which AssumeFalse does not handle")
    first, last = node.orelse[0].lineno, node.orelse[-1].end_lineno or 0
    surplus = node.orelse[0].col_offset - node.col_offset
    lines = text.lines[first - 1 : last]
    return "".join(line[surplus:] if line.strip() else line for line in lines)
