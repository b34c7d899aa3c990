"""What fairseq-train and fairseq-generate read from a configuration and a command line.

fairseq's own parser decides which flags are in effect, so a command of ours and the program that it
runs never read different values: :func:`read_call` returns the arguments of the program, and every
value as the program will have it.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from fairseq_kerbs.configurations import Flags, flag_arguments, flag_of, program_arguments
from fairseq_kerbs.utils.errors import UserError, reason_of
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER

TRAIN = "fairseq-train"
GENERATE = "fairseq-generate"
_ARCHITECTURE = "transformer_kerbs"
"""Architecture whose flags are read where no --arch is given, which :mod:`.program_checks` asks
for."""


@dataclass(frozen=True)
class Call:
    """A call of one of fairseq's programs."""

    program: str
    arguments: list[str]
    values: Namespace  # of all flags, as the program reads them
    actions: dict[str, argparse.Action]  # flags of the program, by the name of their value
    given: frozenset[str]  # names of the values that a flag gives
    on_command_line: frozenset[str]  # names of those that a flag of the command line gives
    dropped: dict[str, list[str]] = field(default_factory=dict)
    """Flags of the configuration that are left out, by the flag of the command line that makes
    them meaningless, such as ``--lr-scheduler fixed``."""

    def flag(self, name: str) -> str:
        """The flag that sets a value, in its long form."""
        return long_form(self.actions[name])


def long_form(action: argparse.Action) -> str:
    """A flag in its long form, with dashes."""
    return next(name for name in action.option_strings if name.startswith("--"))


def read_call(program: str, data: str, flags: Flags, extra: Sequence[str] = ()) -> Call:
    """Read flags of a configuration, and arguments of a command line, as fairseq reads them.

    Arguments override flags in every spelling: ``-s de``, ``--source-lang=de`` and
    ``--source-lang de`` are one flag. An architecture, optimizer, schedule, criterion or task of
    the command line may replace another one of the configuration. Flags of the configuration that
    only the replaced one has are left out (:attr:`Call.dropped`).

    Args:
        program: :data:`TRAIN` or :data:`GENERATE`.
        data: folder of the data.
        flags: those of the configuration.
        extra: arguments of the command line.

    Raises:
        UserError: fairseq's parser refuses the arguments.
    """
    _register()
    configured = program_arguments(data, flags)
    parser = parser_of(program, [*configured, *extra])
    overriding = _names_given(parser, extra)
    replaced = _replaced(program, configured, parser, [*configured, *extra])
    dropped: dict[str, list[str]] = {}
    kept: Flags = {}
    for name, value in flags.items():
        action = parser._option_string_actions.get(f"--{name}")
        choices = [
            choice for choice, former_flags in replaced.items() if f"--{name}" in former_flags
        ]
        check_form(name, value, action)
        if choices:
            dropped.setdefault(choices[0], []).append(f"--{name}")
        elif action is None or action.dest not in overriding:
            kept[name] = value  # the parser refuses what is unknown
    arguments = program_arguments(data, kept, extra)
    values = _parse(program, parser, arguments)
    _check_user_folder(arguments, values)
    return Call(
        program=program,
        arguments=arguments,
        values=values,
        actions={action.dest: action for action in parser._actions if action.option_strings},
        given=_names_given(parser, [*flag_arguments(kept), *extra]),
        on_command_line=overriding,
        dropped=dropped,
    )


def check_form(name: str, value: Any, action: argparse.Action | None) -> None:
    """Refuse a value of a configuration that its flag cannot have in this form.

    ``action`` is that of the flag, None if the parser has no such flag.
    """
    if action is None:
        return
    advice = ""
    if action.nargs == 0 and isinstance(value, (str, list)):
        advice = f"--{name} is a switch; write '{name}: true', or false"
    elif action.nargs is None and isinstance(value, list) and len(value) != 1:
        one = ",".join(map(str, value)) or "VALUE"
        advice = f"--{name} has one value; write '{name}: {one}'"
    elif action.nargs is None and value is True:
        advice = f"--{name} is no switch; give it a value"
    if advice:
        raise UserError(f"the configuration has '{name}: {_in_yaml(value)}', but {advice}")


def _in_yaml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


# ------------------------------------------------------------------ fairseq's parsers


@contextmanager
def _without_own_arguments(program: str) -> Iterator[None]:
    """Hide the arguments of this process, whose ``--user-dir`` fairseq would import."""
    before = sys.argv
    sys.argv = [program]
    try:
        yield
    finally:
        sys.argv = before


def _refuse(parser: argparse.ArgumentParser, program: str, message: str) -> NoReturn:
    """Raise what argparse has to say as a UserError."""
    sentence = message.replace("invalid <lambda> value", "invalid value")
    if "'???'" in sentence:  # fairseq's default of a flag that must be given
        raise _missing(sentence.removeprefix("argument ").partition(":")[0])
    if "invalid choice" in sentence and len(sentence) > 300:  # a list of all architectures
        sentence = _nearest_choice(parser, sentence)
    kind, _, listed = sentence.partition(": ")
    flags = [word.partition("=")[0] for word in listed.split() if word.startswith("--")]
    if kind == "unrecognized arguments" and len(flags) == 1:
        near = get_close_matches(flags[0], parser._option_string_actions, n=1)
        sentence += f"; did you mean {near[0]}?" if near else ""
    raise UserError(sentence, program)


