"""The runs that a table of a paper is made of, from its description in ``configs/tables``.

``configs/tables/schema.yaml`` explains the descriptions. Paths of what is made are relative to the
folder of ``--work``, in which Snakemake runs.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch, fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from fairseq_kerbs import configurations
from fairseq_kerbs.configurations import CONFIGS, Flags, flag_arguments
from fairseq_kerbs.utils.errors import UserError

TABLES = CONFIGS / "tables"
NAMES = ("1", "2", "3", "4", "5", "6", "gao1", "gao3", "layers")
"""What ``--table all`` stands for."""

_OUTPUTS = {"senses": "words.md", "perplexity": "perplexity.txt", "valid_loss": "trained"}
_SHARED = ("task", "sample-break-mode", "tokens-per-sample")  # flags of training and eval-lm


@dataclass(frozen=True)
class Run:
    """A training and what is made of it, at its place in a table.

    Its folder is named by what is trained: tables share it, and a changed description has another.
    """

    table: Mapping[str, Any]
    column: str
    row: str
    seed: int
    metric: str
    config: Path
    flags: str  # what the row and the seed add to the command line of the training
    evaluation: str  # flags of fairseq-eval-lm that the training has, too
    generation: Flags
    folder: str
    output: str  # the file that the table needs
    data: Mapping[str, Any]
    prepared: str  # the folder of the data
    minutes: int  # planned, 0 if unknown

    @property
    def label(self) -> str:
        """What ``--only`` is matched against."""
        return f"{self.table['name']}/{self.column}/{self.row}/s{self.seed}"

    def raw(self, corpora: str) -> Path | None:
        """The raw text of the data, None if it is not there."""
        places = (Path(corpora, folder) for folder in self.data["folders"])
        return next((place for place in places if place.exists()), None)

    def preparation(self, raw: Path) -> str:
        """The command that prepares the data."""
        text = self.data["prepare"].replace("{raw}", shlex.quote(str(raw)))
        return str(text.replace("{dest}", self.prepared))


def load_table(name: str) -> dict[str, Any]:
    """The description of a name in ``configs/tables``, or of a path that ends in .yaml. Raises a
    UserError if there is none, or it does not fit the schema or names what is not there."""
    import jsonschema

    path = TABLES / (f"table{name}.yaml" if name.isdigit() else f"{name}.yaml")
    if name.endswith(".yaml"):
        path = Path(name)
    elif not path.is_file() or name in ("data", "schema"):
        raise UserError(f"--table {name}: there is {', '.join(NAMES)}, all, or a FILE.yaml")
    table, shared = configurations.read_yaml(path), path.parent / "data.yaml"
    known = configurations.read_yaml(shared) if shared.is_file() else {}
    table["data"] = {**known, **table.get("data", {})}
    try:
        jsonschema.validate(table, configurations.read_yaml(TABLES / "schema.yaml"))
    except jsonschema.ValidationError as error:
        raise UserError(f"{path}: {error.json_path}: {error.message}") from None
    rows = [*table.get("flags", ()), *filter(None, [table.get("baseline")])]
    for column in table["columns"].values():
        rows += column.get("paper", ())
        for scale in (column[each] for each in ("full", "small") if each in column):
            rows += [row for key in ("configs", "flags", "minutes") for row in scale.get(key, ())]
            if scale["data"] not in table["data"]:
                raise UserError(f"{path}: unknown data set {scale['data']!r}")
    for row in rows:
        if not any(fnmatchcase(each, row) for each in table["rows"]):
            raise UserError(f"{path}: {row!r} is none of the rows {', '.join(table['rows'])}")
    defaults = {"kind": "figures", "baseline": "", "source": "Own table"}
    return {**defaults, **table, "file": path, "name": path.stem}


def plan_runs(table: Mapping[str, Any], scale_name: str) -> Iterator[Run]:
    """The runs of a table at a scale, all rows of a seed before the next; a UserError if a
    configuration or flag cannot be."""
    for name, column in table["columns"].items():
        scale = column.get(scale_name, {})
        for seed, row in product(scale.get("seeds", ["1"]), table["rows"] if scale else ()):
            files = [scale.get("config"), *_fitting(row, scale.get("configs", {}))]
            if files[-1]:
                yield _plan_run(table, name, row, int(seed), scale, files[-1])


def _fitting(row: str, values: Mapping[str, Any]) -> list[Any]:
    """The values whose keys are a row, or patterns that it fits, in their order."""
    return [value for pattern, value in values.items() if fnmatchcase(row, pattern)]


def _plan_run(
    table: Mapping[str, Any], column: str, row: str, seed: int, scale: Mapping[str, Any], file: str
) -> Run:
    where, metric = table["file"], table["columns"][column]["metric"]
    config = next((c for c in (CONFIGS / file, where.parent / file) if c.is_file()), None)
    if config is None:
        raise UserError(f"{where}: there is no configuration {file} below {CONFIGS}")
    changes = [*_fitting(row, table.get("flags", {})), *_fitting(row, scale.get("flags", {}))]
    flags = {flag: value for change in changes for flag, value in change.items()}
    flags = configurations.check_flags(f"{where}: flags: {row}", flags)
    if off := [flag for flag, value in flags.items() if value is None or value is False]:
        raise UserError(f"{where}: flags: {row}: no command line takes {off[0]} away")
    experiment = configurations.load_experiment(config)
    train = {**experiment.train, **flags}
    trained = json.dumps([train, experiment.senses], sort_keys=True).encode()
    name = str(config.relative_to(CONFIGS) if config.is_relative_to(CONFIGS) else config.name)
    name = re.sub(r"[^\w.-]", ".", name.removesuffix(".yaml")) + (f"_{row}" if flags else "")
    folder = f"cells/{scale['data']}/{name}-s{seed}-{hashlib.sha256(trained).hexdigest()[:6]}"
    output = _OUTPUTS.get(table["kind"]) or _OUTPUTS.get(metric, "generate-test.txt")
    return Run(
        *(table, column, row, seed, metric, config),
        flags=shlex.join(flag_arguments({**flags, "seed": str(seed)})),
        evaluation=shlex.join(flag_arguments({f: train[f] for f in _SHARED if f in train})),
        generation=experiment.generate,
        folder=folder,
        output=f"{folder}/{output}",
        data=table["data"][scale["data"]],
        prepared=f"data/{scale['data']}",
        minutes=round(float([0, *_fitting(row, scale.get("minutes", {}))][-1])),
    )


def select_runs(
    tables: Sequence[str], scale: str, corpora: str, work: str,
    only: Sequence[str] = (), finished: str = "",
) -> tuple[list[Run], list[str]]:  # fmt: skip
    """The runs of tables that `only` selects and whose data are there or can be prepared, with
    `finished` only those that have been made; and a sentence on each data set that is missing.

    Raises a UserError if a table or pattern is unknown, or a description is wrong.
    """
    runs = [run for table in map(load_table, tables) for run in plan_runs(table, scale)]
    labels, wanted = [run.label for run in runs], set[str]()
    for pattern in only or ["*"]:
        matching = [label for label in labels if pattern in label or fnmatch(label, pattern)]
        if not matching:
            called = ", ".join(labels[:4])
            raise UserError(f"--only {pattern}: no run matches; they are called {called}, …")
        wanted.update(matching)
    missing, there = dict[str, str](), list[Run]()
    for run in (run for run in runs if run.label in wanted):
        if run.raw(corpora) is None and not Path(work, run.prepared, "bin").is_dir():
            folders = " or ".join(run.data["folders"])
            text = f"{run.prepared}: {corpora} has no {folders}. {run.data.get('missing', '')}"
            missing[run.prepared] = " ".join(text.split())
        elif not finished or Path(work, run.output).exists():
            there.append(run)
    return there, list(missing.values())
