"""Experiments as YAML files: one file says everything that fairseq-train and -generate are told.

    extends: base.yaml            # optional: another file (or a list of them), relative to this one
    description: what it is for   # optional
    train:
      arch: transformer_kerbs     # -> --arch transformer_kerbs
      share-decoder-input-output-embed: true   # -> the bare flag
      fp16: false                 # -> nothing; also takes away what an extended file says
    generate:
      beam: 5

Keys are the programs' own flags without the dashes, and values reach them as they are written:
``1e-08`` stays ``1e-08``. A list gives several values, null leaves a flag out like false.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fairseq_kerbs.utils.checkpoint_file import check_whole
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER

SECTIONS = ("train", "generate")
_TOP_LEVEL = ("extends", "description", *SECTIONS)

Value = str | bool | None | list[str]
Flags = dict[str, Value]


class _Loader(yaml.SafeLoader):
    """YAML whose plain scalars stay text, but for true, false and null; keys must be unique."""

    # Replaces YAML 1.1's rules, by which 1e-3 is text, 010 is eight and 'no' is false.
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(self.construct_object(key_node, deep=True))
            if key in seen:
                line = key_node.start_mark.line + 1
                raise UserError(f"{self.name}, line {line}: key '{key}' is there twice")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_yes_no(self, node: yaml.ScalarNode) -> str:
        raise UserError(
            f"{self.name}, line {node.start_mark.line + 1}: write true or false instead of "
            f"'{node.value}', or put it in quotes"
        )


for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", [*"~nN", ""]),
    ("!yes-no", r"(?i:yes|no|on|off)", [*"yYnNoO"]),
):
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)
_Loader.add_constructor("!yes-no", _Loader.construct_yes_no)


def read_yaml(path: Path) -> dict[Any, Any]:
    """The keys at the top level of a file; an empty file has none.

    Raises:
        UserError: the file is missing or not YAML, or a key is there twice.
    """
    try:
        loader = _Loader("\n".join(read_lines(path)))
        loader.name = str(path)
        content = loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise UserError(f"{path}, line {line}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:  # characters that YAML forbids
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict | None):
        raise UserError(f"{path}: the top level must be keys, one 'name: value' a line")
    return content or {}


@dataclass(frozen=True)
class Experiment:
    """The flags of one experiment, and the files that they come from (the file itself first)."""

    files: tuple[Path, ...]
    train: Flags
    generate: Flags


def load_experiment(path: Path | str, _above: tuple[Path, ...] = ()) -> Experiment:
    """Read a configuration and what it extends; the extending file's values win.

    Raises:
        UserError: a file is missing or not YAML, a key is unknown or there twice, a value is not a
            scalar or a list of scalars, or files extend each other in a circle.
    """
    path = Path(path)
    if path.resolve() in _above:
        raise UserError(f"{path} extends itself, by way of {_above[-1].name}")
    content = read_yaml(path)
    for key in content:
        if key not in _TOP_LEVEL:
            raise UserError(
                f"{path}: unknown key '{key}'; the top level has {', '.join(_TOP_LEVEL)}, and "
                "fairseq's flags stand under train or generate"
            )
    parents = content.get("extends") or []
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(name, str) for name in parents):
        raise UserError(f"{path}: 'extends' must be a file name or a list of them")
    files = [path]
    merged: dict[str, Flags] = {section: {} for section in SECTIONS}
    for name in parents:
        parent = load_experiment(path.parent / name, (*_above, path.resolve()))
        files += [file for file in parent.files if file not in files]
        merged["train"] |= parent.train
        merged["generate"] |= parent.generate
    for section in SECTIONS:
        merged[section] |= check_flags(f"{path}: '{section}", content.get(section))
    return Experiment(tuple(files), merged["train"], merged["generate"])


def check_flags(where: str, content: Any) -> Flags:
    """The flags of a section; `where` opens the sentence, up to and with the section's name.

    Raises:
        UserError: it is no mapping, a flag has dashes, or a value is neither a scalar nor a list.
    """
    if not isinstance(content, dict | None):
        raise UserError(f"{where}' must hold flags, one 'name: value' a line")
    for name, value in (content or {}).items():
        if not isinstance(name, str) or name.startswith("-") or not name:
            raise UserError(f"{where}: {name}': write the flag without leading dashes")
        values = value if isinstance(value, list) else [] if isinstance(value, bool) else [value]
        if not all(isinstance(item, str) or (item is None and item is value) for item in values):
            raise UserError(
                f"{where}: {name}' must be one value or a plain list; put JSON or Python values "
                "in quotes"
            )
    return dict(content or {})


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


def train_arguments(
    experiment: Experiment, data: str, save_dir: str, extra: Sequence[str] = ()
) -> list[str]:
    """Arguments of fairseq-train; `extra` flags replace those of the file."""
    return _arguments(data, {"save-dir": save_dir, **experiment.train}, extra)


def generate_arguments(
    experiment: Experiment, data: str, save_dir: str, extra: Sequence[str] = ()
) -> list[str]:
    """Arguments of fairseq-generate; by default the best checkpoint on the test set."""
    best = str(Path(save_dir) / "checkpoint_best.pt")
    flags: Flags = {"path": best, "gen-subset": "test", **experiment.generate}
    return _arguments(data, flags, extra)


def _arguments(data: str, flags: Flags, extra: Sequence[str]) -> list[str]:
    flags = {"user-dir": str(PLUGIN_FOLDER), **flags}
    given = {argument[2:].partition("=")[0] for argument in extra if argument.startswith("--")}
    kept = {name: value for name, value in flags.items() if name not in given}
    return [data, *flag_arguments(kept), *extra]


def argument_value(arguments: Sequence[str], *names: str) -> str | None:
    """The value that a command line gives a flag (the last one, as argparse has it), or None."""
    value = None
    for argument, following in zip(arguments, [*arguments[1:], None], strict=False):
        head, equals, tail = argument.partition("=")
        if head in names:
            value = tail if equals else following or value
    return value


def check_data(data: str) -> None:
    """Raise a UserError unless every folder of DATA (joined by ':') is fairseq-preprocess's."""
    for folder in map(Path, data.split(":")):
        if not folder.is_dir():
            raise UserError(
                f"data folder {folder} does not exist; make it with 'fairseq-kerbs prepare'"
            )
        if not any(folder.glob("dict*.txt")):
            raise UserError(
                f"{folder} has no dict.*.txt, so fairseq-preprocess did not make it; name the "
                "'bin' folder that 'fairseq-kerbs prepare' wrote"
            )


