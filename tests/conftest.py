"""Fixtures shared by all tests."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import torch

if TYPE_CHECKING:  # what is imported here would be imported before the environment is set
    from tests.helpers.cli import Capsys, Reported

# The matrices of tests are tiny: compiling would take longer than all of them. Tests of compilation
# switch it on.
os.environ.setdefault("FAIRSEQ_KERBS_COMPILE", "0")
# For the commands that tests start: one thread, and modules that are compiled once for all.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
torch.set_num_threads(1)

# In the background of a script a shell lets us, and all commands that tests start, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Derandomized: a run says the same today and tomorrow. No deadline: time decides nothing.
fixed = hypothesis.settings(deadline=None, derandomize=True, database=None, max_examples=60)
hypothesis.settings.register_profile("project", fixed)
hypothesis.settings.load_profile("project")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, so that no worker of xdist is left with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def tiny_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Toy text in ``text`` and ``bin``, and a model of two updates; to be read alone."""
    from tests.helpers.tiny_checkpoint import make_work

    return make_work(tmp_path_factory.mktemp("tiny") / "work")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic corpus in words, binarized for real trainings; to be read alone."""
    from tests.helpers.tiny_checkpoint import binarized_corpus

    return binarized_corpus(tmp_path_factory.mktemp("data"), {"train": 60, "valid": 8, "test": 1})


@pytest.fixture
def standing_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of fairseq's that commands of this process start do so without their imports."""
    from tests.helpers.commands import stand_ins

    monkeypatch.setattr(sys, "executable", str(stand_ins() / "python"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test begins with the same state of torch's generator."""
    torch.manual_seed(1)


@pytest.fixture
def reported(tmp_path: Path, capsys: Capsys) -> Reported:
    """Runs a command; gives what it prints and writes: a text, JSON, and rows of CSV."""
    from tests.helpers.cli import kerbs

    def run(*command: object) -> tuple[str, Any, list[dict[str, str]]]:
        json_file = tmp_path / "a.json"
        csv_file = tmp_path / "a.csv"
        text = kerbs(capsys, *command, "--json", json_file, "--csv", csv_file)
        assert f"wrote {json_file}" in text
        assert f"wrote {csv_file}" in text
        rows = list(csv.DictReader(csv_file.read_text().splitlines()))
        return text, json.loads(json_file.read_text()), rows

    return run
