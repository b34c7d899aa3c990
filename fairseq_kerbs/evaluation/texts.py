"""Raw text, one sentence a line: out of fairseq-generate's output, and for people to read."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from fairseq_kerbs.data.tokens import detokenize, join_subwords
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

Part = Literal["S", "T", "H"]
"""Lines of fairseq-generate's output: sources, references (targets), hypotheses."""

# S-<id>, T-<id> and the text; H-<id>, score and text
_LINE = re.compile(r"(?:([ST])-(\d+)|(H)-(\d+)\t\S+)\t(.*)", re.DOTALL)
_SUBWORD = re.compile(r"@@(?: |$)")
_MARKUP = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*_[]|~$#"}
)
_FORMULA = ("=", "+", "-", "@", "'")


def generated_part(lines: Iterable[str], part: Part, name: str) -> list[str] | None:
    """One part of fairseq-generate's output (of the file `name`) as printed, in the corpus's order.

    Of the hypotheses the best: with ``--nbest`` the first of a sentence's consecutive lines.
    Returns one text a sentence; None for a text without hypotheses (``H-<id>``, score, tokens).
    Raises a UserError if a sentence is missing, or the output ends before its last line, which
    fairseq-generate prints where it has references.
    """
    parts: dict[str, dict[int, str]] = {"S": {}, "T": {}, "H": {}}
    lines = list(lines)
    for match in filter(None, map(_LINE.fullmatch, lines)):
        parts[match[1] or match[3]].setdefault(int(match[2] or match[4]), match[5])
    if not parts["H"]:
        return None
    if parts["S"] and parts["T"] and not any(line.startswith("Generate ") for line in lines):
        raise UserError(
            f"{name} was cut off: fairseq-generate's last line ('Generate SUBSET with beam=…') is "
            "missing; generate all sentences again"
        )
    sentences = range(max(parts["H"]) + 1)
    missing = [sentence for sentence in sentences if sentence not in parts[part]]
    if missing:
        raise UserError(
            f"{name} has no line {part}-{missing[0]}, and lacks {len(missing)} of "
            f"{len(sentences)} in all; generate all sentences again, without --quiet"
        )
    return [parts[part][sentence] for sentence in sentences]


def detokenize_lines(
    lines: list[str], *, language: str, name: str, unescape: bool = False
) -> list[str]:
    """Raw text of fairseq-generate's output, or of tokenized text: BPE joined, Moses undone. Raises
    what `generated_part` does."""
    tokens = generated_part(lines, "H", name) or lines
    return [detokenize(join_subwords(t), language=language, unescape=unescape) for t in tokens]


def read_texts(path: Path, part: Part, language: str, unescape: bool = False) -> list[str]:
    """Raw text of a file, one entry a sentence, in the order of the corpus.

    Of fairseq-generate's output the lines of `part` are taken, joined from subwords and
    detokenized; `unescape` undoes XML entities of text that was prepared with ``--escape``. Any
    other file is raw text already, and stays as it is. Raises a UserError if the file is missing,
    empty or not UTF-8, lacks sentences, or holds subwords but is not
    fairseq-generate's output.
    """
    lines, name = read_lines(path), str(path)
    if not lines:
        raise UserError(f"{path} is empty")
    tokens = generated_part(lines, part, name)
    if tokens is None:
        if marked := next((n for n, line in enumerate(lines, 1) if _SUBWORD.search(line)), None):
            raise UserError(
                f"{path}, line {marked} has subword marks (@@); give fairseq-generate's output as "
                "it is, or raw text made by 'fairseq-kerbs detokenize'"
            )
        return lines
    return detokenize_lines(tokens, language=language, name=name, unescape=unescape)


def check_lengths(texts: Mapping[str, Sequence[str]]) -> None:
    """Refuse texts, by the file or system that they come from, that are not parallel."""
    (first, lines), *others = texts.items()
    for name, other in others:
        if len(other) != len(lines):
            raise UserError(
                f"{first} has {len(lines)} lines but {name} has {len(other)}; all must come from "
                "the same test set"
            )


def shown(text: str) -> str:
    """A text as people are shown it: on one line, control characters as U+FFFD."""
    line = " ".join(text.split())
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" else c for c in line)


def escape_markdown(text: str) -> str:
    """The text for a cell of a Markdown table, its own markup made harmless."""
    return text.translate(_MARKUP)


def csv_text(rows: Iterable[Iterable[object]], delimiter: str = ",", end: str = "\n") -> str:
    """The content of a CSV file."""
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=delimiter, lineterminator=end).writerows(rows)
    return stream.getvalue()


def table_as_csv(
    head: Iterable[str], rows: Iterable[Iterable[object]], digits: int | None = None
) -> str:
    """A table, which nobody sends back, as CSV; None is an empty cell.

    A text that a spreadsheet program would take for a formula gets an apostrophe in front, as does
    one that begins with an apostrophe, so that it can be taken away again. With ``digits``
    floating-point numbers have so many significant digits.
    """

    def cell(value: object) -> object:
        if isinstance(value, float) and digits is not None:
            return f"{value:.{digits}g}"
        return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value

    return csv_text([cell(value) for value in row] for row in (head, *rows))
