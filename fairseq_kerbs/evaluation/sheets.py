"""Human evaluation (Section 5 of the paper): drawing items, blinding systems, sheets and their key.

Raters see an input and the answers of all systems to it under letters; which letter is which
system is shuffled for each item anew and stands in the key alone. All raters see the same items and
letters, so that their scores can be compared row by row. The key also holds a digest of every row,
by which a changed text is found when the sheets come back.

The sheets are CSV files that pass through any spreadsheet program and are checked after it:

- The scoring standard stands in rows of one cell at the head, each beginning with ``#``. They are
  plain ASCII cells that no program interprets, and are checked when the sheet is read.
- Texts stand in square brackets, so that no program takes one for a formula (``=1+1``, ``-no``,
  ``@you``), a number or a date (``1/2``) and rewrites it. The brackets are not part of the text.
- UTF-8 with a byte order mark: without one, Excel reads a CSV file in the code page of its system
  and spoils every other letter; all other programs that matter accept the mark.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from string import ascii_uppercase
from typing import Any

from fairseq_kerbs.evaluation.texts import check_lengths, csv_text, shown
from fairseq_kerbs.utils.errors import UserError

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
class KeyRow:
    """What the key knows of a row of a sheet."""

    item: int  # from 1
    letter: str  # of the system in this item
    line: int  # of the files, from 1
    system: str
    digest: str  # of the row as shown


@dataclass(frozen=True)
class Answer(KeyRow):
    """One row of a sheet: what one system answered, as shown."""

    source: str
    text: str


@dataclass(frozen=True)
class Key:
    """Which letter is which system, and what every row must look like."""

    systems: tuple[str, ...]  # in the order in which they were given
    rows: tuple[KeyRow, ...]  # one an item and system
    raters: int  # number of sheets made
    seed: int  # what items and letters were drawn with
    files: dict[str, str] = field(default_factory=dict)  # SHA-256 by path as given

    @property
    def identity(self) -> str:
        """Twelve hexadecimal digits that stand on every sheet of this key."""
        return _digest(json.dumps(asdict(self), sort_keys=True), 12)

    def as_json(self) -> str:
        """The key's file."""
        content = {"what": _WHAT, "version": _VERSION, "identity": self.identity, **asdict(self)}
        return json.dumps(content, indent=1, ensure_ascii=False)


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _row_digest(item: int, letter: str, source: str, text: str) -> str:
    return _digest(json.dumps([item, letter, source, text]), 16)


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
            digest = _row_digest(item, letter, *texts)
            answers.append(Answer(item, letter, index + 1, system, digest, *texts))
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
    rows = tuple(KeyRow(a.item, a.letter, a.line, a.system, a.digest) for a in answers)
    return Key(tuple(systems), rows, raters, seed, dict(files or {}))


def read_key(path: Path) -> Key:
    """Read a key's file.

    Raises:
        UserError: it is missing, no key, of another version, or was changed.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = f"cannot be read as JSON ({error})"
        raise UserError(f"--key: {path} {why}; name the exported key") from None
    if not isinstance(content, dict) or content.get("what") != _WHAT:
        raise UserError(f"--key: {path} is no key of 'fairseq-kerbs human-eval export'")
    if content.get("version") != _VERSION:
        raise UserError(f"--key: {path} is of version {content.get('version')}, not {_VERSION}")
    try:
        rows = tuple(KeyRow(**row) for row in content["rows"])
        numbers = content["raters"], content["seed"]
        key = Key(tuple(content["systems"]), rows, *numbers, content["files"])
        intact = key.identity == content["identity"]
    except (KeyError, TypeError):
        intact = False
    if not intact:
        raise UserError(f"--key: {path} was changed since it was written; take the original")
    return key


# --- sheets ----------------------------------------------------------------------------------

HEADER = ("item", "answer", "input", "response", "score")
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}
_IDENTITY = re.compile(r"# Sheet ([0-9a-f]{12})-(\d+)\b.*")


@dataclass(frozen=True)
class Sheet:
    """A sheet that came back complete and unaltered."""

    path: Path
    rater: int  # from 1
    scores: dict[tuple[int, str], int]  # of each (item, letter)


def head_lines(identity: str, rater: int, raters: int) -> list[str]:
    """The rows above the table, one cell each."""
    lines = [
        f"Sheet {identity}-{rater} of {raters}: scores of responses",
        "Read the input. Then give each response to it a score of 0, 1 or 2 in the column 'score':",
        *STANDARD,
        "Texts stand in square brackets; the brackets are not part of them.",
        "Leave no score out, and change nothing else. Save the sheet as CSV (UTF-8).",
    ]
    return [f"# {line}" for line in lines]


def sheet_text(answers: Sequence[Answer], key: Key, rater: int, delimiter: str = ",") -> str:
    """The content of one rater's file, byte order mark included, scores empty."""
    rows: list[Sequence[object]] = [[line] for line in head_lines(key.identity, rater, key.raters)]
    rows.append(HEADER)
    rows += [[a.item, a.letter, f"[{a.source}]", f"[{a.text}]", ""] for a in answers]
    return "\ufeff" + csv_text(rows, delimiter, "\r\n")


