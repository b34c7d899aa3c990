"""Senses of words: usage, θ, neighbours and example contexts; purity where true senses are known.

Everything but contexts and purity comes from the output layer and the dictionary alone.

How well learned senses separate true ones is held against a single sense and against chance. Of the
occurrences of one word, let n(s, g) be those with learned sense s and true sense g. Purity is the
share that would be right if each learned sense meant the true sense it most often goes with:

    purity = Σ_s max_g n(s, g) / Σ n

A model with one sense a word reaches the share of the most frequent true sense. More senses reach
more even when they mean nothing; chance is the mean purity after shuffling the learned senses
among the occurrences of the word.

A report has ``words``: of each its entry ``word``, ``log_prob`` (Eq. 12), ``frequency`` in the
training data, ``purity``, and its ``senses``, those used most first: number ``sense``, ``usage``
(Eq. 13, a share of the word's), ``theta``, ``count`` (occurrences for which it is the most
probable), ``true_senses`` (numbers of these), ``examples`` (those in which it was surest: ``text``,
``posterior``, ``line`` from 0) and ``nearest`` (``word``, ``sense``, ``score``, see
`nearest_senses`). It also has ``purity`` of all, ``missing`` (words that are no entry of the
dictionary), ``deciles`` (see `senses_by_frequency`), ``by_number`` (words with 1, 2, … senses) and
``with_data``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fairseq_kerbs.analysis.context_vectors import sense_numbers, usage_shares
from fairseq_kerbs.analysis.occurrences import Occurrence
from fairseq_kerbs.analysis.similarity import nearest_senses
from fairseq_kerbs.analysis.tables import as_lines
from fairseq_kerbs.analysis.words import in_context, is_word, senses_by_frequency
from fairseq_kerbs.evaluation.texts import table_as_csv
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

Figures = dict[str, Any]
"""What is written as JSON, by name."""

SHUFFLES = 200
_CONTEXT = 6  # words shown on either side


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


def measure_purity(learned: Sequence[object], true: Sequence[object], seed: int = 1) -> Figures:
    """``purity`` of one word's ``occurrences`` and both baselines: ``single``, what one sense a
    word reaches, and ``chance`` from :data:`SHUFFLES` seeded shuffles."""
    rng, shuffled, chance = Random(seed), list(learned), 0.0
    for _ in range(SHUFFLES):
        rng.shuffle(shuffled)
        chance += purity_of(shuffled, true)
    shares = {"purity": purity_of(learned, true), "single": purity_of([0] * len(true), true)}
    return {"occurrences": len(true), **shares, "chance": chance / SHUFFLES}


def overall_purity(words: Sequence[Figures]) -> Figures:
    """Mean over words, weighted by occurrences."""
    weights = [word["occurrences"] for word in words]
    means = {
        name: float(np.average([word[name] for word in words], weights=weights))
        for name in ("purity", "single", "chance")
    }
    return {"occurrences": sum(weights)} | means


# ------------------------------------------------------------------------- the report


def build_report(
    found: Iterable[Occurrence] | None,
    layer: OutputLayer,
    word_numbers: dict[str, int],
    *,
    words: Sequence[str] = (),
    gold: Mapping[tuple[int, int, str], str] | None = None,
    top: int = 20,
    examples: int = 2,
    counts: Sequence[int] = (),
    special: int = 0,
    nearest: int = 0,
) -> Figures:
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

    Returns:
        see the head of this file; what is not known is None or empty.
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
    summaries = []
    for word in filter(word_numbers.__contains__, wanted):
        number = word_numbers[word]
        one = _summarize(word, by_word.get(word, []), layer, number, gold or {}, examples)
        summaries.append(one | {"frequency": counts[number] if counts else None})
    if nearest:
        senses = [sense for summary in summaries for sense in summary["senses"]]
        _add_nearest(senses, layer, word_numbers, proper, nearest)
    measured = [summary["purity"] for summary in summaries if summary["purity"]]
    by_number = np.bincount([numbers[word_numbers[word]] for word in proper], minlength=1)
    return {
        "words": summaries,
        "purity": overall_purity(measured) if measured else None,
        "missing": [word for word in wanted if word not in word_numbers],
        "deciles": senses_by_frequency(numbers, counts) if counts else [],
        "by_number": by_number[1:].tolist(),
        "with_data": found is not None,
    }


def _add_nearest(
    senses: list[Figures],
    layer: OutputLayer,
    word_numbers: dict[str, int],
    proper: list[str],
    number: int,
) -> None:
    symbols = {index: word for word, index in word_numbers.items()}
    owners = layer.word_of_sense.tolist()
    ignored = sorted(set(symbols) - {word_numbers[word] for word in proper})
    found = nearest_senses(layer, [sense["sense"] for sense in senses], number, ignored)
    for sense, near in zip(senses, found, strict=True):
        sense["nearest"] = [
            {"word": symbols[owners[other]], "sense": other, "score": score}
            for other, score in near
        ]


def _summarize(
    word: str,
    where: list[Occurrence],
    layer: OutputLayer,
    number: int,
    gold: Mapping[tuple[int, int, str], str],
    examples: int,
) -> Figures:
    own = list(where[0].senses) if where else sense_numbers(layer, number)
    true = [(o.sense, gold.get((o.line, o.index, word))) for o in where]
    pairs = [pair for pair in true if pair[1] is not None]
    senses = []
    for sense, usage in zip(own, usage_shares(layer, own).tolist(), strict=True):
        used = [occurrence for occurrence in where if occurrence.sense == sense]
        used.sort(key=lambda occurrence: (-max(occurrence.posterior), occurrence.line))
        shown = [
            {
                "text": in_context(o.tokens, o.position, _CONTEXT),
                "posterior": max(o.posterior),
                "line": o.line,
            }
            for o in used[:examples]
        ]
        known = Counter(name for learned, name in pairs if learned == sense).most_common()
        senses.append(
            {
                "sense": sense,
                "usage": usage,
                "theta": layer.theta[sense].item() if layer.has_theta else None,
                "count": len(used),
                "examples": shown,
                "true_senses": dict(known),
                "nearest": [],
            }
        )
    senses.sort(key=lambda one: (-one["count"], -one["usage"], one["sense"]))
    purity = measure_purity([s for s, _ in pairs], [name for _, name in pairs]) if pairs else None
    log_prob = float(layer.log_prob[number])
    return {"word": word, "log_prob": log_prob, "senses": senses, "purity": purity}


# ------------------------------------------------------------------------- tables


def report_as_csv(report: Figures) -> str:
    """One row an example, or a sense that has none; the figures of a sense are on each row."""
    rows: list[list[object]] = []
    for word in report["words"]:
        for one in word["senses"]:
            true = "; ".join(f"{name} {count}" for name, count in one["true_senses"].items())
            near = "; ".join("{word} {sense} {score:.6g}".format(**near) for near in one["nearest"])
            figures = [word["word"], len(word["senses"]), word["frequency"], word["log_prob"]]
            figures += [one[name] for name in ("sense", "usage", "theta")]
            figures += [one["count"] if report["with_data"] else None, true, near]
            contexts = [[example["posterior"], example["text"]] for example in one["examples"]]
            rows += [[*figures, *context] for context in contexts or [[None, None]]]
    head = "word senses frequency log_prob sense usage theta count true_senses nearest posterior"
    return table_as_csv([*head.split(), "example"], rows, digits=6)


def report_as_text(report: Figures) -> str:
    """The report for a terminal."""
    words, purity = report["words"], report["purity"]
    parts = [_word_lines(word, report["with_data"]) for word in words]
    if not words and not report["missing"]:
        parts.append(["no word here has several senses; name words with --word to see them"])
    rows = []
    for one in [*words, {"word": "all", "senses": [], "purity": purity}] if purity else []:
        if (own := one["purity"]) is not None:
            used = str(sum(sense["count"] > 0 for sense in one["senses"]) or "")
            shares = [f"{own[name]:.1%}" for name in ("purity", "single", "chance")]
            rows.append([one["word"], str(own["occurrences"]), used, *shares])
    parts.append(as_lines(["word", "count", "senses", "purity", "single", "chance"], rows))
    total = max(1, sum(report["by_number"]))
    rows = [[str(n), str(w), f"{w / total:.1%}"] for n, w in enumerate(report["by_number"], 1)]
    parts.append(as_lines(["senses", "words", "share"], rows))
    rows = [
        [str(number), str(ten["words"]), f"{ten['most']}–{ten['fewest']}", f"{ten['senses']:.3f}"]
        for number, ten in enumerate(report["deciles"], 1)
    ]
    parts.append(as_lines(["decile", "words", "occurrences", "senses a word"], rows))
    if missing := ", ".join(report["missing"]):
        text = f"no entry of the dictionary: {missing} (a word that BPE splits has none of its own;"
        parts.append([f"{text} its pieces have, such as ban@@)"])
    return "\n\n".join("\n".join(part) for part in parts if part)


def _word_lines(word: Figures, with_data: bool) -> list[str]:
    number = f"{len(word['senses'])} sense{'s' if len(word['senses']) > 1 else ''}"
    head = f"{word['word']}: {number}, log P {word['log_prob']:.3g}"
    if word["frequency"] is not None:
        head += f", {word['frequency']} times in the training data"
    times = f"{'times':>7}" if with_data else ""
    lines = [head, f"  {'sense':>8}{times}{'usage':>7}{'θ':>8}  nearest senses by kernel"]
    for one in word["senses"]:
        count = f"{one['count']:>7}" if with_data else ""
        theta = "–" if one["theta"] is None else f"{one['theta']:+.3f}"
        near = ", ".join("{word}/{sense} {score:.2f}".format(**near) for near in one["nearest"])
        row = f"  {one['sense']:>8}{count}{one['usage']:>7.0%}{theta:>8}  {near}"
        lines.append(row.rstrip())
        if one["true_senses"]:
            true = ", ".join(f"{name} {count}" for name, count in one["true_senses"].items())
            lines.append(f"      true: {true}")
        lines += ["      {posterior:.2f}  {text}".format(**example) for example in one["examples"]]
    return lines
