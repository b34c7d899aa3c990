"""Senses of words: usage, θ, neighbours and example contexts; purity where true senses are known.

Everything but contexts and purity comes from the output layer and the dictionary alone.

How well learned senses separate true ones is held against a single sense and against chance. Of the
occurrences of one word, let n(s, g) be those with learned sense s and true sense g. Purity is the
share that would be right if each learned sense meant the true sense it most often goes with:

    purity = Σ_s max_g n(s, g) / Σ n

A model with one sense a word reaches the share of the most frequent true sense. More senses reach
more even when they mean nothing; chance is the mean purity after shuffling the learned senses
among the occurrences of the word.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from fairseq_kerbs.analysis.context_vectors import sense_numbers, usage_shares
from fairseq_kerbs.analysis.occurrences import Occurrence
from fairseq_kerbs.analysis.similarity import nearest_senses
from fairseq_kerbs.analysis.tables import as_csv, as_lines
from fairseq_kerbs.analysis.words import FrequencyGroup, in_context, is_word, senses_by_frequency
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

Gold = dict[tuple[int, int, str], str]
"""True senses by line, occurrence of the word form in the line, and word."""

SHUFFLES = 200
_CONTEXT = 6  # words shown on either side


@dataclass(frozen=True)
class Purity:
    """Purity of one word's learned senses (or of many words together)."""

    occurrences: int  # how many were counted
    purity: float  # see the head of this file, within (0, 1]
    single: float  # what one sense a word reaches
    chance: float  # what as many senses reach by chance


@dataclass(frozen=True)
class NearSense:
    """A sense beside another: word, number, kernel logit (see `nearest_senses`)."""

    word: str
    sense: int
    score: float


@dataclass(frozen=True)
class Example:
    """A context in which a sense was used."""

    text: str  # words around, the word itself in brackets
    posterior: float  # P(sense | word, context)
    line: int  # number of the sentence in its split, from 0


@dataclass
class SenseSummary:
    """One sense of a word."""

    sense: int  # its number
    usage: float  # U (Eq. 13) as a share of the word's
    theta: float | None  # None where the kernel has none
    count: int = 0  # occurrences for which it is the most probable sense
    examples: list[Example] = field(default_factory=list)  # those in which it was surest
    true_senses: dict[str, int] = field(default_factory=dict)  # of its occurrences, where known
    nearest: list[NearSense] = field(default_factory=list)


@dataclass
class WordSummary:
    """A word and its senses, the most used first."""

    word: str  # entry of the dictionary, pieces with their marks
    log_prob: float  # log P (Eq. 12)
    senses: list[SenseSummary]
    purity: Purity | None = None  # where true senses are known
    frequency: int | None = None  # occurrences in the training data, where known


@dataclass
class SenseReport:
    """Summaries of chosen words."""

    words: list[WordSummary]
    purity: Purity | None  # over all words with true senses
    missing: list[str]  # words asked for that are no entry of the dictionary
    deciles: list[FrequencyGroup] = field(default_factory=list)  # of the whole dictionary
    by_number: list[int] = field(default_factory=list)  # words with 1, 2, … senses
    with_data: bool = True  # whether occurrences were counted


# ------------------------------------------------------------------------- purity


def read_gold_senses(path: Path) -> dict[tuple[int, int, str], str]:
    """True senses by (line, occurrence in the line, word), as the synthetic corpus writes them.

    Raises:
        UserError: the file is missing, empty or has a line of another form.
    """
    gold: dict[tuple[int, int, str], str] = {}
    for number, row in enumerate(read_lines(path), start=1):
        fields = row.split("\t")
        if len(fields) != 4 or not (fields[0].isdigit() and fields[1].isdigit()):
            raise UserError(
                f"{path}, line {number}: expected line, occurrence, word and sense between tabs"
            )
        gold[int(fields[0]), int(fields[1]), fields[2]] = fields[3]
    if not gold:
        raise UserError(f"{path} is empty")
    return gold