def instructions(key: Key, items: int, delimiter: str) -> str:
    """A text for raters that goes beside the sheets."""
    name = next(name for name, sign in DELIMITERS.items() if sign == delimiter)
    standard = "\n".join(f"  {line}" for line in STANDARD)
    return f"""How to score

Your sheet has {items} inputs, each with {len(key.systems)} responses. Score every
response by itself, in the column 'score':

{standard}

The letters A, B, ... are given anew for every input; they say nothing about who wrote a
response. The same response may come twice. Texts stand in square brackets, which are
not part of them. An empty pair of brackets is an empty response.

Score alone, without the other raters. Leave no score out. Change nothing but the column
'score'; the order of rows may change.

The file is CSV in UTF-8, its cells separated by a {name}; a spreadsheet program opens
it. Save it as CSV (UTF-8) again, not as a workbook.
"""


def read_sheet(path: Path, key: Key) -> Sheet:
    """Read a sheet that a rater filled in, and check every row against the key.

    Comma, semicolon or tab, any line end, a byte order mark, rows in another order, empty rows and
    empty cells at the end of rows are all accepted.

    Raises:
        UserError: it is no sheet, belongs to another key, its head was changed, or a row is
            missing, there twice, unknown, changed, without a score or with another than 0, 1, 2
            (file and row named).
    """
    rows = _table(path)
    head = [cells[0] for _, cells in rows if cells[0].startswith("#")]
    rater = _check_head(head, key, path)
    (first, names), *table = [row for row in rows if not row[1][0].startswith("#")]
    if tuple(names) != HEADER:
        raise UserError(f"{path}, row {first} stands above the names of the columns")
    wanted = {(str(row.item), row.letter): row for row in key.rows}
    seen: dict[tuple[str, str], int] = {}
    scores: dict[tuple[int, str], int] = {}
    faults: list[str] = []

    def refuse(row: str, why: str) -> None:
        faults.append(f"{row}{why}")

    for number, cells in table:
        item, letter, source, text, score, *others = cells + [""] * (len(HEADER) - len(cells))
        place, row = (item, letter), f"row {number} (item {item}, answer {letter})"
        if place not in wanted:
            refuse(f"row {number}", f": no item and answer '{item}, {letter}' were handed out")
        elif (other := seen.setdefault(place, number)) != number:
            refuse(row, f" is there twice, first in row {other}")
        elif wanted[place].digest != _row_digest(
            wanted[place].item, letter, _unframed(source), _unframed(text)
        ):
            refuse(row, ": the input or the response was changed")
        elif others:
            refuse(row, f": there is something beside the score ('{others[-1]}')")
        elif not score:
            refuse(row, ": the score is missing")
        elif score not in map(str, SCORES):
            refuse(row, f": the score '{score}' is not 0, 1 or 2")
        else:
            scores[wanted[place].item, letter] = int(score)
    for item, letter in wanted:
        if (item, letter) not in seen:
            refuse(f"the row of item {item}, answer {letter}", " is missing")
    if faults:
        more = f" ({len(faults) - 1} more rows have faults)" if len(faults) > 1 else ""
        raise UserError(f"{path}, {faults[0]}{more}")
    return Sheet(path, rater, scores)


def _table(path: Path) -> list[tuple[int, list[str]]]:
    """Rows that are not empty, with their numbers, by the delimiter that gives the header.

    Cells come without space around them, and rows without empty cells at the end.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    if content.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise UserError(f"{path} is a workbook; save it as CSV (UTF-8)")
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not in UTF-8; save it as CSV (UTF-8)") from None
    for delimiter in DELIMITERS.values():
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        rows = []
        try:
            for number, cells in enumerate(reader, start=1):
                filled = [place for place, cell in enumerate(cells, start=1) if cell.strip()]
                if filled:
                    rows.append((number, [cell.strip() for cell in cells[: filled[-1]]]))
        except csv.Error:
            continue
        if any(tuple(cells) == HEADER for _, cells in rows):
            return rows
    raise UserError(
        f"{path} has no row with the names {', '.join(HEADER)} in separate cells; save the sheet "
        "as CSV with commas, semicolons or tabs, or write sheets for your spreadsheet program with "
        "export --delimiter"
    )


def _check_head(head: Sequence[str], key: Key, path: Path) -> int:
    """The rater's number; the head must be as it was written."""
    found = [match for match in map(_IDENTITY.fullmatch, head) if match is not None]
    if len(found) != 1:
        raise UserError(
            f"{path} has {len(found)} rows '# Sheet …' at its head instead of one; is it a sheet "
            "of 'human-eval export'?"
        )
    identity, rater = found[0][1], int(found[0][2])
    if identity != key.identity:
        raise UserError(
            f"{path} is a sheet of another key: it says {identity}, the key {key.identity}"
        )
    for line in head_lines(key.identity, rater, key.raters):
        if line not in head or not 1 <= rater <= key.raters:
            raise UserError(f"{path}: the row '{line}' at its head is missing or was changed")
    return rater


def _unframed(cell: str) -> str:
    """The text in a cell; what is not in brackets stays different from every text handed out."""
    framed = cell.startswith("[") and cell.endswith("]") and len(cell) > 1
    return shown(cell[1:-1]) if framed else f"\n{cell}"
