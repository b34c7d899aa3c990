"""Experiments as YAML files: one file says everything that fairseq-train and -generate are told.

``configs/README.md`` describes them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Union

import yaml

from fairseq_kerbs.utils.errors import UserError, suggestion
from fairseq_kerbs.utils.files import read_lines
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER

CONFIGS = PLUGIN_FOLDER / "configs"  # of an installed package
if not CONFIGS.is_dir():
    CONFIGS = PLUGIN_FOLDER.parent / "configs"  # of a checkout
_TOP_LEVEL = ("extends", "description", "train", "generate", "senses")

Value = Union[str, bool, None, list[str]]
Flags = dict[str, Value]


class _Loader(yaml.BaseLoader):
    """Scalars as they are written; a key that is there twice is an error, not overwritten."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.MarkedYAMLError(problem="a key is there twice", problem_mark=node.start_mark)
        return mapping


def read_yaml(path: Path) -> dict[Any, Any]:
    """The keys at the top level of a file, none of an empty one; a UserError if the file is missing
    or not YAML.

    Scalars stay text, but for true, false and null: by YAML's own rules 1e-3 is text, 010 is eight
    and 'no' is false.
    """
    try:
        content = yaml.load("\n".join(read_lines(path)), _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark else path
        what = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UserError(f"{where}: not valid YAML: {what}") from None
    if not isinstance(content, (dict, type(None))):
        raise UserError(f"{path}: the top level must be keys, one 'name: value' a line")
    return dict(_with_constants(content or {}))


def _with_constants(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_constants(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_constants(each) for each in value]
    return {"true": True, "false": False, "null": None}.get(value, value)


class SensesOnClusters(NamedTuple):
    """When a training of a softmax gives it senses, and how many (:mod:`fairseq_kerbs.clusters`).

    Attributes:
        at: share of --max-update, within (0, 1).
        total: the limit of senses, as a multiple of the vocabulary.
    """

    at: float
    total: float


@dataclass(frozen=True)
class Experiment:
    """The flags of one experiment, and the files that they come from (the file itself first)."""

    files: tuple[Path, ...]
    train: Flags
    generate: Flags
    senses: SensesOnClusters | None = None


def load_experiment(path: Path | str, extending: tuple[Path, ...] = ()) -> Experiment:
    """Read a configuration and what it extends; the extending file's values win. Raises a UserError
    if a file is missing or wrong, or extends one of the files ``extending`` it."""
    path = Path(path)
    content = read_yaml(path)
    for key in content:
        if key not in _TOP_LEVEL:
            raise UserError(
                f"{path}: unknown key '{key}'; the top level has {', '.join(_TOP_LEVEL)}, and "
                "fairseq's flags stand under train or generate"
            )
    extended = content.get("extends") or []
    files, train, generate, senses = [path], Flags(), Flags(), None
    for name in extended if isinstance(extended, list) else [extended]:
        file = Path(os.path.normpath(path.parent / str(name)))  # no '..' in what is shown
        if file in (path, *extending):
            raise UserError(f"{path}: extends: {file} extends this file")
        parent = load_experiment(file, (path, *extending))
        files += [file for file in parent.files if file not in files]
        train |= parent.train
        generate |= parent.generate
        senses = parent.senses or senses
    train |= check_flags(f"{path}: train", content.get("train"))
    generate |= check_flags(f"{path}: generate", content.get("generate"))
    senses = _senses(path, content["senses"]) if "senses" in content else senses
    return Experiment(tuple(files), train, generate, senses)


def _senses(path: Path, content: Any) -> SensesOnClusters:
    """The section ``senses`` of a configuration; a UserError if it is wrong."""
    try:
        senses = SensesOnClusters(**{name: float(value) for name, value in content.items()})
    except (AttributeError, TypeError, ValueError):
        raise UserError(
            f"{path}: senses holds two numbers, as in 'senses: {{at: 0.2, total: 3.0}}'"
        ) from None
    if not (0.0 < senses.at < 1.0 and senses.total >= 1.0):
        raise UserError(
            f"{path}: senses: at must be between 0 and 1, and total at least 1, but they are "
            f"{senses.at} and {senses.total}"
        )
    return senses


def find_configuration(name: Path) -> Path:
    """A file of that name, or one of `configuration_names`, also as ``configs/toy.yaml``; a
    UserError if there is neither."""
    if name.exists() and not name.is_dir():
        return name
    for folder in (CONFIGS, CONFIGS.parent):
        for path in (folder / name, folder / f"{name}.yaml"):
            if path.is_file():
                return path
    near = suggestion([str(name)], configuration_names()) or "; see fairseq-kerbs train --help"
    raise UserError(f"{name}: no such file, and no configuration of fairseq_kerbs{near}")


def configuration_names() -> list[str]:
    """The experiments that come with the package: ``toy``, ``multi30k/lstm_kerbs``, …"""
    paths = [path.relative_to(CONFIGS).with_suffix("") for path in CONFIGS.glob("**/*.yaml")]
    other = ("tables", "paper", "snakemake")  # lists of experiments, and a preset of their flags
    return sorted(str(p) for p in paths if "base" not in p.name and p.parts[0] not in other)


def check_flags(where: str, content: Any) -> Flags:
    """The flags of a section, which `where` names; a UserError if it is no mapping, a flag has
    dashes, or a value is neither a scalar nor a list."""
    if content and not isinstance(content, dict):
        raise UserError(f"{where} must hold flags, one 'name: value' a line")
    flags = {name: None if value == "" else value for name, value in (content or {}).items()}
    for name, value in flags.items():
        if name.startswith("-"):
            raise UserError(f"{where}: {name}: write the flag without leading dashes")
        texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if not texts and not isinstance(value, (str, bool, type(None))):
            raise UserError(
                f"{where}: {name} must be one value or a plain list; put JSON or Python values in "
                "quotes"
            )
    return flags


def flag_arguments(flags: Flags) -> list[str]:
    """Flags as command-line arguments, in their order."""
    arguments: list[str] = []
    for name, value in flags.items():
        flag = f"--{name}"
        if value is True:
            arguments.append(flag)
        elif isinstance(value, list):
            arguments += [flag, *value]
        elif isinstance(value, str):
            # argparse takes '-1e-5' for a flag of its own unless it is tied to the name.
            arguments += [f"{flag}={value}"] if value.startswith("-") else [flag, value]
    return arguments


def program_arguments(data: str, flags: Flags, extra: Sequence[str] = ()) -> list[str]:
    """Arguments of fairseq-train or -generate; `extra` ones replace flags of the same name."""
    flags = {"user-dir": str(PLUGIN_FOLDER), **flags}
    given = {argument[2:].partition("=")[0] for argument in extra if argument.startswith("--")}
    remaining = {name: value for name, value in flags.items() if name not in given}
    return [data, *flag_arguments(remaining), *extra]


def check_data(data: str) -> None:
    """Raise a UserError unless every folder of DATA (joined by ':') is fairseq-preprocess's."""
    for folder in map(Path, data.split(":")):
        if not any(folder.glob("dict*.txt")):
            raise UserError(
                f"{folder} does not exist or has no dict.*.txt; name the 'bin' folder that "
                "'fairseq-kerbs prepare' wrote"
            )


def language_pair(data: str) -> tuple[str, str]:
    """Source and target language by the names of the data files; a UserError without such names."""
    for index in sorted(Path(data.split(":")[0]).glob("*.*-*.*.idx")):
        source, _, target = index.name.split(".")[1].rpartition("-")
        return source, target
    raise UserError(f"{data} does not tell the target language; give --target-lang")
