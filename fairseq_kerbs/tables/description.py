"""A table of a paper as data: YAML files in ``configs/tables``.

    title: what the table shows
    source: KerBS paper, Table 2
    kind: figures                   # or examples, or senses; figures if left out
    baseline: softmax               # row that the others are compared with
    rows: {softmax: Transformer, kerbs: Transformer + KerBS}
    columns:
      mt:
        title: translation
        metric: bleu4               # bleu4, bleu1, perplexity or human
        paper: {softmax: 29.61, kerbs: 30.90}
        small:                      # a scale: full or small
          data: multi30k            # a data set of data.yaml, or of 'data' in this file
          configs: {softmax: multi30k_transformer_softmax.yaml, kerbs: …}
          seeds: [1, 2, 3]
          minutes: {softmax: 10, kerbs: 18}     # planned for a cell on two cores
          variant: short            # a name for what the next three change
          train: {max-update: 1000}
          generate: {beam: 1}
          evaluate: {batch-size: 8} # flags of fairseq-eval-lm

A data set names the folders or archives to look for below ``--data``, and the command that prepares
it, in which ``{raw}`` stands for what was found and ``{dest}`` for the folder to prepare into.

Names of rows, columns, data sets and variants and languages become parts of paths below ``--work``
and ``--results``: they are of letters, digits, ``_``, ``.`` and ``-``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fairseq_kerbs.tables.experiments import Flags
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER

CONFIGS = PLUGIN_FOLDER.parent / "configs"
TABLES = CONFIGS / "tables"
NAMES = ("1", "2", "3", "4", "5", "6", "gao1", "gao3")
KINDS = ("figures", "examples", "senses")
SCALES = ("full", "small")
METRICS = ("bleu4", "bleu1", "perplexity", "human")
_DATA_FILE = "data.yaml"
_PATH_PART = re.compile(r"(?!\.{1,2}$)[\w.-]+")
_SEED = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class DataSet:
    """A corpus: where its raw text is looked for, and how it becomes data for fairseq.

    Attributes:
        folders: names below ``--data``, of folders or archives; the first that is there is taken.
        prepare: arguments of ``fairseq-kerbs``, with ``{raw}`` and ``{dest}``.
        missing: a sentence for when none of `folders` is there.
        reference: raw target text of the test set, with ``{raw}`` and ``{dest}``; "" if none.
        language, source_language: of the target and of the source side.
    """

    name: str
    folders: tuple[str, ...]
    prepare: tuple[str, ...]
    missing: str = ""
    reference: str = ""
    language: str = "en"
    source_language: str = "en"


@dataclass(frozen=True)
class Part:
    """A column at one scale: what is trained, on what, and how often."""

    data: DataSet
    configs: dict[str, Path]  # row -> experiment
    seeds: tuple[int, ...]
    minutes: dict[str, float]  # row -> planned minutes of a cell; absent: unknown
    variant: str = ""
    train: Flags = field(default_factory=dict)
    generate: Flags = field(default_factory=dict)
    evaluate: Flags = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Column:
    """A task with its metric, the paper's figures (row -> figure), and its scales."""

    name: str
    title: str
    metric: str
    paper: dict[str, float]
    parts: dict[str, Part]
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table: rows are systems, columns are tasks."""

    name: str
    title: str
    source: str
    kind: str
    baseline: str
    rows: dict[str, str]  # name -> title
    columns: tuple[Column, ...]


class _Loader(yaml.BaseLoader):
    """YAML whose scalars stay text, so that flags arrive as written; keys must be unique."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [str(key.value) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                line = node.start_mark.line + 1
                raise UserError(f"{self.name}, after line {line}: key '{key}' is there twice")
        return super().construct_mapping(node, deep=deep)


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
    content = _read(path)
    known = ("title", "source", "kind", "baseline", "rows", "columns", "data")
    _check_keys(path, "the top level", content, known, required=("title", "rows", "columns"))
    data = load_data(path, content.get("data"))
    rows = {name: str(title) for name, title in _mapping(path, "rows", content["rows"]).items()}
    columns = _mapping(path, "columns", content["columns"])
    _check_names(path, "row", rows)
    _check_names(path, "column", columns)
    kind = str(content.get("kind", "figures"))
    baseline = str(content.get("baseline", ""))
    if kind not in KINDS:
        raise UserError(f"{path}: kind must be one of {', '.join(KINDS)}, not {kind}")
    if baseline and baseline not in rows:
        raise UserError(f"{path}: baseline '{baseline}' is none of the rows")
    return Table(
        name=path.stem,
        title=str(content["title"]),
        source=str(content.get("source", "")),
        kind=kind,
        baseline=baseline,
        rows=rows,
        columns=tuple(_column(path, name, column, rows, data) for name, column in columns.items()),
    )


def load_data(path: Path, own: Any = None) -> dict[str, DataSet]:
    """The data sets of ``data.yaml`` beside a description, and of the description itself."""
    found: dict[str, DataSet] = {}
    shared = path.parent / _DATA_FILE
    contents = [(shared, _read(shared))] if shared.is_file() else []
    if own is not None:
        contents.append((path, _mapping(path, "data", own)))
    keys = ("folders", "prepare", "missing", "reference", "language", "source_language")
    for file, content in contents:
        for name, entry in content.items():
            where = f"data set '{name}'"
            entry = _mapping(file, where, entry)
            _check_keys(file, where, entry, keys, required=("folders", "prepare"))
            texts = {key: str(entry[key]) for key in keys[2:] if key in entry}
            _check_names(file, "data set", [name])
            _check_names(file, f"{where}: language", [texts.get("language", "en")])
            folders, prepare = (_texts(file, f"{where}: {key}", entry[key]) for key in keys[:2])
            if not folders:
                raise UserError(f"{file}: {where}: folders names none")
            found[name] = DataSet(name, tuple(folders), tuple(prepare), **texts)
    return found


