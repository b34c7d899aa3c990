"""Texts that people are to read: sources, references and answers, raw, one a line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from fairseq_kerbs.corpora import moses
from fairseq_kerbs.corpora.files import read_lines
from fairseq_kerbs.errors import UserError
from fairseq_kerbs.evaluation.generated import best_hypotheses, detokenize_lines, is_generated

Part = Literal["S", "T", "H"]
"""Lines of fairseq-generate's output: sources, references (targets), hypotheses."""

_INPUT = re.compile(r"([ST])-(\d+)\t(.*)", re.DOTALL)
_SUBWORD = re.compile(r"@@(?: |$)")
_MARKUP = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*_[]|~$#"}
)
_FORMULA = ("=", "+", "-", "@", "'")
_FLAGS = {"S": "--source-lang", "T": "--lang", "H": "--lang"}


def read_texts(path: Path, part: Part, language: str, unescape: bool = False) -> list[str]:
    """Raw text of a file, one entry a sentence, in the order of the corpus.

    Of fairseq-generate's output the lines of `part` are taken, joined from subwords and
    detokenized. Any other file is raw text already, and stays as it is.

    Args:
        path: the file.
        part: what to take of fairseq-generate's output.
        language: language of the text, for the rules that undo tokenization.
        unescape: undo XML entities, for text that was prepared with ``--escape``.

    Raises:
        UserError: the file is missing, empty or not UTF-8, holds subwords but is not
            fairseq-generate's output, has no rules for its language, or lacks sentences.
    """
    lines = read_lines(path)
    if not lines:
        raise UserError(f"{path} is empty")
    if is_generated(lines):
        moses.check_language(language, _FLAGS[part])
        name = str(path)
        tokens = best_hypotheses(lines, name) if part == "H" else _inputs(lines, part, name)
        return detokenize_lines(tokens, language=language, name=name, unescape=unescape)
    for number, line in enumerate(lines, start=1):
        if _SUBWORD.search(line):
            raise UserError(
                f"{path}, line {number} has subword marks (@@); give fairseq-generate's output as "
                "it is, or raw text made by 'fairseq-kerbs detokenize'"
            )
    return lines


def _inputs(lines: Sequence[str], part: Part, name: str) -> list[str]:
    """Tokens of the S- or T- lines, in order."""
    found = {
        int(match[2]): match[3]
        for match in map(_INPUT.fullmatch, lines)
        if match is not None and match[1] == part
    }
    expected = len(best_hypotheses(lines, name))
    if sorted(found) != list(range(expected)):
        raise UserError(
            f"{name} has {expected} hypotheses but {len(found)} lines {part}-; generate again "
            "without --quiet, or give the text as a file of its own"
        )
    return [found[sentence] for sentence in range(expected)]


def named_files(options: Sequence[str]) -> dict[str, Path]:
    """The systems of ``--system NAME=FILE``, in the order given.

    Raises:
        UserError: an option has another form, a name is there twice, or does not begin with a
            letter or digit (a spreadsheet program would take ``+`` for a formula).
    """
    systems: dict[str, Path] = {}
    for option in options:
        name, separator, file = option.partition("=")
        name = name.strip()
        if not separator or not file:
            raise UserError(f"--system {option}: write NAME=FILE")
        if not name[:1].isalnum() or not name.isprintable():
            raise UserError(f"--system {option}: the name must begin with a letter or digit")
        if name in systems:
            raise UserError(f"--system {name} is there twice; names must differ")
        systems[name] = Path(file)
    return systems


def check_lengths(texts: Mapping[str, Sequence[str]]) -> None:
    """Refuse files that are not parallel.

    Args:
        texts: lines by what they come from (a file's name, or a system's).

    Raises:
        UserError: two of them differ in their number of lines; both are named.
    """
    (first, lines), *others = texts.items()
    for name, other in others:
        if len(other) != len(lines):
            raise UserError(
                f"{first} has {len(lines)} lines but {name} has {len(other)}; all must come from "
                "the same test set"
            )


def escape_markdown(text: str) -> str:
    """The text for a cell of a Markdown table, its own markup made harmless."""
    return text.translate(_MARKUP)


def harmless_cell(text: str) -> str:
    """The text for a cell of a CSV file that nobody sends back.

    A text that a spreadsheet program would take for a formula gets an apostrophe in front, as does
    one that begins with an apostrophe, so that it can be taken away again.
    """
    return f"'{text}" if text.startswith(_FORMULA) else text