def purity_of(learned: Sequence[object], true: Sequence[object]) -> float:
    """Purity of one grouping against another.

    Raises:
        ValueError: the two differ in length, or are empty.
    """
    if len(learned) != len(true) or not learned:
        raise ValueError("purity needs as many learned senses as true ones, and at least one")
    largest: Counter[object] = Counter()
    for (group, _), count in Counter(zip(learned, true, strict=True)).items():
        largest[group] = max(largest[group], count)
    return largest.total() / len(true)


def measure_purity(learned: Sequence[object], true: Sequence[object], seed: int = 1) -> Purity:
    """Purity of one word with both baselines; chance from :data:`SHUFFLES` seeded shuffles."""
    rng, shuffled, total = Random(seed), list(learned), 0.0
    for _ in range(SHUFFLES):
        rng.shuffle(shuffled)
        total += purity_of(shuffled, true)
    single = max(Counter(true).values()) / len(true)
    return Purity(len(true), purity_of(learned, true), single, total / SHUFFLES)


def overall_purity(words: Sequence[Purity]) -> Purity:
    """Mean over words, weighted by occurrences."""
    weights = [word.occurrences for word in words]
    shares = np.average([(w.purity, w.single, w.chance) for w in words], axis=0, weights=weights)
    return Purity(sum(weights), *shares.tolist())


# ------------------------------------------------------------------------- the report


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
    numbers = layer.senses_per_word().tolist()
    proper = [word for word, number in word_numbers.items() if is_word(word, number, special)]
    wanted = list(dict.fromkeys(words))
    if not wanted and gold is not None:
        wanted = sorted({word for _, _, word in gold})
    if not wanted:
        frequencies = {word: len(own) for word, own in by_word.items()}
        if found is None:
            frequencies = {word: counts[word_numbers[word]] if counts else 0 for word in proper}
        several = [word for word in frequencies if numbers[word_numbers[word]] > 1]
        several.sort(key=lambda word: (-numbers[word_numbers[word]], -frequencies[word], word))
        wanted = several[: top or None]
    summaries = [
        _summarize(word, by_word.get(word, []), layer, word_numbers[word], gold, examples, counts)
        for word in wanted
        if word in word_numbers
    ]
    if nearest:
        ignored = set(word_numbers.values()) - {word_numbers[word] for word in proper}
        _add_nearest(summaries, layer, word_numbers, sorted(ignored), nearest)
    measured = [summary.purity for summary in summaries if summary.purity is not None]
    by_number = np.bincount([numbers[word_numbers[word]] for word in proper], minlength=1)
    return SenseReport(
        summaries,
        overall_purity(measured) if measured else None,
        missing=[word for word in wanted if word not in word_numbers],
        deciles=senses_by_frequency(numbers, counts) if counts else [],
        by_number=by_number[1:].tolist(),
        with_data=found is not None,
    )


def _summarize(
    word: str,
    where: list[Occurrence],
    layer: OutputLayer,
    number: int,
    gold: Gold | None,
    examples: int,
    counts: Sequence[int],
) -> WordSummary:
    own = list(where[0].senses) if where else sense_numbers(layer, number)
    true = ((o.sense, (gold or {}).get((o.line, o.index, word))) for o in where)
    pairs = [(sense, name) for sense, name in true if name is not None]
    senses = []
    for sense, usage in zip(own, usage_shares(layer, own).tolist(), strict=True):
        theta = layer.theta[sense].item() if layer.has_theta else None
        used = [occurrence for occurrence in where if occurrence.sense == sense]
        used.sort(key=lambda occurrence: (-max(occurrence.posterior), occurrence.line))
        shown = [
            Example(in_context(o.tokens, o.position, _CONTEXT), max(o.posterior), o.line)
            for o in used[:examples]
        ]
        known = Counter(name for learned, name in pairs if learned == sense)
        senses.append(
            SenseSummary(sense, usage, theta, len(used), shown, dict(known.most_common()))
        )
    purity = measure_purity([s for s, _ in pairs], [name for _, name in pairs]) if pairs else None
    senses.sort(key=lambda one: (-one.count, -one.usage, one.sense))
    frequency = counts[number] if counts else None
    return WordSummary(word, float(layer.log_prob[number]), senses, purity, frequency)


