"""Names of senses: what each sense of a word translates, and which words stand beside it.

One teacher-forced pass over a split finds the most probable sense of every word that is a single
token. Where the data have a source side, IBM Model 1 says which source word each one translates.
The neighbours of a sense are the words before and after it, by how much more often they stand
there than with the word's other senses: z-scores of log odds (Monroe et al. 2008, "Fightin'
Words", Section 3.3.1).
In dialog, where both sides are in one language, the words of the turn before count in the same way,
and nothing is aligned.

How clear a word's senses are is the mutual information of sense and source word, or of sense and
neighbour, less that of permuted senses, in nats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from sklearn.metrics import mutual_info_score

from fairseq_kerbs.analysis.alignment import align
from fairseq_kerbs.analysis.teacher_forcing import Numbers, Text
from fairseq_kerbs.analysis.words import has_letter

LEAST_OCCURRENCES = 40  # of a word that can be among the clearest
LEAST_SHARE = 0.05  # of a sense's occurrences that a source word has to have
LEAST_TIMES = 2  # that a source word or a neighbour has to be met: one is chance
LEAST_Z = 1.96
MOST = 3  # source words, neighbours and words of the turn before, of each sense
PERMUTATIONS = 5
SAME_LANGUAGE = 0.5  # share of the target's words that the source has, too, from which on it is one
COMMON = 0.25  # share of all tokens that the most frequent words make up, and so are no content


class SenseName(NamedTuple):
    """What sets a sense apart."""

    times: int  # occurrences in which it is the most probable sense of its word
    share: float  # of the word's occurrences
    sources: list[tuple[str, int]]  # source words that it translates, and how often
    neighbours: list[str]  # such as "street light", the word itself among them
    turn: list[str]  # words of the turn before

    @property
    def translates(self) -> str:
        """Source words, each with how often."""
        return ", ".join(f"{word} {times}" for word, times in self.sources)

    @property
    def beside(self) -> str:
        """Neighbours, and words of the turn before behind an arrow."""
        return ", ".join([*self.neighbours, *(f"← {word}" for word in self.turn)])

    @property
    def short(self) -> str:
        """Source words alone, or neighbours where it has none."""
        return ", ".join(word for word, _ in self.sources) or self.beside


NO_NAME = SenseName(0, 0.0, [], [], [])
"""That of a sense without occurrences."""


class Example(NamedTuple):
    """A context of a sense."""

    posterior: float  # of the sense (Eq. 7)
    words: list[str]  # of the line
    place: int  # of the word among them


class Association(NamedTuple):
    """A word that sets a sense apart."""

    score: float  # z-score
    word: str
    text: str  # how it is shown


def is_function_word(word: str) -> bool:
    """Whether a word has no letter, or is on scikit-learn's list of English function words."""
    return not has_letter(word) or word.lower() in ENGLISH_STOP_WORDS


def best_words(associations: Iterable[Association]) -> list[str]:
    """The :data:`MOST` surest, words without a letter left out and function words last."""
    ranked = sorted(
        (is_function_word(word), -score, text)
        for score, word, text in associations
        if has_letter(word)
    )
    return [text for _, _, text in ranked[:MOST]]


def numbered(lines: Iterable[Sequence[str]]) -> tuple[NDArray[np.str_], Numbers]:
    """The kinds of words in lines, sorted, and the number of the kind of each word, [N]."""
    words = [word for line in lines for word in line]
    kinds = sorted(set(words))
    numbers = {word: number for number, word in enumerate(kinds)}
    return np.array(kinds, object), np.array([numbers[word] for word in words], np.int64)


