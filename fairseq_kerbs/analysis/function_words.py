"""Function words of a text in any language, by frequency and by the entropy of their neighbours.

A function word is frequent, and stands beside nearly any word. *man* and *woman* are as frequent as
*with* in captions of images, but stand after *a* and *young*.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pandas import factorize
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from fairseq_kerbs.analysis.words import has_letter
from fairseq_kerbs.data.languages import base_language
from fairseq_kerbs.data.tokens import SENTENCEPIECE_MARK

FREQUENT = 0.6
"""Share of the tokens that the frequent words make up."""
LEAST_ENTROPY = 0.65
"""Minimum entropy of a function word's neighbours, as a share of the entropy of all words."""
ENGLISH = ENGLISH_STOP_WORDS - frozenset(  # which are content words
    [
        "amount",
        "back",
        "bill",
        "bottom",
        "call",
        "cry",
        "describe",
        "detail",
        "fill",
        "find",
        "fire",
        "found",
        "front",
        "full",
        "interest",
        "mill",
        "mine",
        "move",
        "name",
        "part",
        "put",
        "see",
        "serious",
        "show",
        "side",
        "sincere",
        "system",
        "thick",
        "thin",
        "top",
    ]
)
"""Function words of English, in lower case."""


class FunctionWords:
    """The function words of a text, as in ``"the" in FunctionWords(lines, "en")``.

    In English they are :data:`ENGLISH`, a list that would take French *or* (gold) for one. In other
    languages they are :func:`function_words`. A word without a letter counts as one.

    Args:
        lines: words of each line.
        language: code of the language. If there is none, the text is English if *the* is one of
            its :func:`function_words`.
        with_frequent: add :func:`function_words` in English, too, such as *'s* and *people*. For an
            order of words, where one too many does no harm.
    """

    def __init__(
        self,
        lines: Sequence[Sequence[str]],
        language: str | None,
        *,
        with_frequent: bool = False,
    ) -> None:
        frequent = function_words(lines)
        english = base_language(language) == "en" if language else "the" in frequent
        self._words = frequent
        if english:
            self._words = ENGLISH | frequent if with_frequent else ENGLISH

    def __contains__(self, word: str) -> bool:
        plain = word.removeprefix(SENTENCEPIECE_MARK)
        return not has_letter(plain) or plain.lower() in self._words


def function_words(lines: Sequence[Sequence[str]]) -> frozenset[str]:
    """Frequent words whose neighbours are nearly as diverse as the words of the text.

    The most frequent words that make up :data:`FREQUENT` of the tokens are frequent. The entropy of
    neighbours is the mean of those before and after. Start and end of a line are neighbours, too.

    Args:
        lines: words of each line.

    Returns:
        the function words in lower case.
    """
    spelled = np.array(["", *(word.lower() for line in lines for word in (*line, ""))], object)
    numbers, words = factorize(spelled)  # 0 is "" between lines
    counts = np.bincount(numbers)[1:]
    if not len(counts):
        return frozenset()
    before = _entropies(numbers[1:], numbers[:-1])
    after = _entropies(numbers[:-1], numbers[1:])
    beside = (before + after)[1:] / 2
    shares = counts / counts.sum()
    entropy = -(shares * np.log(shares)).sum()
    order = np.argsort(-counts, kind="stable")
    more_frequent = np.cumsum(counts[order]) - counts[order]  # tokens of words before in the order
    frequent = order[more_frequent < FREQUENT * counts.sum()]
    found = frequent[beside[frequent] >= LEAST_ENTROPY * entropy]
    return frozenset(words[1:][found].tolist()) if entropy > 0 else frozenset()


def _entropies(words: NDArray[np.int64], beside: NDArray[np.int64]) -> NDArray[np.float64]:
    """Entropy in nats of what stands beside each word, [words], from pairs [n]."""
    kinds = 1 + int(max(words.max(), beside.max()))
    pairs, times = np.unique(words * kinds + beside, return_counts=True)
    word = pairs // kinds
    totals = np.bincount(word, times, minlength=kinds)
    shares = times / totals[word]
    terms = -shares * np.log(shares)
    return np.bincount(word, terms, minlength=kinds).astype(np.float64)
