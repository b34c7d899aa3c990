"""Moses tokenization and its undoing, by sacremoses.

Text is not escaped by default: fairseq needs no XML entities, and what was never escaped cannot be
left escaped. Detokenization undoes entities only where tokenization made them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import has_endless_word


def check_language(language: str, flag: str) -> None:
    """Raise a UserError that names `flag` if sacremoses has no rules for the language."""
    from sacremoses.corpus import NonbreakingPrefixes

    known = {*NonbreakingPrefixes().available_langs.values(), "ja", "ko"}
    if language not in known:
        raise UserError(
            f"{flag}: Moses has no rules for language '{language}'; "
            f"known are {' '.join(sorted(known))}"
        )


@cache
def _moses(kind: str, language: str) -> Any:
    import sacremoses  # slow to import

    return getattr(sacremoses, kind)(lang=language)


def tokenize(line: str, *, language: str, lowercase: bool = False, escape: bool = False) -> str:
    """Tokens of a raw line, joined by spaces; lower-cased after tokenization if asked. A line with
    an endless word, which Moses would need hours for, becomes an empty one."""
    if has_endless_word(line):
        return ""
    text = _moses("MosesTokenizer", language).tokenize(line, return_str=True, escape=escape)
    return text.lower() if lowercase else text


def detokenize(line: str, *, language: str, unescape: bool = False) -> str:
    """The raw text of a line of tokens; `unescape` for text tokenized with `escape`."""
    return _moses("MosesDetokenizer", language).detokenize(line.split(), unescape=unescape)
