"""Names of senses: what each sense of a word translates, and which words stand beside it.

One teacher-forced pass over a split finds the most probable sense of every word that is a single
token. Where the data have a source side, IBM Model 1 says which source word each one translates.
The neighbours of a sense are the words before and after it, by how much more often they stand
there than with the word's other senses: z-scores of log odds (Monroe et al. 2008, "Fightin'
Words", Section 3.3.1).
In dialog, where both sides are in one language, the words of the turn before count in the same way,
and nothing is aligned.

How clear a word's senses are is the mutual information of sense and source word, or of sense and
neighbour, less what it has by chance (Vinh et al. 2010), in nats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas
from numpy.typing import NDArray
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from sklearn.metrics import mutual_info_score
from sklearn.metrics.cluster import contingency_matrix, expected_mutual_information

from fairseq_kerbs.analysis.alignment import align
from fairseq_kerbs.analysis.teacher_forcing import Numbers, Text
from fairseq_kerbs.analysis.words import has_letter

LEAST_OCCURRENCES = 40  # of a word that can be among the clearest
LEAST_SHARE = 0.05  # of a sense's occurrences that a source word has to have
LEAST_TIMES = 2  # that a source word or a neighbour has to be met: one is chance
LEAST_Z = 1.96
MOST = 3  # source words, neighbours and words of the turn before, of each sense
SAME_LANGUAGE = 0.5  # share of the target's words that the source has, too, from which on it is one
COMMON = 0.25  # share of all tokens that the most frequent words make up, and so are no content
_NOWHERE: Numbers = np.empty(0, np.int64)


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


def is_function_word(word: str) -> bool:
    """Whether a word has no letter, or is on scikit-learn's list of English function words."""
    return not has_letter(word) or word.lower() in ENGLISH_STOP_WORDS


