"""Moses tokenization by sacremoses, byte pair encoding by subword-nmt, and their inverses.

XML entities are not escaped by default, as fairseq does not need this.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr
from copy import copy
from functools import cache, partial
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import regex

from fairseq_kerbs.data import typography
from fairseq_kerbs.data.languages import base_language
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, iter_lines
from fairseq_kerbs.utils.progress import progress

# a letter with accents, or a syllable of Korean in its letters
_ACCENTED = re.compile("\\w[\u0300-\u036f\u0653-\u0655\u3099\u309a]+|[\u1100-\u11ff]+")
# not after the virama of Malayalam, with which it is a letter
_OUTER_JOINER = re.compile("\\s[\u200c\u200d]+|(?<!\u0d4d)[\u200c\u200d]+(?=\\s|$)")
_INNER_JOINER = re.compile(" ([\u200c\u200d]) ?")  # of signs that are tokens, such as 👩‍👩‍👦
_SPACE_BEFORE_MARK = regex.compile(r" (?=[\p{M}\p{Emoji_Modifier}])")  # of a sign, such as ❤️
_DIRECTIONS = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
# a space without a width, as between words of Khmer; then byte order mark, soft hyphen, word joiner
# and signs of the direction of writing
_INVISIBLE = {0x200B: " ", **dict.fromkeys((0xFEFF, 0xAD, 0x2060, *_DIRECTIONS))}

_MARKS = rf"\p{{M}}\u200c\u200d{typography.PARTS_OF_WORDS}"
_MARK = regex.compile(f"[{_MARKS}]")

_PIECE = re.compile(r"\s*▁(?!▁)")

SENTENCEPIECE_MARK = "▁"
"""The mark of a piece of SentencePiece that begins a word, U+2581."""

SMALL = 5000
"""Maximum number of lines that one process handles faster than several processes start."""


@cache
def _moses(kind: str, language: str) -> Any:
    import sacremoses  # slow to import

    return getattr(sacremoses, kind)(lang=language)


@cache
def _marks_are_letters(language: str) -> Any:
    """A tokenizer as of Moses, for which marks, joiners and hidden signs belong to their letter.

    Moses makes a token of each character that it knows as no letter. This one is slower.
    """
    moses = copy(_moses("MosesTokenizer", language))
    moses.PAD_NOT_ISALNUM = (regex.compile(rf"([^{moses.IsAlnum}{_MARKS}\s.'`,\-])"), r" \1 ")
    return moses


def tokenize(line: str, *, language: str, lowercase: bool = False, escape: bool = False) -> str:
    """Tokens of a raw line, :func:`composed` and joined by spaces.

    Lower-casing follows tokenization.
    """
    language = base_language(language)
    line = _OUTER_JOINER.sub(" ", composed(line))
    line = typography.hide_inner_signs(line, language)
    moses = _moses("MosesTokenizer", language)
    if _MARK.search(line):
        moses = _marks_are_letters(language)
    text = moses.tokenize(line, return_str=True, escape=escape)
    text = _SPACE_BEFORE_MARK.sub("", _INNER_JOINER.sub(r"\1", text))
    text = typography.show_inner_signs(text)
    return lower(text, language) if lowercase else text


def composed(text: str) -> str:
    """Text without invisible characters, where a letter and its accents are one character.

    Joiners stay, as words are spelled with them. A space without a width becomes a space.
    """
    text = text.translate(_INVISIBLE)
    return _ACCENTED.sub(lambda letter: unicodedata.normalize("NFC", letter[0]), text)


def lower(text: str, language: str) -> str:
    """Lower-case text, in Turkish and Azerbaijani with a dotless i.

    ``language`` is a code, or a name of Snowball's such as "turkish".
    """
    if base_language(language) in ("tr", "turkish", "az"):
        text = text.replace("İ", "i").replace("I", "ı")
    return text.lower()


def detokenize(line: str, *, language: str, unescape: bool = False) -> str:
    """Raw text of a line of tokens, by Moses' rules for a ``language``.

    ``unescape`` undoes XML entities of text tokenized with ``escape``.
    """
    language = base_language(language)
    line = typography.join_percent_signs(line, language)
    words = typography.hide_quotes(line).split()
    text = _moses("MosesDetokenizer", language).detokenize(words, unescape=unescape)
    return typography.without_inner_spaces(typography.show_quotes(text), language)


def run_parallel(
    function: Callable[[str], str], lines: Sequence[str], workers: int
) -> Iterable[str]:
    """Apply a function to each line, in ``workers`` processes if there are many lines."""
    from sacremoses.util import parallelize_preprocess

    return parallelize_preprocess(function, lines, workers if len(lines) > SMALL else 1)


def learn_bpe(texts: Sequence[Path], codes: Path, merges: int) -> None:
    """Learn joint BPE merges on tokenized texts, as subword-nmt's ``learn-bpe``.

    A UserError is raised if no pair of symbols occurs twice.
    """
    from subword_nmt import learn_bpe

    learn_bpe.tqdm = partial(progress, title="learn BPE", unit=" merges")
    learned = StringIO()
    try:
        learn_bpe.learn_bpe(chain.from_iterable(map(iter_lines, texts)), learned, merges)
    except ValueError:  # of the maximum of no pairs
        if learned.getvalue().count("\n") > 1:
            raise
    if learned.getvalue().count("\n") < 2:  # the first line is the version
        names = " and ".join(map(str, texts))
        raise UserError(f"{names}: no pair of characters occurs twice in words; give --bpe none")
    with atomic_write(codes) as stream:
        stream.write(learned.getvalue())


def write_vocabulary(text: Path, codes: Path, vocabulary: Path) -> None:
    """Count the subwords of a tokenized text, as subword-nmt's ``get-vocab``."""
    from subword_nmt.get_vocab import get_vocab

    with atomic_write(vocabulary) as stream:
        get_vocab(map(load_bpe(codes).segment, iter_lines(text)), stream)


