"""Senses of words: usage, θ, neighbours, example contexts, and true senses where they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tabulate import tabulate

from fairseq_kerbs.analysis.context_vectors import sense_numbers, usage_shares
from fairseq_kerbs.analysis.names import NO_NAME, SenseName, SenseNames
from fairseq_kerbs.analysis.similarity import nearest_senses
from fairseq_kerbs.analysis.words import in_context, is_word, senses_by_frequency
from fairseq_kerbs.evaluation.texts import as_lines, table_as_csv
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.senses import number_senses
from fairseq_kerbs.utils.processes import progress

Figures = dict[str, Any]
"""What is written as JSON, by name."""

_CONTEXT = 6  # words shown on either side


def build_report(
    names: SenseNames | None,
    layer: OutputLayer,
    symbols: Sequence[str],
    *,
    words: Sequence[str] = (),
    gold: Mapping[int, Mapping[str, int]] | None = None,
    top: int = 20,
    examples: int = 2,
    counts: Sequence[int] = (),
    special: int = 0,
    nearest: int = 0,
) -> Figures:
    """Summarize the senses of some words.

    Args:
        names: what senses translate and stand beside; None where there are no data.
        symbols, counts: [V] entries of the dictionary, the ``special`` first of which are no words,
            and their occurrences in the training data (empty if unknown).
        words: words to report; by default the ``top`` (all with 0) whose senses are clearest, or
            without data those with most senses.
        gold: how often each gold sense is met, by row of the sense.
        examples, nearest: contexts and neighbours of each sense.

    Returns:
        ``words``, see `_summarize`; ``missing``, words that are no entry of the dictionary;
        ``deciles``, see `senses_by_frequency`; ``by_number``, words with 1, 2, … senses;
        ``lines_read``, of the data, and ``with_data``. What is not known is None or empty.
    """
    entries = {word: number for number, word in enumerate(symbols)}
    proper = [number for number, word in enumerate(symbols) if is_word(word, number, special)]
    senses: list[int] = layer.senses_per_word().tolist()
    wanted = list(dict.fromkeys(words))
    if not wanted and names is not None:
        wanted = names.clearest(top, special)
    elif not wanted:
        times = {symbols[number]: counts[number] if counts else 0 for number in proper}
        several = [word for word in times if senses[entries[word]] > 1]
        several.sort(key=lambda word: (-senses[entries[word]], -times[word], word))
        wanted = several[: top or None]
    known = [word for word in wanted if word in entries]
    summaries = [
        _summarize(layer, entries[word], word, gold or {}, examples, names)
        | {"frequency": counts[entries[word]] if counts else None}
        for word in progress(known, "senses", " words")
    ]
    ignored = sorted(set(range(len(symbols))) - set(proper))
    _add_names([s for word in summaries for s in word["senses"]], layer, symbols, nearest, ignored)
    return {
        "words": summaries,
        "missing": [word for word in wanted if word not in entries],
        "deciles": senses_by_frequency(senses, counts) if counts else [],
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

    found = nearest_senses(layer, [sense["row"] for sense in senses], most, ignored)
    for sense, near in zip(senses, found):
        sense.update(names(sense["row"]))
        sense["nearest"] = [names(row) | {"score": score} for row, score in near]


def report_as_csv(report: Figures) -> str:
    """One row an example, or a sense that has none; the figures of a sense are on each row."""
    rows: list[list[object]] = []
    for word in report["words"]:
        for one in word["senses"]:
            true = "; ".join(f"{name} {count}" for name, count in one["true_senses"].items())
            near = "; ".join("{name} {score:.6g}".format(**near) for near in one["nearest"])
            figures = [word["word"], len(word["senses"]), word["frequency"], word["log_prob"]]
            figures += [word["clarity"]]
            figures += [one[name] for name in ("sense", "row", "usage", "theta")]
            name = name_of(one)
            figures += [one["times"], one["share"], name.translates, name.beside]
            figures += [true, near]
            contexts = [[example["posterior"], example["text"]] for example in one["examples"]]
            rows += [[*figures, *context] for context in contexts or [[None, None]]]
    head = "word senses frequency log_prob clarity sense row usage theta times share translates "
    head += "beside true_senses nearest"
    return table_as_csv([*head.split(), "posterior", "example"], rows, digits=6)


def report_as_text(report: Figures) -> str:
    """The report for a terminal."""
    words = report["words"]
    parts = [_word_lines(word, report["with_data"]) for word in words]
    if not words and not report["missing"]:
        parts.append(["no word here has several senses; name words with --word to see them"])
    total = max(1, sum(report["by_number"]))
    rows = [[str(n), str(w), f"{w / total:.1%}"] for n, w in enumerate(report["by_number"], 1)]
    parts.append(as_lines(["senses", "words", "share"], rows))
    rows = [
        [str(number), str(ten["words"]), f"{ten['most']}–{ten['fewest']}", f"{ten['senses']:.3f}"]
        for number, ten in enumerate(report["deciles"], 1)
    ]
    parts.append(as_lines(["decile", "words", "occurrences", "senses a word"], rows))
    if report["lines_read"] is not None:
        parts.append([f"shares and names by {report['lines_read']} lines"])
    if missing := ", ".join(report["missing"]):
        text = f"no entry of the dictionary: {missing} (a word that BPE splits has none of its own;"
        parts.append([f"{text} its pieces have, such as ban@@)"])
    return "\n\n".join("\n".join(part) for part in parts if part)


def name_of(sense: Figures) -> SenseName:
    """The name of a sense in a report."""
    return SenseName(*(sense[field] for field in SenseName._fields))


def _word_lines(word: Figures, with_data: bool) -> list[str]:
    number = f"{len(word['senses'])} sense{'s' if len(word['senses']) > 1 else ''}"
    head = f"{word['word']}: {number}"
    if word["frequency"] is not None:
        head += f", {word['frequency']} times in the training data"
    rows, wide = [], max(len(one["name"]) for one in word["senses"])
    for one in word["senses"]:
        theta = "–" if one["theta"] is None else f"{one['theta']:+.3f}"
        name, share = name_of(one), one["share"] if with_data else one["usage"]
        rows.append([f"{one['name']:<{wide}}", f"{share:.0%}", theta, name.translates, name.beside])
    columns = ["sense", "share" if with_data else "usage", "θ", "translates", "beside"]
    used = [at for at in range(5) if at < 3 or any(row[at] for row in rows)]
    table = tabulate(
        [[row[at] for at in used] for row in rows], [columns[at] for at in used],
        tablefmt="plain", disable_numparse=True,
        colalign=["left", "right", "right", "left", "left"][: len(used)],
    ).splitlines()  # fmt: skip
    lines = [head, f"  {table[0]}"]
    for one, row in zip(word["senses"], table[1:]):
        lines.append(f"  {row}")
        if one["true_senses"]:
            true = ", ".join(f"{name} {count}" for name, count in one["true_senses"].items())
            lines.append(f"      true: {true}")
        if one["nearest"]:
            near = ", ".join("{name} {score:.2f}".format(**near) for near in one["nearest"])
            lines.append(f"      nearest: {near}")
        lines += ["      {posterior:.2f}  {text}".format(**example) for example in one["examples"]]
    return [line.rstrip() for line in lines]
