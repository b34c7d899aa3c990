"""Cells: one configuration × one seed × one data set, as jobs whose steps are commands.

A cell is named by what it is, not by the table that wants it. Tables that share a training
(Table 5 and Table 1 of the paper, say) share its cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from fairseq_kerbs.corpora.manifest import fingerprint
from fairseq_kerbs.tables.description import CONFIGS, Column, DataSet, Part, Table
from fairseq_kerbs.tables.experiments import Experiment, Flags, flag_arguments, load_experiment
from fairseq_kerbs.tables.state import Job, Step, data_digest, digest
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import sha256_of
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER

ORDERS = {"bleu4": 4, "bleu1": 1}
_EVALUATION = ("task", "sample-break-mode", "tokens-per-sample")  # flags that eval-lm shares


@dataclass(frozen=True)
class Places:
    """Folders: raw corpora, work, and where results go."""

    data: Path
    work: Path
    results: Path

    def prepared(self, data: DataSet) -> Path:
        """Where a data set is prepared."""
        return self.work / "data" / data.name

    def cell(self, name: str) -> Path:
        """The folder of a cell."""
        return self.work / "cells" / name


@dataclass(frozen=True)
class Cell:
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
class Use:
    """A cell's place in a table."""

    table: str
    column: str
    row: str
    cell: Cell

    @property
    def label(self) -> str:
        """What ``--only`` is matched against."""
        return f"{self.table}/{self.column}/{self.row}/s{self.cell.seed}"


@dataclass(frozen=True)
class Plan:
    """Every cell once, in the order of the tables, and where it is used."""

    uses: list[Use]
    cells: dict[str, Cell] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()  # ids of the cells to run


def make_plan(tables: Sequence[Table], scale: str, only: Sequence[str] = ()) -> Plan:
    """The cells of the tables at a scale.

    With patterns in `only`, those to run are the matching ones, in the order of the patterns.

    Raises:
        UserError: nothing matches a pattern, or two tables want different things of one cell.
    """
    uses = [use for table in tables for use in _uses(table, scale)]
    cells: dict[str, Cell] = {}
    for use in uses:
        other = cells.setdefault(use.cell.id, use.cell)
        if _essence(other) != _essence(use.cell):
            raise UserError(
                f"two columns want cell {use.cell.id} with different flags or metrics; give one of "
                "them another 'variant'"
            )
    found = [_matching(uses, pattern) for pattern in only] if only else [uses]
    wanted = dict.fromkeys(use.cell.id for chosen in found for use in chosen)
    return Plan(uses, cells, tuple(wanted))


def _matching(uses: Sequence[Use], pattern: str) -> list[Use]:
    found = [use for use in uses if matches(use, pattern)]
    if not found:
        labels = ", ".join(use.label for use in uses[:4])
        raise UserError(f"--only {pattern}: no cell matches; they are called {labels}, …")
    return found


def matches(use: Use, pattern: str) -> bool:
    """Whether a label is, contains or (with * ? []) fits the pattern."""
    return pattern in use.label or fnmatch(use.label, pattern)


def _essence(cell: Cell) -> tuple[object, ...]:
    return (cell.config, cell.data, cell.metric, cell.train, cell.generate, cell.evaluate)


def _uses(table: Table, scale: str) -> Iterator[Use]:
    for column in table.columns:
        part = column.parts.get(scale)
        if part is None:
            continue
        # All systems of one seed before the next seed: a run that is stopped can be compared.
        for seed in part.seeds:
            for row in table.rows:
                if row in part.configs:
                    yield Use(table.name, column.name, row, _cell(column, part, row, seed))


def _cell(column: Column, part: Part, row: str, seed: int) -> Cell:
    config = part.configs[row]
    inside = config.is_relative_to(CONFIGS)
    stem = str(config.relative_to(CONFIGS).with_suffix("")) if inside else config.stem
    variant = f"-{part.variant}" if part.variant else ""
    return Cell(
        id=f"{part.data.name}/{stem.replace('/', '.')}{variant}-s{seed}",
        config=config,
        data=part.data,
        seed=seed,
        metric=column.metric,
        minutes=part.minutes.get(row),
        train=part.train,
        generate=part.generate,
        evaluate=part.evaluate,
    )


# --- data ---------------------------------------------------------------------------------------


def find_raw(data: DataSet, places: Places) -> Path | None:
    """The raw text of a data set below ``--data``; None if it is not there."""
    for name in data.folders:
        if (places.data / name).exists():
            return places.data / name
    return None


def missing_sentence(data: DataSet, places: Places) -> str:
    """What to do when the raw text is not there."""
    names = " or ".join(data.folders)
    return " ".join(f"{places.data} has no {names}. {data.missing}".split())


def fill(text: str, data: DataSet, places: Places) -> str:
    """A text with ``{raw}`` and ``{dest}`` replaced."""
    raw = find_raw(data, places) or places.data / data.folders[0]
    return text.replace("{raw}", str(raw)).replace("{dest}", str(places.prepared(data)))


