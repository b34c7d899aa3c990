"""Runs: one configuration × one seed × one data set, as jobs whose steps are commands.

A run is named by what it is, not by the table that wants it. Tables that share a training (Table 5
and Table 1 of the paper, say) share its run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

from fairseq_kerbs.configurations import CONFIGS, Flags, flag_arguments, load_experiment
from fairseq_kerbs.tables.description import DataSet, Kind, Metric, Table
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write_bytes
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER
from fairseq_kerbs.utils.steps import (
    StepStatus,
    data_digest,
    digest,
    fingerprint,
    read_object,
    step_status,
)

WORDS = "5"  # for each number of senses in Table 6; the paper shows as many
HYPOTHESES = "hypotheses.txt"  # detokenized, in the order of the test set
_EVALUATION = ("task", "sample-break-mode", "tokens-per-sample")  # flags that eval-lm shares


@dataclass(frozen=True)
class Step:
    """A command of a run or of a preparation; its record is ``NAME.json``, its log ``NAME.log``."""

    name: str
    command: tuple[str, ...]
    parts: Mapping[str, str]  # what it depends on, by name, as digests or short texts
    output: Path  # file or folder that is there when it is done
    folder: Path | None = None  # is removed before the step is run anew after a change


@dataclass(frozen=True)
class Job:
    """Steps that run one after the other; their records and logs are kept in `folder`."""

    id: str
    folder: Path
    steps: Sequence[Step]

    def statuses(self) -> list[StepStatus]:
        """Where the steps stand.

        The parts of a later step include those of the earlier ones. So when the last step is done
        all are, even if a checkpoint has been removed since.
        """
        found = [
            step_status(
                step.name,
                read_object(self.folder / f"{step.name}.json"),
                step.parts,
                {str(step.output): "there" if step.output.exists() else None},
            )
            for step in self.steps
        ]
        return [found[-1]] * len(found) if found[-1].state == "done" else found


@dataclass(frozen=True)
class Paths:
    """Folders: raw corpora, work, and where results go."""

    data: Path
    work: Path
    results: Path

    def raw(self, data: DataSet) -> Path | None:
        """The raw text of a data set below ``--corpora``; None if it is not there."""
        return next((self.data / n for n in data.folders if (self.data / n).exists()), None)

    def prepared(self, data: DataSet) -> Path:
        """Where a data set is prepared."""
        return self.work / "data" / data.name

    def fill(self, data: DataSet, text: str) -> str:
        """A part of a data set's description with its folders."""
        raw = self.raw(data) or self.data / data.name
        return text.replace("{raw}", str(raw)).replace("{dest}", str(self.prepared(data)))

    def reference(self, data: DataSet) -> Path:
        """Raw reference of the test set: the copy of it, if there is one."""
        copy = self._copied_reference(data)
        return copy if copy.is_file() else Path(self.fill(data, data.reference))

    def keep_reference(self, data: DataSet) -> None:
        """Copy the reference, so that runs can be scored when the raw text is gone."""
        reference = Path(self.fill(data, data.reference))
        if data.reference and reference.is_file():
            with atomic_write_bytes(self._copied_reference(data)) as stream:
                stream.write(reference.read_bytes())

    def _copied_reference(self, data: DataSet) -> Path:
        return self.work / "data" / f"{data.name}.steps" / f"reference.{data.language}"

    def run(self, name: str) -> Path:
        """The folder of a run."""
        return self.work / "cells" / name

    def report(self, table: str, scale: str) -> Path:
        """A table's report; its runs lie beside it as .json, copies of their files in a folder."""
        return self.results / f"{table}_{scale}.md"

    def kept(self, run: Run, name: str) -> Path:
        """The copy that the report keeps of a file of a run."""
        name = f"hyp.{run.data.language}" if name == HYPOTHESES else name
        folder = self.report(run.table, run.scale).with_suffix("")
        return folder / f"{run.column}_{run.row}_s{run.seed}.{name}"

    def missing(self, data: DataSet) -> str:
        """What to do if the raw text is not there; empty if it is, or is not needed any more."""
        prepared = (self.prepared(data) / "bin").exists()
        if self.raw(data) or (prepared and (not data.reference or self.reference(data).is_file())):
            return ""
        return " ".join(f"{self.data} has no {' or '.join(data.folders)}. {data.missing}".split())


