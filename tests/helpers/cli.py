"""Commands of ours run in this process, and short names of pytest's types for signatures."""

import pytest

from fairseq_kerbs.cli import main

Capsys = pytest.CaptureFixture[str]
Folders = pytest.TempPathFactory
Log = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch


def kerbs(capsys: Capsys, *command: object, status: int = 0) -> str:
    """What a command prints: its error where it is refused, with status 2."""
    capsys.readouterr()
    ended, printed = main([str(part) for part in command]), capsys.readouterr()
    assert ended == status, printed
    return printed.err if status == 2 else printed.out