def _add_nearest(
    summaries: list[WordSummary],
    layer: OutputLayer,
    word_numbers: dict[str, int],
    ignored: Sequence[int],
    number: int,
) -> None:
    symbols = {index: word for word, index in word_numbers.items()}
    owners = layer.word_of_sense.tolist()
    senses = [sense for summary in summaries for sense in summary.senses]
    found = nearest_senses(layer, [sense.sense for sense in senses], number, ignored)
    for sense, near in zip(senses, found, strict=True):
        sense.nearest = [NearSense(symbols[owners[other]], other, score) for other, score in near]


# ------------------------------------------------------------------------- tables

CSV_HEAD = (
    *("word", "senses", "frequency", "log_prob", "sense", "usage", "theta", "count"),
    *("true_senses", "nearest", "posterior", "example"),
)


def report_as_csv(report: SenseReport) -> str:
    """One row an example, or a sense that has none; the figures of a sense are on each row."""
    rows: list[list[object]] = []
    for word in report.words:
        for one in word.senses:
            true = "; ".join(f"{name} {count}" for name, count in one.true_senses.items())
            near = "; ".join(f"{near.word} {near.sense} {near.score:.6g}" for near in one.nearest)
            figures = [word.word, len(word.senses), word.frequency, word.log_prob, one.sense]
            figures += [one.usage, one.theta, one.count if report.with_data else None, true, near]
            contexts = [[example.posterior, example.text] for example in one.examples]
            rows += [[*figures, *context] for context in contexts or [[None, None]]]
    return as_csv(CSV_HEAD, rows, digits=6)


def report_as_text(report: SenseReport) -> str:
    """The report for a terminal."""
    parts = [_word_lines(word, report.with_data) for word in report.words]
    if not report.words and not report.missing:
        parts.append(["no word here has several senses; name words with --word to see them"])
    if report.purity is not None:
        parts.append(_purity_lines(report.words, report.purity))
    total = max(1, sum(report.by_number))
    rows = [[str(n), str(w), f"{w / total:.1%}"] for n, w in enumerate(report.by_number, 1)]
    parts.append(as_lines(["senses", "words", "share"], rows))
    rows = [
        [str(number), str(group.words), f"{group.most}–{group.fewest}", f"{group.senses:.3f}"]
        for number, group in enumerate(report.deciles, 1)
    ]
    parts.append(as_lines(["decile", "words", "occurrences", "senses a word"], rows))
    if report.missing:
        parts.append(
            [
                f"no entry of the dictionary: {', '.join(report.missing)} (a word that BPE splits "
                "has none of its own; its pieces have, such as ban@@)"
            ]
        )
    return "\n\n".join("\n".join(part) for part in parts if part)


def _word_lines(word: WordSummary, with_data: bool) -> list[str]:
    number = len(word.senses)
    head = f"{word.word}: {number} sense{'s' if number > 1 else ''}, log P {word.log_prob:.3g}"
    if word.frequency is not None:
        head += f", {word.frequency} times in the training data"
    times = f"{'times':>7}" if with_data else ""
    lines = [head, f"  {'sense':>8}{times}{'usage':>7}{'θ':>8}  nearest senses by kernel"]
    for sense in word.senses:
        count = f"{sense.count:>7}" if with_data else ""
        theta = "–" if sense.theta is None else f"{sense.theta:+.3f}"
        near = ", ".join(f"{other.word}/{other.sense} {other.score:.2f}" for other in sense.nearest)
        row = f"  {sense.sense:>8}{count}{sense.usage:>7.0%}{theta:>8}  {near}"
        lines.append(row.rstrip())
        if sense.true_senses:
            true = ", ".join(f"{name} {count}" for name, count in sense.true_senses.items())
            lines.append(f"      true: {true}")
        lines += [f"      {example.posterior:.2f}  {example.text}" for example in sense.examples]
    return lines


def _purity_lines(words: list[WordSummary], total: Purity) -> list[str]:
    measured = [
        (word.word, str(sum(sense.count > 0 for sense in word.senses)), word.purity)
        for word in words
        if word.purity is not None
    ]
    rows = [
        [name, str(one.occurrences), used]
        + [f"{share:.1%}" for share in (one.purity, one.single, one.chance)]
        for name, used, one in [*measured, ("all", "", total)]
    ]
    return as_lines(["word", "count", "senses", "purity", "single", "chance"], rows)
