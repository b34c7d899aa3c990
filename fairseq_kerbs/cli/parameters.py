"""Flags that several commands have, and what click lacks of them: several values after a flag."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fairseq_kerbs.data.languages import CODE
from fairseq_kerbs.utils.checkpoint_files import check_can_replace
from fairseq_kerbs.utils.files import STDOUT, check_can_write
from fairseq_kerbs.utils.threads import limit_threads


class File(click.Path):
    """A file or folder that is read. Whether it can be used, the command finds out."""

    def __init__(self) -> None:
        super().__init__(readable=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty name, which would be the current folder."""
        if value == "":
            self.fail("the name is empty; name a file", param, ctx)
        return super().convert(value, param, ctx)


class OutputFile(File):
    """A file that a command writes. `Command` refuses it before the work if that is impossible.

    Args:
        or_stdout: take - for standard output, which other commands refuse.
        model: whether the file is a model.
    """

    def __init__(self, or_stdout: bool = False, model: bool = False) -> None:
        super().__init__()
        self.or_stdout = or_stdout
        self.model = model

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Take - for standard output, or refuse it."""
        if value == "-" and not self.or_stdout:
            self.fail("- is no file, and this command prints other lines; name a file", param, ctx)
        return super().convert(STDOUT if value == "-" else value, param, ctx)


FILE = File()
"""A file or folder that is read."""

OUTPUT = OutputFile()
"""A file that is written."""

PASS_ON = {"ignore_unknown_options": True}
"""``context_settings`` of a command that passes unknown flags to a program of fairseq's."""

_SHORT_WITH_VALUE = re.compile(r"-[A-Za-z][^-=]")  # such as -sde of fairseq
_SEPARATOR = "\0"  # which no argument of a program can have


class Number(click.FloatRange):
    """A finite number in a range: click's own lets NaN through."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Convert a text, or refuse it with a sentence."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number

    name = "number"  # click's name is "float range"


class Whole(click.IntRange):
    """A whole number in a range."""

    name = "whole number"  # click's name is "integer range"


class Language(click.ParamType):
    """A code of a language, such as en or pt_BR. Libraries take another text for English."""

    name = "language"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what is no code, such as english."""
        if not CODE.fullmatch(value):
            self.fail(f"{value} is no code of a language, such as en or pt_BR", param, ctx)
        return str(value)


LANGUAGE = Language()
"""A code of a language."""


class Several(click.ParamType):
    """One or more values after one flag, as ``--word bank seal``; the command is a `Command`."""

    name = "several"

    def __init__(self, kind: click.ParamType = click.STRING) -> None:
        """Values of a kind."""
        self.kind = kind

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Convert what a `Command` has joined."""
        if isinstance(value, tuple):  # a default
            return value
        return tuple(self.kind.convert(part, param, ctx) for part in value.split(_SEPARATOR))


class Command(click.Command):
    """A command whose flags may have `Several` values, and none that looks like a flag.

    Args:
        needs: flags that are read only together with one of others, as in
            ``{"--split": ("--data",)}``. A command refuses them without these.
        more: arguments of click's command.
    """

    def __init__(
        self, *args: Any, needs: Mapping[str, Sequence[str]] | None = None, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.needs = dict(needs or {})

    def invoke(self, ctx: click.Context) -> Any:
        """Check the flags together, and the files that are written, and run the command."""
        given = [param for param in self.params if _is_given(ctx, param)]
        flags = {flag for param in given for flag in param.opts}
        for flag, others in self.needs.items():
            if flag in flags and not flags & {*others}:
                ctx.fail(f"{flag} is read only with {' or '.join(others)}; give that, too")
        read = _files_read(ctx, given)
        written: dict[Path, str] = {}
        for param in given:
            if not isinstance(param.type, OutputFile):
                continue
            path: Path = ctx.params[str(param.name)]
            flag = max(param.opts, key=len)
            check_can_write(path, flag)
            place = path.resolve()
            if place in written and not str(path).startswith("/dev/"):
                ctx.fail(f"{written[place]} and {flag} name one file, {path}; name two")
            if path.exists() and any(path.samefile(other) for other in read):
                ctx.fail(f"{flag}: {path} is read by this command; name another file")
            check_can_replace(path, flag, by_model=param.type.model)
            written[place] = flag
        return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the values of each flag to one, as click wants it, and parse."""
        options = {name: option for option in self.params for name in option.opts}
        rest = list(args)
        joined: list[str] = []
        # of the values of a flag, to which those of the same flag are added
        places: dict[click.Option, int] = {}
        with_values: list[str] = []
        while rest:
            name = rest.pop(0)
            if ctx.ignore_unknown_options and _is_short_with_value(name, options):
                with_values.append(name)  # click would look for its own flags among the letters
                continue
            flag = name
            equals = ""
            value = ""
            if name.startswith("--"):
                flag, equals, value = name.partition("=")
            option = options.get(flag)
            if not isinstance(option, click.Option) or option.is_flag:
                joined.append(name)
                if name == "--":  # the rest are no flags
                    break
                continue
            several = isinstance(option.type, Several)
            most = 1
            if several:
                most = len(rest)
            values = [value] if equals else _take_values(rest, most)
            if not values:
                raise click.BadOptionUsage(name, f"Option '{name}' requires an argument.", ctx)
            if several and not option.multiple and option in places:
                joined[places[option]] += _SEPARATOR + _SEPARATOR.join(values)
                continue
            places[option] = len(joined) + 1
            joined += [flag, _SEPARATOR.join(values)]
        left = super().parse_args(ctx, [*joined, *rest])
        if with_values:
            ctx.params["passed_on"] = (*ctx.params["passed_on"], *with_values)
        return left


