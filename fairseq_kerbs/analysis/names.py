"""Names of senses: source words that they translate, and adjacent words.

The text has the most probable sense of each token. Words that are a single token, and tokens that
are pieces of longer words, are apart: the same entry may be both. If the data have a source
side, IBM Model 1 aligns each word with a source word. The neighbours of a sense are the adjacent
words that are more frequent than with the other senses of the word, by z-scores of log odds (Monroe
et al. 2008, "Fightin' Words", Section 3.3.1). In dialog, with both sides in the same language,
nothing is aligned, and the words of the previous turn are treated as neighbours are. The first word
of a source line is written as it most often is within lines.

How clear the senses of a word are is measured by mutual information minus the value expected by
chance (Vinh et al. 2010), in nats (:class:`Information`). Meanings differ in source words and in
neighbours. Inflection differs in neither: source words that are forms of one word
(:mod:`.forms`) count as one, and neighbours that are function words (:mod:`.function_words`) do
not count. The clarity of a piece is the information about the words that it is a piece of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import mutual_info_score
from sklearn.metrics.cluster import contingency_matrix, expected_mutual_information

from fairseq_kerbs.analysis.alignment import align
from fairseq_kerbs.analysis.forms import joined_forms
from fairseq_kerbs.analysis.function_words import FunctionWords
from fairseq_kerbs.analysis.occurrences import Numbers, Text
from fairseq_kerbs.analysis.words import first_items, has_letter

LEAST_OCCURRENCES = 40  # minimum of the clearest words
LEAST_SHARE = 0.05  # minimum share of a source word in the occurrences of a sense
LEAST_TIMES = 2  # minimum number of occurrences of a source word or neighbour
LEAST_Z = 1.96
MOST = 3  # maximum number of source words, of neighbours, and of words of the previous turn
FORMS_OF_ONE_WORD = "forms of one word"  # what outputs say of a word that is split by form
SAME_LANGUAGE = 0.5  # both sides are one language if the source has this share of target words
LEAST_MEANING = 0.5
"""Minimum share of the information about written words that is about different words."""
LEAST_OF_ENTROPY = 0.1
"""Minimum share of the entropy of senses that is information about different words."""
LINES = 10_000  # maximum number of lines by which dialog is told from translation
Words = NDArray[Any]  # strings
Ranked = tuple[int, bool, float, str]
"""Row of a sense, whether a word is a function word (these are last), minus its z-score, and a text
with the word."""
_NOWHERE: Numbers = np.empty(0, np.int64)


class SenseName(NamedTuple):
    """Words that distinguish a sense."""

    times: int  # occurrences where it is the most probable sense of its word
    share: float  # share of the word's occurrences
    sources: list[tuple[str, int]]  # source words with counts
    neighbours: list[str]  # with the word itself, such as "street light"
    turn: list[str]  # words of the previous turn
    words: list[tuple[str, int]]  # that a piece is a part of, with counts; of a whole word none

    @property
    def translates(self) -> str:
        """Source words with counts."""
        return _with_counts(self.sources)

    @property
    def in_words(self) -> str:
        """Words that a piece is a part of, with counts."""
        return _with_counts(self.words)

    @property
    def beside(self) -> str:
        """Neighbours, and words of the previous turn after an arrow."""
        return ", ".join([*self.neighbours, *(f"← {word}" for word in self.turn)])

    @property
    def short(self) -> str:
        """Source words, or else neighbours."""
        return ", ".join(word for word, _ in self.sources) or self.beside


NO_NAME = SenseName(0, 0.0, [], [], [], [])
"""Name of a sense without occurrences."""


class Information(NamedTuple):
    """What the senses of a word tell of the words around it, in nats above chance.

    Without a source side in another language, both kinds of words are neighbours.
    """

    written: float  # about source words as they are written
    meaning: float  # about source words with their forms joined, or else content neighbours
    clarity: float  # about source words with their forms joined, and content neighbours: the less
    entropy: float  # of the senses

    @property
    def one_word(self) -> bool:
        """Whether the senses differ in forms of one word, or in function words beside it.

        They do not differ in meaning if what they tell of different words is less than
        :data:`LEAST_MEANING` of what they tell of written words, or than :data:`LEAST_OF_ENTROPY`
        of their entropy. False for one sense.
        """
        least = max(LEAST_MEANING * self.written, LEAST_OF_ENTROPY * self.entropy)
        return self.entropy > 0 and self.meaning < least


NO_INFORMATION = Information(0.0, 0.0, 0.0, 0.0)
"""Information of a word with one sense."""


class Example(NamedTuple):
    """An occurrence of a sense in the text."""

    posterior: float  # probability of the sense (Eq. 7)
    words: list[str]  # of the line
    place: int  # of the word in the line
    source: list[str]  # words of the source line, or of the previous turn; [] without a source side
    source_place: int | None  # of the aligned word in the source line, if it is aligned


def _may_be_name(word: str) -> bool:
    """Whether a word has a letter, and is no special symbol such as <unk>."""
    return has_letter(word) and not (word.startswith("<") and word.endswith(">"))


def _with_counts(pairs: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{word} {times}" for word, times in pairs)


class SenseNames:
    """Names of the senses in a text.

    Args:
        text: result of :func:`.read_text` for a model with senses. Read without pieces, it has
            whole words only.
        symbols: entries of the target dictionary, [V].
        language: code of the text's language, or None as for a language model, see
            :class:`.FunctionWords`.

    Attributes:
        function_words: those of the text.
    """

    def __init__(self, text: Text, symbols: Sequence[str], language: str | None = "en") -> None:
        self._text = text
        self._symbols = symbols
        tokens = text.tokens
        self.lines = len(text.words)  # number of lines in the text
        is_piece = np.zeros(len(tokens), np.bool_)
        if "piece" in tokens:
            is_piece = tokens["piece"].to_numpy()
        entries = tokens["entry"].to_numpy()
        self._where = _rows_of(entries, ~is_piece)  # rows of each whole word
        self._where_piece = _rows_of(entries, is_piece)
        self._line = tokens["line"].to_numpy()
        self._place = tokens["place"].to_numpy()
        self._sense = tokens["sense"].to_numpy()
        self._share = tokens["posterior"].to_numpy()
        # with "" before, between and after lines
        words = np.array(["", *(word for line in text.words for word in (*line, ""))], object)
        at = np.cumsum([0, *map(len, text.words)])[self._line] + self._place
        self._word = words[at + self._line + 1]  # [N], of a piece the word that it is a part of
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
        self.function_words = FunctionWords(text.words, language, with_frequent=True)
        self._information: dict[int, Information] = {}

    @property
    def source_side(self) -> str:
        """What the source side is: ``translation``, ``dialog``, or ``none`` without one."""
        if self._turns:
            return "dialog"
        return "none" if self._cause is None else "translation"

    def is_whole(self, entry: int) -> bool:
        """Whether an entry of the dictionary is a whole word in the text."""
        return entry in self._where

    def is_piece(self, entry: int) -> bool:
        """Whether an entry of the dictionary is a piece of a longer word in the text."""
        return entry in self._where_piece

    def clearest(self, most: int, special: int = 0) -> list[str]:
        """The ``most`` whole words with the clearest senses, or all with 0.

        Words that are split by meaning come first, by their clarity. Then come those whose senses
        are forms of one word (:meth:`forms_of_one_word`), by the information about these. Function
        words come last. Words whose senses tell no more than chance are left out.

        Args:
            most: maximum number of words.
            special: number of special symbols at the start of the dictionary.
        """
        ranked = []
        for entry in _frequent(self._where, special):
            word = self._symbols[entry]
            told = self.information(entry)
            value = told.written if told.one_word else told.clarity
            if told.written > 0:
                ranked.append((word in self.function_words, told.one_word, -value, word))
        return [word for *_, word in first_items(sorted(ranked), most)]

    def clearest_pieces(self, most: int, special: int = 0) -> list[str]:
        """The ``most`` pieces whose senses are most closely tied to words, or all with 0.

        The arguments are those of :meth:`clearest`.
        """
        entries = _frequent(self._where_piece, special)
        ranked = [(-self.clarity(entry, piece=True), self._symbols[entry]) for entry in entries]
        return [piece for value, piece in first_items(sorted(ranked), most) if value < 0]

    def clarity(self, entry: int, piece: bool = False) -> float:
        """Clarity of the senses of a word or a piece in nats, at least 0. It is 0 for one sense."""
        if not piece:
            return max(0.0, self.information(entry).clarity)
        where = self._where_piece.get(entry, _NOWHERE)
        words = np.array([word.lower() for word in self._word[where]], object)
        return max(0.0, _information(self._sense[where], words))

    def forms_of_one_word(self, entry: int) -> bool:
        """Whether a word of at least :data:`LEAST_OCCURRENCES` is split by form, not by meaning."""
        enough = len(self._where.get(entry, _NOWHERE)) >= LEAST_OCCURRENCES
        return enough and self.information(entry).one_word

    def information(self, entry: int) -> Information:
        """What the senses of a whole word tell of source words and neighbours."""
        if entry not in self._information:
            self._information[entry] = self._measure(self._where.get(entry, _NOWHERE))
        return self._information[entry]

    def _measure(self, where: Numbers) -> Information:
        """Information of the senses of occurrences [n]."""
        senses = self._sense[where]
        if len(np.unique(senses)) < 2:
            return NO_INFORMATION
        _, counts = np.unique(senses, return_counts=True)
        entropy = float(stats.entropy(counts))
        sides = [self._before[where], self._after[where]]
        content = max(_information(senses, self._content(side)) for side in sides)
        if self._cause is None:
            written = max(_information(senses, side) for side in sides)
            return Information(written, content, content, entropy)
        causes = self._cause[where]
        form = joined_forms(cause for cause in causes if cause)
        joined = np.array([form.get(cause, "") for cause in causes], object)
        written = _information(senses, causes)
        meaning = _information(senses, joined)
        return Information(written, meaning, min(meaning, content), entropy)

    def _content(self, words: Words) -> Words:
        """Words [n], with "" for function words."""
        return np.array(["" if word in self.function_words else word for word in words], object)

    def names(self, entry: int, piece: bool = False) -> dict[int, SenseName]:
        """Names of the senses that occur, by their row in the layer.

        Args:
            entry: number of the word in the dictionary.
            piece: name the occurrences as a piece of longer words, by these words in place of
                neighbours, not those as a whole word.
        """
        where = self._rows(entry, piece)
        senses = self._sense[where]
        word = self._symbols[entry]
        names = {}
        beside = []
        if not piece:
            beside += self._apart(senses, self._before[where], "", f" {word}")
            beside += self._apart(senses, self._after[where], f"{word} ", "")
        turns = [self._turns[line] for line in self._line[where]] if self._turns else []
        senses_of_pairs: list[int] = []
        words_of_pairs: list[str] = []
        for sense, words_of_turn in zip(senses.tolist(), turns):
            for word_of_turn in words_of_turn:
                senses_of_pairs.append(sense)
                words_of_pairs.append(word_of_turn)
        turn = []
        if words_of_pairs:
            turn = self._apart(np.array(senses_of_pairs), np.array(words_of_pairs, object))
        beside.sort()
        turn.sort()
        rows, counts = np.unique(senses, return_counts=True)
        for row, times in zip(rows.tolist(), counts.tolist()):
            own = where[senses == row]
            sources = [] if self._cause is None else _most_frequent(self._cause[own])
            words = _most_frequent(self._word[own]) if piece else []
            share = times / len(where)
            neighbours = _texts_of(row, beside)
            of_turn = _texts_of(row, turn)
            names[row] = SenseName(times, share, sources, neighbours, of_turn, words)
        return names

    def _rows(self, entry: int, piece: bool) -> Numbers:
        """Rows of the occurrences of an entry in the table of tokens."""
        return (self._where_piece if piece else self._where).get(entry, _NOWHERE)

    def _apart(
        self, senses: Words, words: Words, before: str = "", after: str = ""
    ) -> list[Ranked]:
        """Words with letters that distinguish senses, from n pairs of a sense and a word.

        Args:
            senses, words: row of the sense and the word of each pair, [n].

        Returns:
            a tuple for each, with the word between the two texts.
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
            word = kinds[column]
            if _may_be_name(word):
                is_function_word = word in self.function_words
                text = before + word + after
                found.append((int(rows[row]), is_function_word, -z[row, column], text))
        return found

    def examples(self, row: int, entry: int, most: int, piece: bool = False) -> list[Example]:
        """The occurrences of a sense with the highest posteriors (Eq. 7).

        Args:
            entry: number of the word in the dictionary.
            row: row of its sense in the output layer.
            most: maximum number of occurrences.
            piece: the occurrences as a piece of longer words, which the examples name.
        """
        where = self._rows(entry, piece)
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


