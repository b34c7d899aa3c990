"""A table as Markdown, its runs as JSON, and copies of their logs and hypotheses."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from fairseq_kerbs.configurations import CONFIGS
from fairseq_kerbs.evaluation import examples
from fairseq_kerbs.evaluation.bleu import SAMPLES
from fairseq_kerbs.evaluation.texts import read_texts
from fairseq_kerbs.tables.description import Column, Kind, Metric, Table
from fairseq_kerbs.tables.results import NOT_RUN, ORDERS, Result
from fairseq_kerbs.tables.runs import HYPOTHESES, Paths
from fairseq_kerbs.utils.files import atomic_write, partial_name, put_in_place, read_lines

_SMALL = (
    "Small scale: other data, smaller models, shorter training than the paper's. Its figures stand "
    "beside ours for orientation; compare differences from the baseline."
)
_EXAMPLES = 5  # lines of the test set, by each rule
Rows = dict[str, list[Result]]
# An absolute path of two or more parts; not the end of a relative path or of a URL.
_ABSOLUTE = re.compile(r"(?<![\w./:@+~-])/(?:[\w.@+~-]+/)+[\w.@+~-]*")


@dataclass(frozen=True)
class Report:
    """All that is written about a table."""

    table: Table
    scale: str
    results: Sequence[Result]
    command: str  # how to make it again
    revision: str  # git revision of the report itself
    paths: Paths

    def write(self) -> Path:
        """Write the report below ``--results``; return the path of its Markdown."""
        path = self.paths.report(self.table.name, self.scale)
        folder = path.with_suffix("")
        there = [one for one in self.results if one.figures or one.kept]  # stale ones are not lost
        _write(path, self.markdown())
        runs = [
            {
                "run": one.run.label,
                "metric": one.run.metric.name,
                "state": one.state,
                "figures": one.figures or one.kept.get("figures", {}),
                "steps": one.kept.get("steps", one.records),
            }
            for one in self.results
        ]
        content = json.dumps(runs, indent=1, ensure_ascii=False) + "\n"
        _write(path.with_suffix(".json"), strip_paths(content, self.paths))
        if self.table.kind is Kind.figures and there:
            partial = partial_name(folder)
            partial.mkdir(parents=True)
            try:
                for result in there:
                    self._copy_raw(result, partial)
                shutil.rmtree(folder, ignore_errors=True)
                put_in_place(partial, folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
        return path

    def _copy_raw(self, result: Result, folder: Path) -> None:
        """Copy logs and hypotheses of a run."""
        run = result.run
        for name in ("train.log", "evaluate.log", HYPOTHESES):
            source, copy = result.file(name, self.paths), folder / self.paths.kept(run, name).name
            if name == HYPOTHESES and run.metric in ORDERS:
                shutil.copyfile(source, copy)
            elif name != HYPOTHESES and source.is_file():
                text = source.read_text(encoding="utf-8", errors="replace")
                _write(copy, strip_paths(text, self.paths))

    def markdown(self) -> str:
        """A section for each column, and how its figures were made."""
        table, figures = self.table, self.table.kind is Kind.figures
        lines = [f"# {table.title}", "", f"{table.source}, {self.scale} scale.", ""]
        of_paper = any(column.paper for column in table.columns.values())
        lines += [_SMALL, ""] if figures and of_paper and self.scale == "small" else []
        section = {Kind.figures: _figures, Kind.examples: _examples, Kind.senses: _words}
        for name, column in table.columns.items():
            own = [result for result in self.results if result.run.column == name]
            rows = {row: [one for one in own if one.run.row == row] for row in table.rows}
            lines += [f"## {column.title}" + f": {column.metric.value}" * figures, ""]
            if column.metric is not Metric.human and column.scale(self.scale) is None:
                lines += [f"Not part of the {self.scale} scale.", ""]
            else:
                lines += [*section[table.kind](self, column, rows), ""]
        records = [one for result in self.results for one in result.records.values()]
        revisions, machines = _distinct(records, "revision"), _distinct(records, "machine")
        lines.append(f"Made with `{strip_paths(self.command, self.paths)}`.")
        if records:
            lines.append(f"Git revision: runs {', '.join(revisions)}; report {self.revision}.")
            lines.append(f"Machine: {'; '.join(machines)}.")
        return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as stream:
        stream.write(text)


def strip_paths(text: str, paths: Paths) -> str:
    """A text without absolute paths: of those outside known folders only the last part stays."""
    folders = {
        paths.work.resolve(): "runs/tables/",
        paths.data.resolve(): "DATA/",
        CONFIGS.parent: "",
        Path.cwd(): "",
    }
    for folder, name in folders.items():
        text = re.sub(rf"(?<![\w./~-]){re.escape(f'{folder}{os.sep}')}", name, text)
    return _ABSOLUTE.sub(lambda match: f"…/{match[0].rstrip('/').rpartition('/')[2]}", text)


def _figures(report: Report, column: Column, rows: Rows) -> list[str]:
    """The table of a column, with signature, settings and what is missing below it."""
    begun = (row for row in rows if row in column.paper or not all(map(_not_run, rows[row])))
    cells = [_cells(report.table, column, row, rows) for row in begun]
    lines = [tabulate(cells, "keys", tablefmt="github", disable_numparse=True), ""]
    return lines * bool(cells) + [f"- {note}" for note in _notes(report, column, rows)]


def _not_run(result: Result) -> bool:
    return not result.figures and result.state == NOT_RUN


def _cells(table: Table, column: Column, row: str, rows: Rows) -> dict[str, str]:
    """A row of the Markdown table, by the heads of its columns."""
    done = [result for result in rows[row] if result.figures]
    ours, paper = _mean(done, "value"), column.paper.get(row)
    form = ".3f" if column.metric is Metric.valid_loss else ".2f"
    cells = {
        "system": table.rows[row],
        f"{column.metric.value}, ours": _with_deviation(done, "value", form) or NOT_RUN,
        "n": f"{len(done)}" if len(done) == len(rows[row]) else f"{len(done)} of {len(rows[row])}",
    }
    if column.paper:
        cells |= {"paper": _number(paper, "g"), "ours − paper": _difference(ours, paper)}
    if table.baseline:
        base, name = _mean(rows[table.baseline], "value"), table.rows[table.baseline]
        other = row != table.baseline
        cells[f"ours − {name}"] = _difference(ours, base, form) * other
        theirs = column.paper.get(table.baseline)
        if column.paper:
            cells[f"paper's − {name}"] = _difference(paper, theirs) * other
    if column.metric in ORDERS:
        for head, key in (("p", "p_value"), ("p (Holm)", "p_holm")):
            values = (_number(result.figures.get(key), ".3f") for result in done)
            cells[head] = ", ".join(value or "–" for value in values)
        cells["lowercased"] = _with_deviation(done, "lowercased_value")
    if column.metric not in (Metric.human, Metric.valid_loss):
        cells["best valid nll (bits)"] = _with_deviation(done, "valid_loss", ".3f")
    if column.metric is not Metric.human:
        cells["parameters"] = _number(done[0].figures["parameters"] if done else None, ",")
        cells["training min"] = _number(_mean(done, "minutes"), ".1f")
        cells["CPU min"] = _number(_mean(done, "cpu_minutes"), ".1f")
        cells["words per CPU s"] = _number(_mean(done, "words_per_cpu_second"), ",.0f")
    return cells


def summarize(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Mean and standard deviation of the sample (over n − 1) of the values that are known.

    The mean is None without any, the deviation for fewer than two; one that is not finite makes
    both so.
    """
    known = [value for value in values if value is not None]
    if not all(map(math.isfinite, known)):
        return sum(known), math.nan
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return (statistics.fmean(known) if known else None), deviation


