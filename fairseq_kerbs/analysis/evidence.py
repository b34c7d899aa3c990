"""Source words and neighbours of sampled contexts, which say how many senses a word has.

``fairseq-kerbs convert`` passes :func:`number_by_evidence` to the placement of senses. The rule
itself is in :mod:`fairseq_kerbs.reallocation.evidence`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_kerbs.analysis.alignment import align
from fairseq_kerbs.analysis.function_words import FunctionWords
from fairseq_kerbs.analysis.names import is_dialog
from fairseq_kerbs.analysis.occurrences import all_tokens, real_words
from fairseq_kerbs.analysis.words import has_letter, of_sentencepiece
from fairseq_kerbs.checkpoints.contexts import TAG_OF_A_LINE, batches
from fairseq_kerbs.data.gold import STEMMERS, Occurrence, merge_forms, occurrence_of, stemmer
from fairseq_kerbs.data.languages import base_language
from fairseq_kerbs.reallocation.context_sample import ContextSample
from fairseq_kerbs.reallocation.evidence import LEAST_INFORMATION, number_of_senses
from fairseq_kerbs.reallocation.kmeans import Clustering
from fairseq_kerbs.reallocation.placement import NumberOfSenses
from fairseq_kerbs.senses.partitions import Integers

WINDOW = 4  # words on either side that are neighbours
LETTERS_OF_BEGINNING = 5  # that forms of a source word share; 4 would join German Kran and Kranich
LEAST_SHARE = 0.05  # minimum share of a source word in the occurrences of a word


def number_by_evidence(
    task: Any, split: str, sample: ContextSample, least_information: float = LEAST_INFORMATION
) -> NumberOfSenses | None:
    """Number of senses of each word, by source words and neighbours of its sampled contexts.

    Args:
        task: fairseq's task.
        split: split that was sampled.
        sample: the sample, with tags (:func:`.contexts.add_contexts`).
        least_information: see :func:`.number_of_senses`.

    Returns:
        a function for :class:`.PlacementSettings`, or None if the split has no translations, as in
        a language model or in dialog.
    """
    lines = ParallelLines.read(task, split)
    if lines is None:
        return None

    def number(word: int, clusterings: list[Clustering]) -> int:
        tags = sample.tags_of(word).numpy()
        sources = lines.sources(tags)
        neighbours = lines.neighbours(tags)
        return number_of_senses(clusterings, sources, neighbours, least_information)

    return number


def _lower(words: Sequence[str]) -> list[str]:
    return [word.lower() for word in words]


class ParallelLines:
    """Words of a split, their aligned source words, and the place of each token.

    Args:
        task: fairseq's task, whose languages choose the stemmer and the function words.
        words: words of each line, by the number of the line.
        lower: these in lower case, in the order of the lines.
        sources: source words of the same lines, in lower case.
        places: place in the words of the line of each column of tokens, by the number of the line.
    """

    @classmethod
    def read(cls, task: Any, split: str) -> ParallelLines | None:
        """Read a split. None if it has no source side in another language."""
        words: dict[int, list[str]] = {}
        sources: dict[int, list[str]] = {}
        places: dict[int, dict[int, int]] = {}
        target_words = task.target_dictionary
        of_target = of_sentencepiece(target_words.symbols)
        of_source = of_sentencepiece(task.source_dictionary.symbols)
        for batch in batches(task, split):
            inputs = batch["net_input"]
            if "prev_output_tokens" not in inputs:
                return None  # a language model, whose src_tokens are words of the text itself
            numbers = batch["id"].tolist()
            own_rows = inputs["src_tokens"].tolist()
            for number, row, own in zip(numbers, batch["target"].tolist(), own_rows):
                words[number], tokens = all_tokens(row, target_words, of_target)
                places[number] = {column: place for column, place, _ in tokens}
                read = real_words(own, task.source_dictionary, sentencepiece=of_source)
                sources[number] = read[0]
        text = {number: _lower(line) for number, line in sorted(words.items())}
        other = {number: _lower(sources[number]) for number in text}
        if not any(other.values()) or is_dialog([*text.values()], [*other.values()]):
            return None
        return cls(task, words, text, other, places)

    def __init__(
        self,
        task: Any,
        words: Mapping[int, list[str]],
        lower: Mapping[int, list[str]],
        sources: Mapping[int, list[str]],
        places: Mapping[int, Mapping[int, int]],
    ) -> None:
        text = [*lower.values()]
        other = [*sources.values()]
        settings = task.cfg or task.args
        language = getattr(settings, "source_lang", None)
        stem = stemmer(STEMMERS.get(base_language(language or ""), "none"))
        self._function_words = FunctionWords(text, getattr(settings, "target_lang", None) or "en")
        names = [stem(word) if has_letter(word) else "" for line in other for word in line]
        best = align(text, other)
        self._source = np.where(best >= 0, np.array(names, object)[best], "")
        self._words = np.array([word for line in text for word in line], object)
        starts = np.cumsum([0, *map(len, text)])
        self._places = places
        self._written = words
        self._start = dict(zip(lower, starts.tolist()))
        self._end = dict(zip(lower, starts[1:].tolist()))

    def occurrences(self, tags: Integers) -> list[Occurrence]:
        """The occurrences [n] as gold senses name them, where words are not lower-cased: [n]."""
        found = []
        for tag in tags.tolist():
            line, column = divmod(tag, TAG_OF_A_LINE)
            found.append(occurrence_of(line, self._written[line], self._places[line][column]))
        return found

    def _at(self, tags: Integers) -> list[tuple[int, int]]:
        """Line of each occurrence [n], and number of its word among all words: [n]."""
        found = []
        for tag in tags.tolist():
            line, column = divmod(tag, TAG_OF_A_LINE)
            found.append((line, self._start[line] + self._places[line][column]))
        return found

    def _is_content(self, word: str) -> bool:
        """Whether a word of the text has a letter, and is no function word."""
        return word not in self._function_words

    def sources(self, tags: Integers) -> Integers:
        """Number of the source word of each occurrence [n], −1 for none or a rare one: [n]."""
        aligned = [self._source[at] for _, at in self._at(tags)]
        return source_numbers(aligned)

    def neighbours(self, tags: Integers) -> NDArray[np.bool_]:
        """Which content words are beside each occurrence [n]: [n, words]."""
        beside = []
        for line, at in self._at(tags):
            near = self._words[max(self._start[line], at - WINDOW) : at]
            after = self._words[at + 1 : min(self._end[line], at + 1 + WINDOW)]
            beside.append({*near, *after} - {self._words[at]})
        kinds = sorted({word for words in beside for word in words if self._is_content(word)})
        column = {word: number for number, word in enumerate(kinds)}
        table = np.zeros((len(beside), len(kinds)), np.bool_)
        for row, words in enumerate(beside):
            table[row, [column[word] for word in words if word in column]] = True
        return table


def source_numbers(aligned: Sequence[str]) -> Integers:
    """Numbers of aligned source words [n], whose forms are joined, −1 for "" or a rare one: [n]."""
    forms = merge_forms(Counter(filter(None, aligned)), LETTERS_OF_BEGINNING)
    counts = Counter(forms[word] for word in aligned if word)
    least = LEAST_SHARE * sum(counts.values())
    kept = sorted(word for word, times in counts.items() if times >= least)
    number = {word: index for index, word in enumerate(kept)}
    return np.array([number.get(forms.get(word, ""), -1) for word in aligned], np.int64)
