"""Senses of words: usage, θ, neighbours, example contexts, and true senses where they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pandas import DataFrame

from fairseq_kerbs.analysis.names import NO_NAME, SenseName, SenseNames
from fairseq_kerbs.analysis.similarity import nearest_senses
from fairseq_kerbs.analysis.words import (
    in_context,
    is_word,
    sense_numbers,
    senses_by_frequency,
    usage_shares,
)
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.senses import number_senses
from fairseq_kerbs.utils.processes import progress

Figures = dict[str, Any]
"""What is written as JSON, by name."""

_CONTEXT = 6  # words shown on either side


def training_counts(dictionary: Any) -> list[int]:
    """[V] occurrences in the training data, 0 of fairseq's special symbols."""
    return [0] * dictionary.nspecial + dictionary.count[dictionary.nspecial :]


def build_report(
    names: SenseNames | None,
    layer: OutputLayer,
    dictionary: Any,
    words: Sequence[str] = (),
    *,
    gold: Mapping[int, Mapping[str, int]] | None = None,
    top: int = 20,
    examples: int = 2,
    nearest: int = 0,
) -> Figures:
    """Summarize the senses of some words.

    Args:
        names: what senses translate and stand beside; None where there are no data.
        words: by default the ``top`` (all with 0) whose senses are clearest, or without data those
            with most senses.
        gold: how often each gold sense is met, by row of the sense.
        examples, nearest: contexts and neighbours of each sense.

    Returns:
        ``words``, see `_summarize`; ``missing``, words that are no entry of the dictionary;
        ``deciles``, see `senses_by_frequency`; ``by_number``, words with 1, 2, … senses;
        ``lines_read``, of the data, and ``with_data``. What is not known is None or empty.
    """
    symbols, special, counts = dictionary.symbols, dictionary.nspecial, training_counts(dictionary)
    proper = [number for number, word in enumerate(symbols) if is_word(word, number, special)]
    senses: list[int] = layer.senses_per_word().tolist()
    wanted = list(dict.fromkeys(words))
    if not wanted and names is not None:
        wanted = names.clearest(top, special)
    elif not wanted:
        several = sorted((-senses[n], -counts[n], symbols[n]) for n in proper if senses[n] > 1)
        wanted = [word for *_, word in several[: top or None]]
    known = [word for word in wanted if word in dictionary.indices]
    summaries = [
        _summarize(layer, dictionary.indices[word], word, gold or {}, examples, names)
        | {"frequency": counts[dictionary.indices[word]]}
        for word in progress(known, "senses", " words")
    ]
    ignored = sorted(set(range(len(symbols))) - set(proper))
    _add_names([s for word in summaries for s in word["senses"]], layer, symbols, nearest, ignored)
    return {
        "words": summaries,
        "missing": [word for word in wanted if word not in dictionary.indices],
        "deciles": senses_by_frequency(senses, counts),
        "by_number": np.bincount([senses[n] for n in proper], minlength=1)[1:].tolist(),
        "lines_read": None if names is None else names.lines,
        "with_data": names is not None,
    }


def _summarize(
    layer: OutputLayer,
    number: int,
    word: str,
    gold: Mapping[int, Mapping[str, int]],
    examples: int,
    names: SenseNames | None,
) -> Figures:
    """``word``, ``log_prob`` (Eq. 12), ``clarity`` (:meth:`SenseNames.clarity`), and of its
    ``senses``, the most used first, ``row`` in the layer, ``usage`` (Eq. 13, a share of the
    word's), ``theta``, ``true_senses`` (how often each is met), ``examples`` (the surest),
    and what :class:`SenseName` has."""
    senses, rows = [], sense_numbers(layer, number)
    by_row = {} if names is None else names.names(number)
    for row, usage in zip(rows, usage_shares(layer, rows).tolist()):
        contexts = [] if names is None else names.examples(row, number, examples)
        shown = [
            {"text": in_context(words, place, _CONTEXT), "posterior": posterior}
            for posterior, words, place in contexts
        ]
        theta = layer.theta[row].item() if layer.has_theta else None
        true = dict(sorted(gold.get(row, {}).items(), key=lambda pair: -pair[1]))
        figures = {"row": row, "usage": usage, "theta": theta}
        figures |= {"true_senses": true, "examples": shown}
        senses.append(figures | by_row.get(row, NO_NAME)._asdict())
    clarity = None if names is None else names.clarity(number)
    figures = {"word": word, "log_prob": float(layer.log_prob[number]), "clarity": clarity}
    return figures | {"senses": senses}