class SenseNames:
    """Names of the senses in a text.

    Args:
        text: what :func:`read_text` gives.
        symbols: [V] entries of the target dictionary.
    """

    def __init__(self, text: Text, symbols: Sequence[str]) -> None:
        self._text, self._symbols = text, symbols
        order = np.argsort(text.entry, kind="stable")
        entries, starts = np.unique(text.entry[order], return_index=True)
        self._where = dict(zip(entries.tolist(), np.split(order, starts[1:])))  # [n] of each word
        lengths = np.array([len(words) for words in text.words])
        at = (np.cumsum(lengths) - lengths)[text.line] + text.place  # [N] in all words
        self._kinds, flat = numbered(text.words)
        first, last = text.place == 0, text.place == lengths[text.line] - 1
        # numbers of words before and after, [N]; −1 where there is none
        self._before = np.where(first, -1, flat[at - 1])
        self._after = np.where(last, -1, flat[(at + 1) % max(1, len(flat))])
        self._cause: Numbers | None = None  # [N] number of the source word; −1 for none
        self._turns: list[list[str]] | None = None
        self._causes, numbers = numbered(text.source or [])
        if text.source is None or not len(self._causes):
            return
        if len(np.intersect1d(self._causes, self._kinds)) > SAME_LANGUAGE * len(self._kinds):
            self._turns = text.source
            return
        best = align(text.words, text.source)[at]
        letters = np.array(list(map(has_letter, self._causes)))
        known = (best >= 0) & letters[numbers[best]]  # punctuation names nothing
        self._cause = np.where(known, numbers[best], -1)

    @property
    def lines(self) -> int:
        """Lines that were read."""
        return len(self._text.words)

    def clearest(self, most: int, special: int = 0) -> list[str]:
        """The words whose senses differ most surely: ``most`` of them, or all with 0. Words without
        a letter and function words come last."""
        by_count = sorted(self._where, key=lambda entry: -len(self._where[entry]))
        shares = np.cumsum([len(self._where[entry]) for entry in by_count])
        common = np.searchsorted(shares, COMMON * len(self._text.entry), side="right")
        frequent, clear = set(by_count[:common]), {}
        for entry, where in self._where.items():
            word = self._symbols[entry]
            if entry >= special and len(where) >= LEAST_OCCURRENCES:
                empty = entry in frequent or is_function_word(word)
                if (value := self.clarity(entry)) > 0:
                    clear[word] = (empty, -value, word)
        return sorted(clear, key=clear.__getitem__)[: most or None]

    def clarity(self, entry: int) -> float:
        """Mutual information of a word's senses and their source words, or else of senses and
        neighbours, in nats, above that of permuted senses; 0 with one sense."""
        where = self._where.get(entry, np.empty(0, np.int64))
        senses = np.unique(self._text.sense[where], return_inverse=True)[1]
        if not senses.any():
            return 0.0
        features = [self._before, self._after] if self._cause is None else [self._cause]
        draw = np.random.default_rng(entry)
        excess = []
        for feature in features:
            kinds = np.unique(feature[where], return_inverse=True)[1]
            partitions = [senses, *(draw.permutation(senses) for _ in range(PERMUTATIONS))]
            tables = (contingency(each, kinds, int(senses.max()) + 1) for each in partitions)
            value, *chance = (mutual_info_score(None, None, contingency=each) for each in tables)
            excess.append(value - float(np.mean(chance)))
        return max(0.0, *excess)

    def names(self, entry: int) -> dict[int, SenseName]:
        """Names of a word's senses that occur, by row."""
        where = self._where.get(entry, np.empty(0, np.int64))
        rows, senses = np.unique(self._text.sense[where], return_inverse=True)
        word, names = self._symbols[entry], {}

        def beside(feature: Numbers, form: tuple[str, str]) -> list[list[Association]]:
            there = feature >= 0
            return apart(senses[there], self._kinds[feature[there]], len(rows), form)

        before = beside(self._before[where], ("", f" {word}"))
        after = beside(self._after[where], (f"{word} ", ""))
        turns = [
            (sense, other)
            for sense, line in zip(senses.tolist(), self._text.line[where].tolist())
            for other in set(self._turns[line] if self._turns else ())
        ]
        of_turn, others = [sense for sense, _ in turns], [other for _, other in turns]
        turn = apart(np.array(of_turn, np.int64), np.array(others, object), len(rows))
        for number, (row, times) in enumerate(zip(rows.tolist(), np.bincount(senses).tolist())):
            neighbours = best_words([*before[number], *after[number]])
            sources = self._sources(where[senses == number])
            share = times / len(where)
            names[row] = SenseName(times, share, sources, neighbours, best_words(turn[number]))
        return names

    def _sources(self, where: Numbers) -> list[tuple[str, int]]:
        """The source words that occurrences [n] translate, and how often."""
        if self._cause is None:
            return []
        causes = self._cause[where]
        kinds, times = np.unique(causes[causes >= 0], return_counts=True)
        least = max(LEAST_TIMES, LEAST_SHARE * len(where))
        best = np.argsort(-times, kind="stable")[:MOST]
        return [(self._causes[kinds[at]], int(times[at])) for at in best if times[at] >= least]

    def examples(self, row: int, entry: int, most: int) -> list[Example]:
        """The surest contexts of a sense of a word, at most ``most``, the surest first."""
        text, where = self._text, self._where.get(entry, np.empty(0, np.int64))
        where = where[text.sense[where] == row]
        best = where[np.argsort(-text.posterior[where], kind="stable")[:most]]
        return [
            Example(float(text.posterior[at]), text.words[text.line[at]], int(text.place[at]))
            for at in best
        ]


def apart(
    senses: Numbers, words: NDArray[Any], count: int, form: tuple[str, str] = ("", "")
) -> list[list[Association]]:
    """Of each of ``count`` senses the words that set it apart, of pairs [n] and [n], shown between
    the two texts of a form."""
    kinds, kind = np.unique(words, return_inverse=True)
    return [
        [Association(z[at], kinds[at], kinds[at].join(form)) for at in np.flatnonzero(z > LEAST_Z)]
        for z in log_odds(contingency(senses, kind, count))
    ]


def contingency(rows: Numbers, columns: Numbers, count: int) -> NDArray[np.float64]:
    """How often each of ``count`` rows meets each column, [count, C], of pairs [n] and [n]."""
    width = int(columns.max(initial=-1)) + 1
    table = np.bincount(rows * width + columns, minlength=count * width)
    return table.reshape(count, width).astype(float)


def log_odds(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """z-scores of log odds of columns in each row against all other rows, [R, C]."""
    other = table.sum(0) - table
    rest = table.sum(1, keepdims=True) - table
    other_rest = other.sum(1, keepdims=True) - other
    odds = np.log((table + 0.5) / (rest + 0.5)) - np.log((other + 0.5) / (other_rest + 0.5))
    scores: NDArray[np.float64] = odds / np.sqrt(1 / (table + 0.5) + 1 / (other + 0.5))
    return np.where(table >= LEAST_TIMES, scores, 0.0)
