"""The long run: what it reads from a running training."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scripts.long_run import main

PROGRAM = """
import json, sys, time
held = []
for n in range(1, 10):
    held.append(bytearray(b"x" * 2**24))
    print("INFO | something else", flush=True)
    figures = {"num_updates": str(50 * n), "loss": "4.5", "senses_moved": str(n)}
    print("INFO | train_inner | " + json.dumps(figures), flush=True)
    time.sleep(0.1)
time.sleep(0.5)
sys.exit(3)
"""


def test_windows_are_read_from_a_running_command(tmp_path: Path) -> None:
    path = tmp_path / "windows.json"
    assert main(str(path), sys.executable, "-c", PROGRAM) == 3
    windows = json.loads(path.read_text())
    assert [window["updates"] for window in windows] == list(range(100, 451, 50))
    assert [window["moved"] for window in windows] == list(range(2, 10))
    memory = [window["resident_mb"] for window in windows]
    assert max(memory) - min(memory) > 50  # the program keeps 16 a window
    assert all(0 <= window["cpu_seconds"] < 100 for window in windows)
