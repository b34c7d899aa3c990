"""The raters' sheets: CSV files that pass through any spreadsheet program and are checked after it.

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
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_kerbs.errors import UserError
from fairseq_kerbs.evaluation.human import SCORES, STANDARD, Answer, Key, row_digest, shown

HEADER = ("item", "answer", "input", "response", "score")
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}
_MARK = "#"
_IDENTITY = re.compile(r"# Sheet ([0-9a-f]{12})-(\d+)\b.*")

Row = list[str]


@dataclass(frozen=True)
class Sheet:
    """A sheet that came back complete and unaltered.

    Attributes:
        path: its file.
        rater: number of the rater, from 1.
        scores: score of each (item, letter).
    """

    path: Path
    rater: int
    scores: dict[tuple[int, str], int]


def head_lines(identity: str, rater: int, raters: int) -> list[str]:
    """The rows above the table, one cell each."""
    lines = [
        f"Sheet {identity}-{rater} of {raters}: scores of responses",
        "Read the input. Then give each response to it a score of 0, 1 or 2 in the column 'score':",
        *STANDARD,
        "Texts stand in square brackets; the brackets are not part of them.",
        "Leave no score out, and change nothing else. Save the sheet as CSV (UTF-8).",
    ]
    return [f"{_MARK} {line}" for line in lines]


def sheet_text(answers: Sequence[Answer], key: Key, rater: int, delimiter: str = ",") -> str:
    """The content of one rater's file, byte order mark included, scores empty."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=delimiter, lineterminator="\r\n")
    for line in head_lines(key.identity, rater, key.raters):
        writer.writerow([line])
    writer.writerow(HEADER)
    for answer in answers:
        texts = f"[{answer.source}]", f"[{answer.text}]"
        writer.writerow([answer.item, answer.letter, *texts, ""])
    return "\ufeff" + stream.getvalue()


def instructions(key: Key, items: int, delimiter: str) -> str:
    """A text for raters that goes beside the sheets."""
    name = next(name for name, sign in DELIMITERS.items() if sign == delimiter)
    standard = "\n".join(f"  {line}" for line in STANDARD)
    return (
        f"How to score\n\n"
        f"Your sheet has {items} inputs, each with {len(key.systems)} responses. Score every\n"
        f"response by itself, in the column 'score':\n\n{standard}\n\n"
        "The letters A, B, ... are given anew for every input; they say nothing about who wrote a\n"
        "response. The same response may come twice. Texts stand in square brackets, which are\n"
        "not part of them. An empty pair of brackets is an empty response.\n\n"
        "Score alone, without the other raters. Leave no score out. Change nothing but the column\n"
        "'score'; the order of rows may change.\n\n"
        f"The file is CSV in UTF-8, its cells separated by a {name}; a spreadsheet program opens\n"
        "it. Save it as CSV (UTF-8) again, not as a workbook.\n"
    )


def read_sheet(path: Path, key: Key) -> Sheet:
    """Read a sheet that a rater filled in, and check every row against the key.

    Comma, semicolon or tab, any line end, a byte order mark, rows in another order, empty rows and
    empty cells at the end of rows are all accepted.

    Raises:
        UserError: it is no sheet, belongs to another key, its head was changed, or a row is
            missing, there twice, unknown, changed, without a score or with another than 0, 1, 2
            (file and row named).
    """
    rows = _table(_decode(path), path)
    comments = [cells[0] for _, cells in rows if cells[0].startswith(_MARK)]
    rater = _check_head(comments, key, path)
    table = [(number, cells) for number, cells in rows if not cells[0].startswith(_MARK)]
    if tuple(table[0][1]) != HEADER:
        raise UserError(f"{path}, row {table[0][0]} stands above the names of the columns")
    scores, faults = _check_rows(table[1:], key)
    if faults:
        more = f" ({len(faults) - 1} more rows have faults)" if len(faults) > 1 else ""
        raise UserError(f"{path}, {faults[0]}{more}")
    return Sheet(path, rater, scores)


