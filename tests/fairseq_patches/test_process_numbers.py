"""A training that goes on with more or fewer processes goes on at the same place of its data."""

from __future__ import annotations

import logging
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import iterators

from fairseq_kerbs.fairseq_patches.resume import keep_the_place
from tests.fairseq_patches.test_resume import load, moves, run
from tests.helpers.training_runs import binarize, trainings
from tests.training.test_processes import ARCH, FLAGS, UPDATES, two

HALF = ["--max-update", str(UPDATES // 2)]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    data = binarize(tmp_path_factory.mktemp("data"))

    def one(name: str, *flags: str) -> Any:
        return run(data, folder / name, ARCH, *FLAGS, "--update-freq", "2", *flags)

    runs = [
        one("straight"),
        *two(data, folder / "fewer", *HALF),
        one("fewer"),
        one("more", *HALF),
        *two(data, folder / "more"),
    ]
    statuses = trainings(runs)
    text = "\n".join(log.read_text()[-2000:] for log in folder.glob("*.log"))
    assert statuses == [0] * len(runs), text
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fewer", "by 2 processes with --update-freq 1, here are 1 with 2"),
        ("more", "by 1 processes with --update-freq 2, here are 2 with 1"),
    ],
)
def test_as_if_it_had_not_changed(name: str, says: str, done: Path) -> None:
    text = (done / f"{name}.log").read_text()
    assert f"{says}: epoch 1 goes on after 6 of the 6 batches done; " in text
    assert "an update was made of 2 batches, and is of 2 now." in text
    assert moves(done / f"{name}.log") == moves(done / "straight.log")
    found, expected = (load(done / each / "checkpoint_last.pt") for each in (name, "straight"))
    for key, value in expected["model"].items():
        # fairseq leaves the first uninitialized; the gradient of the second is rounding alone
        if not key.endswith(("._float_tensor", ".k_proj.bias")):
            torch.testing.assert_close(found["model"][key], value, rtol=1e-3, atol=1e-4, msg=key)


def settings(processes: int, grouped: bool = False, update_freq: int = 1) -> Namespace:
    return Namespace(
        distributed_training=Namespace(distributed_world_size=processes),
        dataset=Namespace(grouped_shuffling=grouped),
        optimization=Namespace(update_freq=[4, update_freq]),
    )


def checkpoint(processes: int, batches: int, update_freq: int = 1) -> dict[str, Any]:
    place = {"epoch": 2, "iterations_in_epoch": batches}
    cfg = settings(processes, update_freq=update_freq)
    return {"cfg": cfg, "extra_state": {"train_iterator": place, "val_loss": 3.0}}


@pytest.mark.parametrize(
    ("before", "batches", "now", "expected", "loss"),
    [(2, 5, 1, 10, 3.0), (1, 5, 2, 2, 3.0), (3, 4, 2, 6, 3.0), (1, 1, 2, 0, None),
     (2, 0, 1, 0, 3.0), (2, 5, 2, 5, 3.0)],
)  # fmt: skip
def test_place(
    before: int,
    batches: int,
    now: int,
    expected: int,
    loss: float | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = checkpoint(before, batches)
    with caplog.at_level(logging.WARNING):
        keep_the_place(state, settings(now))
    assert state["extra_state"]["train_iterator"]["iterations_in_epoch"] == expected
    assert state["extra_state"]["val_loss"] == loss  # of an epoch that has ended
    assert len(caplog.messages) == (before != now)


def test_batches_in_groups_of_processes() -> None:
    with pytest.raises(SystemExit, match="--grouped-shuffling"):
        keep_the_place(checkpoint(2, 5), settings(1, grouped=True))
    keep_the_place(checkpoint(2, 0), settings(1, grouped=True))


@pytest.mark.parametrize("all_batches", [11, 12, 13, 17])
@pytest.mark.parametrize(
    ("before", "old", "done", "now", "new"),
    [(2, 1, 3, 1, 4), (3, 1, 1, 2, 2), (1, 1, 2, 2, 2), (1, 1, 6, 1, 5), (2, 2, 4, 1, 3)],
)
def test_an_epoch_ends_once(
    all_batches: int, before: int, old: int, done: int, now: int, new: int
) -> None:
    """fairseq begins and ends at groups of --update-freq batches: it must not begin inside one."""
    state = checkpoint(before, done, update_freq=old)
    keep_the_place(state, settings(now, update_freq=new))
    place = state["extra_state"]["train_iterator"]["iterations_in_epoch"]
    own = -(-all_batches // now)  # batches of each process
    batches = iterators.CountingIterator(range(place, own), start=place, total=own)
    groups = iterators.GroupedIterator(batches, new)
    seen = [number for group in groups for number in group]
    assert seen == list(range(place, own))
    assert not groups.has_next()
    assert batches.n == own
    assert now * place <= before * done < now * (place + new)
