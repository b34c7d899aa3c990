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
from typing import NamedTuple

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
        :data:`NULL`. Memory is about 80 bytes per pair of words in a line.
    """
    words, lengths = _numbered(text)
    if not len(words):
        return words
    # NULL is before each line, so that it is the first candidate of each word
    causes, widths = _numbered([["", *line] for line in other])
    line = np.repeat(np.arange(len(text)), lengths)  # [N]
    pairs = _Pairs.of(widths[line], (np.cumsum(widths) - widths)[line])
    posterior = _posteriors(pairs, words, causes, iterations)
    place = np.arange(len(words)) - (np.cumsum(lengths) - lengths)[line]  # [N] in the line
    best = _best_pairs(pairs, posterior, (place + 0.5) / lengths[line])
    # indices in the other text without NULL
    return np.where(best == pairs.begin, NULL, pairs.cause[best] - 1 - line)


class _Pairs(NamedTuple):
    """Every word of the text with every candidate of its line: P pairs of N words, in order."""

    word: NDArray[np.int64]  # index of the word, [P]
    cause: NDArray[np.int64]  # index of the candidate in the other text, with its NULLs, [P]
    begin: NDArray[np.int64]  # first pair of each word, which is that with NULL, [N]
    width: NDArray[np.int64]  # number of candidates of each word, [N]

    @classmethod
    def of(cls, width: NDArray[np.int64], first: NDArray[np.int64]) -> _Pairs:
        """Pairs of words that have ``width`` candidates each, from the ``first`` one on, [N]."""
        begin = np.cumsum(width) - width
        word = np.repeat(np.arange(len(width)), width)
        cause = np.arange(width.sum()) + np.repeat(first - begin, width)
        return cls(word, cause, begin, width)


def _posteriors(
    pairs: _Pairs, words: NDArray[np.int64], causes: NDArray[np.int64], iterations: int
) -> NDArray[np.float64]:
    """P(f_i | e) of every pair by expectation maximization, [P].

    Args:
        pairs: pairs of the N words of the text and the candidates.
        words: type of each word, [N].
        causes: type of each word of the other text, with its NULLs.
        iterations: number of iterations.
    """
    kinds = causes.max() + 1
    # t(e | f) has an entry for each pair of types that occurs
    types, kind = np.unique(words[pairs.word] * kinds + causes[pairs.cause], return_inverse=True)
    cause_of_type = types % kinds
    posterior = np.repeat(1 / pairs.width, pairs.width)
    for _ in progress(range(iterations), "word alignment", " iterations"):
        expected = np.bincount(kind, posterior, len(types))  # counts of e caused by f
        totals = np.bincount(cause_of_type, expected)
        translation = expected / totals[cause_of_type]  # t(e | f)
        posterior = translation[kind]
        posterior /= np.repeat(np.add.reduceat(posterior, pairs.begin), pairs.width)
    return posterior


def _best_pairs(
    pairs: _Pairs, posterior: NDArray[np.float64], position: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The most probable pair of each word, of equal ones NULL or the nearest, [N].

    ``position`` is that of each word in its line, from 0 to 1, [N].
    """
    highest = np.repeat(np.maximum.reduceat(posterior, pairs.begin), pairs.width)
    peaks = np.flatnonzero(posterior >= highest * (1 - ROUNDING))
    word = pairs.word[peaks]
    candidate = peaks - pairs.begin[word]  # 0 is NULL
    there = (candidate - 0.5) / np.maximum(1, pairs.width[word] - 1)
    distance = np.where(candidate == 0, -1.0, np.abs(there - position[word]))
    order = np.lexsort((distance, word))  # stable: of equal distances the first
    first = np.searchsorted(word[order], np.arange(len(pairs.begin)))
    return peaks[order][first]


def _numbered(lines: Sequence[Sequence[str]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """An integer for each word type, for all words, and the number of words of each line."""
    words = np.array([word for line in lines for word in line], object)
    return factorize(words)[0], np.array([len(line) for line in lines], np.int64)