def load_bpe(codes: Path, vocabulary: Path | None = None, threshold: int = 0) -> Any:
    """subword-nmt's segmenter. Units with a count below ``threshold`` are split further."""
    from subword_nmt.apply_bpe import BPE, read_vocabulary

    if not codes.is_file():
        raise UserError(
            f"{codes}: no such file; copy the folder 'bpe' of 'fairseq-kerbs prepare' there"
        )
    known = read_vocabulary(iter_lines(vocabulary), threshold) if vocabulary and threshold else None
    # subword-nmt prints what is wrong, without the name of the file, and exits
    with codes.open(encoding="utf-8", newline="\n") as stream, redirect_stderr(StringIO()):
        try:
            return BPE(stream, vocab=known)
        except (SystemExit, ValueError, IndexError):
            raise UserError(
                f"{codes} has no merges of BPE, or is damaged; copy it again from the folder of "
                "'fairseq-kerbs prepare'"
            ) from None


def in_sentencepieces(line: str) -> bool:
    """Whether a line is in pieces of SentencePiece, which begin with a mark.

    Several marks are none: ``▁▁▁`` stands for a word to be filled in.
    """
    return _PIECE.match(line) is not None


def text_in_sentencepieces(lines: Iterable[str]) -> bool:
    """Whether half of the lines of a text that are not blank are :func:`in_sentencepieces`."""
    filled = [line for line in lines if line.strip()]
    marked = sum(map(in_sentencepieces, filled))
    return marked > 0 and 2 * marked >= len(filled)


def join_subwords(line: str, sentencepiece: bool | None = None) -> str:
    """Join subwords to words, as fairseq's ``--remove-bpe``.

    Pieces of SentencePiece are joined as by ``=sentencepiece``. Whether a line is in such pieces,
    ``sentencepiece`` says. By default a line is that begins with their mark.
    """
    if sentencepiece is None:
        sentencepiece = in_sentencepieces(line)
    if sentencepiece:
        return "".join(line.split()).replace(SENTENCEPIECE_MARK, " ").strip()
    return (line + " ").replace("@@ ", "").rstrip(" ")
