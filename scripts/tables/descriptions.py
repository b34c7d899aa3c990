"""The descriptions of tables in ``configs/tables``, and the runs that a table consists of.

``configs/tables/schema.yaml`` says what a description holds. Paths of outputs are relative to the
folder of ``--work``, where Snakemake runs.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch, fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from fairseq_kerbs import configurations
from fairseq_kerbs.configurations import CONFIGS, Flags, flag_arguments
from fairseq_kerbs.utils.errors import UserError

TABLES = CONFIGS / "tables"
NAMES = (
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "gao1",
    "gao2",
    "gao3",
    "gao4",
)
"""The papers' tables, which ``--table all`` makes."""

OTHERS = (
    "layers",
    "search",
    "rate_grid",
    "gao_search",
    "gao_mixture_search",
    "gao_grid",
    "reallocation_grid",
    "lm_grid",
    "grid",
)
"""Our comparison of output layers, and searches on validation data."""

_OUTPUT_OF_KIND = {"senses": "words.md"}
_OUTPUT_OF_METRIC = {
    "perplexity": "perplexity.txt",
    "valid_loss": "trained",  # a figure of the log
    "mixture_variance": "trained",
}
_FLAGS_OF_EVAL_LM = ("task", "sample-break-mode", "tokens-per-sample")


@dataclass(frozen=True)
class Run:
    """A training and its evaluation. Runs of equal row, configuration and flags share a folder."""

    table: Mapping[str, Any]
    column: str
    row: str
    seed: int
    metric: str
    config: Path
    flags: str  # training flags of the row and the seed
    evaluation: str  # flags of fairseq-eval-lm
    generation: Flags
    folder: str
    output: str  # file for the table
    data: Mapping[str, Any]  # description of the data set
    prepared: str  # folder of the prepared data
    minutes: int  # estimated, 0 if unknown

    @property
    def label(self) -> str:
        """Name of the run for ``--only``."""
        return self._label_of(self.row)

    @property
    def baseline(self) -> str:
        """Label of the baseline's run of the same column and seed."""
        return self._label_of(self.table["baseline"])

    def _label_of(self, row: str) -> str:
        return f"{self.table['name']}/{self.column}/{row}/s{self.seed}"

    def raw(self, corpora: str) -> Path | None:
        """Path of the raw text in a folder of corpora, or None if it is missing."""
        return next(filter(Path.exists, (Path(corpora, f) for f in self.data["folders"])), None)

    def preparation(self, raw: Path) -> str:
        """Shell command that prepares the raw text."""
        text = self.data["prepare"].replace("{raw}", shlex.quote(str(raw)))
        return str(text.replace("{dest}", self.prepared))


def load_table(name: str) -> dict[str, Any]:
    """Read a table's description by its name or path. An invalid one raises a UserError."""
    import jsonschema

    path = TABLES / (f"table{name}.yaml" if name.isdigit() else f"{name}.yaml")
    if name.endswith(".yaml"):
        path = Path(name)
    elif not path.is_file() or name in ("data", "schema"):
        raise UserError(
            f"--table {name}: there is {', '.join(NAMES + OTHERS)}, all, or a FILE.yaml"
        )
    table = configurations.read_yaml(path)
    shared = path.parent / "data.yaml"
    data = configurations.read_yaml(shared) if shared.is_file() else {}
    table["data"] = data | table.get("data", {})
    try:
        jsonschema.validate(table, configurations.read_yaml(TABLES / "schema.yaml"))
    except jsonschema.ValidationError as error:
        raise UserError(f"{path}: {error.json_path}: {error.message}") from None
    _check_rows(table, path)
    defaults = {"kind": "figures", "baseline": "", "source": "Own table", "controls": []}
    return {**defaults, **table, "file": path, "name": path.stem}


def _check_rows(table: Mapping[str, Any], path: Path) -> None:
    """Raise a UserError for a pattern that fits no row of a table, or an unknown data set."""
    patterns = [*table.get("flags", ())]
    if table.get("baseline"):
        patterns.append(table["baseline"])
    patterns += table.get("controls", ())
    for column in table["columns"].values():
        patterns += column.get("paper", ())
        for size in ("full", "small"):
            scale = column.get(size)
            if scale is None:
                continue
            for key in ("configs", "flags", "minutes"):
                patterns += scale.get(key, ())
            if scale["data"] not in table["data"]:
                raise UserError(f"{path}: unknown data set {scale['data']!r}")
    for pattern in patterns:
        if not any(fnmatchcase(row, pattern) for row in table["rows"]):
            raise UserError(f"{path}: {pattern!r} is none of the rows {', '.join(table['rows'])}")


def plan_runs(table: Mapping[str, Any], scale_name: str) -> Iterator[Run]:
    """Runs of a table at a scale, ordered by seed. Invalid configurations raise a UserError."""
    for name, column in table["columns"].items():
        scale = column.get(scale_name, {})
        runs = list[Run]()
        for seed, row in product(scale.get("seeds", ["1"]), table["rows"] if scale else ()):
            files = [scale.get("config"), *_fitting(row, scale.get("configs", {}))]
            if files[-1]:  # the last pattern that fits counts
                file = files[-1].replace("{row}", row)
                runs.append(_plan_run(table, name, row, int(seed), scale, file))
        if table["kind"] == "neighbours":
            runs = [_beside_baseline(run, runs) for run in runs]
        yield from runs


