"""Rules that change names, imports and the arguments of calls, and one for single lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fairseq_build.applying import Edited
from fairseq_build.source import Replacement, SourceText, dotted


@dataclass(frozen=True)
class RenameExpression:
    """Write `new` wherever the dotted name `old` is used."""

    old: str
    new: str

    @property
    def clue(self) -> str:
        return self.old

    def apply(self, source: str) -> Edited:
        text = SourceText(source)
        return text.replace(
            Replacement(*text.span(node), self.new)
            for node in ast.walk(text.tree)
            if isinstance(node, ast.Name | ast.Attribute) and dotted(node) == self.old
        )


@dataclass(frozen=True)
class UseImported:
    """Write `name`, imported from `module`, wherever the plain name `old` is used."""

    old: str
    module: str
    name: str

    @property
    def clue(self) -> str:
        return self.old

    def apply(self, source: str) -> Edited:
        edited, places = RenameExpression(self.old, self.name).apply(source)
        if not places:
            return source, 0
        text = SourceText(edited)
        first = next(
            node.lineno
            for node in text.tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            and getattr(node, "module", None) != "__future__"
        )
        code = f"from {self.module} import {self.name}\n"
        return text.replace([text.replace_lines(first, first - 1, code)])[0], places


@dataclass(frozen=True)
class RenameModule:
    """Import from the module `new` wherever names are imported from the module `old`."""

    old: str
    new: str

    @property
    def clue(self) -> str:
        return self.old

    def apply(self, source: str) -> Edited:
        text = SourceText(source)
        edits = []
        for node in ast.walk(text.tree):
            if isinstance(node, ast.ImportFrom) and node.module == self.old:
                start = text.span(node)[0] + len("from ")
                edits.append(Replacement(start, start + len(self.old), self.new))
        return text.replace(edits)


@dataclass(frozen=True)
class AddKeyword:
    """Give every call of the dotted name `call` the further argument `keyword=value`."""

    call: str
    keyword: str
    value: str

    @property
    def clue(self) -> str:
        return self.call

    def apply(self, source: str) -> Edited:
        text = SourceText(source)
        edits = []
        for node in _calls(text.tree, self.call):
            if any(argument.arg == self.keyword for argument in node.keywords):
                continue
            token, end = text.last_token(text.span(node.func)[1], text.span(node)[1] - 1)
            comma = {"(": "", ",": " "}.get(token, ", ")
            edits.append(Replacement(end, end, f"{comma}{self.keyword}={self.value}"))
        return text.replace(edits)


@dataclass(frozen=True)
class ChangeKeyword:
    """Replace the value of `keyword` in every call of `call`; `{}` stands for the old value."""

    call: str
    keyword: str
    value: str

    @property
    def clue(self) -> str:
        return self.keyword

    def apply(self, source: str) -> Edited:
        text = SourceText(source)
        return text.replace(
            Replacement(*text.span(argument.value), self.value.format(text.of(argument.value)))
            for node in _calls(text.tree, self.call)
            for argument in node.keywords
            if argument.arg == self.keyword
        )


@dataclass(frozen=True)
class DropLastKeyword:
    """Leave out the argument `keyword` of calls of `call` that have it as their last one."""

    call: str
    keyword: str

    @property
    def clue(self) -> str:
        return self.keyword

    def apply(self, source: str) -> Edited:
        text = SourceText(source)
        edits = []
        for node in _calls(text.tree, self.call):
            arguments: list[ast.AST] = [*node.args, *node.keywords]
            last = node.keywords[-1] if node.keywords else None
            if last is not None and last.arg == self.keyword and len(arguments) > 1:
                start = text.span(arguments[-2])[1]
                edits.append(Replacement(start, text.span(last)[1], ""))
        return text.replace(edits)


@dataclass(frozen=True)
class ChangeLine:
    """Write `new` in every line that reads `old`, in a file of any kind."""

    old: str
    new: str

    @property
    def clue(self) -> str:
        return self.old

    def apply(self, source: str) -> Edited:
        lines = source.split("\n")
        edited = [self.new if line.strip() == self.old else line for line in lines]
        return "\n".join(edited), sum(line.strip() == self.old for line in lines)


def _calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) == name:
            yield node
