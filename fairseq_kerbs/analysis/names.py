"""Names of senses: source words that they translate, and adjacent words.

The text has the most probable sense of each word that is a single token. If the data have a source
side, IBM Model 1 aligns each word with a source word. The neighbours of a sense are the adjacent
words that are more frequent than with the other senses of the word, by z-scores of log odds (Monroe
et al. 2008, "Fightin' Words", Section 3.3.1). In dialog, with both sides in the same language,
nothing is aligned, and the words of the previous turn are treated as neighbours are. The first word
of a source line is written as it most often is within lines.

The clarity of a word is the mutual information of its senses with source words, or else with
neighbours, minus the value expected by chance (Vinh et al. 2010), in nats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from sklearn.metrics import mutual_info_score
from sklearn.metrics.cluster import contingency_matrix, expected_mutual_information

from fairseq_kerbs.analysis.alignment import align
from fairseq_kerbs.analysis.occurrences import Numbers, Text
from fairseq_kerbs.analysis.words import has_letter

LEAST_OCCURRENCES = 40  # minimum of the clearest words
LEAST_SHARE = 0.05  # minimum share of a source word in the occurrences of a sense
LEAST_TIMES = 2  # minimum number of occurrences of a source word or neighbour
LEAST_Z = 1.96
MOST = 3  # maximum number of source words, of neighbours, and of words of the previous turn
SAME_LANGUAGE = 0.5  # both sides are one language if the source has this share of target words
COMMON = 0.25  # share of tokens of the most frequent words, which are ranked as function words
LINES = 10_000  # maximum number of lines by which dialog is told from translation
Words = NDArray[Any]  # strings
_NOWHERE: Numbers = np.empty(0, np.int64)
_FUNCTION_WORDS = ENGLISH_STOP_WORDS - frozenset(  # which are content words
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


class SenseName(NamedTuple):
    """Words that distinguish a sense."""

    times: int  # occurrences where it is the most probable sense of its word
    share: float  # share of the word's occurrences
    sources: list[tuple[str, int]]  # source words with counts
    neighbours: list[str]  # with the word itself, such as "street light"
    turn: list[str]  # words of the previous turn

    @property
    def translates(self) -> str:
        """Source words with counts."""
        return ", ".join(f"{word} {times}" for word, times in self.sources)

    @property
    def beside(self) -> str:
        """Neighbours, and words of the previous turn after an arrow."""
        return ", ".join([*self.neighbours, *(f"← {word}" for word in self.turn)])

    @property
    def short(self) -> str:
        """Source words, or else neighbours."""
        return ", ".join(word for word, _ in self.sources) or self.beside


NO_NAME = SenseName(0, 0.0, [], [], [])
"""Name of a sense without occurrences."""


class Example(NamedTuple):
    """An occurrence of a sense in the text."""

    posterior: float  # probability of the sense (Eq. 7)
    words: list[str]  # of the line
    place: int  # of the word in the line
    source: list[str]  # words of the source line, or of the previous turn; [] without a source side
    source_place: int | None  # of the aligned word in the source line, if it is aligned


def is_function_word(word: str) -> bool:
    """Whether a word has no letter, or is an English function word."""
    return not has_letter(word) or word.lower() in _FUNCTION_WORDS


def _may_be_name(word: str) -> bool:
    """Whether a word has a letter, and is no special symbol such as <unk>."""
    return has_letter(word) and not (word.startswith("<") and word.endswith(">"))


class SenseNames:
    """Names of the senses in a text.

    Args:
        text: result of :func:`.read_text` for a model with senses.
        symbols: entries of the target dictionary, [V].
    """

    def __init__(self, text: Text, symbols: Sequence[str]) -> None:
        self._text = text
        self._symbols = symbols
        tokens = text.tokens
        self.lines = len(text.words)  # number of lines in the text
        self._where: dict[int, Numbers] = tokens.groupby("entry").indices  # rows of each word
        self._line, self._place, self._sense, self._share = (
            tokens[column].to_numpy() for column in ("line", "place", "sense", "posterior")
        )
        # with "" before, between and after lines
        words = np.array(["", *(word for line in text.words for word in (*line, ""))], object)
        at = np.cumsum([0, *map(len, text.words)])[self._line] + self._place
        self._before = words[at + self._line]  # [N]
        self._after = words[at + self._line + 2]  # [N]
        self._cause: Words | None = None  # [N] aligned source word, "" for punctuation
        self._aligned: Numbers | None = None  # [N] place of that word in its line
        lines = text.source or []
        # in dialog, words of the turn before each line
        self._turns = [sorted({*line}) for line in lines] if is_dialog(text.words, lines) else []
        if any(lines) and not self._turns:
            lines = _truecased(lines)
            names = [word if _may_be_name(word) else "" for line in lines for word in line]
            best = align(text.words, lines)[at]
            self._cause = np.where(best >= 0, np.array(names, object)[best], "")
            start = np.cumsum([0, *map(len, lines)])[self._line]
            self._aligned = best - start

    @property
    def source_side(self) -> str:
        """What the source side is: ``translation``, ``dialog``, or ``none`` without one."""
        if self._turns:
            return "dialog"
        return "none" if self._cause is None else "translation"

    def clearest(self, most: int, special: int = 0) -> list[str]:
        """The ``most`` words with the highest clarity, or all with 0. Function words come last.

        ``special`` is the number of special symbols at the start of the dictionary.
        """
        times = self._text.tokens.groupby("entry").size()
        times = times.sort_values(ascending=False, kind="stable")
        frequent = set(times.index[times.cumsum() <= COMMON * len(self._line)])
        ranked = []
        for entry in times.index[(times.index >= special) & (times >= LEAST_OCCURRENCES)]:
            word = self._symbols[entry]
            value = self.clarity(entry)
            if value > 0:
                ranked.append((entry in frequent or is_function_word(word), -value, word))
        return [word for *_, word in sorted(ranked)[: most or None]]

    def clarity(self, entry: int) -> float:
        """Clarity of a word's senses in nats, as in the module's docstring. 0 for one sense."""
        where = self._where.get(entry, _NOWHERE)
        excess = [0.0]
        for feature in [self._before, self._after] if self._cause is None else [self._cause]:
            table = contingency_matrix(self._sense[where], feature[where], sparse=True)
            value = mutual_info_score(None, None, contingency=table) if len(where) else 0.0
            excess.append(value - expected_mutual_information(table, len(where)) if value else 0.0)
        return float(max(excess))

    def names(self, entry: int) -> dict[int, SenseName]:
        """Names of the senses of a word that occur, by their row in the layer."""
        where = self._where.get(entry, _NOWHERE)
        senses = self._sense[where]
        word = self._symbols[entry]
        names = {}
        beside = self._apart(senses, self._before[where], "", f" {word}")
        beside += self._apart(senses, self._after[where], f"{word} ", "")
        turns = [self._turns[line] for line in self._line[where]] if self._turns else []
        pairs = [(sense, word) for sense, line in zip(senses, turns) for word in line]
        turn = self._apart(*np.array([(0, ""), *pairs], object).T)
        for row, times in zip(*map(np.ndarray.tolist, np.unique(senses, return_counts=True))):
            sources = self._sources(where[senses == row])
            best = (
                [text for sense, *_, text in sorted(ranked) if sense == row][:MOST]
                for ranked in (beside, turn)
            )
            names[row] = SenseName(times, times / len(where), sources, *best)
        return names

    def _apart(
        self, senses: Words, words: Words, before: str = "", after: str = ""
    ) -> list[tuple[int, bool, float, str]]:
        """Words with letters that distinguish senses, from n pairs of a sense and a word.

        Args:
            senses, words: row of the sense and the word of each pair, [n].

        Returns:
            tuples of the row of the sense, whether the word is a function word (these are last),
            minus its z-score, and the word between two texts.
        """
        senses = senses[words != ""]
        words = words[words != ""]
        rows = np.unique(senses)
        kinds = np.unique(words)
        if not len(rows):
            return []
        z = log_odds(contingency_matrix(senses, words))
        found = []
        for row, column in np.argwhere(z > LEAST_Z).tolist():
            if _may_be_name(word := kinds[column]):
                rank = is_function_word(word), -z[row, column]
                found.append((int(rows[row]), *rank, before + word + after))
        return found

    def _sources(self, where: Numbers) -> list[tuple[str, int]]:
        """Source words of occurrences [n], with counts."""
        causes: Sequence[str] = [] if self._cause is None else self._cause[where].tolist()
        least = max(LEAST_TIMES, LEAST_SHARE * len(where))
        counts = Counter(filter(None, sorted(causes)))
        return [pair for pair in counts.most_common(MOST) if pair[1] >= least]

    def examples(self, row: int, entry: int, most: int) -> list[Example]:
        """The occurrences of a sense with the highest posteriors (Eq. 7).

        Args:
            entry: number of the word in the dictionary.
            row: row of its sense in the output layer.
            most: maximum number of occurrences.
        """
        where = self._where.get(entry, _NOWHERE)
        where = where[self._sense[where] == row]
        best = where[np.argsort(-self._share[where], kind="stable")[:most]]
        return [self._example(at) for at in best.tolist()]

    def _example(self, at: int) -> Example:
        """The occurrence in a row of the table of tokens."""
        line = self._line[at]
        source = [] if self._text.source is None else self._text.source[line]
        source_place = None
        if self._cause is not None and self._aligned is not None and self._cause[at]:
            source_place = int(self._aligned[at])
        words = self._text.words[line]
        place = int(self._place[at])
        return Example(float(self._share[at]), words, place, source, source_place)


def is_dialog(target: Sequence[Sequence[str]], source: Sequence[Sequence[str]]) -> bool:
    """Whether parallel lines are turns of a dialog, not translations.

    Both sides of a dialog have the same words. So do closely related languages. But in a
    translation, the words of a line are far more frequent in its source than in the next line.
    """
    known = {word for line in source for word in line}
    words = {word for line in target for word in line}
    if len(known & words) <= SAME_LANGUAGE * len(words):
        return False
    lines = list(islice(zip(target, source, [*source[1:], source[0]]), LINES))
    own, other = (
        sum(len({*line[0]} & {*line[side]}) for line in lines if line[0]) for side in (1, 2)
    )
    return own < 2 * other


def _truecased(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Lines whose first word is spelled as it most often is at other places, if it is there."""
    spellings = Counter(word for line in lines for word in line[1:])
    usual = {word.lower(): word for word, _ in reversed(spellings.most_common())}
    return [[*(usual.get(word.lower(), word) for word in line[:1]), *line[1:]] for line in lines]


def log_odds(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """z-scores of log odds of each column in a row against all other rows, for counts [R, C]."""
    other = table.sum(0) - table
    rest = table.sum(1, keepdims=True) - table
    other_rest = other.sum(1, keepdims=True) - other
    odds = np.log((table + 0.5) / (rest + 0.5)) - np.log((other + 0.5) / (other_rest + 0.5))
    scores: NDArray[np.float64] = odds / np.sqrt(1 / (table + 0.5) + 1 / (other + 0.5))
    return np.where(table >= LEAST_TIMES, scores, 0.0)