class SenseNames:
    """Names of the senses in a text.

    Args:
        text: what :func:`read_text` gives of a model with senses.
        symbols: [V] entries of the target dictionary.
    """

    def __init__(self, text: Text, symbols: Sequence[str]) -> None:
        self._text, self._symbols, tokens = text, symbols, text.tokens
        self._where: dict[int, Numbers] = tokens.groupby("entry").indices  # [n] of each word
        self._line, self._sense, self._share = (
            tokens[column].to_numpy() for column in ("line", "sense", "posterior")
        )
        # words by number, 0 for "", which stands before, between and after all lines
        words = ["", *(word for line in text.words for word in (*line, ""))]
        source = [word for line in text.source or [] for word in line]
        numbers, kinds = pandas.factorize(np.array([*words, *source], object), sort=True)
        self._kinds: list[str] = kinds.tolist()
        starts = np.cumsum([0, *map(len, text.words)])[self._line]  # [N] words in lines before
        at = 1 + starts + self._line + tokens["place"].to_numpy()
        self._before, self._after = numbers[at - 1], numbers[at + 1]  # [N]
        self._cause: Numbers | None = None  # [N] number of the source word
        self._turns: list[Numbers] = []  # of each line, in dialog
        target, others = np.unique(numbers[: len(words)]), numbers[len(words) :]
        if len(np.intersect1d(target, others)) > SAME_LANGUAGE * (len(target) - 1):
            ends = np.cumsum([len(line) for line in text.source or []])[:-1]
            self._turns = [np.unique(line) for line in np.split(others, ends)]
        elif source:
            best = align(text.words, text.source or [])[starts + tokens["place"].to_numpy()]
            letters = np.array(list(map(has_letter, source)))
            # punctuation names nothing
            self._cause = np.where((best >= 0) & letters[best], others[best], 0)

    @property
    def lines(self) -> int:
        """Lines that were read."""
        return len(self._text.words)

    def clearest(self, most: int, special: int = 0) -> list[str]:
        """The words whose senses differ most surely: ``most`` of them, or all with 0. Words without
        a letter and function words come last."""
        by_count = sorted(self._where, key=lambda entry: -len(self._where[entry]))
        shares = np.cumsum([len(self._where[entry]) for entry in by_count])
        common = np.searchsorted(shares, COMMON * len(self._line), side="right")
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
        neighbours, in nats, above what chance has; 0 with one sense."""
        where = self._where.get(entry, _NOWHERE)
        excess = [0.0]
        for feature in [self._before, self._after] if self._cause is None else [self._cause]:
            table = contingency_matrix(self._sense[where], feature[where], sparse=True)
            value = mutual_info_score(None, None, contingency=table) if len(where) else 0.0
            excess.append(value - expected_mutual_information(table, len(where)) if value else 0.0)
        return float(max(excess))

    def names(self, entry: int) -> dict[int, SenseName]:
        """Names of a word's senses that occur, by row."""
        where = self._where.get(entry, _NOWHERE)
        senses, word, names = self._sense[where], self._symbols[entry], {}
        beside = self._apart(senses, self._before[where], "", f" {word}")
        beside += self._apart(senses, self._after[where], f"{word} ", "")
        turns = [self._turns[line] for line in self._line[where]] if self._turns else []
        repeated = np.repeat(senses, list(map(len, turns))) if turns else _NOWHERE
        turn = self._apart(repeated, np.concatenate([_NOWHERE, *turns]))
        for row, times in zip(*map(np.ndarray.tolist, np.unique(senses, return_counts=True))):
            sources = self._sources(where[senses == row])
            share, words = times / len(where), (best_words(found, row) for found in (beside, turn))
            names[row] = SenseName(times, share, sources, *words)
        return names

    def _apart(
        self, senses: Numbers, words: Numbers, before: str = "", after: str = ""
    ) -> list[Association]:
        """What sets senses [n] apart among words [n], shown between two texts."""
        there = words > 0
        rows, kinds = np.unique(senses[there]), np.unique(words[there])
        if not len(rows):
            return []
        z = log_odds(contingency_matrix(senses[there], words[there]))
        found = []
        for row, column in np.argwhere(z > LEAST_Z).tolist():
            word = self._kinds[kinds[column]]
            found.append(Association(int(rows[row]), z[row, column], word, before + word + after))
        return found

    def _sources(self, where: Numbers) -> list[tuple[str, int]]:
        """The source words that occurrences [n] translate, and how often."""
        causes = _NOWHERE if self._cause is None else self._cause[where]
        least = max(LEAST_TIMES, LEAST_SHARE * len(where))
        counts = Counter(self._kinds[cause] for cause in sorted(causes.tolist()) if cause)
        return [pair for pair in counts.most_common(MOST) if pair[1] >= least]

    def examples(self, row: int, entry: int, most: int) -> list[Example]:
        """The surest contexts of a sense of a word, at most ``most``, the surest first."""
        where = self._where.get(entry, _NOWHERE)
        where = where[self._sense[where] == row]
        best = where[np.argsort(-self._share[where], kind="stable")[:most]]
        lines, place = self._text.words, self._text.tokens["place"]
        return [
            Example(float(self._share[at]), lines[self._line[at]], int(place[at])) for at in best
        ]


class Association(NamedTuple):
    """A word that sets a sense apart."""

    row: int  # of the sense
    score: float  # z-score
    word: str
    text: str  # how it is shown


def best_words(associations: Iterable[Association], row: int) -> list[str]:
    """The :data:`MOST` surest of a sense, words without a letter left out, function words last."""
    ranked = sorted(
        (is_function_word(word), -score, text)
        for of, score, word, text in associations
        if of == row and has_letter(word)
    )
    return [text for _, _, text in ranked[:MOST]]


def log_odds(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """z-scores of log odds of columns in each row against all other rows, [R, C]."""
    other = table.sum(0) - table
    rest = table.sum(1, keepdims=True) - table
    other_rest = other.sum(1, keepdims=True) - other
    odds = np.log((table + 0.5) / (rest + 0.5)) - np.log((other + 0.5) / (other_rest + 0.5))
    scores: NDArray[np.float64] = odds / np.sqrt(1 / (table + 0.5) + 1 / (other + 0.5))
    return np.where(table >= LEAST_TIMES, scores, 0.0)
