"""Apply edits to a source tree, each with the number of places that it must find.

A rule has `apply(source) -> (edited source, number of places)` and a `clue`, words without which a
source has no place for it. An `Edit` says which files a rule is for and how many places it must
find there in all; any other number stops the build, so that a source which is not the expected one
is never half edited.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Edited = tuple[str, int]


class EditError(Exception):
    """The source is not what an edit was written for."""


class Rule(Protocol):
    """What every rule offers."""

    @property
    def clue(self) -> str:
        """Return words that every source with a place for the rule contains."""

    def apply(self, source: str) -> Edited:
        """Return the edited source and the number of places changed."""


@dataclass(frozen=True)
class Edit:
    """A rule, the files it is for (a glob below the top folder) and the places it must find."""

    files: str
    rule: Rule
    places: int


def apply_edits(tree: Path, edits: Sequence[Edit]) -> None:
    """Apply `edits` in turn to the source below `tree`.

    Raises:
        EditError: an edit found another number of places than it names, or broke the syntax.
    """
    for edit in edits:
        places = 0
        for path in sorted(tree.glob(edit.files)):
            source = path.read_text(encoding="utf-8")
            if edit.rule.clue not in source:
                continue  # reading the syntax of every file for every rule would take its time
            edited, found = edit.rule.apply(source)
            if found:
                _check_syntax(edited, path, edit.rule)
                path.write_text(edited, encoding="utf-8")
            places += found
        if places != edit.places:
            raise EditError(
                f"{edit.rule} found {places} places instead of {edit.places} in {edit.files}: this "
                "is not the source of fairseq that the edit was written for"
            )


def _check_syntax(source: str, path: Path, rule: Rule) -> None:
    if path.suffix != ".py":
        return
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise EditError(f"{rule} leaves {path.name} with a syntax error: {error}") from None
