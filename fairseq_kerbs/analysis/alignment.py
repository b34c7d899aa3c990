"""Word alignment by IBM Model 1 (Brown et al. 1993, "The Mathematics of Statistical Machine
Translation", Section 4.1).

Every word e of a text has one cause: a word f_1 … f_n of its line in another language, or NULL,
f_0. With t(e | f) learned by expectation maximization from a uniform start,

    P(f_i causes e) = t(e | f_i) / Σ_{i'=0..n} t(e | f_i').

NLTK's model computes the same in Python loops: 2.4 s for 2,000 pairs of lines and five iterations,
where this takes 1 s for 29,000 and ten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

NULL = -1


class Alignment(NamedTuple):
    """Causes of the N words of a text among the M of another, both counted through all lines."""

    posterior: csr_array  # [N, M] P(f causes e); what a row lacks to 1 is that of NULL
    best: NDArray[np.int64]  # [N] the most probable cause, the first of equal ones, or NULL


def align(
    text: Sequence[Sequence[str]], other: Sequence[Sequence[str]], iterations: int = 10
) -> Alignment:
    """Align the words of a text with those of another that says the same line by line; a ValueError
    if they differ in the number of lines. A pair of words in a line takes about 60 bytes."""
    if len(text) != len(other):
        raise ValueError(f"{len(text)} lines cannot be aligned with {len(other)}")
    words, lengths = _numbered(text)
    causes, widths = _numbered([["", *line] for line in other])  # NULL before each line
    line = np.repeat(np.arange(len(text)), lengths)  # [N]
    width = widths[line]  # [N] possible causes of each word
    start = (np.cumsum(widths) - widths)[line]  # [N] the first of them, NULL
    begin = np.concatenate([[0], np.cumsum(width)])  # [N + 1] pairs of each word
    cause = np.arange(begin[-1]) + np.repeat(start - begin[:-1], width)  # [pairs]
    posterior = _expectation_maximization(
        np.repeat(words, width), causes[cause], begin, iterations
    )  # [pairs]
    proper = np.ones(len(cause), bool)
    proper[begin[:-1]] = False
    number = cause - 1 - np.repeat(line, width)  # in the other text, which has no NULL
    shape = len(words), len(causes) - len(other)
    rows = begin - np.arange(len(begin))
    peak = np.maximum.reduceat(posterior, begin[:-1])
    peaks = np.flatnonzero(posterior == np.repeat(peak, width))
    first = peaks[np.searchsorted(peaks, begin[:-1])]
    return Alignment(
        csr_array((posterior[proper], number[proper], rows), shape),
        np.where(proper[first], number[first], NULL),
    )


def _numbered(lines: Sequence[Sequence[str]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of all words, equal ones alike, and how many each line has."""
    numbers: defaultdict[str, int] = defaultdict(count().__next__)
    words = [numbers[word] for line in lines for word in line]
    return np.array(words, np.int64), np.array([len(line) for line in lines], np.int64)


def _expectation_maximization(
    word: NDArray[np.int64], cause: NDArray[np.int64], begin: NDArray[np.int64], iterations: int
) -> NDArray[np.float64]:
    """P(cause | word, line) of pairs [n]; those of word k are from ``begin[k]`` to the next's."""
    width = np.diff(begin)
    posterior = np.repeat(1 / width, width)
    kinds = cause.max(initial=0) + 1
    types, kind = np.unique(word * kinds + cause, return_inverse=True)  # of pairs (e, f)
    given = types % kinds
    for _ in range(iterations):
        expected = np.bincount(kind, posterior, len(types))  # counts of e caused by f
        translation = expected / np.bincount(given, expected)[given]  # t(e | f)
        posterior = translation[kind]
        posterior /= np.repeat(np.add.reduceat(posterior, begin[:-1]), width)
    return posterior
