"""Read raw text, also from fairseq-generate's output, and write text for tables."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fairseq_kerbs.data.generated import GeneratedOutput, Part, read_generated
from fairseq_kerbs.data.tokens import detokenize, join_subwords, text_in_sentencepieces
from fairseq_kerbs.data.typography import CLOSING_MARKS
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

_SUBWORD = re.compile(r"@@(?: |$)")
_CONTRACTIONS = "'(?:s|t|re|ve|ll|d|m)"
_WITH_SPACE = re.compile(rf" (?:[.,。{CLOSING_MARKS}]|{_CONTRACTIONS})(?: |$)", re.MULTILINE)
# A full stop inside a line may be that of an abbreviation, which tokens keep. Contractions are not
# counted, as Dutch tokens such as foto's look like them.
_WITHOUT_SPACE = re.compile(
    rf"[^\s.](?:,(?!\d)|\.[\"'”’»)\]]*\s*$|[。{CLOSING_MARKS}])", re.MULTILINE
)
_UNKNOWN = "<<unk>>"
"""What fairseq-generate prints for a word of a reference that the dictionary lacks."""
_MARKUP = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*_[]|~$#"}
)


def detokenize_lines(
    lines: Sequence[str],
    *,
    language: str,
    name: str,
    unescape: bool = False,
    sentences: int | None = None,
    fill: bool = False,
    has_tokens: Callable[[Sequence[str]], bool] | None = None,
) -> list[str]:
    """Raw text of fairseq-generate's hypotheses, or of tokenized text with BPE.

    Hypotheses that fairseq has decoded by --bpe or --tokenizer are raw text already.

    Args:
        lines: lines of the file.
        language: language of the text.
        name: name of the file, for messages.
        unescape: undo XML entities.
        sentences: number of sentences that there should be, if it is known.
        fill: texts of sentences that fairseq-generate left out are empty.
        has_tokens: whether a text that fairseq-generate did not write is of tokens. Other texts
            stay as they are. By default all are of tokens.

    Raises:
        UserError: hypotheses are missing, or see :func:`.read_generated`.
    """
    output = read_generated(lines, name)
    if output is None:
        if has_tokens is not None and not unescape and not has_tokens(lines):
            return list(lines)
        pieces = text_in_sentencepieces(lines)
        return [_raw(line, language, unescape, pieces) for line in lines]
    return _raw_texts(output, "H", language, unescape, sentences=sentences, fill=fill)


def has_subwords(lines: Sequence[str]) -> bool:
    """Whether a text is of subwords of BPE or pieces of SentencePiece."""
    return any(map(_SUBWORD.search, lines)) or text_in_sentencepieces(lines)


def tokenized(lines: Sequence[str]) -> bool:
    """Whether a text is of tokens.

    A line has subwords, or more full stops and commas have a space before them than not, where the
    end of an English contraction with a space counts as well. A single space before a comma is an
    error of the writer.
    """
    if has_subwords(lines):
        return True
    with_space, without = _marks(lines)
    return with_space > without


def is_spaced(lines: Sequence[str]) -> bool:
    """Whether a raw text has spaces before its marks, as Hindi often has before ।.

    Most of the marks have one, and there are as many as a tenth of the lines.
    """
    with_space, without = _marks(lines)
    return with_space > without and 10 * with_space >= len(lines)


def _marks(lines: Sequence[str]) -> tuple[int, int]:
    """Number of the marks of :func:`tokenized` with a space before them, and without."""
    text = "\n".join(lines)
    with_space = sum(1 for _ in _WITH_SPACE.finditer(text))
    without = sum(1 for _ in _WITHOUT_SPACE.finditer(text))
    return with_space, without


def read_texts(
    path: Path,
    part: Part,
    language: str,
    unescape: bool = False,
    *,
    sentences: int | None = None,
    fill: bool = False,
) -> list[str]:
    """Raw text of each sentence of a file, which is raw text or fairseq-generate's output.

    Of such an output, lines of the kind ``part`` are joined and detokenized; for ``language`` and
    ``unescape`` see :func:`.detokenize`, for ``sentences`` and ``fill`` :func:`detokenize_lines`. A
    UserError is raised if the file cannot be read or is incomplete, or is raw text with subwords.
    """
    lines = read_lines(path)
    output = read_generated(lines, str(path))
    if output is None:
        refuse_subwords(path, lines)
        return lines
    texts = output.texts(part, sentences, fill=fill)
    unknown = next((n for n, text in enumerate(texts) if _UNKNOWN in text), None)
    if part == "T" and unknown is not None:
        raise UserError(
            f"{path}: the reference T-{unknown} has {_UNKNOWN} for a word that the dictionary "
            "lacks; give the raw reference text"
        )
    return _raw_texts(output, part, language, unescape, sentences=sentences, fill=fill)


def is_other_text(found: Mapping[int, str], lines: Sequence[str]) -> bool:
    """Tell whether most sentences of an output are others than those of a raw text.

    Letters and digits are compared, without case. Sentences with unknown words are not compared.

    Args:
        found: S- or T- lines of fairseq-generate by the number of their sentence, from 0.
        lines: the raw text, a sentence per line.
    """
    pairs = [
        (join_subwords(text), lines[number])
        for number, text in found.items()
        if number < len(lines) and "<unk>" not in text
    ]
    others = sum(_letters(html.unescape(text)) != _letters(line) for text, line in pairs)
    return 2 * others > len(pairs)


def _letters(text: str) -> str:
    """Letters and digits of a text, without case and spaces."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def refuse_subwords(path: Path, lines: Sequence[str]) -> None:
    """Raise a UserError if a text that should be raw has the mark of subwords."""
    marked = next((n for n, line in enumerate(lines, 1) if _SUBWORD.search(line)), None)
    if marked and read_generated(lines, str(path)) is None:
        raise UserError(
            f"{path}, line {marked} has subword marks (@@); give fairseq-generate's unchanged "
            "output, or raw text from 'fairseq-kerbs detokenize'"
        )


def _raw_texts(
    output: GeneratedOutput,
    part: Part,
    language: str,
    unescape: bool,
    *,
    sentences: int | None,
    fill: bool,
) -> list[str]:
    """Raw text of each sentence of an output, see :func:`read_texts`."""
    texts = output.texts(part, sentences, fill=fill)
    pieces = text_in_sentencepieces(texts)
    if output.is_raw:  # by --tokenizer alone, the text of pieces is still in pieces
        return [join_subwords(text) if pieces else text for text in texts]
    return [_raw(text, language, unescape, pieces) for text in texts]


def _raw(tokens: str, language: str, unescape: bool, sentencepiece: bool) -> str:
    if sentencepiece:  # of raw text
        return join_subwords(tokens, sentencepiece)
    words = join_subwords(tokens, sentencepiece)
    return detokenize(words, language=language, unescape=unescape)


def shown(text: str) -> str:
    """A text on one line for display, with control characters replaced by U+FFFD."""
    line = " ".join(text.split())
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" else c for c in line)


def escape_markdown(text: str) -> str:
    """Escape markup in a text for a cell of a Markdown table."""
    return text.translate(_MARKUP)