def _decode(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    if content.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise UserError(f"{path} is a workbook; save it as CSV (UTF-8)")
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not in UTF-8; save it as CSV (UTF-8)") from None


def _table(text: str, path: Path) -> list[tuple[int, Row]]:
    """Rows that are not empty, with their numbers, by the delimiter that gives the header."""
    for delimiter in DELIMITERS.values():
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        try:
            rows = [(number, _trimmed(cells)) for number, cells in enumerate(reader, start=1)]
        except csv.Error:
            continue
        if any(tuple(cells) == HEADER for _, cells in rows):
            return [(number, cells) for number, cells in rows if cells]
    raise UserError(
        f"{path} has no row with the names {', '.join(HEADER)} in separate cells; save the sheet "
        "as CSV with commas, semicolons or tabs, or write sheets for your spreadsheet program with "
        "export --delimiter"
    )


def _trimmed(cells: Row) -> Row:
    """Cells without space around them, and without empty ones at the end."""
    cells = [cell.strip() for cell in cells]
    while cells and not cells[-1]:
        cells.pop()
    return cells


def _check_head(comments: Sequence[str], key: Key, path: Path) -> int:
    """The rater's number; the head must be as it was written."""
    found = [match for match in map(_IDENTITY.fullmatch, comments) if match is not None]
    if len(found) != 1:
        raise UserError(
            f"{path} has {len(found)} rows '# Sheet …' at its head instead of one; is it a sheet "
            "of 'human-eval export'?"
        )
    if found[0][1] != key.identity:
        raise UserError(
            f"{path} is a sheet of another key: it says {found[0][1]}, the key {key.identity}"
        )
    rater = int(found[0][2])
    for line in head_lines(key.identity, rater, key.raters):
        if line not in comments or not 1 <= rater <= key.raters:
            raise UserError(f"{path}: the row '{line}' at its head is missing or was changed")
    return rater


def _check_rows(
    table: Sequence[tuple[int, Row]], key: Key
) -> tuple[dict[tuple[int, str], int], list[str]]:
    """Scores by (item, letter), and what is wrong, one sentence a row."""
    digests = {(row.item, row.letter): row.digest for row in key.rows}
    first: dict[tuple[int, str], int] = {}
    scores: dict[tuple[int, str], int] = {}
    faults: list[str] = []
    for number, cells in table:
        place = _place(cells)
        if place not in digests or place is None:
            named = ", ".join(cells[:2])
            faults.append(f"row {number}: no item and answer '{named}' were handed out")
            continue
        where = f"row {number} (item {place[0]}, answer {place[1]})"
        if place in first:
            faults.append(f"{where} is there twice, first in row {first[place]}")
            continue
        first[place] = number
        fault = _fault(cells, digests[place])
        if fault is None:
            scores[place] = int(cells[4])
        else:
            faults.append(f"{where}: {fault}")
    faults += [
        f"the row of item {item}, answer {letter} is missing"
        for item, letter in digests
        if (item, letter) not in first
    ]
    return scores, faults


def _place(cells: Row) -> tuple[int, str] | None:
    if len(cells) < 2 or not re.fullmatch("[0-9]{1,9}", cells[0]):
        return None
    return int(cells[0]), cells[1]


def _fault(cells: Row, digest: str) -> str | None:
    """What is wrong with a row that has a known item and answer."""
    item, letter, source, text, score, *others = [*cells, "", "", ""][: max(5, len(cells))]
    if row_digest(int(item), letter, _unframed(source), _unframed(text)) != digest:
        return "the input or the response was changed"
    if others:
        return f"there is something beside the score ('{others[-1]}')"
    if not score:
        return "the score is missing"
    if score not in map(str, SCORES):
        return f"the score '{score}' is not 0, 1 or 2"
    return None


def _unframed(cell: str) -> str:
    """The text in a cell; what is not in brackets stays different from every text handed out."""
    framed = cell.startswith("[") and cell.endswith("]") and len(cell) > 1
    return shown(cell[1:-1]) if framed else f"\n{cell}"