def _is_short_with_value(name: str, options: Mapping[str, click.Parameter]) -> bool:
    """Tell whether an argument is a short flag of another program with its value, such as -sde."""
    return _SHORT_WITH_VALUE.match(name) is not None and name[:2] not in options


def _take_values(rest: list[str], most: int) -> list[str]:
    """Take what stands before the next flag from the arguments, ``most`` at most."""
    values: list[str] = []
    while rest and len(values) < most and not is_flag(rest[0]):
        values.append(rest.pop(0))
    return values


class ModelCommand(Command):
    """A command that computes with a model, in as many threads as cores are free."""

    def invoke(self, ctx: click.Context) -> Any:
        """Choose the number of threads, before torch is loaded, and run the command."""
        limit_threads()
        return super().invoke(ctx)


def _files_read(ctx: click.Context, given: Sequence[click.Parameter]) -> list[Path]:
    """The files that a command reads, by its arguments: also those of NAME=FILE."""
    paths: list[Path] = []
    for param in given:
        value = ctx.params[str(param.name)]
        kind = param.type.kind if isinstance(param.type, Several) else param.type
        if isinstance(kind, File) and not isinstance(kind, OutputFile):
            paths += value if isinstance(value, tuple) else [value]
        elif param.metavar == "NAME=FILE":
            paths += [Path(text.partition("=")[2]) for text in value]
    return [path for path in paths if path.is_file()]


def _is_given(ctx: click.Context, param: click.Parameter) -> bool:
    """Tell whether the command line has a parameter."""
    source = ctx.get_parameter_source(str(param.name))
    return source is click.core.ParameterSource.COMMANDLINE


class Group(click.Group):
    """A group that answers an unknown command with the names of its own."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments begin with."""
        if self.get_command(ctx, args[0]) is None:
            names = ", ".join(self.commands)
            ctx.fail(f"no such command '{args[0]}'; choose one of {names}")
        return super().resolve_command(ctx, args)


def is_flag(text: str) -> bool:
    """Tell whether an argument is a flag, and not a value: a negative number is one."""
    if not text.startswith("-") or text == "-" or " " in text:
        return False
    try:
        float(text)
    except ValueError:
        return True
    return False


def no_flag(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse a flag of fairseq's in place of an argument, where unknown flags are passed on."""
    if is_flag(str(value)):
        raise click.MissingParameter(ctx=ctx, param=param)
    return value


def not_with(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Callback of a flag that does not go with another one of the command, which has its own."""

    def check(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        (other,) = (option for option in ctx.command.params if name in option.opts)
        if value and ctx.params.get(str(other.name)):
            ctx.fail(f"{param.opts[0]} does not go with {name}; give one of them")
        return value

    return check


def seed_option(text: str = "random seed") -> Callable[[Any], Any]:
    """``--seed`` with a help text."""
    return click.option("--seed", type=Whole(min=0), metavar="N", default=1, help=text)


def examples(*commands: str) -> str:
    r"""Lines for the ``epilog`` of a command, which click does not wrap after ``\b``."""
    return "\n".join(["\b", "Examples:", *(f"  fairseq-kerbs {command}" for command in commands)])


checkpoint_argument = click.argument("checkpoint", type=FILE)

data_option = click.option(
    "--data", type=FILE, metavar="BIN", required=True, help="folder of binarized data"
)

data_or_none_option = click.option(
    "--data",
    type=FILE,
    metavar="BIN",
    callback=not_with("--dict"),
    help="folder of binarized data [none]",
)

dictionary_option = click.option(
    "--dict",
    "dictionary",
    type=FILE,
    metavar="FILE",
    callback=not_with("--data"),
    help="dictionary of the target language, dict.*.txt [that of the training data]",
)

trust_option = click.option(
    "--trust-checkpoint",
    is_flag=True,
    help="allow code in the checkpoint to run, for trusted files. Without this flag only tensors "
    "and plain settings are loaded",
)

json_option = click.option(
    "--json", "json_file", type=OUTPUT, metavar="FILE", help="also write the result as JSON"
)

csv_option = click.option(
    "--csv", "csv_file", type=OUTPUT, metavar="FILE", help="also write the result as CSV"
)

output_option = click.option(
    "-o",
    "--output",
    type=OutputFile(or_stdout=True),
    metavar="FILE",
    help="file [standard output]",
)

unescape_option = click.option("--unescape", is_flag=True, help="undo XML entities")