def _rows_of(entries: Numbers, wanted: NDArray[np.bool_]) -> dict[int, Numbers]:
    """Rows of each entry among the wanted ones of N tokens."""
    rows = np.flatnonzero(wanted)
    order = rows[np.argsort(entries[rows], kind="stable")]
    kinds, first = np.unique(entries[order], return_index=True)
    return dict(zip(kinds.tolist(), np.split(order, first[1:])))


def _frequent(where: dict[int, Numbers], special: int) -> list[int]:
    """Entries with at least :data:`LEAST_OCCURRENCES`, without special symbols."""
    return [
        entry
        for entry, rows in where.items()
        if entry >= special and len(rows) >= LEAST_OCCURRENCES
    ]


def _texts_of(row: int, ranked: Sequence[Ranked]) -> list[str]:
    """The first texts of a sense, at most :data:`MOST`, each once."""
    # a word that stands beside itself is found on both sides
    texts = dict.fromkeys(text for sense, *_, text in ranked if sense == row)
    return list(texts)[:MOST]


def _most_frequent(words: Words) -> list[tuple[str, int]]:
    """The most frequent words of the occurrences [n] of a sense, with counts, without ""."""
    least = max(LEAST_TIMES, LEAST_SHARE * len(words))
    counts = Counter(filter(None, sorted(words.tolist())))
    return [pair for pair in counts.most_common(MOST) if pair[1] >= least]


def _information(senses: Words, words: Words) -> float:
    """Mutual information of senses [n] and words [n] minus that expected by chance, in nats."""
    if not len(senses):
        return 0.0
    table = contingency_matrix(senses, words, sparse=True)
    value = mutual_info_score(None, None, contingency=table)
    return float(value - expected_mutual_information(table, len(senses))) if value else 0.0


def is_dialog(target: Sequence[Sequence[str]], source: Sequence[Sequence[str]]) -> bool:
    """Whether parallel lines are turns of a dialog, not translations.

    Both sides of a dialog have the same words. So do closely related languages. But in a
    translation, the words of a line are far more frequent in its source than in the next line.
    """
    known = {word for line in source for word in line}
    words = {word for line in target for word in line}
    if len(known & words) <= SAME_LANGUAGE * len(words):
        return False
    own = _common_words(target, source)
    other = _common_words(target, [*source[1:], source[0]])
    return own < 2 * other


def _common_words(target: Sequence[Sequence[str]], source: Sequence[Sequence[str]]) -> int:
    """Number of words that are on both sides of a line, summed over the first :data:`LINES`."""
    return sum(len({*words} & {*others}) for words, others in islice(zip(target, source), LINES))


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
