"""Forms of one word: inflected, derived and compound words with one stem, in any language.

No list of lemmas is needed, because only translations of one word are compared. Two of them are
forms of one word (:func:`are_forms`) if

1. they begin alike, by at least :data:`LEAST_BEGINNING` letters and half of the shorter one, as
   German *brauner* and *braunes*, *Berg* and *Berghang*; or
2. the beginning of the shorter one stands inside of the longer one, by at least
   :data:`LEAST_INSIDE` letters and :data:`INSIDE` of the shorter one, as *kaufen* in *gekauft*,
   *Feld* in *Fußballfeld*.

Accents and case are ignored, so that *Männer* is a form of *Mann*. The rule does not see a stem
whose letters change (*isst* and *essen*). In scripts without letters, such as Chinese, words are
short, so that few begin alike by three characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from math import ceil

from fairseq_kerbs.data.gold import common_beginning, merge_alike, without_accents

LEAST_BEGINNING = 3
"""Minimum length of a common beginning."""
SHARE_OF_BEGINNING = 1 / 2
"""Minimum share of the shorter word that a common beginning has. It is less than in
:func:`.gold.merge_forms`, where a wrong pair would join two gold senses."""
LEAST_INSIDE = 4
"""Minimum length of a beginning that stands inside of the other word."""
INSIDE = 2 / 3
"""Minimum share of the shorter word that such a beginning has."""


def are_forms(one: str, other: str) -> bool:
    """Whether two words are likely to be forms of one word, or one a compound with the other.

    >>> are_forms("braunen", "hellbrauner"), are_forms("Licht", "hellen")
    (True, False)
    """
    shorter, longer = sorted((_plain(one), _plain(other)), key=len)
    if shorter == longer:
        return True
    shared = common_beginning(shorter, longer)
    if shared >= max(LEAST_BEGINNING, SHARE_OF_BEGINNING * len(shorter)):
        return True
    length = max(LEAST_INSIDE, ceil(INSIDE * len(shorter)))
    return len(shorter) >= length and shorter[:length] in longer


def joined_forms(words: Iterable[str]) -> dict[str, str]:
    """For each word the most frequent of its forms among the words, or itself."""
    return merge_alike(Counter(words), are_forms)


@lru_cache(maxsize=100_000)
def _plain(word: str) -> str:
    return without_accents(word.lower())
