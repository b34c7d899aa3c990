"""Experiments as YAML files with the flags of fairseq-train and fairseq-generate.

``docs/train.md`` describes the format.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Union

import yaml

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines, read_object
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER

CONFIGS = PLUGIN_FOLDER / "configs"  # of an installed package
if not CONFIGS.is_dir():
    CONFIGS = PLUGIN_FOLDER.parent / "configs"  # of a checkout
_TOP_LEVEL = ("extends", "description", "train", "generate", "placement")

Value = Union[str, bool, None, list[str]]
Flags = dict[str, Value]


class _Loader(yaml.BaseLoader):
    """Keeps scalars as text, and refuses duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.MarkedYAMLError(problem="a key appears twice", problem_mark=node.start_mark)
        return mapping


@lru_cache(maxsize=512)
def _parsed(text: str) -> Any:
    """Content of YAML text. Hundreds of runs of a table extend the same few files."""
    return yaml.load(text, _Loader)


def read_yaml(path: Path) -> dict[Any, Any]:
    """Read the mapping in a YAML file. A missing or invalid file raises a UserError.

    Scalars are text, except true, false and null. YAML's own rules would read 010 as 8 and "no" as
    False, but 1e-3 as text.
    """
    try:
        content = _parsed("\n".join(read_lines(path)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}, line {mark.line + 1}" if mark else path
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise UserError(f"{place}: not valid YAML: {problem}") from None
    if not isinstance(content, (dict, type(None))):
        raise UserError(f"{path}: the top level must be a mapping, with one 'name: value' per line")
    return dict(_with_constants(content or {}))


def _with_constants(value: Any) -> Any:
    """A copy of a value in which true, false and null are Python's constants."""
    if isinstance(value, dict):
        return {key: _with_constants(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_constants(item) for item in value]
    return {"true": True, "false": False, "null": None}.get(value, value)


class StagedPlacement(NamedTuple):
    """When a softmax model gets senses in its training, and how many (:mod:`.training.staged`)."""

    at: float  # fraction of --max-update, within (0, 1)
    total: float  # maximum number of senses, in units of the vocabulary size
    train: Flags  # flags of fairseq-train that replace others after the placement


@dataclass(frozen=True)
class Experiment:
    """The flags of an experiment, and the files that it was read from, the main file first."""

    files: tuple[Path, ...]
    train: Flags
    generate: Flags
    placement: StagedPlacement | None = None
    origins: Mapping[tuple[str, str], Path] = field(default_factory=dict)
    """The file that sets a flag, by the section (``train``, ``generate`` or ``placement``) and the
    name of the flag."""


def load_experiment(path: Path | str, extending: tuple[Path, ...] = ()) -> Experiment:
    """Read a configuration and the configurations that it extends, whose values it overrides.

    Args:
        path: the configuration.
        extending: files that extend this one, to detect cycles.

    Raises:
        UserError: a file is missing or invalid, or the files extend each other in a cycle.
    """
    path = Path(path)
    content = read_yaml(path)
    if not content:
        raise UserError(
            f"{path} is empty; write fairseq's flags under 'train:', or begin with "
            "'extends: FILE.yaml'"
        )
    unknown = content.keys() - set(_TOP_LEVEL)
    if unknown:
        raise UserError(
            f"{path}: unknown key '{min(unknown)}'; the top level has {', '.join(_TOP_LEVEL)}, and "
            "fairseq's flags belong under train or generate"
        )
    extended = content.get("extends") or []
    files = [path]
    train: Flags = {}
    generate: Flags = {}
    placement = None
    origins: dict[tuple[str, str], Path] = {}
    if not isinstance(extended, list):
        extended = [extended]
    for name in extended:
        file = Path(os.path.normpath(_folder_of(path) / str(name)))  # without '..' in messages
        if not file.is_file():
            raise UserError(f"{path}: extends: {file}: no such file")
        if file in (path, *extending):
            raise UserError(f"{path}: extends: {file} extends this file")
        parent = load_experiment(file, (path, *extending))
        files += [read for read in parent.files if read not in files]
        train |= parent.train
        generate |= parent.generate
        if parent.placement is not None:
            placement = parent.placement
        origins |= parent.origins
    own = {
        "train": flags_of_section(f"{path}: train", content.get("train")),
        "generate": flags_of_section(f"{path}: generate", content.get("generate")),
    }
    train |= own["train"]
    generate |= own["generate"]
    if "placement" in content:
        placement = _placement(path, content["placement"])
        own["placement"] = placement.train
    origins |= {(section, flag): path for section, flags in own.items() for flag in flags}
    return Experiment(tuple(files), train, generate, placement, origins)


def _folder_of(path: Path) -> Path:
    """Folder of a file, where a symbolic link leads."""
    linked = os.path.realpath(path) != os.path.abspath(path)
    return path.resolve().parent if linked else path.parent


def _placement(path: Path, content: Any) -> StagedPlacement:
    """Read the section ``placement`` of a configuration."""
    try:
        flags = flags_of_section(f"{path}: placement: train", content.pop("train", None))
        numbers = {name: float(value) for name, value in content.items()}
        placement = StagedPlacement(**numbers, train=flags)
    except (AttributeError, TypeError, ValueError):
        raise UserError(
            f"{path}: placement must have two numbers, as in 'placement: {{at: 0.2, total: 3.0}}', "
            "and may have flags, as in 'train: {lr: 1e-3}'"
        ) from None
    if not (0.0 < placement.at < 1.0 and placement.total >= 1.0):
        raise UserError(
            f"{path}: placement: at must be between 0 and 1, and total at least 1, but they are "
            f"{placement.at} and {placement.total}"
        )
    return placement


def find_configuration(name: Path) -> Path:
    """Find a configuration by its path, or by its name in :func:`configuration_names`.

    A name may have the prefix ``configs/`` and the suffix ``.yaml``. If there is neither a file nor
    a configuration, a UserError suggests similar names.
    """
    if name.exists() and not name.is_dir():
        return name
    for folder in (CONFIGS, CONFIGS.parent):
        for path in (folder / name, folder / f"{name}.yaml"):
            if path.is_file():
                return path
    near = get_close_matches(str(name), configuration_names(), n=1)
    hint = f"did you mean {near[0]}?" if near else "see fairseq-kerbs train --help"
    raise UserError(f"{name}: no such file, and no configuration of fairseq_kerbs; {hint}")


def configuration_names() -> list[str]:
    """Names of the package's experiments, such as ``toy`` and ``multi30k/lstm_kerbs``."""
    paths = [path.relative_to(CONFIGS).with_suffix("") for path in CONFIGS.glob("**/*.yaml")]
    other = ("tables", "snakemake")  # lists of experiments, and profiles of clusters
    return sorted(str(p) for p in paths if "base" not in p.name and p.parts[0] not in other)


def flags_of_section(where: str, content: Any) -> Flags:
    """The flags of a section, which ``where`` names, with None for empty values.

    A UserError is raised if the section is no mapping, a flag has leading dashes, or a value is
    neither a scalar nor a list of texts.
    """
    if content and not isinstance(content, dict):
        raise UserError(f"{where} must have flags, one 'name: value' per line")
    flags = {name: None if value == "" else value for name, value in (content or {}).items()}
    for name, value in flags.items():
        if name.startswith("-"):
            raise UserError(f"{where}: {name}: write the flag without leading dashes")
        if not re.fullmatch(r"\w[\w-]*", name):
            raise UserError(f"{where}: '{name}' is no name of a flag; write 'name: value'")
        texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if not texts and not isinstance(value, (str, bool, type(None))):
            raise UserError(
                f"{where}: {name} must be one value or a plain list; put JSON or Python values in "
                "quotes"
            )
    return flags


def flag_of(name: str) -> str:
    """The flag that sets an argument of that name.

    >>> flag_of("max_update")
    '--max-update'
    """
    return "--" + name.replace("_", "-")


def flag_arguments(flags: Flags) -> list[str]:
    """Command-line arguments of flags, in the same order."""
    arguments: list[str] = []
    for name, value in flags.items():
        flag = f"--{name}"
        if value is True:
            arguments.append(flag)
        elif isinstance(value, list):
            arguments += [flag, *value]
        elif isinstance(value, str):
            # argparse reads a separate '-1e-5' as a flag
            arguments += [f"{flag}={value}"] if value.startswith("-") else [flag, value]
    return arguments


def program_arguments(data: str, flags: Flags, extra: Sequence[str] = ()) -> list[str]:
    """Arguments of fairseq-train or -generate, where ``extra`` arguments override flags."""
    flags = {"user-dir": str(PLUGIN_FOLDER), **flags}
    overridden = {argument[2:].partition("=")[0] for argument in extra if argument.startswith("--")}
    remaining = {name: value for name, value in flags.items() if name not in overridden}
    return [data, *flag_arguments(remaining), *extra]


def check_data(data: str) -> None:
    """Raise a UserError unless each folder in ``data``, separated by ':', has a dictionary."""
    for name in data.split(":"):
        if not name:
            raise UserError(
                f"DATA '{data}' has an empty name; write folders with a ':' between two of them"
            )
        folder = Path(name)
        if not any(folder.glob("dict*.txt")):
            raise UserError(
                f"{folder} does not exist or has no dict.*.txt; name the 'bin' folder that "
                "'fairseq-kerbs prepare' wrote"
            )


def language_pair(data: str) -> tuple[str, str]:
    """Source and target language of data, or a UserError.

    They are in the names of files, or in the record of 'fairseq-kerbs prepare' beside the folder.
    """
    folder = Path(data.split(":")[0])
    for index in sorted(folder.glob("*.*-*.*.idx")):
        pair = index.name.split(".")[-3]  # the name of the split may have dots
        source, _, target = pair.rpartition("-")
        if source:
            return source, target
    record = read_object(folder.resolve().parent / "preparation.json")
    source = str(record.get("source_lang") or "")
    target = str(record.get("target_lang") or "")
    if source and target:
        return source, target
    raise UserError(
        f"{data} has no files that name the languages; give --source-lang and --target-lang"
    )


def languages_in(data: str) -> list[str]:
    """Languages of the dictionaries in the first folder of data."""
    names = (path.name for path in Path(data.split(":")[0]).glob("dict.*.txt"))
    return sorted(name.removeprefix("dict.").removesuffix(".txt") for name in names)


def splits_in(folder: Path) -> list[str]:
    """Names of the splits in a folder of data, binarized or raw."""
    splits = set()
    for path in filter(Path.is_file, folder.glob("*")):
        binarized = path.suffix in (".idx", ".bin")
        name = path.stem if binarized else path.name
        parts = name.split(".")
        pair = len(parts) > 2 and "-" in parts[-2]
        if pair and parts[-1] in parts[-2].split("-"):
            splits.add(".".join(parts[:-2]))
        elif binarized or not path.suffix:
            splits.add(name)
    return sorted(splits)