def _column(
    path: Path, name: str, content: Any, rows: Mapping[str, str], data: dict[str, DataSet]
) -> Column:
    where = f"column '{name}'"
    content = _mapping(path, where, content)
    _check_keys(
        path, where, content, ("title", "metric", "paper", "note", *SCALES), required=("metric",)
    )
    if content["metric"] not in METRICS:
        raise UserError(f"{path}: {where}: metric must be one of {', '.join(METRICS)}")
    paper = _mapping(path, f"{where}: paper", content.get("paper", {}))
    return Column(
        name=name,
        title=str(content.get("title", name)),
        metric=content["metric"],
        paper=_numbers(path, f"{where}: paper", _of_rows(path, where, paper, rows)),
        parts={
            scale: _part(path, f"{where}: {scale}", content[scale], rows, data)
            for scale in SCALES
            if scale in content
        },
        note=str(content.get("note", "")),
    )


def _part(
    path: Path, where: str, content: Any, rows: Mapping[str, str], data: dict[str, DataSet]
) -> Part:
    content = _mapping(path, where, content)
    flags = ("train", "generate", "evaluate")
    known = ("data", "configs", "seeds", "minutes", "variant", "note", *flags)
    _check_keys(path, where, content, known, required=("data", "configs"))
    if content["data"] not in data:
        raise UserError(
            f"{path}: {where}: unknown data set '{content['data']}'; there is {', '.join(data)}"
        )
    configs = {
        row: _config_path(path, str(file))
        for row, file in _of_rows(
            path, where, _mapping(path, f"{where}: configs", content["configs"]), rows
        ).items()
    }
    minutes = content.get("minutes", {})
    if isinstance(minutes, str):
        minutes = dict.fromkeys(configs, minutes)
    minutes = _of_rows(path, where, _mapping(path, f"{where}: minutes", minutes), rows)
    seeds = _texts(path, f"{where}: seeds", content.get("seeds", ["1"]))
    for seed in seeds:
        if not _SEED.fullmatch(seed):
            raise UserError(
                f"{path}: {where}: seeds: a number was expected, of 1 to 9 digits, not {seed!r}"
            )
    variant = str(content.get("variant", ""))
    _check_names(path, f"{where}: variant", [variant] if variant else [])
    changes = {name: _flags(path, f"{where}: {name}", content.get(name, {})) for name in flags}
    if any(changes.values()) and not content.get("variant"):
        raise UserError(f"{path}: {where}: give what changes the flags a name, as 'variant'")
    return Part(
        data=data[content["data"]],
        configs=configs,
        seeds=tuple(map(int, seeds)),
        minutes=_numbers(path, f"{where}: minutes", minutes),
        variant=variant,
        note=str(content.get("note", "")),
        **changes,
    )


def _config_path(path: Path, name: str) -> Path:
    """A configuration: below configs/, or else beside the description."""
    for folder in (CONFIGS, path.parent):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{path}: there is no configuration {name} below {CONFIGS}")


def _check_names(path: Path, where: str, names: Iterable[str]) -> None:
    """Refuse names that would lead out of a folder: they become parts of paths."""
    for name in names:
        if not _PATH_PART.fullmatch(name):
            raise UserError(
                f"{path}: {where} {name!r}: a name may have letters, digits, '_', '.' and '-' only"
            )


def _read(path: Path) -> dict[str, Any]:
    loader = _Loader("\n".join(read_lines(path)))
    loader.name = str(path)
    try:
        content = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise UserError(f"{path}, line {line}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    return _mapping(path, "the top level", content)


def _mapping(path: Path, where: str, content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise UserError(f"{path}: {where} must hold keys, one 'name: value' a line")
    return content


def _check_keys(
    path: Path,
    where: str,
    content: Mapping[str, Any],
    known: tuple[str, ...],
    required: tuple[str, ...],
) -> None:
    for key in content:
        if key not in known:
            raise UserError(f"{path}: {where}: unknown key '{key}'; there is {', '.join(known)}")
    for key in required:
        if key not in content:
            raise UserError(f"{path}: {where}: '{key}' is missing")


def _of_rows(
    path: Path, where: str, content: dict[str, Any], rows: Mapping[str, str]
) -> dict[str, Any]:
    for row in content:
        if row not in rows:
            raise UserError(f"{path}: {where}: '{row}' is none of the rows {', '.join(rows)}")
    return content


def _texts(path: Path, where: str, content: Any) -> list[str]:
    if not isinstance(content, list) or not all(isinstance(item, str) for item in content):
        raise UserError(f"{path}: {where} must be a plain list")
    return content


def _numbers(path: Path, where: str, content: dict[Any, Any]) -> dict[Any, float]:
    try:
        return {key: float(value) for key, value in content.items()}
    except (TypeError, ValueError):
        raise UserError(f"{path}: {where}: a number was expected") from None


def _flags(path: Path, where: str, content: Any) -> Flags:
    meaning: dict[str, bool] = {"true": True, "false": False}
    flags: Flags = {}
    for name, value in _mapping(path, where, content).items():
        if not isinstance(value, str):
            raise UserError(f"{path}: {where}: '{name}' must have one value")
        flags[name] = meaning.get(value, value)
    return flags