def _beside_baseline(run: Run, runs: Sequence[Run]) -> Run:
    """A run whose output names the run of the baseline that it is compared with."""
    base = next((each for each in runs if each.label == run.baseline), None)
    if base is None:
        where = run.table["file"]
        raise UserError(f"{where}: kind neighbours needs a baseline that has a configuration")
    output = f"{run.folder}/neighbours_{Path(base.folder).name}.json"
    return replace(run, output=output)


def _fitting(row: str, values: Mapping[str, Any]) -> list[Any]:
    """Values whose keys are patterns that match a row, in order."""
    return [value for pattern, value in values.items() if fnmatchcase(row, pattern)]


def _plan_run(table: Any, column: str, row: str, seed: int, scale: Any, file: str) -> Run:
    where = table["file"]
    metric = table["columns"][column]["metric"]
    config = next((c for c in (CONFIGS / file, where.parent / file) if c.is_file()), None)
    if config is None:
        raise UserError(f"{where}: there is no configuration {file} below {CONFIGS}")
    changes = [*_fitting(row, table.get("flags", {})), *_fitting(row, scale.get("flags", {}))]
    flags = {flag: value for change in changes for flag, value in change.items()}
    flags = configurations.flags_of_section(f"{where}: flags: {row}", flags)
    off = [flag for flag, value in flags.items() if value is None or value is False]
    if off:
        raise UserError(f"{where}: flags: {row}: no command line takes {off[0]} away")
    experiment = configurations.load_experiment(config)
    train = {**experiment.train, **flags}
    trained = json.dumps([train, experiment.placement], sort_keys=True).encode()
    name = str(config.relative_to(CONFIGS) if config.is_relative_to(CONFIGS) else config.name)
    name = re.sub(r"[^\w.-]", ".", name.removesuffix(".yaml")) + (f"_{row}" if flags else "")
    folder = f"cells/{scale['data']}/{name}-s{seed}-{hashlib.sha256(trained).hexdigest()[:6]}"
    output = _OUTPUT_OF_KIND.get(table["kind"])
    output = output or _OUTPUT_OF_METRIC.get(metric, "generate-test.txt")
    estimates = _fitting(row, scale.get("minutes", {}))
    minutes = 0
    if estimates:
        minutes = round(float(estimates[-1]))  # the last pattern that fits counts
    return Run(
        table,
        column,
        row,
        seed,
        metric,
        config,
        flags=shlex.join(flag_arguments({**flags, "seed": str(seed)})),
        evaluation=shlex.join(
            flag_arguments({f: train[f] for f in _FLAGS_OF_EVAL_LM if f in train})
        ),
        generation=experiment.generate,
        folder=folder,
        output=f"{folder}/{output}",
        data=table["data"][scale["data"]],
        prepared=f"data/{scale['data']}",
        minutes=minutes,
    )


def select_runs(
    tables: Sequence[str],
    scale: str,
    corpora: str,
    work: str,
    only: Sequence[str] = (),
    finished: str = "",
) -> tuple[list[Run], list[str]]:
    """Select runs whose data exist, by the flags of ``scripts/reproduce_tables.sh``.

    With ``finished`` (not empty) only runs with an output are selected. Returns the runs, and a
    sentence about each missing data set. A table that is named twice counts once. Unknown tables
    and patterns, and two tables of one name, raise a UserError.
    """
    runs = [run for table in _different_tables(tables) for run in plan_runs(table, scale)]
    if not runs:
        raise UserError(f"{', '.join(tables)} has no --scale {scale}: give the other one")
    labels = [run.label for run in runs]
    wanted = set[str]()
    for pattern in only or ["*"]:
        matching = [label for label in labels if pattern in label or fnmatch(label, pattern)]
        if not matching:
            raise UserError(
                f"--only {pattern}: no run matches; labels are {', '.join(labels[:4])}, …"
            )
        wanted.update(matching)
    # what is counted beside the baseline needs its run
    wanted |= {r.baseline for r in runs if r.table["kind"] == "neighbours" and r.label in wanted}
    missing = dict[str, str]()
    selected = list[Run]()
    for run in (run for run in runs if run.label in wanted):
        if run.raw(corpora) is None and not Path(work, run.prepared, "bin").is_dir():
            folders = " or ".join(run.data["folders"])
            text = f"{run.prepared}: {corpora} has no {folders}. {run.data.get('missing', '')}"
            missing[run.prepared] = " ".join(text.split())
        elif not finished or Path(work, run.output).exists():
            selected.append(run)
    # and cannot be counted before it has finished
    present = {run.label for run in selected}
    selected = [
        run for run in selected if run.table["kind"] != "neighbours" or run.baseline in present
    ]
    return selected, list(missing.values())


def _different_tables(names: Sequence[str]) -> list[dict[str, Any]]:
    """Descriptions by name or path, each once. Two files of one name raise a UserError."""
    tables = dict[str, dict[str, Any]]()
    for table in map(load_table, names):
        other = tables.setdefault(table["name"], table)
        if not table["file"].samefile(other["file"]):
            raise UserError(
                f"--table: {other['file']} and {table['file']} have the same name, by which their "
                "results are stored. Rename one of them"
            )
    return list(tables.values())


def has_ratings(table: Mapping[str, Any]) -> bool:
    """Whether a table has a column of people's scores."""
    return any(column["metric"] == "human" for column in table["columns"].values())


def rated_rows(table: Mapping[str, Any]) -> list[str]:
    """Rows whose answers people judged in the paper."""
    columns = table["columns"].values()
    judged = [row for c in columns if c["metric"] == "human" for row in c.get("paper", ())]
    return list(dict.fromkeys(judged))
