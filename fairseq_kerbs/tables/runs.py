"""Runs: one configuration × one seed × one data set, as jobs whose steps are commands.

A run is named by what it is, not by the table that wants it. Tables that share a training (Table 5
and Table 1 of the paper, say) share its run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from fairseq_kerbs.tables.description import CONFIGS, DataSet, Scale, Table
from fairseq_kerbs.tables.experiments import Flags, flag_arguments, load_experiment
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import sha256_of
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER
from fairseq_kerbs.utils.steps import (
    StepStatus,
    data_digest,
    digest,
    fingerprint,
    read_record,
    step_status,
)

ORDERS = {"bleu4": 4, "bleu1": 1}
_EVALUATION = ("task", "sample-break-mode", "tokens-per-sample")  # flags that eval-lm shares


@dataclass(frozen=True)
class Step:
    """A command of a run or of a preparation.

    Attributes:
        name: of the step in its folder; its record is ``name.json``, its log ``name.log``.
        command: program and arguments; see `fairseq_kerbs.tables.runner.resolve`.
        parts: what it depends on, by name, as digests or short texts.
        outputs: files or folders that are there when it is done.
        clear: what is removed before it is run anew after a change.
    """

    name: str
    command: tuple[str, ...]
    parts: Mapping[str, str]
    outputs: tuple[Path, ...] = ()
    clear: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Job:
    """Steps that run one after the other, in a folder of their own.

    Attributes:
        id: unique in a plan.
        folder: where records and logs are kept.
        steps: builds the steps, once the job in `after` is done: digests of data are known then.
        after: id of the job that must be done before, or "".
        minutes: planned, None if unknown.
    """

    id: str
    folder: Path
    steps: Callable[[], list[Step]]
    after: str = ""
    minutes: float | None = None


def statuses(folder: Path, steps: Sequence[Step]) -> list[StepStatus]:
    """Where the steps of a job stand.

    The parts of a later step include those of the earlier ones. So when the last step is done all
    are, even if a checkpoint has been removed since.
    """
    found = [
        step_status(
            step.name,
            read_record(folder / f"{step.name}.json"),
            step.parts,
            {str(output): "there" if output.exists() else None for output in step.outputs},
        )
        for step in steps
    ]
    return [found[-1]] * len(found) if found[-1].state == "done" else found


@dataclass(frozen=True)
class Paths:
    """Folders: raw corpora, work, and where results go.

    Attributes:
        earlier: name of a run -> name under which its folder was made, where that is another.
    """

    data: Path
    work: Path
    results: Path
    earlier: Mapping[str, str] = field(default_factory=dict)

    def prepared(self, data: DataSet) -> Path:
        """Where a data set is prepared."""
        return self.work / "data" / data.name

    def run(self, name: str) -> Path:
        """The folder of a run."""
        return self.work / "cells" / self.earlier.get(name, name)

    def records(self, data: DataSet) -> Path:
        """Where the records of a data set's preparation are."""
        return self.work / "data" / f"{data.name}.steps"

    def reference(self, data: DataSet) -> Path:
        """Raw reference of the test set."""
        return self.records(data) / f"reference.{data.language}"

    def raw(self, data: DataSet) -> Path | None:
        """The raw text of a data set below ``--data``; None if it is not there."""
        return next((self.data / n for n in data.folders if (self.data / n).exists()), None)

    def is_prepared(self, data: DataSet) -> bool:
        """Whether a data set can be used without its raw text."""
        needed = [self.prepared(data) / "bin", *([self.reference(data)] * bool(data.reference))]
        return all(path.exists() for path in needed)

    def missing(self, data: DataSet) -> str:
        """What to do when the raw text is not there."""
        return " ".join(f"{self.data} has no {' or '.join(data.folders)}. {data.missing}".split())


@dataclass(frozen=True)
class Run:
    """A training, and what is made of it."""

    id: str
    config: Path
    data: DataSet
    seed: int
    metric: str
    minutes: float | None
    train: Flags
    generate: Flags
    evaluate: Flags


@dataclass(frozen=True)
class Reference:
    """A run's place in a table."""

    table: str
    column: str
    row: str
    run: Run

    @property
    def label(self) -> str:
        """What ``--only`` is matched against."""
        return f"{self.table}/{self.column}/{self.row}/s{self.run.seed}"


@dataclass(frozen=True)
class Plan:
    """Every run once, in the order of the tables, where it is referred to, and which to run."""

    references: list[Reference]
    runs: dict[str, Run]
    wanted: tuple[str, ...]


def make_plan(tables: Sequence[Table], scale: str, only: Sequence[str] = ()) -> Plan:
    """The runs of the tables at a scale.

    With patterns in `only`, those to run are the matching ones, in the order of the patterns: a
    pattern is part of a label, or fits it with ``*``, ``?`` or ``[]``.

    Raises:
        UserError: nothing matches a pattern, or two tables want different things of one run.
    """
    references = [reference for table in tables for reference in _references(table, scale)]
    runs: dict[str, Run] = {}
    for reference in references:
        run = reference.run
        if replace(runs.setdefault(run.id, run), minutes=None) != replace(run, minutes=None):
            raise UserError(
                f"two columns want run {run.id} with different flags or metrics; give one of "
                "them another 'variant'"
            )
    wanted: dict[str, None] = {}
    for pattern in only or [""]:
        found = [one for one in references if pattern in one.label or fnmatch(one.label, pattern)]
        if not found and pattern:
            labels = ", ".join(one.label for one in references[:4])
            raise UserError(f"--only {pattern}: no run matches; they are called {labels}, …")
        wanted |= dict.fromkeys(one.run.id for one in found)
    return Plan(references, runs, tuple(wanted))


