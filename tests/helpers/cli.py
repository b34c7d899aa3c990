"""Commands of ours run in this process, and short names of pytest's types for signatures."""

from __future__ import annotations

import pytest

from fairseq_kerbs.cli import main

Capsys = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def kerbs(capsys: Capsys, *command: object, status: int = 0) -> str:
    """What a command prints: its error where it is refused, with status 2."""
    capsys.readouterr()
    ended = main([str(part) for part in command])
    printed = capsys.readouterr()
    assert ended == status, printed
    return printed.err if status == 2 else printed.out
