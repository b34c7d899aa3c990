"""Word alignment by IBM Model 1.

The model is that of Brown et al. 1993, "The Mathematics of Statistical Machine Translation",
Section 4.1.

Each word e of a text is aligned with one word f_1 … f_n of its line in another language, or with
NULL, f_0. t(e | f) is estimated by expectation maximization from a uniform start:

    P(f_i | e) = t(e | f_i) / Σ_{i'=0..n} t(e | f_i')

If source words are equally probable, as words that always occur together are, e is aligned with the
one at the nearest relative position. NULL has priority.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pandas import factorize

from fairseq_kerbs.utils.progress import progress

NULL = -1
ROUNDING = 1e-9  # probabilities that differ by less are equal


def align(
    text: Sequence[Sequence[str]], other: Sequence[Sequence[str]], iterations: int = 10
) -> NDArray[np.int64]:
    """Align each of the N words of a text.

    Args:
        text: words of each line.
        other: words of each line in another language.
        iterations: number of iterations of expectation maximization.

    Returns:
        [N], for each word the index of the most probable word in the concatenated ``other``, or
        :data:`NULL`. Memory is about 60 bytes per pair of words in a line.
    """
    words, lengths = _numbered(text)
    causes, widths = _numbered([["", *line] for line in other])  # NULL before each line
    line = np.repeat(np.arange(len(text)), lengths)  # [N]
    width = widths[line]  # [N] number of candidates of each word
    start = (np.cumsum(widths) - widths)[line]  # [N] index of the first candidate, NULL
    begin = np.cumsum(width) - width  # [N] index of the first pair of each word
    cause = np.arange(width.sum()) + np.repeat(start - begin, width)  # [pairs]
    if not len(words):
        return words
    kinds = causes.max() + 1
    types, kind = np.unique(np.repeat(words, width) * kinds + causes[cause], return_inverse=True)
    cause_of_type = types % kinds  # of pairs (e, f)
    posterior = np.repeat(1 / width, width)  # [pairs]
    for _ in progress(range(iterations), "word alignment", " iterations"):
        expected = np.bincount(kind, posterior, len(types))  # counts of e caused by f
        totals = np.bincount(cause_of_type, expected)
        translation = expected / totals[cause_of_type]  # t(e | f)
        posterior = translation[kind]
        posterior /= np.repeat(np.add.reduceat(posterior, begin), width)
    highest = np.repeat(np.maximum.reduceat(posterior, begin), width)
    peaks = np.flatnonzero(posterior >= highest * (1 - ROUNDING))
    word = np.repeat(np.arange(len(words)), width)[peaks]
    place = np.arange(len(words)) - (np.cumsum(lengths) - lengths)[line]  # [N] in the line
    candidate = peaks - begin[word]  # 0 is NULL
    here = (place + 0.5) / lengths[line]
    there = (candidate - 0.5) / np.maximum(1, width[word] - 1)
    distance = np.where(candidate == 0, -1.0, np.abs(there - here[word]))
    order = np.lexsort((distance, word))  # stable: of equal distances the first
    nearest = peaks[order][np.searchsorted(word[order], np.arange(len(words)))]
    # indices in the other text without NULL
    return np.where(nearest == begin, NULL, cause[nearest] - 1 - line)


def _numbered(lines: Sequence[Sequence[str]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """An integer for each word type, for all words, and the number of words of each line."""
    words = np.array([word for line in lines for word in line], object)
    return factorize(words)[0], np.array([len(line) for line in lines], np.int64)
