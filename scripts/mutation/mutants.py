"""Mutants of a module: its source with one change each.

The changes are those of mutmut's operators, and four more (:func:`more_operators`). Messages of
errors, annotations, decorators and documentation stay as they are.
"""

from __future__ import annotations

import contextlib
import difflib
import marshal
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators


class Mutant(NamedTuple):
    """One change: where, the lines before and after it, and the whole module with it.

    ``twin`` numbers those of a function that read the same, as the same line may stand there twice.
    """

    function: str
    line: int
    before: str
    after: str
    source: str
    twin: int

    @property
    def key(self) -> str:
        """What names the mutant even after other lines have moved."""
        twin = f" ({self.twin})" if self.twin > 1 else ""
        return f"{self.function}: {self.before} -> {self.after}{twin}"


def more_operators(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Four changes that mutmut does not know: force an ``if`` either way, drop a statement that is
    a call, take ``a`` for ``a.method(…)``."""
    if isinstance(node, cst.If):
        for value in ("True", "False"):
            yield node.with_changes(test=cst.Name(value))
    elif isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        yield cst.Pass()
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        receiver = node.func.value
        if not (isinstance(receiver, cst.Name) and receiver.value in ("torch", "F", "nn", "heapq")):
            yield receiver


class _Collector(cst.CSTVisitor):
    """Walks through a module and gathers pairs of a node and its replacement."""

    METADATA_DEPENDENCIES = (PositionProvider,)
    _SKIPPED = (cst.Annotation, cst.Decorator, cst.Raise, cst.Import, cst.ImportFrom)

    def __init__(self) -> None:
        super().__init__()
        self.path: list[cst.CSTNode] = []  # classes and functions around the node
        self.found: list[tuple[str, int, cst.CSTNode, cst.CSTNode]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, self._SKIPPED) or _is_text(node):
            return False
        position = self.get_metadata(PositionProvider, node, None)
        for changed in self._changes(node):
            line = position.start.line if position else 0
            self.found.append((self._function(), line, node, changed))
        if isinstance(node, (cst.ClassDef, cst.FunctionDef)):
            self.path.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self.path and self.path[-1] is original_node:
            self.path.pop()

    @staticmethod
    def _changes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                yield from operator(node)
        yield from more_operators(node)

    def _function(self) -> str:
        """Name of the outermost function around this place, with its class; "" outside any."""
        names: list[str] = []
        for node in self.path:
            assert isinstance(node, (cst.ClassDef, cst.FunctionDef))
            names.append(node.name.value)
            if isinstance(node, cst.FunctionDef):
                return ".".join(names)
        return ""


def _is_text(node: cst.CSTNode) -> bool:
    """Whether a node is documentation, or the list of a module's public names."""
    if isinstance(node, cst.Expr):
        return isinstance(node.value, cst.BaseString)
    return isinstance(node, cst.Assign) and any(
        isinstance(target.target, cst.Name) and target.target.value == "__all__"
        for target in node.targets
    )


def make_mutants(source: str) -> list[Mutant]:
    """All mutants of a module; changes that come to the same code are one."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    collector = _Collector()
    wrapper.visit(collector)
    seen = {compiled(source)}
    mutants = []
    twins: Counter[tuple[str, str, str]] = Counter()
    for function, line, node, changed in collector.found:
        text = wrapper.module.deep_replace(node, changed).code
        with contextlib.suppress(SyntaxError):
            code = compiled(text)
            if code not in seen:
                seen.add(code)
                place = (function, *_difference(source, text))
                twins[place] += 1
                mutants.append(Mutant(function, line, *place[1:], text, twins[place]))
    return mutants


def compiled(source: str) -> bytes:
    """What Python makes of a module: the same for texts that differ in nothing it runs."""
    return marshal.dumps(compile(source, "module", "exec", optimize=2))


def _difference(old: str, new: str) -> tuple[str, str]:
    lines = list(difflib.ndiff(old.splitlines(), new.splitlines()))
    before, after = (
        " ".join(line[2:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
    )
    return before, after
