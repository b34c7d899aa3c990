"""A table of a paper as data: YAML files in ``configs/tables``.

    title: what the table shows
    source: KerBS paper, Table 2
    kind: figures                   # or examples, or senses; figures if left out
    baseline: softmax               # row that the others are compared with
    rows: {softmax: Transformer, kerbs: Transformer + KerBS, no_kernel: without the kernel}
    flags:                          # what rows change in the configuration that a scale gives them
      no_kernel: {kernel: lin}
    columns:
      mt:
        title: translation
        metric: bleu4               # bleu4, bleu1, perplexity or human
        paper: {softmax: 29.61, kerbs: 30.90}
        small:                      # a scale: full or small
          data: multi30k            # a data set of data.yaml, or of 'data' in this file
          config: multi30k/transformer_kerbs.yaml     # of all rows that 'configs' does not name
          configs: {softmax: multi30k/transformer_softmax.yaml}
          seeds: [1, 2, 3]
          minutes: {softmax: 10, kerbs: 18}     # planned for a run on two cores
          variant: short            # a name for what the next three change
          train: {max-update: 1000}
          generate: {beam: 1}
          evaluate: {batch-size: 8} # flags of fairseq-eval-lm

A data set names the folders or archives to look for below ``--data``, and the command that prepares
it, in which ``{raw}`` stands for what was found and ``{dest}`` for the folder to prepare into.

Names of rows, columns, data sets, variants and languages become parts of paths below ``--work`` and
``--results``: they are of letters, digits, ``_``, ``.`` and ``-``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from fairseq_kerbs.tables.experiments import check_flags, read_yaml
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER

CONFIGS = PLUGIN_FOLDER.parent / "configs"
TABLES = CONFIGS / "tables"
NAMES = ("1", "2", "3", "4", "5", "6", "gao1", "gao3")
KINDS = ("figures", "examples", "senses")
SCALES = ("full", "small")
METRICS = ("bleu4", "bleu1", "perplexity", "human")
_PATH_PART = re.compile(r"(?!\.{1,2}$)[\w.-]+")


@dataclass
class DataSet:
    """A corpus: where its raw text is looked for, and how it becomes data for fairseq.

    `missing` is told when none of `folders` is there, `reference` is the raw target text of the
    test set ("" if none), `language` that of the target; `name` is the key.
    """

    folders: list[str]
    prepare: list[str]
    missing: str = ""
    reference: str = ""
    language: str = "en"
    source_language: str = "en"
    name: str = ""


@dataclass
class Scale:
    """A column at one scale: what is trained, on what, and how often; `configs` is by row."""

    data: str
    config: str = ""
    configs: dict[str, str] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [1])
    minutes: dict[str, float] = field(default_factory=dict)
    variant: str = ""
    train: dict[str, Any] = field(default_factory=dict)
    generate: dict[str, Any] = field(default_factory=dict)
    evaluate: dict[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass
class Column:
    """A task with its metric, the paper's figures by row, and its scales."""

    metric: str
    title: str = ""
    paper: dict[str, float] = field(default_factory=dict)
    note: str = ""
    full: Scale | None = None
    small: Scale | None = None

    def scale(self, name: str) -> Scale | None:
        """The column at a scale, None if it has none."""
        found: Scale | None = getattr(self, name)
        return found


@dataclass
class Table:
    """A table: rows (name -> title) are systems, columns are tasks."""

    title: str
    rows: dict[str, str]
    columns: dict[str, Column]
    source: str = ""
    kind: str = "figures"
    baseline: str = ""
    flags: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: dict[str, DataSet] = field(default_factory=dict)
    name: str = ""


def table_path(name: str) -> Path:
    """The file of a table: one of `NAMES`, or a path that ends in .yaml.

    Raises:
        UserError: there is no such table.
    """
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    if name not in NAMES:
        raise UserError(f"--table {name}: there is {', '.join(NAMES)}, all, or a .yaml file")
    path = TABLES / (f"table{name}.yaml" if name.isdigit() else f"{name}.yaml")
    if not path.is_file():
        raise UserError(f"no {path}; run from a checkout of the project, which holds configs/")
    return path


def load_table(path: Path) -> Table:
    """Read the description of a table and check it.

    Raises:
        UserError: a file is missing or not YAML, a key is unknown or missing, a name does not
            match, or a configuration that it names does not exist.
    """
    table: Table = _typed(Table, path, read_yaml(path))
    table.name, table.data = path.stem, {**load_data(path), **table.data}
    for problem in _problems(table, path):
        raise UserError(f"{path}: {problem}")
    return table


