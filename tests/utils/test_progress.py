"""A bar on a terminal, elsewhere lines now and then, and reminders of long steps."""

import io
import sys
import time

import pytest

from fairseq_kerbs.utils import progress
from tests.helpers.cli import Patch


def test_a_terminal_has_a_bar_that_vanishes(monkeypatch: Patch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stderr)
    assert list(progress.progress(iter("abc"), "reading", " letters", 3)) == ["a", "b", "c"]
    assert "reading" in stderr.getvalue()
    assert "\n" not in stderr.getvalue()


@pytest.fixture
def clock(monkeypatch: Patch) -> list[float]:
    """The time in seconds, as a list of one number."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_log_has_a_line_every_ten_seconds(
    clock: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    seen = []
    for item in progress.progress(range(9), "reading", " letters"):
        seen.append(item)
        clock[0] += 4.0
    assert seen == list(range(9))
    assert capfd.readouterr().err.splitlines() == [
        "reading: 3 of 9 letters, 12 s",
        "reading: 6 of 9 letters, 24 s",
    ]


def test_a_quick_loop_writes_nothing_and_an_unknown_length_is_left_out(
    clock: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    assert list(progress.progress(iter("abc"), "reading", " letters")) == ["a", "b", "c"]
    assert not capfd.readouterr().err
    for _ in progress.progress(iter("ab"), "reading", " letters"):
        clock[0] += 11.0
    assert capfd.readouterr().err == "reading: 1 letters, 11 s\n"


def test_a_long_step_is_named_while_it_runs(
    monkeypatch: Patch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.1)
    reminder = progress.Reminder()
    with reminder.running():
        reminder.begin("learn BPE")
        time.sleep(0.5)
    lines = capfd.readouterr().err.splitlines()
    assert lines
    assert all(line == "learn BPE: 0 s so far" or line == "learn BPE: 1 s so far" for line in lines)
    time.sleep(0.3)
    assert not capfd.readouterr().err
