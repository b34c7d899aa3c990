"""The figures of a table, gathered from the work folder: what the reports are written from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_kerbs.tables.cells import (
    ORDERS,
    Cell,
    Places,
    Plan,
    cell_steps,
    hypotheses_path,
    reference_path,
    score_path,
)
from fairseq_kerbs.tables.description import Column, Table
from fairseq_kerbs.tables.runner import Outcome
from fairseq_kerbs.tables.state import digest, judge_all, log_path, read_record
from fairseq_kerbs.tables.statistics import SAMPLES, Summary, paired_bootstrap, summarize
from fairseq_kerbs.tables.training import Training, read_training
from fairseq_kerbs.utils.files import atomic_write, read_lines, sha256_of

NOT_RUN = "not run"
STEPS = ("train", "generate", "evaluate", "score")


@dataclass(frozen=True)
class Run:
    """One seed of a cell.

    Attributes:
        state: "done", or why there is no figure.
        value, lowercased: the metric; `lowercased` for BLEU only.
        p_value: of the paired bootstrap against the baseline of the same seed; None if there is
            nothing to compare.
        seconds, cpu_seconds: of training, of all attempts; None if it was not trained or measured.
        training: what its log tells.
        details: all that scoring wrote.
        records: record of each step, by name.
    """

    seed: int
    cell: Cell
    state: str
    value: float | None = None
    lowercased: float | None = None
    p_value: float | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    training: Training = field(default_factory=Training)
    details: Mapping[str, Any] = field(default_factory=dict)
    records: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A row of a column: its runs, their summary, and the paper's figure."""

    row: str
    title: str
    runs: tuple[Run, ...]
    paper: float | None
    paper_baseline: float | None
    baseline: Summary
    reason: str = ""  # why there are no runs

    @property
    def done(self) -> list[Run]:
        """Runs that have a figure."""
        return [run for run in self.runs if run.value is not None]

    @property
    def summary(self) -> Summary:
        """Of the metric over seeds."""
        return summarize([run.value for run in self.done if run.value is not None])

    @property
    def lowercased(self) -> Summary:
        """Of the metric of lowercased text over seeds."""
        return summarize([run.lowercased for run in self.done if run.lowercased is not None])

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return _minus(self.summary.mean, self.paper)

    @property
    def against_baseline(self) -> float | None:
        """Our mean less that of our baseline."""
        return _minus(self.summary.mean, self.baseline.mean)

    @property
    def paper_against_baseline(self) -> float | None:
        """The paper's figure less that of its baseline."""
        return _minus(self.paper, self.paper_baseline)

    @property
    def parameters(self) -> int | None:
        """Of the model; the same for all seeds."""
        return next((run.training.parameters for run in self.done), None)

    @property
    def minutes(self) -> Summary:
        """Wall time of training."""
        return summarize([run.seconds / 60 for run in self.done if run.seconds is not None])

    @property
    def cpu_minutes(self) -> Summary:
        """Processor time of training."""
        known = [run.cpu_seconds for run in self.done if run.cpu_seconds is not None]
        return summarize([seconds / 60 for seconds in known])

    @property
    def speed(self) -> Summary:
        """Target tokens trained on a second of processor time."""
        found = [run.training.words_per_second(run.cpu_seconds) for run in self.done]
        return summarize([speed for speed in found if speed is not None])

    @property
    def states(self) -> list[str]:
        """Why figures are missing, each reason once."""
        states = [run.state for run in self.runs if run.value is None]
        return list(dict.fromkeys(states or ([] if self.runs else [self.reason])))