def load_data(path: Path) -> dict[str, DataSet]:
    """The data sets of ``data.yaml`` beside a description, if there is one."""
    shared = path.parent / "data.yaml"
    content = read_yaml(shared) if shared.is_file() else {}
    return {name: _typed(DataSet, shared, {**one, "name": name}) for name, one in content.items()}


def config_path(path: Path, name: str) -> Path:
    """A configuration that the description at `path` names: below configs/, or else beside it.

    Raises:
        UserError: it is in neither place.
    """
    for folder in (CONFIGS, path.parent):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{path}: there is no configuration {name} below {CONFIGS}")


def _typed(schema: type[Any], path: Path, content: dict[Any, Any]) -> Any:
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), content))
    except ConfigKeyError as error:
        where = error.full_key.rpartition(".")[0] or "the top level"
        known = ", ".join(one.name for one in fields(error.object_type))
        raise UserError(f"{path}: {where}: unknown key '{error.key}'; there is {known}") from None
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        where = getattr(error, "full_key", None)
        what = (str(error).splitlines() or [""])[0].rstrip(".")
        raise UserError(f"{path}: {f'{where}: ' if where else ''}{what}") from None


def _problems(table: Table, path: Path) -> Iterator[str]:
    """Sentences about what the types leave open; fills in names and paths on its way."""
    for name, data in table.data.items():
        data.name = name
        yield from _bad_names("data set", [name])
        yield from _bad_names(f"data set '{name}': language", [data.language])
        if not data.folders:
            yield f"data set '{name}': folders names none"
    yield from _bad_names("row", table.rows)
    yield from _bad_names("column", table.columns)
    if table.kind not in KINDS:
        yield f"kind must be one of {', '.join(KINDS)}, not {table.kind}"
    if table.baseline and table.baseline not in table.rows:
        yield f"baseline '{table.baseline}' is none of the rows"
    yield from _bad_rows(table, "flags", table.flags)
    for row, flags in table.flags.items():
        yield from _bad_flags(path, f"flags: {row}", flags)
    for name, column in table.columns.items():
        column.title = column.title or name
        if column.metric not in METRICS:
            yield f"column '{name}': metric must be one of {', '.join(METRICS)}"
        yield from _bad_rows(table, f"column '{name}': paper", column.paper)
        for which in SCALES:
            scale = column.scale(which)
            if scale is not None:
                yield from _scale_problems(table, path, f"column '{name}': {which}", scale)


def _scale_problems(table: Table, path: Path, where: str, scale: Scale) -> Iterator[str]:
    if scale.data not in table.data:
        yield f"{where}: unknown data set '{scale.data}'; there is {', '.join(table.data)}"
    if not scale.config and not scale.configs:
        yield f"{where}: 'config' or 'configs' is missing"
    yield from _bad_rows(table, where, [*scale.configs, *scale.minutes])
    default = dict.fromkeys(table.rows, scale.config) if scale.config else {}
    configs = {**default, **scale.configs}
    scale.configs = {row: str(config_path(path, file)) for row, file in configs.items()}
    for seed in scale.seeds:
        if not 0 <= seed < 10**9:
            yield f"{where}: seeds: {seed} is no number of 1 to 9 digits"
    yield from _bad_names(f"{where}: variant", [scale.variant] if scale.variant else [])
    if (scale.train or scale.generate or scale.evaluate) and not scale.variant:
        yield f"{where}: give what changes the flags a name, as 'variant'"
    for section in ("train", "generate", "evaluate"):
        yield from _bad_flags(path, f"{where}: {section}", getattr(scale, section))


def _bad_flags(path: Path, where: str, flags: dict[str, Any]) -> Iterator[str]:
    for name, value in check_flags(f"{path}: '{where}", flags).items():
        if value is None or value is False:
            yield f"{where}: {name}: no command line takes a flag away; change a configuration"


def _bad_names(where: str, names: Iterable[str]) -> Iterator[str]:
    """Names that would lead out of a folder: they become parts of paths."""
    for name in names:
        if not _PATH_PART.fullmatch(name):
            yield f"{where} {name!r}: a name may have letters, digits, '_', '.' and '-' only"


def _bad_rows(table: Table, where: str, rows: Iterable[str]) -> Iterator[str]:
    for row in rows:
        if row not in table.rows:
            yield f"{where}: '{row}' is none of the rows {', '.join(table.rows)}"
