"""fairseq-preprocess in this process: starting it takes longer than what it does here."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import IO
from unittest import mock

import pytest

from fairseq_kerbs.data import prepare


@pytest.fixture(autouse=True)
def _preprocess_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "run_program", _run)


def _run(command: Sequence[str], stdout: IO[str], stderr: int, folder: Path) -> int:
    from fairseq_cli import preprocess

    patch = pytest.MonkeyPatch()
    patch.chdir(folder)
    with mock.patch("sys.argv", command), redirect_stderr(stdout):
        try:
            preprocess.cli_main()
        except BaseException:
            traceback.print_exc(file=stdout)
            return 1
        finally:
            patch.undo()
            for handler in list(preprocess.logger.handlers):
                preprocess.logger.removeHandler(handler)
                if isinstance(handler, logging.FileHandler):
                    handler.close()
    return 0


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop after the text was read."""
    monkeypatch.setattr(prepare, "parallel_steps", lambda *_: None)
    monkeypatch.setattr(prepare, "language_steps", lambda *_: None)
