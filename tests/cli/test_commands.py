"""The list of commands, their help and their examples."""

import shlex
from collections.abc import Iterator

import click
import pytest

from fairseq_kerbs.cli.commands import SECTIONS, root
from tests.helpers.cli import Capsys, kerbs, parsed


def leaves(group: click.Group, *names: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, with the words that name it."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, *names, name)
        else:
            yield (*names, name), command


COMMANDS = dict(leaves(root))
EXAMPLES = [
    line.strip()
    for command in [*COMMANDS.values(), *root.commands.values()]
    for line in str(command.epilog).splitlines()[2:]
]


@pytest.mark.parametrize("names", [*COMMANDS, *((name,) for name in root.commands)], ids=" ".join)
def test_every_command_has_help_with_examples(names: tuple[str, ...], capsys: Capsys) -> None:
    for flag in ("--help", "-h"):
        shown = kerbs(capsys, *names, flag)
        words = " ".join(names)
        assert shown.startswith(f"Usage: fairseq-kerbs {words} ")
        assert f"\n  Examples:\n    fairseq-kerbs {words}" in shown


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_every_flag_and_command_is_explained(names: tuple[str, ...]) -> None:
    command = COMMANDS[names]
    assert command.help
    assert command.help.partition("\n")[0].endswith(".")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.opts
        else:
            # click has no help of arguments: the text of the command names them
            metavar = parameter.human_readable_name.strip("[].")
            explained = {"CHECKPOINT": "", "FOLDER": "", "FLAGS OF FAIRSEQ": "ther flags"}
            assert explained.get(metavar, metavar) in command.help, metavar


@pytest.mark.parametrize("example", sorted({*EXAMPLES}))
def test_examples_are_command_lines(example: str) -> None:
    program, *words = shlex.split(example.partition("<")[0])
    assert program == "fairseq-kerbs"
    context = parsed(*words)
    assert not context.args


def test_help_lists_every_command_by_what_people_do(capsys: Capsys) -> None:
    shown = kerbs(capsys, "--help")
    assert shown.startswith("Usage: fairseq-kerbs [OPTIONS] COMMAND [ARGS]...\n")
    titles = [line for line in shown.splitlines() if line.endswith(":")][1:]
    assert titles == [f"{title}:" for title in SECTIONS]
    listed = [
        line.split()[0] for line in shown.splitlines() if line.startswith("  ") and line[2] != " "
    ]
    for name in root.commands:
        assert listed.count(name) == 1
    assert shown.index("  convert ") < min(
        shown.index(f"  {name} ") for name in root.commands if name != "convert"
    )
    assert "--version" in shown
    assert "COMMAND --help has all flags of a command" in shown


def test_a_command_that_is_not_there(capsys: Capsys) -> None:
    """The names of all are listed."""
    assert kerbs(capsys, status=2) == "fairseq-kerbs: error: missing command\n"
    said = kerbs(capsys, "sensse", status=2)
    assert said.startswith("fairseq-kerbs: error: no such command 'sensse'; choose one of ")
    assert said.count("\n") == 1
    assert set(said.rpartition("choose one of ")[2].strip().split(", ")) == set(root.commands)
    said = kerbs(capsys, "plot", status=2)
    assert said == "fairseq-kerbs plot: error: missing command\n"


def test_what_click_refuses_is_one_sentence_that_names_the_command(capsys: Capsys) -> None:
    said = kerbs(capsys, "senses", "model.pt", "--wrod", "bank", status=2)
    assert said.startswith("fairseq-kerbs senses: error: no such option")
    assert "--word" in said
    assert said.count("\n") == 1
    said = kerbs(capsys, "plot", "theta", "model.pt", "-o", "a.png", status=2)
    assert said == "fairseq-kerbs plot theta: error: missing option '--word'\n"
    said = kerbs(capsys, "prepare", "--bpe", "sub", status=2)
    assert said.startswith("fairseq-kerbs prepare: error: invalid value for '--bpe': 'sub' is")
    assert said.count("\n") == 1
