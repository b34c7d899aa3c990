"""Tables that show texts instead of figures: examples side by side, words by number of senses."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from fairseq_kerbs.evaluation import examples
from fairseq_kerbs.evaluation.texts import harmless_cell, read_texts
from fairseq_kerbs.tables.cells import (
    Places,
    Plan,
    Use,
    cell_steps,
    hypotheses_path,
    reference_path,
)
from fairseq_kerbs.tables.figures import Entry, Run
from fairseq_kerbs.tables.report import Report, made_with
from fairseq_kerbs.tables.state import Job, Step

EXAMPLES = 5  # lines of the test set
WORDS = 5  # words for each number of senses; the paper shows as many


# --- Tables 3 and 4 -----------------------------------------------------------------------------


def examples_texts(report: Report, places: Places) -> dict[str, str]:
    """Markdown, CSV and JSON of examples that two rules choose, for each column's first seed.

    One rule draws from the lines on which the systems differ most; the other takes the largest
    gains of the last system over the baseline, and says so.
    """
    markdown, content = _head(report), []
    rows: list[list[object]] = [["column", "rule", "line", "system", "text"]]
    baseline = report.table.rows.get(report.table.baseline)
    rules: tuple[examples.Choice, ...] = ("differing", "best")
    for column in report.table.columns:
        found = _answers(report.columns[column.name], places)
        markdown += [f"## {column.title}", ""]
        if isinstance(found, str):
            markdown += [f"Not run: {found}.", ""]
            continue
        runs, sources, references, answers = found
        for rule in rules:
            chosen = examples.side_by_side(
                *(sources, references, answers, rule, EXAMPLES, runs[0].seed), baseline=baseline
            )
            told = examples.rule_text(chosen, len(sources), rule, runs[0].seed)
            markdown += [told, "", examples.as_markdown(chosen)]
            for example in chosen:
                for name, text in example.rows():
                    rows.append([column.name, rule, example.line, name, harmless_cell(text)])
            content.append(
                {
                    "column": column.name,
                    "rule": told,
                    "cells": [run.cell.id for run in runs],
                    "examples": [vars(example) for example in chosen],
                }
            )
        markdown += made_with(report.command, runs, report.about)
    return _texts(report, markdown, rows, {"columns": content})


def _answers(
    entries: Sequence[Entry], places: Places
) -> tuple[list[Run], list[str], list[str], dict[str, list[str]]] | str:
    """Runs of one seed, sources, references and answers by system; or what is missing."""
    runs = {entry.title: entry.done[0] for entry in entries if entry.done}
    missing = [entry.title for entry in entries if not entry.done]
    if missing:
        return f"no output of {', '.join(missing)}"
    if not runs:
        return "no systems at this scale"
    texts = {
        title: hypotheses_path(places.cell(run.cell.id)).read_text(encoding="utf-8").split("\n")
        for title, run in runs.items()
    }
    first = next(iter(runs.values()))
    generated = places.cell(first.cell.id) / "generate-test.txt"
    data = first.cell.data
    sources = read_texts(generated, "S", data.source_language)
    reference = reference_path(data, places).read_text(encoding="utf-8").split("\n")
    return (
        list(runs.values()),
        sources,
        reference[: len(sources)],
        {title: lines[: len(sources)] for title, lines in texts.items()},
    )


# --- Table 6 ------------------------------------------------------------------------------------


def words_job(use: Use, places: Places) -> Job:
    """Draw words for every number of senses of a trained cell."""
    return Job(
        id=f"words {use.cell.id}",
        folder=_words_folder(use, places),
        steps=partial(_words_steps, use, places),
        after=use.cell.id,
    )


def _words_folder(use: Use, places: Places) -> Path:
    return places.cell(use.cell.id) / "words"


def _words_steps(use: Use, places: Places) -> list[Step]:
    train = cell_steps(use.cell, places)[0]
    folder = _words_folder(use, places)
    steps = []
    parts = {**train.parts, "words": str(WORDS)}
    for kind in ("md", "csv"):
        table = folder / f"words.{kind}"
        command = (
            *("fairseq-kerbs", "senses", str(train.outputs[0])),
            *("--data", str(places.prepared(use.cell.data) / "bin"), "--top", "5"),
            *("--words-each", str(WORDS), "--seed", str(use.cell.seed), "--table", str(table)),
        )
        steps.append(Step(f"words_{kind}", command, parts, (table,)))
    return steps


def words_texts(report: Report, plan: Plan, places: Places) -> dict[str, str]:
    """Markdown, CSV and JSON of the words of every cell that the table has."""
    markdown, content = _head(report), []
    rows: list[list[object]] = [["cell", "senses", "words_in_all", "word"]]
    for column in report.table.columns:
        for entry in report.columns[column.name]:
            for run in entry.runs:
                use = next(use for use in plan.uses if use.cell.id == run.cell.id)
                folder = _words_folder(use, places)
                markdown += [f"## {column.title}, {entry.title}, seed {run.seed}", ""]
                if run.value is None or not (folder / "words.csv").is_file():
                    markdown += [f"Not run: {run.state}.", ""]
                    continue
                markdown.append((folder / "words.md").read_text(encoding="utf-8"))
                with (folder / "words.csv").open(encoding="utf-8", newline="") as stream:
                    drawn = list(csv.reader(stream))[1:]
                rows += [[run.cell.id, *line] for line in drawn]
                content.append({"cell": run.cell.id, "words": drawn})
                markdown += made_with(report.command, [run], report.about)
    return _texts(report, markdown, rows, {"cells": content})


def _texts(
    report: Report,
    markdown: Sequence[str],
    rows: Sequence[Sequence[object]],
    content: Mapping[str, object],
) -> dict[str, str]:
    table = io.StringIO(newline="")
    csv.writer(table, lineterminator="\n").writerows(rows)
    everything = {**_about(report), **content}
    return {
        "md": "\n".join(markdown) + "\n",
        "csv": table.getvalue(),
        "json": json.dumps(everything, indent=1, ensure_ascii=False) + "\n",
    }


def _head(report: Report) -> list[str]:
    return [f"# {report.table.title}", "", f"{report.table.source}, {report.scale} scale.", ""]


def _about(report: Report) -> Mapping[str, object]:
    return {
        "table": report.table.name,
        "title": report.table.title,
        "source": report.table.source,
        "scale": report.scale,
        "command": report.command,
        "report_made_by": dict(report.about),
    }
