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

_CODES = (
    "af ak az be br ca co cy eo eu fy ga gd gn haw ht id ku lb mg mi ms mt nl ny oc pl pt qu rm rn "
    "rw sc sm so sq sw tk tl tr uk uz wo"
)
_INNER_SIGNS = {
    **dict.fromkeys(("he", "yi"), "'’\"׳״"),  # צה"ל
    "el": "’·",
    "fi": "'’:",  # EU:n, vaa'an
    "sv": "'’:",
    **dict.fromkeys(_CODES.split(), "'’‘·"),  # п'ять, İstanbul'da, 1990'da, auto's, col·lecció
}
"""Signs that belong to a word between its letters, or between a digit and a letter, by language. In
others it is ’ between letters alone: Moses has rules for ' of English, French and Italian, but not
for this apostrophe."""
_SIGNS_AT_THE_END = {
    # of an abbreviation, as רח' for street, unless an opening quotation mark is before it
    **dict.fromkeys(
        ("he", "yi"),
        r"(?<!(?:^|[\s(\"])['’]\p{L}.*)(?<=(?:^|[\s(\"])\p{L}{1,4})['’׳](?=[\s.,;:!?)\"]|$)",
    ),
    # behind a syllable of Tibetan
    **dict.fromkeys(("bo", "dz"), r"(?<=[\p{L}\p{M}])་"),
}
"""Patterns of signs that belong to the word before them, by language."""
_SIGNS_OF_NUMBERS = r"(?<=\p{N})[٫٬](?=\p{N})"
_HIDDEN = {ord(sign): chr(0xFDD0 + number) for number, sign in enumerate("'’‘·:\"׳״་٫٬")}
_SHOWN = {ord(hidden): chr(sign) for sign, hidden in _HIDDEN.items()}
PARTS_OF_WORDS = "".join(_HIDDEN.values()) + r"՛՜՞\U0001f1e6-\U0001f1ff\p{Emoji_Modifier}"
"""Characters that belong to what is before them, as a class of ``regex``: hidden signs, Armenian
marks of the sentence, letters of flags, and colours of emoji."""


@cache
def _inner_signs(language: str) -> Any:
    before = r"\p{L}\p{M}"
    if language in _INNER_SIGNS:
        before += r"\p{N}"
    patterns = [
        rf"(?<=[{before}])[{_INNER_SIGNS.get(language, '’')}](?=\p{{L}})",
        _SIGNS_OF_NUMBERS,
    ]
    if language in _SIGNS_AT_THE_END:
        patterns.append(_SIGNS_AT_THE_END[language])
    return regex.compile("|".join(patterns))


def hide_inner_signs(line: str, language: str) -> str:
    """Replace the signs that belong to a word or a number."""
    return str(_inner_signs(language).sub(lambda sign: sign[0].translate(_HIDDEN), line))


def show_inner_signs(line: str) -> str:
    """Undo :func:`hide_inner_signs`."""
    return line.translate(_SHOWN)


# ------------------------------------------------------------------ beside a word

CLOSING_MARKS = "।॥،؛؟۔։።፣፤፥፦፧។៕၊။།༎，！？：；、"
"""Marks that end a clause, and that Moses' rules do not know."""
_SPACE_BEFORE = re.compile(rf" (?=[{CLOSING_MARKS}](?:\s|$))")
_GREEK_STOP = re.compile(r"(?<!\d) (?=[·\u0387](?:\s|$))")  # elsewhere it is between words
_ARABIC_PERCENT = re.compile(rf"(?<=\d) (?=٪(?:[\s{CLOSING_MARKS}.,;:!?)]|$))")
_PERCENT_BEFORE = re.compile(r"(?<!\d )(?<!\S)([%٪]) (?=\d)")
_ARABIC_PERCENT_BEFORE = re.compile(r"(?<!\d )(?<!\S)(٪) (?=\d)")
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


def join_percent_signs(tokens: str, language: str) -> str:
    """Join percent signs with the number behind them, unless a number is before them.

    Turkish and Basque are written so, and so is the Arabic sign in some texts. Moses' rules would
    join the sign with what is before it.
    """
    percent = _ARABIC_PERCENT_BEFORE
    if language in ("tr", "eu"):
        percent = _PERCENT_BEFORE
    return percent.sub(r"\1", tokens)


def without_inner_spaces(text: str, language: str) -> str:
    """Remove the spaces before closing marks, and inside quotation marks, but for « » of French."""
    if language in ("zh", "ja"):
        text = _FULL_WIDTH.sub(r"\1", text)
    elif language == "el":
        text = _GREEK_STOP.sub("", text)
    text = _ARABIC_PERCENT.sub("", text)
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
