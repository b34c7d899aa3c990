"""Human evaluation (Section 5 of the paper): drawing items, blinding systems, and the key.

Raters see an input and the answers of all systems to it under letters; which letter is which
system is shuffled for each item anew and stands in the key alone. All raters see the same items and
letters, so that their scores can be compared row by row. The key also holds a digest of every row,
by which a changed text is found when the sheets come back.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from string import ascii_uppercase
from typing import Any

from fairseq_kerbs.errors import UserError
from fairseq_kerbs.evaluation.texts import check_lengths

SCORES = (0, 1, 2)
STANDARD = (
    "2: the response is fluent, and it is relevant to the input",
    "1: the response is fluent or relevant to the input, but only one of the two",
    "0: the response is neither fluent nor relevant to the input",
)
"""What the scores mean: the standard of the paper's appendix, in our words and in ASCII."""

LONGEST = 30_000  # spreadsheet programs cut cells after 32,767 characters
_WHAT = "fairseq-kerbs human-eval key"
_VERSION = 1


@dataclass(frozen=True)
class Answer:
    """One row of a sheet: what one system answered.

    Attributes:
        item: number of the item, from 1.
        letter: letter of the system in this item.
        line: line of the files that the item comes from, from 1.
        system: the system's name.
        source: input text, as shown.
        text: answer, as shown.
    """

    item: int
    letter: str
    line: int
    system: str
    source: str
    text: str


@dataclass(frozen=True)
class KeyRow:
    """What the key knows of a row: :class:`Answer` with a digest in the place of texts."""

    item: int
    letter: str
    line: int
    system: str
    digest: str


@dataclass(frozen=True)
class Key:
    """Which letter is which system, and what every row must look like.

    Attributes:
        systems: names, in the order in which they were given.
        rows: one an item and system.
        raters: number of sheets made.
        seed: what items and letters were drawn with.
        files: SHA-256 of each input file, by its path as given.
    """

    systems: tuple[str, ...]
    rows: tuple[KeyRow, ...]
    raters: int
    seed: int
    files: dict[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Twelve hexadecimal digits that stand on every sheet of this key."""
        return hashlib.sha256(self._content().encode()).hexdigest()[:12]

    def _content(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def as_json(self) -> str:
        """The key's file."""
        content = {"what": _WHAT, "version": _VERSION, "identity": self.identity, **asdict(self)}
        return json.dumps(content, indent=1, ensure_ascii=False)


def shown(text: str) -> str:
    """A text as sheets show it: on one line, and in characters that every program keeps.

    White space of any kind becomes single spaces; control characters become U+FFFD.
    """
    line = " ".join(text.split())
    return "".join("\ufffd" if _lost(character) else character for character in line)


def _lost(character: str) -> bool:
    return character in "\ufffe\uffff" or unicodedata.category(character) in ("Cc", "Cs")


def row_digest(item: int, letter: str, source: str, text: str) -> str:
    """Sixteen hexadecimal digits of a row as shown."""
    row = json.dumps([item, letter, source, text])
    return hashlib.sha256(row.encode()).hexdigest()[:16]


def draw_answers(
    sources: Sequence[str], systems: Mapping[str, Sequence[str]], number: int, seed: int
) -> list[Answer]:
    """Draw items and give every system a letter in each, shuffled anew.

    Lines without a source are never drawn.

    Args:
        sources: inputs, one a line.
        systems: answers of each system, parallel to `sources`.
        number: items to draw.
        seed: same seed and files, same items and letters.

    Returns:
        rows in the order of items and letters.

    Raises:
        UserError: there is no system or are more than 26, numbers of lines differ, there are fewer
            than `number` lines with a source, or a drawn text is too long for a cell.
    """
    if not 1 <= len(systems) <= len(ascii_uppercase):
        raise UserError(f"--system: name between 1 and {len(ascii_uppercase)} systems")
    check_lengths({"--source": sources, **{f"--system {n}": t for n, t in systems.items()}})
    filled = [index for index, source in enumerate(sources) if shown(source)]
    if not 1 <= number <= len(filled):
        raise UserError(
            f"--items is {number}, but must lie between 1 and {len(filled)}, the number of lines "
            "with a source"
        )
    rng = Random(seed)
    answers: list[Answer] = []
    for item, index in enumerate(rng.sample(filled, number), start=1):
        order = list(systems)
        rng.shuffle(order)
        for letter, system in zip(ascii_uppercase, order, strict=False):
            texts = shown(sources[index]), shown(systems[system][index])
            if max(map(len, texts)) > LONGEST:
                raise UserError(
                    f"line {index + 1} has more than {LONGEST} characters in --source or --system "
                    f"{system}; a cell of a spreadsheet holds no more"
                )
            answers.append(Answer(item, letter, index + 1, system, *texts))
    return answers


def make_key(
    answers: Sequence[Answer],
    systems: Sequence[str],
    *,
    raters: int,
    seed: int,
    files: Mapping[str, str] | None = None,
) -> Key:
    """The key of drawn answers.

    Raises:
        UserError: there is to be no rater.
    """
    if raters < 1:
        raise UserError(f"--raters is {raters}, but there must be at least 1")
    rows = tuple(
        KeyRow(a.item, a.letter, a.line, a.system, row_digest(a.item, a.letter, a.source, a.text))
        for a in answers
    )
    return Key(tuple(systems), rows, raters, seed, dict(files or {}))


def read_key(path: Path) -> Key:
    """Read a key's file.

    Raises:
        UserError: it is missing, no key, of another version, or was changed.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"--key: {path}: no such file") from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"--key: {path} cannot be read as JSON ({error}); name the exported key"
        ) from None
    if not isinstance(content, dict) or content.get("what") != _WHAT:
        raise UserError(f"--key: {path} is no key of 'fairseq-kerbs human-eval export'")
    if content.get("version") != _VERSION:
        raise UserError(f"--key: {path} is of version {content.get('version')}, not {_VERSION}")
    try:
        key = Key(
            systems=tuple(content["systems"]),
            rows=tuple(KeyRow(**row) for row in content["rows"]),
            raters=content["raters"],
            seed=content["seed"],
            files=content["files"],
        )
        intact = key.identity == content["identity"]
    except (KeyError, TypeError):
        intact = False
    if not intact:
        raise UserError(f"--key: {path} was changed since it was written; take the original")
    return key
