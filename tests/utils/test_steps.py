"""What a record says about a step; digests and locks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairseq_kerbs.utils.steps import data_digest, locked, step_status

ROOT = Path(__file__).resolve().parents[2]
RECORD = {"parts": {"lr": "1"}, "status": "done", "outputs": {"out": "a"}}


@pytest.mark.parametrize(
    ("changes", "parts", "outputs", "state", "reason"),
    [
        ({}, {"lr": "1"}, {"out": "a"}, "done", ""),
        ({}, {"lr": "2"}, {"out": None}, "stale", "lr changed since train"),
        ({}, {"lr": "1", "seed": "1"}, {"out": "a"}, "stale", "seed changed since train"),
        ({}, {}, {"out": "a"}, "stale", "lr changed since train"),
        ({"status": "running"}, {"lr": "1"}, {}, "to resume", "train had been interrupted"),
        ({"status": "failed"}, {"lr": "1"}, {}, "to resume", "train had failed"),
        ({}, {"lr": "1"}, {"out": None}, "to do", "out is gone or has changed"),
        ({}, {"lr": "1"}, {"out": "b"}, "to do", "out is gone or has changed"),
        ({}, {"lr": "1"}, {"out": "a", "more": "b"}, "to do", "more is gone or has changed"),
        ({}, {"lr": "1"}, {}, "to do", "out is gone or has changed"),
    ],
)
def test_status_by_the_record(
    changes: dict[str, Any], parts: dict[str, str], outputs: dict[str, Any], state: str, reason: str
) -> None:
    status = step_status("train", {**RECORD, **changes}, parts, outputs)
    assert (status.state, status.reason) == (state, reason)
    assert step_status("train", {}, parts, outputs).state == "to do"


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from fairseq_kerbs.utils.steps import locked\n"
    code += "with locked(Path(sys.argv[1]), 'another run works in it'): pass"
    command = [sys.executable, "-c", code, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with locked(tmp_path, ""):
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert "another run works in" in done.stderr
    assert subprocess.run(command, env=environ).returncode == 0


def test_digest_of_data_leaves_logs_out(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "dict.txt").write_text("a 1\n")
    before = data_digest(folder)
    (folder / "preprocess.log").write_text("at noon")
    assert data_digest(folder) == before
    (folder / "train.bin").write_bytes(b"1")
    assert data_digest(folder) != before