def _references(table: Table, scale_name: str) -> Iterator[Reference]:
    for name, column in table.columns.items():
        scale = column.scale(scale_name)
        # All systems of one seed before the next seed: what was stopped can be compared.
        for seed in scale.seeds if scale else []:
            for row in table.rows:
                if scale and row in scale.configs:
                    run = _run(table, column.metric, scale, row, seed)
                    yield Reference(table.name, name, row, run)


def _run(table: Table, metric: str, scale: Scale, row: str, seed: int) -> Run:
    config, flags = Path(scale.configs[row]), table.flags.get(row, {})
    inside = config.is_relative_to(CONFIGS)
    stem = str(config.relative_to(CONFIGS).with_suffix("")) if inside else config.stem
    name = stem.replace("/", ".") + (f"_{row}" if flags else "")
    variant = f"-{scale.variant}" if scale.variant else ""
    return Run(
        id=f"{scale.data}/{name}{variant}-s{seed}",
        config=config,
        data=table.data[scale.data],
        seed=seed,
        metric=metric,
        minutes=scale.minutes.get(row),
        train={**flags, **scale.train},
        generate=scale.generate,
        evaluate=scale.evaluate,
    )


def find_earlier(plan: Plan, paths: Paths) -> Paths:
    """Paths that lead to what was made under an earlier name of a run.

    A configuration may since have been renamed, or become a row of a table. A folder is of the same
    run if its records agree with every step of today, and no run of the plan has its name.
    """
    for run in plan.runs.values():
        others = (paths.work / "cells" / run.data.name).glob(f"*-s{run.seed}")
        names = [f"{run.data.name}/{folder.name}" for folder in sorted(others)]
        for name in [] if run.id in names else names:
            if name in plan.runs or name in paths.earlier.values():
                continue
            trial = replace(paths, earlier={**paths.earlier, run.id: name})
            states = {status.state for status in statuses(trial.run(run.id), run_steps(run, trial))}
            if "stale" not in states and states & {"done", "to resume"}:
                paths = trial
                break
    return paths


def data_job(data: DataSet, paths: Paths) -> Job:
    """Preparation of a data set; the commands themselves repeat no finished step.

    The reference is copied, so that runs can be judged later without the raw text.
    """

    def fill(text: str) -> str:
        raw = paths.raw(data) or paths.data / data.folders[0]
        return text.replace("{raw}", str(raw)).replace("{dest}", str(paths.prepared(data)))

    def steps() -> list[Step]:
        raw = paths.raw(data)
        parts = {
            "command": digest(data.prepare),
            "raw text": str(None if raw is None else fingerprint(raw)),
        }
        command = ("fairseq-kerbs", *map(fill, data.prepare))
        found = [Step("prepare", command, parts, (paths.prepared(data) / "bin",))]
        if data.reference:
            copy, parts = paths.reference(data), {**parts, "reference": data.reference}
            command = ("cp", fill(data.reference), str(copy))
            found.append(Step("reference", command, parts, (copy,)))
        return found

    return Job(f"data {data.name}", paths.records(data), steps)


def run_job(run: Run, paths: Paths) -> Job:
    """Training, generation or evaluation, and scoring, after the data."""
    steps = partial(run_steps, run, paths)
    return Job(run.id, paths.run(run.id), steps, f"data {run.data.name}", run.minutes)


def run_steps(run: Run, paths: Paths) -> list[Step]:
    """The steps of a run, with the digests of now."""
    experiment = load_experiment(run.config)
    data, folder = str(paths.prepared(run.data) / "bin"), paths.run(run.id)
    save, figures, config = folder / "checkpoints", folder / "figures.json", _near(run.config)
    best = save / "checkpoint_best.pt"
    trained = {**experiment.train, **run.train}
    parts = {
        "configuration": digest({**trained, "seed": None}),
        "seed": str(run.seed),
        "data": data_digest(Path(data)),
    }
    flags = flag_arguments({**run.train, "seed": str(run.seed)})
    train = ("fairseq-kerbs", "train", config, data, str(save), *flags)
    score: tuple[str, ...] = ("python", "-m", "fairseq_kerbs.tables.scoring")
    steps = [Step("train", train, parts, (best,), clear=(save,))]
    if run.metric == "perplexity":
        log = folder / "evaluate.log"
        told: Flags = {
            "gen-subset": "test",
            **{name: trained[name] for name in _EVALUATION if name in trained},
            "batch-size": "64",
            **run.evaluate,
        }
        parts = {**parts, "evaluation flags": digest(told)}
        arguments = flag_arguments({"user-dir": _near(PLUGIN_FOLDER), "path": str(best), **told})
        steps.append(Step("evaluate", ("fairseq-eval-lm", data, *arguments), parts, (log,)))
        score = (*score, "perplexity", str(log), "--output", str(figures))
        return [*steps, Step("score", score, {**parts, "metric": run.metric}, (figures,))]
    output, hypotheses = folder / "generate-test.txt", folder / "hypotheses.txt"
    reference, language = paths.reference(run.data), run.data.language
    parts = {**parts, "generation flags": digest({**experiment.generate, **run.generate})}
    generate = ("fairseq-kerbs", "generate", config, data, str(save), "--output", str(output))
    steps.append(Step("generate", (*generate, *flag_arguments(run.generate)), parts, (output,)))
    score = (
        *(*score, "bleu", str(output), str(reference), "--lang", language),
        *("--order", str(ORDERS[run.metric]), "--hypotheses", str(hypotheses)),
        *("--output", str(figures)),
    )
    parts = {
        **parts,
        "metric": f"{run.metric} {language}",
        "reference": sha256_of(reference) if reference.is_file() else "missing",
    }
    return [*steps, Step("score", score, parts, (figures, hypotheses))]


def _near(path: Path) -> str:
    """A path as it is typed in the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
