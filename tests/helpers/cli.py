"""Commands of ours run in this process, and short names of pytest's types for signatures."""

from collections.abc import Callable
from typing import Any

import click
import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.cli.commands import root

Capsys = pytest.CaptureFixture[str]
Folders = pytest.TempPathFactory
Log = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch
Reported = Callable[..., tuple[str, Any, list[dict[str, str]]]]
"""A command's text, JSON, and rows of CSV, see the fixture ``reported``."""


def kerbs(capsys: Capsys, *command: object, status: int = 0) -> str:
    """What a command prints: its error where it is refused, with status 2."""
    capsys.readouterr()
    ended, printed = main([str(part) for part in command]), capsys.readouterr()
    assert ended == status, printed
    return printed.err if status == 2 else printed.out


def parsed(*words: str) -> click.Context:
    """What a command line means, without running it: the command and its parameters."""
    context = click.Context(root, info_name="fairseq-kerbs", **root.context_settings)
    names = list(words)
    name = names.pop(0)
    command = root.commands[name]
    while isinstance(command, click.Group):
        name = names.pop(0)
        command = command.commands[name]
    return command.make_context(name, names, context)
