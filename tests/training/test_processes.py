"""Several processes: the same senses in each of them at every moment, and no process left over."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.commands import ENVIRONMENT, PROGRAMS
from tests.helpers.slurm import free_port
from tests.helpers.training_runs import Run, binarize, trainings
from tests.training.test_resume import COMMON, MODELS, load, moves, run

pytestmark = pytest.mark.slow

ARCH = "transformer_kerbs"
PRIOR = ["--composition", "prior", "--update-freq"]
# contexts enough for clusters
OFTEN = ["--reallocation-interval", "4", "--reallocation-at", "4", "--max-tokens", "600"]
SAVING = ["--save-interval-updates", "3"]  # the sums over an interval are half complete
TRAININGS = {
    "pytorch_ddp": (ARCH, "one", []),
    "legacy_ddp": (ARCH, "one", ["--ddp-backend", "legacy_ddp"]),
    "prior": ("lstm_kerbs", "one_prior", [*PRIOR, "1", "--find-unused-parameters"]),
    "clusters": ("gru_kerbs", "", [*OFTEN, *SAVING]),
}
UPDATES = 7
# dropout of two processes is not that of one
FLAGS = ["--dropout", "0.0", "--max-update", str(UPDATES), "--distributed-backend", "gloo"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return binarize(tmp_path_factory.mktemp("data"))


def two(data: Path, folder: Path, *flags: str, arch: str = ARCH) -> list[Run]:
    """The two processes of a training, each with a record of what it has."""
    port = free_port()
    return [
        run(data, folder, arch, *FLAGS, *flags, rank=rank, port=port, record=f"{folder}.{rank}")
        for rank in range(2)
    ]


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trainings by one process, by two as `TRAININGS` has them, one of these again
    with a stop after its first save, and one cut off."""
    folder = tmp_path_factory.mktemp("processes")
    runs = [
        run(data, folder / name, arch, *FLAGS, *flags, "2", record=f"{folder / name}.0")
        for name, arch, flags in (("one", ARCH, PRIOR[-1:]), ("one_prior", "lstm_kerbs", PRIOR))
    ]
    for name, (arch, _, flags) in TRAININGS.items():
        runs += two(data, folder / name, *flags, arch=arch)
    for stop in ("3", str(UPDATES)):
        flags = [*OFTEN, *SAVING, "--max-update", stop]
        runs += two(data, folder / "resumed", *flags, arch="gru_kerbs")
    cut = two(data, folder / "cut", *SAVING)
    cut[1]["kill"] = "before save 1"
    statuses = trainings([*runs, *cut])  # a hang ends here
    text = "\n".join(log.read_text() for log in folder.glob("*.log"))
    assert statuses == [0] * len(runs) + [1, -9], text[-6000:]
    return folder


def record(folder: Path, name: str, rank: int = 0) -> list[tuple[str, ...]]:
    """Of every update: its number, and digests of the allocation and of model and moments."""
    lines = (folder / f"{name}.{rank}").read_text().splitlines()
    return [tuple(line.split()) for line in lines]


@pytest.mark.parametrize("name", TRAININGS)
def test_both_processes_have_the_same_after_every_update(name: str, done: Path) -> None:
    first = record(done, name)
    assert record(done, name, 1) == first
    assert [line[0] for line in first] == [str(n + 1) for n in range(UPDATES)]
    allocations = [line[1] for line in first]
    if name == "clusters":  # the first process has clustered its contexts, and told the second
        (move,) = moves(done / "clusters.log")
        assert re.fullmatch(r"reallocation after 4 updates: [1-9]\d* senses placed .*", move)
        return
    # they move when the update after every second one begins
    assert [allocations[n] != allocations[n - 1] for n in range(1, UPDATES)] == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("name", [name for name, (_, one, _) in TRAININGS.items() if one])
def test_two_processes_train_as_one_does_with_twice_the_batches(name: str, done: Path) -> None:
    one = TRAININGS[name][1]
    assert [line[1] for line in record(done, name)] == [line[1] for line in record(done, one)]
    assert moves(done / f"{name}.log") == moves(done / f"{one}.log")
    found, expected = (load(done / each / "checkpoint_last.pt")["model"] for each in (name, one))
    for key, value in expected.items():
        if not key.endswith("._float_tensor"):  # fairseq leaves it uninitialized
            torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.parametrize("rank", range(2))
def test_two_processes_that_stop_in_an_interval_go_on_with_the_same_bits(
    rank: int, done: Path
) -> None:
    assert record(done, "resumed", rank) == record(done, "clusters", rank)


def test_a_process_ends_with_an_error_when_another_one_has_died(done: Path) -> None:
    # as the operating system words it: which of these depends on the moment of the death
    ends = r"Connection (closed|reset) by peer|Broken pipe|Socket Timeout|gloo.*error"
    assert re.search(ends, (done / "cut.log").read_text(), re.IGNORECASE)
    assert load(done / "cut" / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 3
    assert not list((done / "cut").glob("*.tmp"))


def test_torchrun_ends_all_when_one_is_killed(data: Path, tmp_path: Path) -> None:
    """The real commands; the second process is killed from outside after its fourth update."""
    command: list[Any] = [PROGRAMS / "torchrun", "--standalone", "--nproc_per_node", "2"]
    command += [PROGRAMS / "fairseq-train", data, *COMMON, "--arch", ARCH, *MODELS[ARCH], *FLAGS]
    command += ["--max-update", "100000", "--log-interval", "1", "--disable-validation"]
    command += ["--no-save"]
    pipe: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=os.environ | ENVIRONMENT, **pipe) as launcher:
        assert launcher.stdout is not None
        try:
            for line in launcher.stdout:
                if re.search(r"num_updates=4\b", line):
                    break
            workers = children(launcher.pid)
            assert sorted(workers) == ["0", "1"]
            os.kill(workers["1"], signal.SIGKILL)
            began = time.monotonic()
            rest = launcher.stdout.read()
            status = launcher.wait(60)
        finally:
            launcher.kill()
    assert status != 0
    assert time.monotonic() - began < 60
    assert "Signal 9 (SIGKILL)" in rest
    assert not Path(f"/proc/{workers['0']}").exists()


def children(parent: int) -> dict[str, int]:
    """Processes that a launcher has started, by rank."""
    found: dict[str, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(parent):
                variables = (folder / "environ").read_text().split("\0")
                ranks = [text[5:] for text in variables if text.startswith("RANK=")]
                found |= dict.fromkeys(ranks, int(folder.name))
    return found