def _mean(results: Iterable[Result], key: str) -> float | None:
    return summarize(result.figures.get(key) for result in results)[0]


def _with_deviation(results: Iterable[Result], key: str, form: str = ".2f") -> str:
    mean, deviation = summarize(result.figures.get(key) for result in results)
    text = _number(mean, form)
    return text if deviation is None else f"{text} ± {deviation:{form}}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _difference(left: float | None, right: float | None, form: str = ".2f") -> str:
    return "" if left is None or right is None else f"{left - right:+{form}}".replace("-", "−")


def _notes(report: Report, column: Column, rows: Rows) -> Iterator[str]:
    results = [result for some in rows.values() for result in some]
    done = [result.figures for result in results if result.figures]
    scale, baseline = column.scale(report.scale), report.table.rows.get(report.table.baseline)
    if column.note:
        yield column.note
    if scale is not None:
        seeds = ", ".join(map(str, scale.seeds))
        yield f"Data {scale.data}; seeds {seeds}. {scale.note}".rstrip()
    if column.metric is Metric.human:
        yield "Judged by people: fairseq-kerbs human-eval."
    if signatures := _distinct(done, "signature"):
        text = " and ".join(f"`{signature}`" for signature in signatures)
        yield f"Signature {text}."
    if tests := sum("p_holm" in figures for figures in done):
        yield (
            f"p: paired bootstrap of sacreBLEU, {SAMPLES} samples, two-sided, cased, against "
            f"{baseline} of the same seed, in the seeds' order; corrected for the number of "
            f"comparisons in this column, {tests}, by Holm (1979)."
        )
    if done:
        yield "Mean ± standard deviation of the sample of seeds; times with validation and saving."
    for result in results:
        if not result.figures and not _not_run(result):
            state = strip_paths(result.state, report.paths)
            yield f"{report.table.rows[result.run.row]}, seed {result.run.seed}: {state}."
    missing = {row: [r.run.seed for r in some if _not_run(r)] for row, some in rows.items()}
    if any(missing.values()):
        told = (
            f"{report.table.rows[row]}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
            for row, seeds in missing.items()
            if seeds
        )
        yield f"Not run: {'; '.join(told)}."


