"""Senses of words with their usage, θ and example contexts; purity where true senses are known."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fairseq_kerbs.analysis.frequency import (
    FrequencyGroup,
    frequency_lines,
    senses_by_frequency,
)
from fairseq_kerbs.analysis.occurrences import Occurrence
from fairseq_kerbs.analysis.purity import Purity, measure, overall
from fairseq_kerbs.output_layers import OutputLayer

Gold = dict[tuple[int, int, str], str]
_CONTEXT = 6  # words shown on either side


@dataclass
class SenseSummary:
    """One sense of a word in the data.

    Attributes:
        sense: its number.
        usage: U (Eq. 13) as a share of the word's.
        theta: kernel parameter.
        count: occurrences for which it is the most probable sense.
        examples: contexts, the word in brackets.
        true_senses: true senses of those occurrences, where known.
    """

    sense: int
    usage: float
    theta: float
    count: int = 0
    examples: list[str] = field(default_factory=list)
    true_senses: dict[str, int] = field(default_factory=dict)


@dataclass
class WordSummary:
    """A word and its senses, the most used first."""

    word: str
    log_prob: float
    senses: list[SenseSummary]
    purity: Purity | None = None


@dataclass
class SenseReport:
    """Summaries of chosen words.

    Attributes:
        words: one summary a word.
        purity: over all words with true senses.
        missing: words asked for that are no single token anywhere in the data.
        deciles: senses a word in the whole dictionary, by tenths from frequent to rare.
    """

    words: list[WordSummary]
    purity: Purity | None
    missing: list[str]
    deciles: list[FrequencyGroup] = field(default_factory=list)

    def as_json(self) -> str:
        """The whole report as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)

    def as_text(self) -> str:
        """The report for a terminal."""
        lines: list[str] = []
        for word in self.words:
            lines += _word_lines(word)
        if self.purity is not None:
            lines += ["", *_purity_lines(self.words, self.purity)]
        if self.deciles:
            lines += ["", *frequency_lines(self.deciles)]
        if self.missing:
            lines.append(f"no single token of the data: {', '.join(self.missing)}")
        return "\n".join(lines)


def build_report(
    found: Iterable[Occurrence],
    layer: OutputLayer,
    word_numbers: dict[str, int],
    *,
    words: Sequence[str] = (),
    gold: Gold | None = None,
    top: int = 20,
    examples: int = 2,
    counts: Sequence[int] = (),
) -> SenseReport:
    """Summarize the senses of some words.

    Args:
        found: occurrences in the data.
        layer: the model's output layer.
        word_numbers: number of each word in the dictionary.
        words: words to report; by default those with true senses, or the ``top`` most frequent
            ones with several senses.
        gold: true senses, where known.
        top: how many words, if none are named.
        examples: contexts shown for each sense.
        counts: [V] occurrences of each word in the training data, for the table by frequency.
    """
    by_word: dict[str, list[Occurrence]] = defaultdict(list)
    for occurrence in found:
        by_word[occurrence.word].append(occurrence)
    wanted = list(words)
    if not wanted and gold is not None:
        wanted = sorted({word for _, _, word in gold})
    if not wanted:
        several = [word for word, where in by_word.items() if len(where[0].senses) > 1]
        wanted = sorted(several, key=lambda word: (-len(by_word[word]), word))[:top]
    summaries = [
        _summarize(word, by_word[word], layer, word_numbers[word], gold, examples)
        for word in wanted
        if word in by_word
    ]
    measured = [summary.purity for summary in summaries if summary.purity is not None]
    missing = [word for word in wanted if word not in by_word]
    numbers = layer.inventory.senses_per_word().tolist()
    deciles = senses_by_frequency(numbers, counts) if counts else []
    return SenseReport(summaries, overall(measured) if measured else None, missing, deciles)


def _summarize(
    word: str,
    where: list[Occurrence],
    layer: OutputLayer,
    number: int,
    gold: Gold | None,
    examples: int,
) -> WordSummary:
    total = sum(float(layer.usage[sense]) for sense in where[0].senses) or 1.0
    senses = {
        sense: SenseSummary(sense, float(layer.usage[sense]) / total, layer.theta[sense].item())
        for sense in where[0].senses
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
        summary.examples = [_context(occurrence) for _, occurrence in best[:examples]]
        summary.true_senses = dict(
            Counter(true for learned, true in pairs if learned == sense).most_common()
        )
    learned, truth = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    purity = measure(learned, truth) if pairs else None
    ordered = sorted(senses.values(), key=lambda summary: (-summary.count, summary.sense))
    return WordSummary(word, float(layer.inventory.log_prob[number]), ordered, purity)


def _context(occurrence: Occurrence) -> str:
    tokens, place = occurrence.tokens, occurrence.position
    before = tokens[max(0, place - _CONTEXT) : place]
    after = tokens[place + 1 : place + 1 + _CONTEXT]
    return " ".join([*before, f"[{occurrence.word}]", *after])


def _word_lines(word: WordSummary) -> list[str]:
    number = len(word.senses)
    lines = [f"{word.word}: {number} sense{'s' if number > 1 else ''}, log P {word.log_prob:.3g}"]
    for sense in word.senses:
        true = ", ".join(f"{name} {count}" for name, count in sense.true_senses.items())
        lines.append(
            f"  sense {sense.sense}: {sense.count} times, usage {sense.usage:.0%}, "
            f"θ {sense.theta:+.3f}" + (f" | true: {true}" if true else "")
        )
        lines += [f"      {example}" for example in sense.examples]
    return lines


def _purity_lines(words: list[WordSummary], total: Purity) -> list[str]:
    lines = [f"{'word':<12}{'count':>7}{'senses':>8}{'purity':>9}{'single':>9}{'chance':>9}"]
    for word in words:
        if word.purity is not None:
            used = sum(sense.count > 0 for sense in word.senses)
            lines.append(_purity_row(word.word, str(used), word.purity))
    lines.append(_purity_row("all", "", total))
    return lines


def _purity_row(name: str, senses: str, value: Purity) -> str:
    numbers = "".join(f"{share:>9.1%}" for share in (value.purity, value.single, value.chance))
    return f"{name:<12}{value.occurrences:>7}{senses:>8}{numbers}"