@dataclass(frozen=True)
class Run:
    """A training and what is made of it, at its place in a table."""

    table: str
    column: str
    row: str
    seed: int
    id: str  # what is trained; runs of other places may have the same
    config: Path
    flags: Flags  # what its row changes in the configuration
    data: DataSet
    metric: Metric
    minutes: float | None  # planned, None if unknown
    words: bool  # whether words by number of senses are drawn
    scale: str

    @property
    def label(self) -> str:
        """What ``--only`` is matched against."""
        return f"{self.table}/{self.column}/{self.row}/s{self.seed}"


def plan_runs(
    tables: Sequence[Table], scale: str, only: Sequence[str] = ()
) -> tuple[list[Run], dict[str, Run]]:
    """The runs of the tables at a scale, and those to run, each once, by id.

    With patterns in `only`, those to run are the matching ones, in the order of the patterns: a
    pattern is part of a label, or fits it with ``*``, ``?`` or ``[]``; a UserError if nothing does.
    """
    runs = [run for table in tables for run in _runs(table, scale)]
    wanted: dict[str, Run] = {}
    for pattern in only or [""]:
        found = [run for run in runs if pattern in run.label or fnmatch(run.label, pattern)]
        if not found and pattern:
            labels = ", ".join(run.label for run in runs[:4])
            raise UserError(f"--only {pattern}: no run matches; they are called {labels}, …")
        for run in found:
            if run.words or run.id not in wanted:
                wanted[run.id] = run
    return runs, wanted


def _runs(table: Table, scale_name: str) -> Iterator[Run]:
    for name, column in table.columns.items():
        scale = column.scale(scale_name)
        if scale is None:
            continue
        # All systems of one seed before the next seed: what was stopped can be compared.
        for seed, row in product(scale.seeds, table.rows):
            if row not in scale.configs:
                continue
            config, flags = Path(scale.configs[row]), scale.flags[row]
            inside = config.is_relative_to(CONFIGS)
            stem = str(config.relative_to(CONFIGS).with_suffix("")) if inside else config.stem
            trained = stem.replace("/", ".") + (f"_{row}" if flags else "")
            yield Run(
                *(table.name, name, row, seed, f"{scale.data}/{trained}-s{seed}", config, flags),
                data=table.data[scale.data],
                metric=column.metric,
                minutes=scale.minutes.get(row),
                words=table.kind is Kind.senses,
                scale=scale_name,
            )


def data_job(data: DataSet, paths: Paths) -> Job:
    """Preparation of a data set; the command itself repeats no finished step."""
    raw, dest = paths.raw(data), paths.prepared(data)
    command = ("fairseq-kerbs", *(paths.fill(data, part) for part in data.prepare))
    parts = {"command": digest(data.prepare), "raw text": str(raw and fingerprint(raw))}
    steps = [Step("prepare", command, parts, dest / "bin")]
    return Job(f"data {data.name}", dest.with_name(f"{data.name}.steps"), steps)


def run_job(run: Run, paths: Paths) -> Job:
    """Training, and generation or evaluation if its metric needs one, with the digests of now."""
    experiment, folder = load_experiment(run.config), paths.run(run.id)
    config, data = str(run.config), str(paths.prepared(run.data) / "bin")
    save = folder / "checkpoints"
    best = save / "checkpoint_best.pt"
    trained = {**experiment.train, **run.flags}
    parts = {
        "configuration": digest({**trained, "seed": None}),
        "seed": str(run.seed),
        "data": data_digest(Path(data)),
    }
    flags = flag_arguments({**run.flags, "seed": str(run.seed)})
    command: tuple[str, ...] = ("fairseq-kerbs", "train", config, data, str(save), *flags)
    steps = [Step("train", command, parts, best, save)]
    if run.metric is Metric.perplexity:
        shared = {name: trained[name] for name in _EVALUATION if name in trained}
        told: Flags = {"gen-subset": "test", **shared, "batch-size": "64"}
        parts = {**parts, "evaluation flags": digest(told)}
        flags = flag_arguments({"user-dir": str(PLUGIN_FOLDER), "path": str(best), **told})
        command = ("fairseq-eval-lm", data, *flags)
        steps.append(Step("evaluate", command, parts, folder / "evaluate.log"))
    elif run.metric is not Metric.valid_loss:
        output = folder / "generate-test.txt"
        parts = {**parts, "generation flags": digest(experiment.generate)}
        command = ("fairseq-kerbs", "generate", config, data, str(save), "--output", str(output))
        steps.append(Step("generate", command, parts, output))
    if run.words:
        table = folder / "words.md"
        command = ("fairseq-kerbs", "senses", str(best), "--data", data, "--top", "5")
        command += ("--words-each", WORDS, "--seed", str(run.seed), "--table", str(table))
        steps.append(Step("words", command, {**parts, "words": WORDS}, table))
    return Job(run.id, folder, steps)
