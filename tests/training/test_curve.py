"""One curve for a training in three steps: its log, and the events of TensorBoard."""

import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from fairseq_kerbs.training import curve


def test_the_line_of_a_log() -> None:
    line = curve.begins_after(1200)
    assert "1200 updates" in line
    assert line.endswith("update 1 below is update 1201")
    assert curve.updates_before(line) == 1200
    assert curve.updates_before("train_inner | num_updates=1200") is None


def scalars(folder: Path) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    if "loss" not in events.Tags()["scalars"]:
        return []
    return [(event.step, event.value) for event in events.Scalars("loss")]


def test_events_are_copied_behind_those_of_another_training(tmp_path: Path) -> None:
    target = tmp_path / "log"
    source = tmp_path / "own"
    with SummaryWriter(str(target / "train")) as former:
        for step in (5, 10):
            former.add_scalar("loss", 100.0 - step, step)
    before = [(5, 95.0), (10, 90.0)]

    writer: Any = SummaryWriter(str(source / "train"))
    continued = curve.Continued(source, target, 10)
    continued.copy()
    assert scalars(target / "train") == before
    writer.add_scalar("loss", 80.0, 5)
    writer.flush()
    continued.copy()
    continued.copy()  # nothing is copied twice
    assert scalars(target / "train") == [*before, (15, 80.0)]
    writer.add_scalar("loss", 70.0, 10)
    writer.close()
    continued.close()
    assert scalars(target / "train") == [*before, (15, 80.0), (20, 70.0)]

    # the training goes on later, in another process with another file
    with SummaryWriter(str(source / "train")) as resumed:
        resumed.add_scalar("loss", 60.0, 15)
    curve.Continued(source, target, 10).close()
    assert scalars(target / "train") == [*before, (15, 80.0), (20, 70.0), (25, 60.0)]


def test_events_are_copied_while_the_training_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve, "EVERY", 0.05)
    target = tmp_path / "log"
    with SummaryWriter(str(tmp_path / "own" / "valid")) as writer:
        continued = curve.Continued(tmp_path / "own", target, 3)
        with continued.running():
            writer.add_scalar("loss", 1.5, 1)
            writer.flush()
            end = time.monotonic() + 60
            while not target.exists() or scalars(target / "valid") != [(4, 1.5)]:
                assert time.monotonic() < end
                time.sleep(0.05)
            writer.add_scalar("loss", 1.25, 2)
            writer.flush()
        assert scalars(target / "valid") == [(4, 1.5), (5, 1.25)]