def _examples(report: Report, column: Column, rows: Rows) -> list[str]:
    """Tables 3 and 4: examples that two rules choose, for each column's first seed.

    One rule draws from the lines on which the systems differ most; the other takes the largest
    gains of the last system over the baseline, and says so.
    """
    first = {report.table.rows[row]: results[0] for row, results in rows.items() if results}
    if not first:
        return ["Not run."]
    missing = [title for title, result in first.items() if not result.figures]
    if missing:
        return [f"Not run: no output of {', '.join(missing)}."]
    paths, baseline = report.paths, report.table.rows.get(report.table.baseline)
    run = next(iter(first.values())).run
    generated = paths.run(run.id) / "generate-test.txt"
    sources = read_texts(generated, "S", run.data.source_language)
    reference = read_lines(paths.reference(run.data))
    answers = {name: read_lines(paths.run(r.run.id) / HYPOTHESES) for name, r in first.items()}
    lines = []
    rules: tuple[examples.Choice, ...] = ("differing", "best")
    for rule in rules:
        chosen = examples.side_by_side(
            sources, reference, answers, rule, _EXAMPLES, run.seed, baseline=baseline
        )
        told = examples.rule_text(chosen, len(sources), rule, run.seed)
        lines += [told, "", examples.as_markdown(chosen)]
    return lines


def _words(report: Report, column: Column, rows: Rows) -> list[str]:
    """Table 6: the words of every run that the table has."""
    lines = []
    for result in (one for results in rows.values() for one in results):
        lines += [f"### {report.table.rows[result.run.row]}, seed {result.run.seed}", ""]
        words = report.paths.run(result.run.id) / "words.md"
        lines.append(words.read_text("utf-8") if result.figures else f"{result.state}.")
    return lines


def _distinct(records: Iterable[Mapping[str, object]], key: str) -> list[str]:
    return sorted({str(record[key]) for record in records if record.get(key)})
