"""Raw text, one sentence a line: out of fairseq-generate's output, and for people to read."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from fairseq_kerbs.corpora import bpe, moses
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

Part = Literal["S", "T", "H"]
"""Lines of fairseq-generate's output: sources, references (targets), hypotheses."""

_HYPOTHESIS = re.compile(r"H-(\d+)\t(\S+)\t(.*)", re.DOTALL)
_INPUT = re.compile(r"([ST])-(\d+)\t(.*)", re.DOTALL)
_SUBWORD = re.compile(r"@@(?: |$)")
_MARKUP = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*_[]|~$#"}
)
_FORMULA = ("=", "+", "-", "@", "'")


def is_generated(lines: Iterable[str]) -> bool:
    """Whether a text has fairseq-generate's hypothesis lines: ``H-<id>``, score, tokens."""
    return any(_HYPOTHESIS.fullmatch(line) for line in lines)


def best_hypotheses(lines: Iterable[str], name: str) -> list[str]:
    """The best hypothesis of every sentence, in the order of the sentences, as it was printed.

    With ``--nbest`` the first of a sentence's consecutive lines is the best.

    Args:
        lines: the output of fairseq-generate; everything but ``H-`` lines is passed over.
        name: the file's name, for messages.

    Raises:
        UserError: there is no hypothesis, an id is missing, or one occurs in two places.
    """
    found: dict[int, str] = {}
    latest = -1
    for match in filter(None, map(_HYPOTHESIS.fullmatch, lines)):
        sentence = int(match[1])
        if sentence != latest and sentence in found:
            raise UserError(
                f"{name}: sentence {sentence} was generated twice; is this the output of two runs?"
            )
        found.setdefault(sentence, match[3])
        latest = sentence
    if not found:
        raise UserError(
            f"{name} has no hypothesis (no line starts with H-); is it fairseq-generate's output?"
        )
    missing = [i for i in range(max(found) + 1) if i not in found]
    if missing:
        shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise UserError(
            f"{name}: no hypothesis for {len(missing)} of {max(found) + 1} sentences ({shown}); "
            "generate again without leaving sentences out"
        )
    return [found[i] for i in range(len(found))]


def detokenize_lines(
    lines: list[str], *, language: str, name: str, unescape: bool = False
) -> list[str]:
    """Raw text of fairseq-generate's output, or of tokenized text: BPE joined, Moses undone.

    Raises:
        UserError: no Moses rules for the language, or see `best_hypotheses`.
    """
    moses.check_language(language, "--lang")
    tokens = best_hypotheses(lines, name) if is_generated(lines) else lines
    return [moses.detokenize(bpe.undo(t), language=language, unescape=unescape) for t in tokens]


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
    lines, name = read_lines(path), str(path)
    if not lines:
        raise UserError(f"{path} is empty")
    if is_generated(lines):
        moses.check_language(language, "--source-lang" if part == "S" else "--lang")
        tokens = best_hypotheses(lines, name)
        if part != "H":
            matches = filter(None, map(_INPUT.fullmatch, lines))
            found = {int(match[2]): match[3] for match in matches if match[1] == part}
            if found.keys() != set(range(len(tokens))):
                raise UserError(
                    f"{name} has {len(tokens)} hypotheses but {len(found)} lines {part}-; generate "
                    "again without --quiet, or give the text as a file of its own"
                )
            tokens = [found[sentence] for sentence in range(len(tokens))]
        return detokenize_lines(tokens, language=language, name=name, unescape=unescape)
    for number, line in enumerate(lines, start=1):
        if _SUBWORD.search(line):
            raise UserError(
                f"{path}, line {number} has subword marks (@@); give fairseq-generate's output as "
                "it is, or raw text made by 'fairseq-kerbs detokenize'"
            )
    return lines


def named_files(options: Sequence[str]) -> dict[str, Path]:
    """The systems of ``--system NAME=FILE``, in the order given.

    Raises:
        UserError: an option has another form, a name is there twice, or does not begin with a
            letter or digit (a spreadsheet program would take ``+`` for a formula).
    """
    systems: dict[str, Path] = {}
    for option in options:
        name, _, file = option.partition("=")
        name = name.strip()
        if not file:
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


def shown(text: str) -> str:
    """A text as sheets show it: on one line, and in characters that every program keeps.

    White space of any kind becomes single spaces; control characters become U+FFFD.
    """
    lost = {c for c in text if c in "\ufffe\uffff" or unicodedata.category(c) in ("Cc", "Cs")}
    line = " ".join(text.split())
    return line.translate(dict.fromkeys(map(ord, lost), "\ufffd"))


def escape_markdown(text: str) -> str:
    """The text for a cell of a Markdown table, its own markup made harmless."""
    return text.translate(_MARKUP)


def harmless_cell(text: str) -> str:
    """The text for a cell of a CSV file that nobody sends back.

    A text that a spreadsheet program would take for a formula gets an apostrophe in front, as does
    one that begins with an apostrophe, so that it can be taken away again.
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def csv_text(rows: Iterable[Iterable[object]], delimiter: str = ",", end: str = "\n") -> str:
    """The content of a CSV file."""
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=delimiter, lineterminator=end).writerows(rows)
    return stream.getvalue()
