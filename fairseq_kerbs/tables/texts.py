"""Tables that show texts instead of figures: examples side by side, words by number of senses."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import partial

from fairseq_kerbs.evaluation import examples
from fairseq_kerbs.evaluation.texts import csv_text, harmless_cell, read_texts
from fairseq_kerbs.tables.report import Report
from fairseq_kerbs.tables.results import Entry, Result
from fairseq_kerbs.tables.runs import Job, Paths, Run, Step, run_steps

EXAMPLES = 5  # lines of the test set
WORDS = 5  # words for each number of senses; the paper shows as many


def examples_texts(report: Report, paths: Paths) -> dict[str, str]:
    """Tables 3 and 4: examples that two rules choose, for each column's first seed.

    One rule draws from the lines on which the systems differ most; the other takes the largest
    gains of the last system over the baseline, and says so.
    """
    markdown, content = _head(report), []
    rows: list[Sequence[object]] = [["column", "rule", "line", "system", "text"]]
    baseline = report.table.rows.get(report.table.baseline)
    rules: tuple[examples.Choice, ...] = ("differing", "best")
    for name, column in report.table.columns.items():
        markdown += [f"## {column.title}", ""]
        found = {entry.title: entry.done[0] for entry in report.columns[name] if entry.done}
        missing = [entry.title for entry in report.columns[name] if not entry.done]
        if missing or not found:
            why = f"no output of {', '.join(missing)}" if missing else "no systems at this scale"
            markdown += [f"Not run: {why}.", ""]
            continue
        results = list(found.values())
        run = results[0].run
        generated = paths.run(run.id) / "generate-test.txt"
        sources = read_texts(generated, "S", run.data.source_language)
        reference, *answers = (
            path.read_text(encoding="utf-8").split("\n")[: len(sources)]
            for path in (
                paths.reference(run.data),
                *(paths.run(result.run.id) / "hypotheses.txt" for result in results),
            )
        )
        systems = dict(zip(found, answers, strict=True))
        for rule in rules:
            chosen = examples.side_by_side(
                sources, reference, systems, rule, EXAMPLES, run.seed, baseline=baseline
            )
            told = examples.rule_text(chosen, len(sources), rule, run.seed)
            markdown += [told, "", examples.as_markdown(chosen)]
            rows += [
                [name, rule, example.line, system, harmless_cell(text)]
                for example in chosen
                for system, text in example.rows()
            ]
            content.append(
                {
                    "column": name,
                    "rule": told,
                    "cells": [result.run.id for result in results],
                    "examples": [vars(example) for example in chosen],
                }
            )
        markdown += report.made_with(results)
    return _texts(markdown, rows, report.as_json({"columns": content}))


def words_job(run: Run, paths: Paths) -> Job:
    """Draw words for every number of senses of a trained run (Table 6)."""
    steps = partial(_words_steps, run, paths)
    return Job(f"words {run.id}", paths.run(run.id) / "words", steps, after=run.id)


def _words_steps(run: Run, paths: Paths) -> list[Step]:
    train = run_steps(run, paths)[0]
    command = (
        *("fairseq-kerbs", "senses", str(train.outputs[0])),
        *("--data", str(paths.prepared(run.data) / "bin"), "--top", "5"),
        *("--words-each", str(WORDS), "--seed", str(run.seed), "--table"),
    )
    folder, parts = paths.run(run.id) / "words", {**train.parts, "words": str(WORDS)}
    tables = [folder / "words.md", folder / "words.csv"]
    return [
        Step(f"words_{table.suffix[1:]}", (*command, str(table)), parts, (table,))
        for table in tables
    ]


def words_texts(report: Report, paths: Paths) -> dict[str, str]:
    """Table 6: the words of every run that the table has."""
    markdown, content = _head(report), []
    rows: list[Sequence[object]] = [["cell", "senses", "words_in_all", "word"]]
    listed: list[tuple[str, Entry, Result]] = [
        (column.title, entry, result)
        for name, column in report.table.columns.items()
        for entry in report.columns[name]
        for result in entry.results
    ]
    for title, entry, result in listed:
        name, folder = result.run.id, paths.run(result.run.id) / "words"
        markdown += [f"## {title}, {entry.title}, seed {result.run.seed}", ""]
        if not result.details or not (folder / "words.csv").is_file():
            markdown += [f"Not run: {result.state}.", ""]
            continue
        markdown.append((folder / "words.md").read_text(encoding="utf-8"))
        with (folder / "words.csv").open(encoding="utf-8", newline="") as stream:
            drawn = list(csv.reader(stream))[1:]
        rows += [[name, *line] for line in drawn]
        content.append({"cell": name, "words": drawn})
        markdown += report.made_with([result])
    return _texts(markdown, rows, report.as_json({"cells": content}))


def _head(report: Report) -> list[str]:
    return [f"# {report.table.title}", "", f"{report.table.source}, {report.scale} scale.", ""]


def _texts(markdown: Sequence[str], rows: Sequence[Sequence[object]], json: str) -> dict[str, str]:
    return {"md": "\n".join(markdown) + "\n", "csv": csv_text(rows), "json": json}