def _minus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def gather(
    table: Table, plan: Plan, scale: str, places: Places, outcomes: Mapping[str, Outcome]
) -> dict[str, list[Entry]]:
    """The entries of every column, in the order of the rows.

    `outcomes` are those of this run; a cell that was not part of it is judged by its records.
    """
    columns = {}
    for column in table.columns:
        runs: dict[str, list[Run]] = {row: [] for row in table.rows}
        for use in plan.uses:
            if (use.table, use.column) == (table.name, column.name):
                runs[use.row].append(_run(use.cell, places, outcomes.get(use.cell.id)))
        if table.baseline:
            base = {run.seed: run for run in runs[table.baseline]}
            runs = {
                row: [
                    _with_p_value(
                        run, None if row == table.baseline else base.get(run.seed), places
                    )
                    for run in found
                ]
                for row, found in runs.items()
            }
        columns[column.name] = _entries(table, column, scale, runs)
    return columns


def _entries(
    table: Table, column: Column, scale: str, runs: Mapping[str, Sequence[Run]]
) -> list[Entry]:
    values = [run.value for run in runs.get(table.baseline, ()) if run.value is not None]
    return [
        Entry(
            row=row,
            title=title,
            runs=tuple(runs[row]),
            paper=column.paper.get(row),
            paper_baseline=column.paper.get(table.baseline),
            baseline=summarize(values),
            reason=_why_none(column, scale),
        )
        for row, title in table.rows.items()
        if runs[row] or row in column.paper
    ]


def _why_none(column: Column, scale: str) -> str:
    if column.metric == "human":
        return "judged by people: fairseq-kerbs human-eval"
    return NOT_RUN if scale in column.parts else f"no {scale} scale"


def _run(cell: Cell, places: Places, outcome: Outcome | None) -> Run:
    folder = places.cell(cell.id)
    steps = cell_steps(cell, places)
    verdicts = judge_all(folder, steps)
    found = {step.name: read_record(folder, step.name) for step in steps}
    records = {name: record for name, record in found.items() if record is not None}
    train = records.get("train", {})
    if all(verdict.state == "done" for verdict in verdicts):
        details = json.loads(score_path(folder).read_text(encoding="utf-8"))
        return Run(
            seed=cell.seed,
            cell=cell,
            state="done",
            value=details["value"],
            lowercased=details.get("lowercased_value"),
            seconds=train.get("seconds"),
            cpu_seconds=train.get("cpu_seconds"),
            training=_training(log_path(folder, "train")),
            details=details,
            records=records,
        )
    if outcome is not None and outcome.state != "done":
        state = f"{outcome.state}: {outcome.reason}"
    else:
        pending = next(verdict for verdict in verdicts if verdict.state != "done")
        state = f"stale: {pending.reason}" if pending.state == "stale" else NOT_RUN
    return Run(cell.seed, cell, state, seconds=train.get("seconds"), records=records)


def _training(log: Path) -> Training:
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    return read_training(text)


def _with_p_value(run: Run, baseline: Run | None, places: Places) -> Run:
    """The run, compared with the baseline of the same seed where both have hypotheses.

    The test takes seconds, so its result is kept beside the cell, under a digest of the texts.
    """
    if baseline is None or run.value is None or baseline.value is None:
        return run
    if run.cell.metric not in ORDERS:
        return run
    files = [hypotheses_path(places.cell(one.cell.id)) for one in (run, baseline)]
    files.append(reference_path(run.cell.data, places))
    order = ORDERS[run.cell.metric]
    key = digest([*(sha256_of(file) for file in files), order, run.cell.data.language, SAMPLES])
    kept = places.cell(run.cell.id) / "bootstrap.json"
    known = _read_json(kept)
    if known.get("key") != key:
        texts = [read_lines(file) for file in files]
        p_value = paired_bootstrap(
            texts[0], texts[1], texts[2], order=order, language=run.cell.data.language
        )
        known = {"key": key, "p_value": p_value, "baseline": baseline.cell.id, "samples": SAMPLES}
        with atomic_write(kept) as stream:
            json.dump(known, stream, indent=1)
    return Run(**{**vars(run), "p_value": known["p_value"]})


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def signatures(entries: Sequence[Entry]) -> list[str]:
    """The signatures that the figures of a column have, each once; more than one is a warning."""
    found = {run.details.get("signature") for entry in entries for run in entry.done}
    return sorted(signature for signature in found if signature)