def _add_names(
    senses: list[Figures], layer: OutputLayer, symbols: Sequence[str], most: int, ignored: list[int]
) -> None:
    """Of every sense ``word``, ``sense`` (its number within the word) and ``name``, such as
    ``seal#2``; ``nearest``: the same of the senses that `nearest_senses` finds, and ``score``."""
    owners: list[int] = layer.word_of_sense.tolist()
    numbers: list[int] = number_senses(layer.word_of_sense, layer.usage).tolist()

    def names(row: int) -> Figures:
        word, number = symbols[owners[row]], numbers[row]
        return {"word": word, "sense": number, "name": f"{word}#{number}", "row": row}

    nearest = nearest_senses(layer, [sense["row"] for sense in senses], most, ignored)
    for sense, near in zip(senses, nearest):
        sense.update(names(sense["row"]))
        sense["nearest"] = [names(row) | {"score": score} for row, score in near]


def name_of(sense: Figures) -> SenseName:
    """The name of a sense in a report."""
    return SenseName(*(sense[field] for field in SenseName._fields))


def _true_senses(sense: Figures) -> list[str]:
    return [f"{name} {times}" for name, times in sense["true_senses"].items()]


def report_table(report: Figures) -> DataFrame:
    """One row an example, or a sense that has none; the figures of a sense are on each row."""
    rows = []
    for word in report["words"]:
        shared = {"word": word["word"], "senses": len(word["senses"])}
        shared |= {key: word[key] for key in ("frequency", "log_prob", "clarity")}
        for sense in word["senses"]:
            name, near = (
                name_of(sense),
                ("{name} {score:.6g}".format(**n) for n in sense["nearest"]),
            )
            row = shared | {key: sense[key] for key in ("sense", "row", "usage", "theta")}
            row |= {"times": name.times, "share": name.share, "translates": name.translates}
            row |= {"beside": name.beside, "true_senses": "; ".join(_true_senses(sense))}
            row |= {"nearest": "; ".join(near), "posterior": None, "example": None}
            for example in sense["examples"] or [{}]:
                shown = {"posterior": example.get("posterior"), "example": example.get("text")}
                rows.append(row | shown)
    return DataFrame(rows)


def report_as_text(report: Figures) -> str:
    """The report for a terminal."""
    words, total = report["words"], max(1, sum(report["by_number"]))
    parts = [_word_lines(word, report["with_data"]) for word in words]
    if not words and not report["missing"]:
        parts.append("no word here has several senses; name words with --word to see them")
    by_number = DataFrame({"words": report["by_number"]})
    by_number.insert(0, "senses", range(1, len(by_number) + 1))
    by_number["share"] = [f"{number / total:.1%}" for number in by_number["words"]]
    parts.append(by_number.to_string(index=False))
    if report["deciles"]:
        rows = [
            (number, ten["words"], f"{ten['most']}–{ten['fewest']}", f"{ten['senses']:.3f}")
            for number, ten in enumerate(report["deciles"], 1)
        ]
        columns = ["decile", "words", "occurrences", "senses a word"]
        parts.append(DataFrame(rows, columns=columns).to_string(index=False))
    if report["lines_read"] is not None:
        parts.append(f"shares and names by {report['lines_read']} lines")
    if missing := ", ".join(report["missing"]):
        parts.append(
            f"no entry of the dictionary: {missing} (a word that BPE splits has none of its own; "
            "its pieces have, such as ban@@)"
        )
    return "\n\n".join(parts)


def _word_lines(word: Figures, with_data: bool) -> str:
    senses, share = word["senses"], "share" if with_data else "usage"
    names = [name_of(sense) for sense in senses]
    table = DataFrame(
        {
            "sense": [sense["name"] for sense in senses],
            share: [f"{sense[share]:.0%}" for sense in senses],
            "θ": ["–" if s["theta"] is None else f"{s['theta']:+.3f}" for s in senses],
            "translates": [name.translates for name in names],
            "neighbours": [name.beside for name in names],
        }
    )
    table = table[[column for column in table if table[column].any()]]
    sides = ["left", "right", "right", "left", "left"][: table.shape[1]]
    head, *rows = table.to_markdown(
        index=False, tablefmt="plain", disable_numparse=True, colalign=sides
    ).splitlines()
    several = "s" if len(senses) > 1 else ""
    lines = [f"{word['word']}: {len(senses)} sense{several}, ", f"  {head}"]
    lines[0] += f"{word['frequency']} times in the training data"
    for sense, row in zip(senses, rows):
        lines.append(f"  {row}")
        if true := _true_senses(sense):
            lines.append(f"      true: {', '.join(true)}")
        if near := ["{name} {score:.2f}".format(**near) for near in sense["nearest"]]:
            lines.append(f"      nearest: {', '.join(near)}")
        lines += [
            "      {posterior:.2f}  {text}".format(**example) for example in sense["examples"]
        ]
    return "\n".join(line.rstrip() for line in lines)
