"""Clusters of words as text for a terminal, as JSON and as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from textwrap import shorten

from fairseq_kerbs.analysis.neighbours import Cluster, Counts, Example, Neighbours
from fairseq_kerbs.evaluation.texts import harmless_cell

_NAME = 18  # letters of a model's name
_WORDS = 44  # of a cluster's words


def as_json(found: Neighbours) -> str:
    """Everything as JSON."""
    return json.dumps(dataclasses.asdict(found), indent=1, ensure_ascii=False)


def as_csv(found: Neighbours) -> str:
    """One row an example, or a cluster that has none; a cluster's figures are on each row."""
    names, counted = found.names, found.everything is not None
    alone = names if counted and len(names) == 2 else []
    head = ["cluster", "of", "words", *(f"likeness {name}" for name in names)]
    if counted:
        head += ["times", *(f"right {name}" for name in names)]
        head += [*(f"within {name}" for name in names), *(f"alone {name}" for name in alone)]
        head += ["right", "sentence", "word", "text"]
        for name in names:
            head += [f"{field} {name}" for field in ("guess", "probability", "truth")]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(head)
    for number, cluster in enumerate(found.clusters, 1):
        figures: list[object] = [number, cluster.of or "", harmless_cell(" ".join(cluster.words))]
        figures += [f"{value:.6g}" for value in cluster.likeness.values()]
        if cluster.counts is not None:
            counts = cluster.counts
            figures += [counts.times, *counts.right.values(), *counts.within.values()]
            figures += counts.alone.values()
        rows = [_csv_example(example) for example in cluster.examples]
        for row in rows or [[""] * (len(head) - len(figures))]:
            writer.writerow([*figures, *row])
    return stream.getvalue()


def _csv_example(example: Example) -> list[object]:
    row: list[object] = [example.right or "", example.sentence]
    row += [harmless_cell(example.word), harmless_cell(example.text)]
    for guess in example.guesses.values():
        row += [harmless_cell(guess.word), f"{guess.probability:.6g}", f"{guess.truth:.6g}"]
    return row


def as_text(found: Neighbours) -> str:
    """For a terminal: totals, a table of clusters, examples; a slash between models' figures."""
    short = {n: n if len(n) <= _NAME else f"{n[: _NAME - 1]}…" for n in found.names}
    lines = [" / ".join(short.values()), ""] if len(short) > 1 else []
    if found.everything is not None:
        lines += [_total_line("all words", found.everything)]
        for origin, counts in found.clustered.items():
            title = "words in clusters" + (f" of {short[origin]}" if origin else "")
            lines.append(_total_line(title, counts))
        lines.append("")
    for origin, number in found.found.items():
        clusters = [cluster for cluster in found.clusters if (cluster.of or "") == origin]
        by = "confusions of both models" if len(short) > 1 else "confusions"
        by = f"output vectors of {short[origin]}" if origin else by
        lines.append(
            f"clusters by {by}: {number} with {found.words[origin]} words, {len(clusters)} shown"
        )
        lines += [*_table(clusters, found.by == "vectors"), ""]
        for cluster in clusters:
            if cluster.examples:
                lines += [*_example_lines(cluster, short), ""]
    return "\n".join(lines).removesuffix("\n")


def _total_line(title: str, counts: Counts) -> str:
    times = max(1, counts.times)
    right = " / ".join(f"{number / times:.1%}" for number in counts.right.values())
    line = f"{title}: {counts.times} times, right {right}"
    if counts.alone:
        line += f", alone right {_slashed(counts.alone)}, ahead in {_slashed(counts.ahead)} "
        line += f"sentences (sign test p = {counts.sign_test:.2g})"
    return line


def _slashed(numbers: dict[str, int]) -> str:
    return " / ".join(map(str, numbers.values()))


def _table(clusters: list[Cluster], with_likeness: bool) -> list[str]:
    """One row a cluster."""
    if not clusters:
        return []
    counted, heads = clusters[0].counts, []
    if with_likeness:
        heads.append("likeness")
    if counted is not None:
        heads += ["times", "right", "one for another", *(["alone right"] if counted.alone else [])]
    widths = [max(len(head), 11) + 2 for head in heads]
    rows = [heads]
    for cluster in clusters:
        cells = []
        if with_likeness:
            cells.append(" / ".join(f"{value:.2f}" for value in cluster.likeness.values()))
        if cluster.counts is not None:
            counts = cluster.counts
            cells += [str(counts.times), _slashed(counts.right), _slashed(counts.within)]
            cells += [_slashed(counts.alone)] if counts.alone else []
        rows.append(cells)
    words = ["words", *(" ".join(cluster.words) for cluster in clusters)]
    return [
        f"  {shorten(name, _WORDS, placeholder=' …'):<{_WORDS}}"
        + "".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for name, row in zip(words, rows, strict=True)
    ]


def _example_lines(cluster: Cluster, short: dict[str, str]) -> list[str]:
    lines = [" ".join(cluster.words)]
    width = max(map(len, short.values()))
    for example in cluster.examples:
        lines.append(f"  {example.sentence:>6}  {example.text}")
        for name, guess in example.guesses.items():
            line = f"          {short[name]:<{width}}  {guess.word} {guess.probability:.2f}"
            wrong = guess.word != example.word
            lines.append(f"{line}, {example.word} {guess.truth:.2f}" if wrong else line)
    return lines
