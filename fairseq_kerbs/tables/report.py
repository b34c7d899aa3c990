"""A table as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_kerbs.tables.description import Column, Table
from fairseq_kerbs.tables.figures import NOT_RUN, Entry, Run, signatures
from fairseq_kerbs.tables.statistics import SAMPLES, Summary
from fairseq_kerbs.utils.files import atomic_write
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER

METRIC_TITLES = {
    "bleu4": "BLEU-4",
    "bleu1": "BLEU-1",
    "perplexity": "perplexity (lower is better)",
    "human": "human score",
}


@dataclass(frozen=True)
class Report:
    """All that is written about a table.

    Attributes:
        command: how to make it again, without machine paths.
        about: versions, git revision and machine of the run that wrote the report.
        clean: takes machine paths out of a text.
    """

    table: Table
    scale: str
    columns: Mapping[str, Sequence[Entry]]
    command: str
    about: Mapping[str, Any]
    clean: Callable[[str], str] = str

    @property
    def name(self) -> str:
        """``TABLE_SCALE``."""
        return f"{self.table.name}_{self.scale}"

    def write(self, folder: Path) -> list[Path]:
        """Write the three files; return their paths."""
        texts = {"md": self.as_markdown(), "csv": self.as_csv(), "json": self.as_json()}
        return write_texts(folder, self.name, {kind: self.clean(t) for kind, t in texts.items()})

    # --- Markdown ---------------------------------------------------------------------------

    def as_markdown(self) -> str:
        """A section for each column, with signature, settings and what is missing below it."""
        lines = [
            f"# {self.table.title}",
            "",
            f"{self.table.source or 'Own table'}, {self.scale} scale.",
        ]
        if self.scale == "small":
            lines += [
                "",
                "Small scale: other data, smaller models, shorter training than the paper's. Its "
                "figures stand beside ours for orientation; compare differences from the baseline.",
            ]
        for column in self.table.columns:
            lines += ["", *self._markdown_column(column, self.columns[column.name])]
        return "\n".join([*lines, "", *self._markdown_end()]) + "\n"

    def _markdown_column(self, column: Column, entries: Sequence[Entry]) -> list[str]:
        title = METRIC_TITLES[column.metric]
        if column.metric != "human" and self.scale not in column.parts:
            return [f"## {column.title}: {title}", "", f"Not part of the {self.scale} scale."]
        bleu = column.metric.startswith("bleu")
        heads = ["system", f"{title}, ours", "n", "paper", "ours − paper"]
        if self.table.baseline:
            base = self.table.rows[self.table.baseline]
            heads += [f"ours − {base}", f"paper's − {base}"]
        if bleu:
            heads += ["p", "lowercased"]
        if column.metric != "human":
            heads += ["parameters", "training min", "CPU min", "words per CPU s"]
        rows = [self._markdown_row(column, entry, bleu) for entry in entries]
        lines = [f"## {column.title}: {title}", "", _row(heads)]
        lines += [_row(["---"] * len(heads)), *map(_row, rows), ""]
        return [*lines, *self._notes(column, entries)]

    def _markdown_row(self, column: Column, entry: Entry, bleu: bool) -> list[str]:
        cells = [entry.title, _mean(entry.summary), _count(entry.runs, entry.done)]
        cells += [_number(entry.paper), _signed(entry.difference)]
        if self.table.baseline:
            base = entry.row == self.table.baseline
            cells += (
                ["", ""]
                if base
                else [_signed(entry.against_baseline), _signed(entry.paper_against_baseline)]
            )
        if bleu:
            cells += [_p_values(entry.done), _mean(entry.lowercased, absent="")]
        if column.metric == "human":
            return cells
        cells.append("" if entry.parameters is None else f"{entry.parameters:,}")
        times = (entry.minutes.mean, entry.cpu_minutes.mean)
        cells += ["" if minutes is None else f"{minutes:.1f}" for minutes in times]
        return [*cells, "" if entry.speed.mean is None else f"{entry.speed.mean:,.0f}"]

    def _notes(self, column: Column, entries: Sequence[Entry]) -> list[str]:
        part = column.parts.get(self.scale)
        notes = [column.note] if column.note else []
        if part is not None:
            seeds = ", ".join(map(str, part.seeds))
            notes.append(
                f"Data {part.data.name}; seeds {seeds}." + (f" {part.note}" * bool(part.note))
            )
        found = signatures(entries)
        if found:
            text = " and ".join(f"`{signature}`" for signature in found)
            warning = (
                " (figures with different signatures do not compare)" if len(found) > 1 else ""
            )
            notes.append(f"Signature {text}{warning}.")
        if any(run.p_value is not None for entry in entries for run in entry.done):
            notes.append(
                f"p: paired bootstrap of sacreBLEU, {SAMPLES} samples, two-sided, cased, against "
                f"{self.table.rows[self.table.baseline]} of the same seed, in the seeds' order."
            )
        if any(entry.summary.deviation is not None for entry in entries):
            notes.append("Mean ± standard deviation of the sample of seeds.")
        if any(entry.done for entry in entries):
            notes.append(
                "Times are means over seeds, with validation and saving; words are target tokens."
            )
        for entry in entries:
            for state in entry.states:
                which = [str(run.seed) for run in entry.runs if run.state == state]
                some = f", seed {', '.join(which)}" if 0 < len(which) < len(entry.runs) else ""
                notes.append(f"{entry.title}{some}: {state}.")
        return [f"- {note}" for note in notes]

    def _markdown_end(self) -> list[str]:
        runs = [run for entries in self.columns.values() for entry in entries for run in entry.done]
        lines = made_with(self.command, runs, self.about)
        if runs:
            lines.append(f"Commands, logs and hypotheses of every cell are in `{self.name}/`.")
        return lines

    # --- CSV and JSON -----------------------------------------------------------------------

    def as_csv(self) -> str:
        """A line for each row of each column; numbers in full, empty where there is none."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_CSV_HEAD)
        for column in self.table.columns:
            for entry in self.columns[column.name]:
                writer.writerow(self._csv_line(column, entry))
        return text.getvalue()

    def _csv_line(self, column: Column, entry: Entry) -> list[object]:
        summary, lowercased = entry.summary, entry.lowercased
        p_values = [run.p_value for run in entry.done if run.p_value is not None]
        revisions = {
            record.get("revision") for run in entry.done for record in run.records.values()
        }
        config = _relative(entry.runs[0].cell.config) if entry.runs else ""
        values: list[object] = [
            *(self.table.name, self.scale, column.name, column.metric, entry.row),
            *(len(entry.runs), summary.n, summary.mean, summary.deviation),
            *(lowercased.mean, lowercased.deviation, entry.paper, entry.difference),
            *(entry.against_baseline, entry.paper_against_baseline, " ".join(map(str, p_values))),
            *(entry.parameters, entry.minutes.mean, entry.cpu_minutes.mean, entry.speed.mean),
            " ".join(signatures([entry])),
            " ".join(str(run.seed) for run in entry.runs),
            config,
            " ".join(sorted(str(revision) for revision in revisions if revision)),
            "; ".join(entry.states) if entry.states else "done",
        ]
        return ["" if value is None else value for value in values]

    def as_json(self) -> str:
        """Everything, with each seed's figures and commands."""
        content = {
            "table": self.table.name,
            "title": self.table.title,
            "source": self.table.source,
            "scale": self.scale,
            "command": self.command,
            "report_made_by": dict(self.about),
            "columns": [
                {
                    "name": column.name,
                    "title": column.title,
                    "metric": column.metric,
                    "signatures": signatures(self.columns[column.name]),
                    "rows": [self._json_entry(entry) for entry in self.columns[column.name]],
                }
                for column in self.table.columns
            ],
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    def _json_entry(self, entry: Entry) -> dict[str, Any]:
        return {
            "row": entry.row,
            "title": entry.title,
            "n": entry.summary.n,
            "mean": entry.summary.mean,
            "deviation": entry.summary.deviation,
            "lowercased_mean": entry.lowercased.mean,
            "lowercased_deviation": entry.lowercased.deviation,
            "paper": entry.paper,
            "difference": entry.difference,
            "against_baseline": entry.against_baseline,
            "paper_against_baseline": entry.paper_against_baseline,
            "missing": entry.states,
            "runs": [_json_run(run) for run in entry.runs],
        }


def write_texts(folder: Path, name: str, texts: Mapping[str, str]) -> list[Path]:
    """Write one file ``NAME.KIND`` for each text; return their paths."""
    paths = [folder / f"{name}.{kind}" for kind in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        with atomic_write(path) as stream:
            stream.write(text)
    return paths


def made_with(command: str, runs: Sequence[Run], about: Mapping[str, Any]) -> list[str]:
    """How figures were made: command, revisions of the cells and of the report, machines."""
    lines = [f"Made with `{command}`."]
    records = [record for run in runs for record in run.records.values()]
    revisions = sorted({str(record["revision"]) for record in records if record.get("revision")})
    if revisions:
        own = _short(str(about.get("revision")))
        lines.append(f"Git revision: cells {', '.join(map(_short, revisions))}; report {own}.")
    machines = sorted({str(record["machine"]) for record in records if record.get("machine")})
    if machines:
        lines.append(f"Machine: {'; '.join(machines)}.")
    return lines


_CSV_HEAD = (
    *("table", "scale", "column", "metric", "row", "planned", "n", "mean", "deviation"),
    *("lowercased_mean", "lowercased_deviation", "paper", "difference"),
    *("against_baseline", "paper_against_baseline"),
    *(
        "p_values",
        "parameters",
        "minutes",
        "cpu_minutes",
        "words_per_cpu_second",
        "signature",
        "seeds",
        "configuration",
        "revisions",
        "state",
    ),
)


def _json_run(run: Run) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "cell": run.cell.id,
        "configuration": _relative(run.cell.config),
        "state": run.state,
        "p_value": run.p_value,
        "training_seconds": run.seconds,
        "training_cpu_seconds": run.cpu_seconds,
        "parameters": run.training.parameters,
        "updates": run.training.updates,
        "words_per_cpu_second": run.training.words_per_second(run.cpu_seconds),
        "figures": dict(run.details),
        "steps": {
            name: {key: record.get(key) for key in _KEPT} for name, record in run.records.items()
        },
    }


_KEPT = (
    *("command", "status", "attempts", "seconds", "cpu_seconds", "began", "ended"),
    *("revision", "machine"),
)


def _relative(path: Path) -> str:
    checkout = PLUGIN_FOLDER.parent
    return str(path.relative_to(checkout)) if path.is_relative_to(checkout) else path.name


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _mean(summary: Summary, absent: str = NOT_RUN) -> str:
    if summary.mean is None:
        return absent
    if summary.deviation is None:
        return f"{summary.mean:.2f}"
    return f"{summary.mean:.2f} ± {summary.deviation:.2f}"


def _count(runs: Sequence[Run], done: Sequence[Run]) -> str:
    return str(len(done)) if len(done) == len(runs) else f"{len(done)} of {len(runs)}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}".replace("-", "−")


def _p_values(runs: Sequence[Run]) -> str:
    return ", ".join("–" if run.p_value is None else f"{run.p_value:.3f}" for run in runs)


def _short(revision: str) -> str:
    commit, plus, rest = revision.partition("+")
    return f"{commit[:10]}{plus}{rest}"
