"""Moses tokenization and its undoing, by sacremoses.

Text is not escaped by default: fairseq needs no XML entities, and what was never escaped cannot be
left escaped. Detokenization undoes entities only where tokenization made them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from sacremoses import MosesDetokenizer, MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import has_endless_word

LANGUAGES = frozenset(NonbreakingPrefixes().available_langs.values()) | {"ja", "ko"}
"""Codes of the languages that sacremoses has rules for."""


def check_language(language: str, flag: str) -> None:
    """Raise a UserError that names `flag` if sacremoses has no rules for the language."""
    if language not in LANGUAGES:
        raise UserError(
            f"{flag}: Moses has no rules for language '{language}'; "
            f"known are {' '.join(sorted(LANGUAGES))}"
        )


@cache
def _tokenizer(language: str) -> MosesTokenizer:
    return MosesTokenizer(lang=language)


@cache
def _detokenizer(language: str) -> MosesDetokenizer:
    return MosesDetokenizer(lang=language)


def tokenize(line: str, *, language: str, lowercase: bool = False, escape: bool = False) -> str:
    """Tokens of a raw line, joined by spaces; lower-cased after tokenization if asked."""
    text: str = _tokenizer(language).tokenize(line, return_str=True, escape=escape)
    return text.lower() if lowercase else text


def detokenize(line: str, *, language: str, unescape: bool = False) -> str:
    """The raw text of a line of tokens; `unescape` for text tokenized with `escape`."""
    text: str = _detokenizer(language).detokenize(line.split(), unescape=unescape)
    return text


def make_tokenizer(language: str, lowercase: bool, escape: bool) -> Callable[[str], str]:
    """`tokenize` with its settings fixed, for `parallel_map`.

    A line with an endless word, which Moses would need hours for, becomes an empty one.
    """
    moses = partial(tokenize, language=language, lowercase=lowercase, escape=escape)
    return lambda line: "" if has_endless_word(line) else moses(line)
