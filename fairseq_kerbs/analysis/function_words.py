"""Function words of a text in any language, by frequency and by the entropy of their neighbours.

A function word is frequent, and stands beside nearly any word. *man* and *woman* are as frequent as
*with* in captions of images, but stand after *a* and *young*.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pandas import factorize

FREQUENT = 0.6
"""Share of the tokens that the frequent words make up."""
LEAST_ENTROPY = 0.65
"""Minimum entropy of a function word's neighbours, as a share of the entropy of all words."""


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
