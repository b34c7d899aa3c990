"""A sense report as text for a terminal, as JSON and as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

from fairseq_kerbs.analysis.frequency import frequency_lines
from fairseq_kerbs.analysis.purity import Purity
from fairseq_kerbs.analysis.sense_report import SenseReport, SenseSummary, WordSummary
from fairseq_kerbs.evaluation.texts import harmless_cell

CSV_HEAD = (
    *("word", "senses", "frequency", "log_prob", "sense", "usage", "theta", "count"),
    *("true_senses", "nearest", "posterior", "example"),
)


def as_json(report: SenseReport) -> str:
    """The whole report as JSON."""
    return json.dumps(dataclasses.asdict(report), indent=1, ensure_ascii=False)


def as_csv(report: SenseReport) -> str:
    """One row an example, or a sense that has none; the figures of a sense are on each row."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for word in report.words:
        for sense in word.senses:
            figures = _csv_figures(word, sense, report.with_data)
            for example in sense.examples:
                writer.writerow([*figures, f"{example.posterior:.6g}", harmless_cell(example.text)])
            if not sense.examples:
                writer.writerow([*figures, "", ""])
    return stream.getvalue()


def _csv_figures(word: WordSummary, sense: SenseSummary, with_data: bool) -> list[object]:
    true = "; ".join(f"{name} {count}" for name, count in sense.true_senses.items())
    nearest = "; ".join(f"{near.word} {near.sense} {near.score:.6g}" for near in sense.nearest)
    return [
        *(harmless_cell(word.word), len(word.senses)),
        *("" if word.frequency is None else word.frequency, f"{word.log_prob:.6g}"),
        *(sense.sense, f"{sense.usage:.6g}"),
        *("" if sense.theta is None else f"{sense.theta:.6g}", sense.count if with_data else ""),
        *(harmless_cell(true), harmless_cell(nearest)),
    ]


def as_text(report: SenseReport) -> str:
    """The report for a terminal."""
    lines: list[str] = []
    for word in report.words:
        lines += [*_word_lines(word, report.with_data), ""]
    if not report.words and not report.missing:
        lines += ["no word here has several senses; name words with --word to see them", ""]
    if report.purity is not None:
        lines += [*_purity_lines(report.words, report.purity), ""]
    if report.by_number:
        lines += [*_number_lines(report.by_number), ""]
    if report.deciles:
        lines += [*frequency_lines(report.deciles), ""]
    if report.missing:
        lines.append(
            f"no entry of the dictionary: {', '.join(report.missing)} (a word that BPE splits has "
            "none of its own; its pieces have, such as ban@@)"
        )
    return "\n".join(lines).removesuffix("\n")


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


def _number_lines(by_number: list[int]) -> list[str]:
    total = sum(by_number)
    lines = [f"{'senses':<8}{'words':>8}{'share':>9}"]
    for senses, words in enumerate(by_number, 1):
        lines.append(f"{senses:<8}{words:>8}{words / total:>9.1%}")
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
