"""A table as Markdown, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from fairseq_kerbs.evaluation.texts import csv_text
from fairseq_kerbs.tables.description import Column, Table
from fairseq_kerbs.tables.results import NOT_RUN, SAMPLES, Entry, Result, signatures

METRIC_TITLES = {
    "bleu4": "BLEU-4",
    "bleu1": "BLEU-1",
    "perplexity": "perplexity (lower is better)",
    "human": "human score",
}
_KEPT = (
    *("command", "status", "attempts", "seconds", "cpu_seconds", "began", "ended"),
    *("revision", "machine"),
)
_TRAINING = ("parameters", "minutes", "cpu_minutes", "words_per_cpu_second")
_SMALL = (
    "Small scale: other data, smaller models, shorter training than the paper's. Its figures stand "
    "beside ours for orientation; compare differences from the baseline."
)


@dataclass(frozen=True)
class Report:
    """All that is written about a table.

    Attributes:
        command: how to make it again, without machine paths.
        about: versions, git revision and machine of the run that wrote the report.
    """

    table: Table
    scale: str
    columns: Mapping[str, Sequence[Entry]]
    command: str
    about: Mapping[str, Any]

    @property
    def name(self) -> str:
        """``TABLE_SCALE``."""
        return f"{self.table.name}_{self.scale}"

    def texts(self) -> dict[str, str]:
        """The report of a table of figures: Markdown, CSV, JSON."""
        content = [
            {
                "name": name,
                "title": column.title,
                "metric": column.metric,
                "signatures": signatures(self.columns[name]),
                "rows": [_json_entry(entry) for entry in self.columns[name]],
            }
            for name, column in self.table.columns.items()
        ]
        return {
            "md": self._markdown(),
            "csv": csv_text(self._csv_rows()),
            "json": self.as_json({"columns": content}),
        }

    def as_json(self, content: Mapping[str, Any]) -> str:
        """A JSON text: what the table is, how the report was made, and the content."""
        head = {
            "table": self.table.name,
            "title": self.table.title,
            "source": self.table.source,
            "scale": self.scale,
            "command": self.command,
            "report_made_by": dict(self.about),
        }
        return json.dumps({**head, **content}, indent=1, ensure_ascii=False) + "\n"

    def made_with(self, results: Sequence[Result]) -> list[str]:
        """How figures were made: command, revisions of the runs and of the report, machines."""
        lines = [f"Made with `{self.command}`."]
        records = [record for result in results for record in result.records.values()]
        revisions = _distinct(records, "revision")
        if revisions:
            own = _short(str(self.about.get("revision")))
            lines.append(f"Git revision: runs {', '.join(map(_short, revisions))}; report {own}.")
        machines = _distinct(records, "machine")
        return [*lines, *([f"Machine: {'; '.join(machines)}."] if machines else [])]

    def _markdown(self) -> str:
        """A section for each column, with signature, settings and what is missing below it."""
        table = self.table
        lines = [f"# {table.title}", "", f"{table.source or 'Own table'}, {self.scale} scale."]
        lines += ["", _SMALL] if self.scale == "small" else []
        for name, column in table.columns.items():
            lines += ["", f"## {column.title}: {METRIC_TITLES[column.metric]}", ""]
            if column.metric != "human" and column.scale(self.scale) is None:
                lines.append(f"Not part of the {self.scale} scale.")
                continue
            rows = [self._cells(column, entry) for entry in self.columns[name]]
            lines += [tabulate(rows, "keys", tablefmt="github", disable_numparse=True), ""]
            lines += [f"- {note}" for note in self._notes(column, self.columns[name])]
        results = [one for some in self.columns.values() for entry in some for one in entry.done]
        lines += ["", *self.made_with(results)]
        if results:
            lines.append(f"Commands, logs and hypotheses of every run are in `{self.name}/`.")
        return "\n".join(lines) + "\n"

    def _cells(self, column: Column, entry: Entry) -> dict[str, str]:
        """A row of the Markdown table, by the heads of its columns."""
        figures, done, planned = entry.figures, len(entry.done), len(entry.results)
        ours = f"{METRIC_TITLES[column.metric]}, ours"
        cells = {
            "system": entry.title,
            ours: _with_deviation(figures["mean"], figures["deviation"]) or NOT_RUN,
            "n": str(done) if done == planned else f"{done} of {planned}",
            "paper": _formatted(figures["paper"], "g"),
            "ours − paper": _formatted(figures["difference"], "+.2f"),
        }
        if self.table.baseline:
            name = self.table.rows[self.table.baseline]
            other = entry.row != self.table.baseline
            ours_less, paper_less = figures["against_baseline"], figures["paper_against_baseline"]
            cells[f"ours − {name}"] = _formatted(ours_less, "+.2f") * other
            cells[f"paper's − {name}"] = _formatted(paper_less, "+.2f") * other
        if column.metric.startswith("bleu"):
            cells["p"] = ", ".join(_formatted(one.p_value, ".3f") or "–" for one in entry.done)
            lowercased = (figures["lowercased_mean"], figures["lowercased_deviation"])
            cells["lowercased"] = _with_deviation(*lowercased)
        if column.metric != "human":
            cells["parameters"] = _formatted(figures["parameters"], ",")
            cells["training min"] = _formatted(figures["minutes"], ".1f")
            cells["CPU min"] = _formatted(figures["cpu_minutes"], ".1f")
            cells["words per CPU s"] = _formatted(figures["words_per_cpu_second"], ",.0f")
        return cells

    def _notes(self, column: Column, entries: Sequence[Entry]) -> list[str]:
        scale = column.scale(self.scale)
        notes = [column.note] if column.note else []
        if scale is not None:
            seeds = ", ".join(map(str, scale.seeds))
            notes.append(f"Data {scale.data}; seeds {seeds}. {scale.note}".rstrip())
        found = signatures(entries)
        if found:
            text = " and ".join(f"`{signature}`" for signature in found)
            warning = " (figures with different signatures do not compare)" * (len(found) > 1)
            notes.append(f"Signature {text}{warning}.")
        if any(result.p_value is not None for entry in entries for result in entry.done):
            notes.append(
                f"p: paired bootstrap of sacreBLEU, {SAMPLES} samples, two-sided, cased, against "
                f"{self.table.rows[self.table.baseline]} of the same seed, in the seeds' order."
            )
        if any(entry.figures["deviation"] is not None for entry in entries):
            notes.append("Mean ± standard deviation of the sample of seeds.")
        if any(entry.done for entry in entries):
            notes.append(
                "Times are means over seeds, with validation and saving; words are target tokens."
            )
        for entry in entries:
            for state in entry.states:
                which = [str(one.run.seed) for one in entry.results if one.state == state]
                some = f", seed {', '.join(which)}" if 0 < len(which) < len(entry.results) else ""
                notes.append(f"{entry.title}{some}: {state}.")
        return notes

    def _csv_rows(self) -> list[list[object]]:
        """A line for each row of each column; numbers in full, empty where there is none."""
        lines = []
        for name, column in self.table.columns.items():
            for entry in self.columns[name]:
                results, figures = entry.results, dict(entry.figures)
                p_values = [one.p_value for one in entry.done if one.p_value is not None]
                records = [record for one in entry.done for record in one.records.values()]
                training = {key: figures.pop(key) for key in _TRAINING}
                lines.append(
                    {
                        "table": self.table.name,
                        "scale": self.scale,
                        "column": name,
                        "metric": column.metric,
                        "row": entry.row,
                        "planned": len(results),
                        **figures,
                        "p_values": " ".join(map(str, p_values)),
                        **training,
                        "signature": " ".join(signatures([entry])),
                        "seeds": " ".join(str(one.run.seed) for one in results),
                        "configuration": results[0].configuration if results else "",
                        "revisions": " ".join(_distinct(records, "revision")),
                        "state": "; ".join(entry.states) or "done",
                    }
                )
        return [list(lines[0]), *(list(line.values()) for line in lines)] if lines else []


def _json_entry(entry: Entry) -> dict[str, Any]:
    return {
        "row": entry.row,
        "title": entry.title,
        **{key: value for key, value in entry.figures.items() if key not in _TRAINING},
        "missing": entry.states,
        "runs": [_json_result(result) for result in entry.results],
    }


def _json_result(result: Result) -> dict[str, Any]:
    training = result.training
    return {
        "seed": result.run.seed,
        "cell": result.run.id,
        "configuration": result.configuration,
        "state": result.state,
        "p_value": result.p_value,
        "training_seconds": training.get("seconds"),
        "training_cpu_seconds": training.get("cpu_seconds"),
        **{name: training.get(name) for name in ("parameters", "updates", "words_per_cpu_second")},
        "figures": dict(result.details),
        "steps": {
            name: {key: record.get(key) for key in _KEPT} for name, record in result.records.items()
        },
    }


def _distinct(records: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    return sorted({str(record[key]) for record in records if record.get(key)})


def _formatted(value: float | None, form: str) -> str:
    text = "" if value is None else f"{value:{form}}"
    return text.replace("-", "−") if form.startswith("+") else text


def _with_deviation(mean: float | None, deviation: float | None) -> str:
    text = _formatted(mean, ".2f")
    return text if deviation is None else f"{text} ± {deviation:.2f}"


def _short(revision: str) -> str:
    commit, plus, rest = revision.partition("+")
    return f"{commit[:10]}{plus}{rest}"