def data_job(data: DataSet, places: Places) -> Job:
    """Preparation of a data set; the commands themselves repeat no finished step.

    The reference is copied, so that cells can be judged later without the raw text.
    """

    def steps() -> list[Step]:
        raw = find_raw(data, places)
        command = tuple(fill(part, data, places) for part in data.prepare)
        parts = {
            "command": digest(data.prepare),
            "raw text": str(None if raw is None else fingerprint(raw)),
        }
        prepared = places.prepared(data) / "bin"
        found = [Step("prepare", ("fairseq-kerbs", *command), parts, (prepared,))]
        if data.reference:
            copy = reference_path(data, places)
            source = fill(data.reference, data, places)
            parts = {**parts, "reference": data.reference}
            found.append(Step("reference", ("cp", source, str(copy)), parts, (copy,)))
        return found

    return Job(f"data {data.name}", _data_folder(data, places), steps)


def _data_folder(data: DataSet, places: Places) -> Path:
    return places.work / "data" / f"{data.name}.steps"


def reference_path(data: DataSet, places: Places) -> Path:
    """Raw reference of the test set."""
    return _data_folder(data, places) / f"reference.{data.language}"


def is_prepared(data: DataSet, places: Places) -> bool:
    """Whether a data set can be used without its raw text."""
    needed = [places.prepared(data) / "bin"]
    needed += [reference_path(data, places)] if data.reference else []
    return all(path.exists() for path in needed)


# --- steps of a cell ----------------------------------------------------------------------------


def cell_job(cell: Cell, places: Places) -> Job:
    """Training, generation or evaluation, and scoring, after the data."""
    return Job(
        id=cell.id,
        folder=places.cell(cell.id),
        steps=partial(cell_steps, cell, places),
        after=f"data {cell.data.name}",
        minutes=cell.minutes,
    )


def cell_steps(cell: Cell, places: Places) -> list[Step]:
    """The steps of a cell, with the digests of now."""
    experiment = load_experiment(cell.config)
    data, folder = places.prepared(cell.data) / "bin", places.cell(cell.id)
    save = folder / "checkpoints"
    parts = {
        "configuration": digest({**experiment.train, **cell.train, "seed": None}),
        "seed": str(cell.seed),
        "data": data_digest(data),
    }
    flags = flag_arguments({**cell.train, "seed": str(cell.seed)})
    train = Step(
        name="train",
        command=("fairseq-kerbs", "train", _near(cell.config), str(data), str(save), *flags),
        parts=parts,
        outputs=(save / "checkpoint_best.pt",),
        clear=(save,),
    )
    if cell.metric == "perplexity":
        return [train, *_evaluation(cell, experiment, data, folder, parts)]
    return [train, *_generation(cell, experiment, places, folder, parts)]


def _generation(
    cell: Cell, experiment: Experiment, places: Places, folder: Path, parts: dict[str, str]
) -> list[Step]:
    data, output = places.prepared(cell.data) / "bin", folder / "generate-test.txt"
    parts = {**parts, "generation flags": digest({**experiment.generate, **cell.generate})}
    shared = ("fairseq-kerbs", "generate", _near(cell.config), str(data))
    generate = Step(
        name="generate",
        command=(
            *(*shared, str(folder / "checkpoints"), "--output", str(output)),
            *flag_arguments(cell.generate),
        ),
        parts=parts,
        outputs=(output,),
    )
    reference = reference_path(cell.data, places)
    order = ORDERS[cell.metric]
    score = Step(
        name="score",
        command=(
            *("python", "-m", "fairseq_kerbs.tables.scoring", "bleu", str(output)),
            *(str(reference), "--lang", cell.data.language, "--order", str(order)),
            *("--hypotheses", str(hypotheses_path(folder)), "--output", str(score_path(folder))),
        ),
        parts={
            **parts,
            "metric": f"{cell.metric} {cell.data.language}",
            "reference": sha256_of(reference) if reference.is_file() else "missing",
        },
        outputs=(score_path(folder), hypotheses_path(folder)),
    )
    return [generate, score]


def _evaluation(
    cell: Cell, experiment: Experiment, data: Path, folder: Path, parts: dict[str, str]
) -> list[Step]:
    train = {**experiment.train, **cell.train}
    flags: Flags = {
        "user-dir": _near(PLUGIN_FOLDER),
        "path": str(folder / "checkpoints" / "checkpoint_best.pt"),
        "gen-subset": "test",
        **{name: train[name] for name in _EVALUATION if name in train},
        "batch-size": "64",
        **cell.evaluate,
    }
    told = {name: value for name, value in flags.items() if name not in ("user-dir", "path")}
    parts = {**parts, "evaluation flags": digest(told)}
    log = folder / "evaluate.log"
    evaluate = Step(
        name="evaluate",
        command=("fairseq-eval-lm", str(data), *flag_arguments(flags)),
        parts=parts,
        outputs=(log,),
    )
    score = Step(
        name="score",
        command=(
            *("python", "-m", "fairseq_kerbs.tables.scoring", "perplexity", str(log)),
            *("--output", str(score_path(folder))),
        ),
        parts={**parts, "metric": cell.metric},
        outputs=(score_path(folder),),
    )
    return [evaluate, score]


def _near(path: Path) -> str:
    """A path as it is typed in the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def score_path(folder: Path) -> Path:
    """The figures of a cell. (``score.json`` is the record of the step.)"""
    return folder / "figures.json"


def hypotheses_path(folder: Path) -> Path:
    """Detokenized hypotheses of a cell, one a sentence."""
    return folder / "hypotheses.txt"
