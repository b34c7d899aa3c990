"""The long run: what it reads from a training, and what it says of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.long_run import (
    Window,
    main,
    memory_sentence,
    reallocation_sentence,
    resident_and_cpu,
    speed_sentence,
    watch,
)


def windows(
    memory: list[float] | None = None,
    cpu: list[float] | None = None,
    moved: list[int] | None = None,
) -> list[Window]:
    """Eight windows of 100 updates, the same but for what is given."""
    return [
        Window(100 * n, (memory or [400.0] * 8)[n], 1.0, (cpu or [2.0] * 8)[n], which, 5.0)
        for n, which in enumerate(moved or [3] * 8)
    ]


def test_memory_is_flat_after_its_beginning_or_grows() -> None:
    flat = memory_sentence(windows([200, 390, 400, 400, 401, 401, 402, 401]))
    assert flat.startswith("Memory is flat: 400.0 MB")
    grown = memory_sentence(windows([200, 300, 400, 402, 405, 410, 415, 420]))
    assert grown.startswith("Memory GROWS: 401.0 MB")
    assert grown.endswith("(+4.11%).")


def test_throughput_is_judged_by_processor_time() -> None:
    assert speed_sentence(windows(), 100).startswith("Throughput is constant: 50.0 updates")
    slower = speed_sentence(windows(cpu=[9, 9, 2, 2, 2, 2, 4, 4]), 100)
    assert slower.startswith("Throughput CHANGES")
    assert "(-50.0%)" in slower


def test_reallocation_converged_only_if_nothing_moved_in_the_last_quarter() -> None:
    settled = reallocation_sentence(windows(moved=[9, 7, 0, 1, 0, 0, 0, 0]))
    assert settled == "Reallocation converged: no sense moved after update 300 (17 moves in all)."
    moving = reallocation_sentence(windows(moved=[9, 7, 0, 1, 0, 0, 0, 3]))
    assert moving.startswith("Reallocation did NOT converge: 3 of 20 moves")
    assert "no sense ever moved" in reallocation_sentence(windows(moved=[0] * 8))


PROGRAM = """
import json, sys
for n in range(1, 4):
    print("INFO | something else", flush=True)
    figures = {"num_updates": str(50 * n), "loss": "4.5", "senses_moved": str(n)}
    print("INFO | train_inner | " + json.dumps(figures), flush=True)
sys.stdin.read()
"""


def test_windows_are_read_from_a_running_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        found = watch(process, log)
        first, second = next(found), next(found)
        memory, seconds = resident_and_cpu(process.pid)
        process.stdin.close()
        assert list(found) == []
    assert [(one.updates, one.moved, one.loss) for one in (first, second)] == [
        (100, 2, 4.5),
        (150, 3, 4.5),
    ]
    assert 1.0 < second.resident_mb <= memory + 1.0 < 1000.0
    assert 0.0 <= second.cpu_seconds <= seconds < 100.0
    assert len(log.read_text().splitlines()) == 6


@pytest.mark.parametrize("flags", [["--updates", "500"], ["--window", "0"]])
def test_too_short_a_run_is_refused(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*flags, "-o", str(tmp_path / "x.json")]) == 2
    assert "--updates must be" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_recorded_run_is_of_this_form() -> None:
    folder = Path(__file__).resolve().parent.parent / "results" / "long_run"
    for path in folder.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        assert len(document["windows"]) == 99
        assert document["windows"][-1]["updates"] == 20_000
        assert set(document["sentences"]) == {"memory", "throughput", "reallocation"}
        assert "/tmp" not in text