def check_checkpoints(path: str) -> None:
    """Raise a UserError unless all checkpoints of an ensemble (joined by ':') are there, whole."""
    for file in map(Path, path.split(":")):
        if not file.is_file():
            raise UserError(f"no checkpoint {file}; train first, or name another with --path")
        check_whole(file)


def check_restored(arguments: Sequence[str]) -> None:
    """Raise a UserError if a checkpoint that fairseq-train will begin with is not whole."""
    restored = argument_value(arguments, "--restore-file") or "checkpoint_last.pt"
    if restored == "checkpoint_last.pt":  # as fairseq has it: any other name is a path
        restored = str(Path(argument_value(arguments, "--save-dir") or "checkpoints") / restored)
    for name in (restored, argument_value(arguments, "--finetune-from-model")):
        if name is not None and Path(name).is_file():
            check_whole(Path(name))


def target_language(data: str, arguments: Sequence[str]) -> str:
    """The target language: of the flags, else of the names of the data files.

    Raises:
        UserError: neither says it.
    """
    return argument_value(arguments, "--target-lang", "-t") or language_pair(data)[1]


def language_pair(data: str) -> tuple[str, str]:
    """Source and target language by the names of the data files.

    Raises:
        UserError: they do not say it.
    """
    for index in sorted(Path(data.split(":")[0]).glob("*.*-*.*.idx")):
        source, _, target = index.name.split(".")[1].rpartition("-")
        return source, target
    raise UserError(f"{data} does not tell the target language; give --target-lang")
