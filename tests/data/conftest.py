"""fairseq-preprocess without its imports: starting it takes longer than what it does here."""

from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from fairseq_kerbs.data import prepare
from tests.helpers.commands import Command, run_together


@pytest.fixture(autouse=True)
def _preprocess_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "run_program", _run)


def _run(command: Sequence[str], stdout: IO[str], stderr: int, folder: Path) -> int:
    program = Command(Path(command[0]).name, command[1:], cwd=folder.resolve())
    ((status, said),) = run_together(program)
    stdout.write(said)
    return status


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "parallel_steps", lambda *_: None)
    monkeypatch.setattr(prepare, "language_steps", lambda *_: None)