def _missing(flag: str) -> UserError:
    return UserError(f"{flag} is missing; give it with a value")


def _nearest_choice(parser: argparse.ArgumentParser, sentence: str) -> str:
    """An error about a value of a flag with many choices, with the most similar one."""
    wrong = sentence.partition("invalid choice: ")[2].partition(" (choose from")[0].strip("'")
    flags = sentence.removeprefix("argument ").partition(":")[0].split("/")
    choices = [str(choice) for choice in parser._option_string_actions[flags[0]].choices or ()]
    near = get_close_matches(wrong, choices, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "see 'fairseq-kerbs architectures'"
    return f"{flags[0]} {wrong} is unknown; {hint}"


def _register() -> None:
    """Have fairseq know the architectures and the criterion of this package."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # it recommends needless packages
    # imported by name, as the layers above this one may not be named here
    for module in ("models", "criterions"):
        importlib.import_module(f"fairseq_kerbs.{module}")


def _choosers() -> list[str]:
    """Names of the values that choose a part with flags of its own."""
    from fairseq.registry import REGISTRIES

    return ["arch", "task", *REGISTRIES]


def _part(chooser: str, choice: Any) -> Any:
    """The class that a value chooses, such as an optimizer, or None."""
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    own: dict[str, Any] = {"arch": ARCH_MODEL_REGISTRY, "task": TASK_REGISTRY}
    if chooser in own:
        return own[chooser].get(choice)
    return REGISTRIES[chooser]["registry"].get(choice) if chooser in REGISTRIES else None


def names_of_part(chooser: str, choice: Any) -> set[str]:
    """Names of the class that a value chooses and of its module, without packages."""
    part = _part(chooser, choice)
    return set() if part is None else {part.__name__, part.__module__.rpartition(".")[2]}


def flags_of_part(chooser: str, choice: Any) -> set[str]:
    """Flags of the part that a value chooses, such as those of an optimizer."""
    part = _part(chooser, choice)
    if part is None:
        return set()
    return {flag for action in actions_of(part) for flag in action.option_strings}


def actions_of(part: Any) -> list[argparse.Action]:
    """Flags and arguments of a part, such as an optimizer's class."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_flags(part, parser)
    return parser._actions


def _add_flags(part: Any, parser: Any) -> None:
    """Add the flags of a part, as fairseq's own function does."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    if hasattr(part, "add_args"):
        part.add_args(parser)
    elif hasattr(part, "__dataclass"):
        gen_parser_from_dataclass(parser, getattr(part, "__dataclass")())


def _chosen(program: str, arguments: Sequence[str]) -> Namespace:
    """The parts that arguments choose."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    base = _base_parser(program)
    for chooser in _choosers():
        action = next((one for one in base._actions if one.dest == chooser), None)
        if action is not None:
            # one without its value is refused by the whole parser
            how: Any = {"dest": chooser, "default": action.default, "nargs": "?"}
            parser.add_argument(*action.option_strings, **how)
    return parser.parse_known_args(list(arguments))[0]


def _base_parser(program: str) -> argparse.ArgumentParser:
    """fairseq's parser of a program, without the flags of parts. Its errors are UserErrors."""
    from fairseq import options

    build = options.get_training_parser if program == TRAIN else options.get_generation_parser
    with _without_own_arguments(program):
        parser = build()
    parser.error = partial(_refuse, parser, program)
    return parser


def parser_of(program: str, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """fairseq's parser of a program with the flags of the parts that arguments choose."""
    _import_user_folder(arguments)
    parser = _base_parser(program)
    chosen = _chosen(program, arguments)
    # in the order of fairseq's own function, which adds these only together with parsing
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    if program == TRAIN:
        arch = chosen.arch or _ARCHITECTURE
        if arch in ARCH_MODEL_REGISTRY:
            group = parser.add_argument_group(
                "Model-specific configuration", argument_default=argparse.SUPPRESS
            )
            _add_flags(ARCH_MODEL_REGISTRY[arch], group)
    if chosen.task in TASK_REGISTRY:
        _add_flags_beside(parser, TASK_REGISTRY[chosen.task], "task", chosen)
    for chooser, parts in REGISTRIES.items():
        choice = getattr(chosen, chooser, None)
        if choice in parts["registry"]:
            _add_flags_beside(parser, parts["registry"][choice], chooser, chosen)
    return parser


def _add_flags_beside(
    parser: argparse.ArgumentParser, part: Any, chooser: str, chosen: Namespace
) -> None:
    """Add the flags of a part, which may be named like flags of another one."""
    try:
        _add_flags(part, parser)
    except argparse.ArgumentError as error:
        other = "others"
        if getattr(chosen, "arch", None):
            other = f"--arch {chosen.arch}"
        raise UserError(
            f"{flag_of(chooser)} {getattr(chosen, chooser)} and {other} do not go "
            f"together, as fairseq says ({error}); leave one of them out"
        ) from None


def _import_user_folder(arguments: Sequence[str]) -> None:
    """Import the ``--user-dir`` of arguments, if it is not this package."""
    from fairseq import utils

    folder = _user_folder(arguments)
    if folder is None or _is_ours(folder):
        return
    if not Path(folder).exists():
        raise UserError(f"--user-dir {folder}: there is no such folder; name another")
    try:
        utils.import_user_module(Namespace(user_dir=folder))
    except SystemExit as refusal:  # of another copy of this package, and of our fairseq
        raise UserError(str(refusal).partition("error: ")[2] or str(refusal)) from refusal
    except Exception as error:
        raise UserError(f"--user-dir {folder} cannot be imported ({reason_of(error)})") from error


def _check_user_folder(arguments: Sequence[str], values: Namespace) -> None:
    """Refuse a ``--user-dir`` that never names this package, although a part is of this package.

    fairseq imports the folder alone, and would know no such part.
    """
    folder = _user_folder(arguments)
    if folder is None or _is_ours(folder):
        return
    chosen = {chooser: getattr(values, chooser, None) for chooser in _choosers()}
    ours = [
        f"{flag_of(chooser)} {choice}"
        for chooser, choice in chosen.items()
        if getattr(_part(chooser, choice), "__module__", "").startswith("fairseq_kerbs.")
    ]
    package = Path(folder)
    files = package.rglob("*.py") if package.is_dir() else [package.with_suffix(".py")]
    if ours and not any(b"fairseq_kerbs" in file.read_bytes() for file in files):
        raise UserError(
            f"--user-dir {folder} is imported in place of fairseq_kerbs, which {ours[0]} is of; "
            "write 'import fairseq_kerbs.criterions, fairseq_kerbs.models' in its __init__.py"
        )


def _user_folder(arguments: Sequence[str]) -> str | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--user-dir", nargs="?")
    folder: str | None = parser.parse_known_args(list(arguments))[0].user_dir
    return folder


def _is_ours(folder: str) -> bool:
    return os.path.realpath(folder) == str(PLUGIN_FOLDER)


def _parse(program: str, parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Namespace:
    """Values of all flags, with those that an architecture sets."""
    from fairseq import options

    words = list(arguments)
    try:
        values, unknown = parser.parse_known_args(words)
        if program == TRAIN and (values.arch is None or values.optimizer is None):
            return values  # incomplete, with flags of parts that nobody has named
        if unknown and unknown[0] == words[0]:  # its parser has no place for a folder of data
            raise UserError(f"--task {values.task} reads no data; take another --task")
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        for action in parser._actions:
            if action.option_strings and getattr(values, action.dest, None) == "???":
                raise _missing(long_form(action))
        # fairseq's function adds the flags of parts to a parser without them
        with _without_own_arguments(program):
            return options.parse_args_and_arch(_base_parser(program), _without_our_folder(words))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{program} cannot read its flags: {reason_of(error)}") from error


def _without_our_folder(arguments: list[str]) -> list[str]:
    """Arguments without the ``--user-dir`` of this package, which is imported already."""
    kept = []
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag != "--user-dir":
            kept.append(word)
            continue
        folder = value if equals else next(words, "")
        if not _is_ours(folder):
            kept += ["--user-dir", folder]
    return kept


def _names_given(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> frozenset[str]:
    """Names of the values that arguments give, in any spelling that argparse reads."""
    names = set()
    for word in arguments:
        if word == "--":
            break
        flag = word.partition("=")[0]
        if not flag.startswith("--"):
            flag = flag[:2]  # -sde is -s de
        action = parser._option_string_actions.get(flag)
        if action is not None:
            names.add(action.dest)
    return frozenset(names)


def spellings_in_file(program: str, flag: str, arguments: Sequence[str]) -> list[str]:
    """All flags that set the value of a flag, by which a configuration may have given it.

    There are none if arguments of the command line give this value, in any spelling.
    """
    parser = parser_of(program, [])
    action = parser._option_string_actions.get(flag)
    if action is None:  # it is of a part, such as an optimizer
        return [] if flag in {word.partition("=")[0] for word in arguments} else [flag]
    given = action.dest in _names_given(parser, arguments)
    return [] if given else list(action.option_strings)


def _replaced(
    program: str,
    former: Sequence[str],
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
) -> dict[str, set[str]]:
    """Flags that only replaced parts have, by the flag and value that replaces each part.

    Args:
        program: the program.
        former: arguments without those of the command line.
        parser: parser of the program with the present parts.
        arguments: all arguments.
    """
    before = vars(_chosen(program, former))
    after = vars(_chosen(program, arguments))
    replaced = {}
    for chooser, choice in after.items():
        if before[chooser] != choice:
            own = flags_of_part(chooser, before[chooser])
            choice_as_flag = f"{flag_of(chooser)} {choice}"
            replaced[choice_as_flag] = own - set(parser._option_string_actions)
    return replaced
