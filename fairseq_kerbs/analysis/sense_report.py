"""Senses of words: usage, θ, neighbours and example contexts; purity where true senses are known.

Everything but contexts and purity comes from the output layer and the dictionary alone.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairseq_kerbs.analysis.frequency import FrequencyGroup, senses_by_frequency
from fairseq_kerbs.analysis.nearest_senses import NearSense, nearest_senses
from fairseq_kerbs.analysis.occurrences import Occurrence
from fairseq_kerbs.analysis.purity import Purity, measure, overall
from fairseq_kerbs.errors import UserError
from fairseq_kerbs.output_layers import OutputLayer

Gold = dict[tuple[int, int, str], str]
_CONTEXT = 6  # words shown on either side
_FILLER = re.compile(r"madeupword\d{4}")  # fairseq pads dictionaries with these


@dataclass(frozen=True)
class Example:
    """A context in which a sense was used.

    Attributes:
        text: words around, the word itself in brackets.
        posterior: P(sense | word, context).
        line: number of the sentence in its split, from 0.
    """

    text: str
    posterior: float
    line: int


@dataclass
class SenseSummary:
    """One sense of a word.

    Attributes:
        sense: its number.
        usage: U (Eq. 13) as a share of the word's.
        theta: kernel parameter; None where the kernel has none.
        count: occurrences for which it is the most probable sense.
        examples: contexts in which it was surest.
        true_senses: true senses of those occurrences, where known.
        nearest: senses that the output layer finds most similar, by kernel.
    """

    sense: int
    usage: float
    theta: float | None
    count: int = 0
    examples: list[Example] = field(default_factory=list)
    true_senses: dict[str, int] = field(default_factory=dict)
    nearest: list[NearSense] = field(default_factory=list)


@dataclass
class WordSummary:
    """A word and its senses, the most used first.

    Attributes:
        word: entry of the dictionary, pieces with their marks.
        log_prob: log P (Eq. 12).
        senses: its senses.
        purity: against true senses, where known.
        frequency: occurrences in the training data; None where not known.
    """

    word: str
    log_prob: float
    senses: list[SenseSummary]
    purity: Purity | None = None
    frequency: int | None = None


@dataclass
class SenseReport:
    """Summaries of chosen words.

    Attributes:
        words: one summary a word.
        purity: over all words with true senses.
        missing: words asked for that are no entry of the dictionary.
        deciles: senses a word in the whole dictionary, by tenths from frequent to rare.
        by_number: words in the dictionary with 1, 2, … senses, fairseq's own entries left out.
        with_data: whether occurrences were counted.
    """

    words: list[WordSummary]
    purity: Purity | None
    missing: list[str]
    deciles: list[FrequencyGroup] = field(default_factory=list)
    by_number: list[int] = field(default_factory=list)
    with_data: bool = True


def build_report(
    found: Iterable[Occurrence] | None,
    layer: OutputLayer,
    word_numbers: dict[str, int],
    *,
    words: Sequence[str] = (),
    gold: Gold | None = None,
    top: int = 20,
    examples: int = 2,
    counts: Sequence[int] = (),
    special: int = 0,
    nearest: int = 0,
) -> SenseReport:
    """Summarize the senses of some words.

    Args:
        found: occurrences in the data; None where there are no data.
        layer: the model's output layer.
        word_numbers: number of each word in the dictionary.
        words: words to report; by default those with true senses, or the ``top`` words with most
            senses (of those that occur, where there are data).
        gold: true senses, where known.
        top: how many words, if none are named; 0 for all.
        examples: contexts shown for each sense.
        counts: [V] occurrences of each word in the training data, for the table by frequency.
        special: entries at the beginning of the dictionary that are no words.
        nearest: how many neighbours of each sense to find; needs the whole dictionary.
    """
    by_word: dict[str, list[Occurrence]] = defaultdict(list)
    for occurrence in found or ():
        by_word[occurrence.word].append(occurrence)
    numbers = layer.inventory.senses_per_word().tolist()
    wanted = list(dict.fromkeys(words))
    if not wanted and gold is not None:
        wanted = sorted({word for _, _, word in gold})
    if not wanted:
        frequencies = None if found is None else {word: len(own) for word, own in by_word.items()}
        wanted = _of_most_senses(numbers, word_numbers, frequencies, counts, special)[: top or None]
    summaries = [
        _summarize(word, by_word.get(word, []), layer, word_numbers[word], gold, examples, counts)
        for word in wanted
        if word in word_numbers
    ]
    if nearest:
        _add_nearest(summaries, layer, word_numbers, special, nearest)
    measured = [summary.purity for summary in summaries if summary.purity is not None]
    return SenseReport(
        summaries,
        overall(measured) if measured else None,
        missing=[word for word in wanted if word not in word_numbers],
        deciles=senses_by_frequency(numbers, counts) if counts else [],
        by_number=_words_by_number(numbers, word_numbers, special),
        with_data=found is not None,
    )


def _of_most_senses(
    numbers: Sequence[int],
    word_numbers: dict[str, int],
    frequencies: dict[str, int] | None,
    counts: Sequence[int],
    special: int,
) -> list[str]:
    """Words of several senses, those with most senses first, then the most frequent ones.

    ``frequencies`` are those in the data, where there are data: only these words count then.
    """
    if frequencies is None:
        frequencies = {
            word: counts[number] if counts else 0
            for word, number in word_numbers.items()
            if is_word(word, number, special)
        }
    several = [word for word in frequencies if numbers[word_numbers[word]] > 1]
    return sorted(several, key=lambda w: (-numbers[word_numbers[w]], -frequencies[w], w))


def is_word(word: str, number: int, special: int) -> bool:
    """Whether an entry is neither one of fairseq's special symbols nor one of its fillers."""
    return number >= special and not _FILLER.fullmatch(word)


