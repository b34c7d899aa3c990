"""Signs that Moses' rules split from words or leave with spaces: apostrophes, quotes, full stops.

Moses knows the signs of ASCII. Before its rules, other signs are replaced by characters that no
text has (Unicode's noncharacters), and shown again behind them.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import regex

# ------------------------------------------------------------------ inside a word

_CODES = "az be br ca cy eo eu ga gn haw ht ku mt nl oc pt qu sm so sw tk tr uk uz wo"
_INNER_SIGNS = {
    **dict.fromkeys(("he", "yi"), "'’\"׳״"),  # צה"ל
    "fi": "’:",  # EU:n
    "sv": "’:",
    **dict.fromkeys(_CODES.split(), "'’‘·"),  # п'ять, İstanbul'da, auto's, col·lecció
}
"""Signs that belong to a word between its letters, by language. In others it is ’ alone: Moses has
rules for ' of English, French and Italian, but not for this apostrophe."""
_HIDDEN = {ord(sign): chr(0xFDD0 + number) for number, sign in enumerate("'’‘·:\"׳״")}
_SHOWN = {ord(hidden): chr(sign) for sign, hidden in _HIDDEN.items()}
PARTS_OF_WORDS = "".join(_HIDDEN.values()) + r"՛՜՞\U0001f1e6-\U0001f1ff\p{Emoji_Modifier}"
"""Characters that belong to what is before them, as a class of ``regex``: hidden signs, Armenian
marks of the sentence, letters of flags, and colours of emoji."""


@cache
def _inner_signs(language: str) -> Any:
    return regex.compile(rf"(?<=[\p{{L}}\p{{M}}])[{_INNER_SIGNS.get(language, '’')}](?=\p{{L}})")


def hide_inner_signs(line: str, language: str) -> str:
    """Replace the signs that belong to a word between its letters."""
    return str(_inner_signs(language).sub(lambda sign: sign[0].translate(_HIDDEN), line))


def show_inner_signs(line: str) -> str:
    """Undo :func:`hide_inner_signs`."""
    return line.translate(_SHOWN)


# ------------------------------------------------------------------ beside a word

CLOSING_MARKS = "।॥،؛؟۔։።។៕၊။།༎，！？：；、"
"""Marks that end a clause, and that Moses' rules do not know."""
_SPACE_BEFORE = re.compile(rf" (?=[{CLOSING_MARKS}](?:\s|$))")
_FULL_WIDTH = re.compile(r" ?([，。！？：；、（）「」『』《》【】“”]) ?")  # has its space within

_HIDDEN_QUOTES = {ord(sign): chr(0xFDE0 + number) for number, sign in enumerate("“„”‘’«»")}
_SHOWN_QUOTES = {ord(hidden): chr(sign) for sign, hidden in _HIDDEN_QUOTES.items()}
_PAIRS = (
    ("“", "”"),  # English
    ("„", "“"),  # German
    ("„", "”"),  # Polish
    ("‘", "’"),
    ("«", "»"),  # Russian
    ("»", "«"),  # Danish
    ("”", "”"),  # Swedish
)
_UNPAIRED = re.compile("(^[“‘]|„) ")  # of a quotation that goes on in the next line


def hide_quotes(line: str) -> str:
    """Replace quotation marks. Moses' rules take each second “ for a closing one."""
    return line.translate(_HIDDEN_QUOTES)


def show_quotes(line: str) -> str:
    """Undo :func:`hide_quotes`."""
    return line.translate(_SHOWN_QUOTES)


def without_inner_spaces(text: str, language: str) -> str:
    """Remove the spaces before closing marks, and inside quotation marks, but for « » of French."""
    if language in ("zh", "ja"):
        text = _FULL_WIDTH.sub(r"\1", text)
    paired = set[str]()
    for opening, closing in _PAIRS:
        # a sign that closes in one language opens in another: the first one of a line opens
        first = next((sign for sign in text if sign in (opening, closing)), "")
        if first != opening or closing in paired or (opening, language) == ("«", "fr"):
            continue
        quotation = rf"{opening} ?([^{opening}]*?) ?{closing}(?!\w)"
        text, times = re.subn(quotation, rf"{opening}\1{closing}", text)
        if times:
            paired |= {opening, closing}
    return _SPACE_BEFORE.sub("", _UNPAIRED.sub(r"\1", text))
