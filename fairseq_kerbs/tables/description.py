"""A table of a paper as data: YAML files in ``configs/tables``.

    title: what the table shows
    source: KerBS paper, Table 2
    kind: figures                   # or examples, or senses; figures if left out
    baseline: softmax               # row that the others are compared with
    rows: {softmax: Transformer, kerbs: Transformer + KerBS, no_kernel: without the kernel}
    flags:                          # what rows change in the configuration that a scale gives them
      no_kernel: {kernel: lin}      # here and below a key may be a pattern: "no_*"
    columns:
      mt:
        title: translation
        metric: bleu4               # bleu4, bleu1, perplexity, valid_loss or human
        paper: {softmax: 29.61, kerbs: 30.90}
        small:                      # a scale: full or small
          data: multi30k            # a data set of data.yaml, or of 'data' in this file
          config: multi30k/transformer_kerbs.yaml     # of all rows that 'configs' does not name
          configs: {softmax: multi30k/transformer_softmax.yaml}   # "" leaves a row out
          flags: {kerbs: {lr: 1e-3}}    # what rows change here, beside the flags above
          seeds: [1, 2, 3]
          minutes: {softmax: 10, kerbs: 18}     # planned for a run on two cores

A data set names the folders or archives to look for below ``--corpora``, and the command that
prepares it, in which ``{raw}`` stands for what was found and ``{dest}`` for the folder to prepare
into.

Names of rows, columns, data sets and languages become parts of paths below ``--work`` and
``--results``: they are of letters, digits, ``_``, ``.`` and ``-``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_kerbs.configurations import CONFIGS, check_flags, read_yaml
from fairseq_kerbs.utils.errors import UserError

TABLES = CONFIGS / "tables"
NAMES = ("1", "2", "3", "4", "5", "6", "gao1", "gao3", "layers")
SCALES = ("full", "small")
_PATH_PART = re.compile(r"(?!\.{1,2}$)[\w.-]+")


class Kind(Enum):
    """What a table shows: figures, translations side by side, or words by number of senses."""

    figures = 1
    examples = 2
    senses = 3


class Metric(Enum):
    """The figure of a column, with its title."""

    bleu4 = "BLEU-4"
    bleu1 = "BLEU-1"
    perplexity = "perplexity (lower is better)"
    valid_loss = "best validation loss (bits, lower is better)"
    human = "human score"


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
    """A column at one scale: what is trained, on what, and how often.

    Once loaded, `configs`, `flags` (the table's included) and `minutes` are by row.
    """

    data: str
    config: str = ""
    configs: dict[str, str] = field(default_factory=dict)
    flags: dict[str, dict[str, Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [1])
    minutes: dict[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass
class Column:
    """A task with its metric, the paper's figures by row, and its scales."""

    metric: Metric
    title: str = ""
    paper: dict[str, float] = field(default_factory=dict)
    note: str = ""
    full: Scale | None = None
    small: Scale | None = None

    def scale(self, name: str) -> Scale | None:
        """The column at a scale, None if it has none."""
        return {"full": self.full, "small": self.small}[name]


@dataclass
class Table:
    """A table: rows (name -> title) are systems, columns are tasks."""

    title: str
    rows: dict[str, str]
    columns: dict[str, Column]
    source: str = "Own table"
    kind: Kind = Kind.figures
    baseline: str = ""
    flags: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: dict[str, DataSet] = field(default_factory=dict)
    name: str = ""


def load_table(name: str) -> Table:
    """The table of a name in `NAMES`, or of a path that ends in .yaml. Raises a UserError if there
    is no such table; its file is not YAML, or has an unknown, missing or wrong key; or it names a
    row, data set or configuration that does not exist."""
    path = TABLES / (f"table{name}.yaml" if name.isdigit() else f"{name}.yaml")
    if name.endswith(".yaml"):
        path = Path(name)
    elif name not in NAMES:
        raise UserError(
            f"--table {name}: there is {', '.join(NAMES)}, all, or a file whose name ends in .yaml"
        )
    content, shared = read_yaml(path), path.parent / "data.yaml"
    try:
        known = read_yaml(shared) if shared.is_file() else {}
        content["data"] = {**known, **content.get("data", {})}
        table: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Table), content))
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        where = getattr(error, "full_key", None) or "the top level"
        what = (str(error).splitlines() or [""])[0].rstrip(".")
        raise UserError(f"{path}: {where}: {what}") from None
    table.name = path.stem
    _complete(table, path)
    return cast(Table, table)


def _complete(table: Table, path: Path) -> None:
    """Fill in names and paths, and refuse what does not fit together."""
    parts = [*table.rows, *table.columns, *table.data]
    parts += [data.language for data in table.data.values()]
    for part in parts:
        if not _PATH_PART.fullmatch(part):
            raise UserError(
                f"{path}: {part!r}: a name may have letters, digits, '_', '.' and '-' only"
            )
    for name, data in table.data.items():
        data.name = name
    _check_flags(path, table.flags)
    rows, patterns = [*filter(None, [table.baseline])], [*table.flags]
    for name, column in table.columns.items():
        column.title = column.title or name
        rows += column.paper
        for scale in filter(None, (column.full, column.small)):
            patterns += [*scale.configs, *scale.flags, *scale.minutes]
            if scale.data not in table.data:
                known = ", ".join(table.data)
                raise UserError(
                    f"{path}: {name}: unknown data set '{scale.data}'; there is {known}"
                )
            _check_flags(f"{path}: {name}", scale.flags)
            _resolve(table, scale, path)
    strangers = [row for row in rows if row not in table.rows]
    strangers += [one for one in patterns if not any(fnmatchcase(row, one) for row in table.rows)]
    if strangers:
        raise UserError(f"{path}: '{strangers[0]}' is none of the rows {', '.join(table.rows)}")


def _resolve(table: Table, scale: Scale, path: Path) -> None:
    """Replace patterns of rows by rows; of several that fit a row the last one counts."""
    configs, flags = {}, {}
    minutes: dict[str, float] = {}
    for row in table.rows:
        if file := [scale.config, *_fitting(row, scale.configs)][-1]:
            configs[row] = str(_config(path, file))
        changes = *_fitting(row, table.flags), *_fitting(row, scale.flags)
        flags[row] = {flag: value for change in changes for flag, value in change.items()}
        for planned in _fitting(row, scale.minutes):
            minutes[row] = planned
    scale.configs, scale.flags, scale.minutes = configs, flags, minutes


def _fitting(row: str, values: Mapping[str, Any]) -> list[Any]:
    """The values whose keys are a row, or patterns that it fits, in their order."""
    return [value for pattern, value in values.items() if fnmatchcase(row, pattern)]


def _check_flags(where: Path | str, flags: Mapping[str, Any]) -> None:
    for row, changed in flags.items():
        for flag, value in check_flags(f"{where}: flags: {row}", changed).items():
            if value is None or value is False:
                raise UserError(f"{where}: flags: {row}: no command line takes {flag} away")


def _config(path: Path, name: str) -> Path:
    """A configuration that the description at `path` names: below configs/, or else beside it."""
    for folder in (CONFIGS, path.parent):
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{path}: there is no configuration {name} below {CONFIGS}")