def word_numbers(dictionary: Any, words: Sequence[str]) -> list[int]:
    """Numbers of words in fairseq's dictionary.

    Raises:
        UserError: some are no entry; they are named.
    """
    missing = [word for word in words if word not in dictionary.indices]
    if missing:
        raise UserError(
            f"--word: {', '.join(missing)}: no entry of the dictionary; a word that BPE splits has "
            "none of its own"
        )
    return [dictionary.indices[word] for word in words]


def frequent_words(dictionary: Any, number: int) -> list[int]:
    """Numbers of the words that are most frequent in the training data."""
    counts, special = dictionary.count, dictionary.nspecial
    words = [i for i, word in enumerate(dictionary.symbols) if is_word(word, i, special)]
    return sorted(words, key=lambda word: (-counts[word], word))[:number]


def _words_by_number(numbers: list[int], word_numbers: dict[str, int], special: int) -> list[int]:
    counter = Counter(
        numbers[number] for word, number in word_numbers.items() if is_word(word, number, special)
    )
    return [counter[senses] for senses in range(1, max(counter, default=0) + 1)]


def _summarize(
    word: str,
    where: list[Occurrence],
    layer: OutputLayer,
    number: int,
    gold: Gold | None,
    examples: int,
    counts: Sequence[int],
) -> WordSummary:
    table, mask = layer.table
    own = where[0].senses if where else tuple(table[number][mask[number]].tolist())
    total = sum(float(layer.usage[sense]) for sense in own) or 1.0
    senses = {
        sense: SenseSummary(
            sense,
            float(layer.usage[sense]) / total,
            layer.theta[sense].item() if layer.kernel.has_theta else None,
        )
        for sense in own
    }
    pairs: list[tuple[int, str]] = []
    confident: dict[int, list[tuple[float, Occurrence]]] = defaultdict(list)
    for occurrence in where:
        senses[occurrence.sense].count += 1
        confident[occurrence.sense].append((max(occurrence.posterior), occurrence))
        true = (gold or {}).get((occurrence.line, occurrence.index, word))
        if true is not None:
            pairs.append((occurrence.sense, true))
    for sense, summary in senses.items():
        best = sorted(confident[sense], key=lambda entry: (-entry[0], entry[1].line))
        summary.examples = [
            Example(_context(occurrence), posterior, occurrence.line)
            for posterior, occurrence in best[:examples]
        ]
        summary.true_senses = dict(
            Counter(true for learned, true in pairs if learned == sense).most_common()
        )
    learned, truth = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    purity = measure(learned, truth) if pairs else None
    ordered = sorted(senses.values(), key=lambda s: (-s.count, -s.usage, s.sense))
    frequency = counts[number] if counts else None
    return WordSummary(word, float(layer.inventory.log_prob[number]), ordered, purity, frequency)


def _add_nearest(
    summaries: list[WordSummary],
    layer: OutputLayer,
    word_numbers: dict[str, int],
    special: int,
    number: int,
) -> None:
    symbols = {index: word for word, index in word_numbers.items()}
    ignored = [index for index, word in symbols.items() if not is_word(word, index, special)]
    owners = layer.inventory.word_of_sense.tolist()
    senses = [sense for summary in summaries for sense in summary.senses]
    found = nearest_senses(layer, [sense.sense for sense in senses], number, ignored)
    for sense, near in zip(senses, found, strict=True):
        sense.nearest = [NearSense(symbols[owners[other]], other, score) for other, score in near]


def _context(occurrence: Occurrence) -> str:
    tokens, place = occurrence.tokens, occurrence.position
    before = tokens[max(0, place - _CONTEXT) : place]
    after = tokens[place + 1 : place + 1 + _CONTEXT]
    return " ".join([*before, f"[{occurrence.word}]", *after])
