"""An interrupted training ends with the same bits as an undisturbed one, also of two processes."""

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
from tests.helpers.resumable_trainings import COMMON, MODELS, load, run
from tests.helpers.slurm import free_port
from tests.helpers.training_runs import Run, trainings

pytestmark = pytest.mark.slow

HALF = 6
WHOLE = 12
EVERY = 3  # updates; a checkpoint after every third
SCHEDULE = ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4"]
KILLS = {"lstm_kerbs": ["before save 2"], "transformer_kerbs": ["save 2", "copy checkpoint_last"]}
KILLS["gru_kerbs"] = []
PLATEAU = ["--lr-scheduler", "reduce_lr_on_plateau", "--lr-threshold", "0.99", "--lr-shrink", "0.5"]
SAVING = ["--save-interval-updates", str(EVERY)]


def assert_same(found: Any, expected: Any, name: str = "") -> int:
    """Same bits in all that a training goes on from; returns the number of tensors."""
    if torch.is_tensor(expected):
        if not name.endswith("._float_tensor"):  # fairseq leaves it uninitialized
            assert torch.equal(found, expected), name
        return 1
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), name
        return sum(assert_same(found[key], expected[key], f"{name}/{key}") for key in expected)
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected), name
        pairs = zip(found, expected, strict=True)
        return sum(assert_same(one, other, name) for one, other in pairs)
    assert found == expected, name
    return 0


def what_lasts(path: Path) -> dict[str, Any]:
    """All of a checkpoint but flags and times."""
    state = load(path)
    extra = state["extra_state"]
    kept = {name: extra[name] for name in ("train_iterator", "val_loss", "best") if name in extra}
    names = ("model", "last_optimizer_state")
    history = state["optimizer_history"][-1]  # the others name earlier starts
    return {name: state[name] for name in names} | {"extra": kept, "history": history}


def moves(log: Path) -> list[str]:
    return re.findall(r"reallocation after .*", log.read_text())


def loaded(folder: Path) -> list[int]:
    """Numbers of updates that a training went on from."""
    text = folder.with_suffix(".log").read_text()
    return [int(done) for done in re.findall(r"Loaded checkpoint .* @ (\d+) updates", text)]


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all trainings: of each architecture straight, resumed and killed."""
    folder = tmp_path_factory.mktemp("resume")
    runs: list[Run] = []
    for arch, kills in KILLS.items():
        (folder / arch).mkdir()
        plan: list[Any] = [("straight", WHOLE, {}), ("resumed", HALF, {}), ("resumed", WHOLE, {})]
        plan += [("killed", WHOLE, {"kill": kill}) for kill in kills]
        plan += [("killed", WHOLE, {})] if kills else []
        for name, updates, more in plan:
            flags = [*SCHEDULE, *SAVING, "--max-update", str(updates)]
            runs.append(run(data, folder / arch / name, arch, *flags, **more))
    flags = [*PLATEAU, "--no-epoch-checkpoints", "--max-epoch"]
    for name, epochs in (("plateau", "3"), ("plateau_resumed", "2"), ("plateau_resumed", "3")):
        runs.append(run(data, folder / name, "transformer_kerbs", *flags, epochs))
    expected = [-9 if "kill" in each else 0 for each in runs]
    found = trainings(runs)
    assert found == expected, "\n".join(log.read_text() for log in folder.rglob("*.log"))
    return folder


@pytest.mark.parametrize("arch", MODELS)
def test_every_interruption_leads_to_the_same_bits(arch: str, done: Path) -> None:
    straight, resumed, killed = (done / arch / name for name in ("straight", "resumed", "killed"))
    middle = load(straight / "checkpoint_1_3.pt")
    assert middle["extra_state"]["train_iterator"]["iterations_in_epoch"] > 0
    made = moves(straight.with_suffix(".log"))
    if arch == "gru_kerbs":
        assert all(re.search(r"[1-9]\d* senses placed on clusters", move) for move in made)
        assert "decoder.output.sample_kept" in middle["model"]
        assert made
    else:  # senses moved whenever an interval had ended, if an update followed
        assert len(made) == WHOLE // 2 - 1
    assert loaded(resumed) == [HALF]
    # killed before a save, in the middle of it or of a copy: always at 6
    assert not KILLS[arch] or loaded(killed) == [EVERY] * len(KILLS[arch])
    files = sorted(path.name for path in straight.glob("*.pt"))
    assert len(files) > 4
    for name in files:
        expected = what_lasts(straight / name)
        assert assert_same(what_lasts(resumed / name), expected) > 40
        if KILLS[arch]:
            assert_same(what_lasts(killed / name), expected)


def test_the_schedule_hears_of_an_epoch_that_ended_with_the_training(done: Path) -> None:
    """Every epoch after the first counts as a plateau, so the rate of the third is halved."""
    expected = what_lasts(done / "plateau" / "checkpoint_last.pt")
    found = what_lasts(done / "plateau_resumed" / "checkpoint_last.pt")
    for state in (found, expected):
        assert state["last_optimizer_state"]["param_groups"][0]["lr"] == 0.005
        state["history"]["lr_scheduler_state"].pop("last_epoch")  # counted, and never looked at
    assert_same(found, expected)


ARCH = "transformer_kerbs"
PRIOR = ["--composition", "prior", "--update-freq"]
# contexts enough for clusters
OFTEN = ["--reallocation-interval", "4", "--reallocation-at", "4", "--max-tokens", "600"]
TRAININGS = {
    "pytorch_ddp": (ARCH, "one", []),
    "legacy_ddp": (ARCH, "one", ["--ddp-backend", "legacy_ddp"]),
    "prior": ("lstm_kerbs", "one_prior", [*PRIOR, "1", "--find-unused-parameters"]),
    "clusters": ("gru_kerbs", "", [*OFTEN, *SAVING]),
}
UPDATES = 7
# dropout of two processes is not that of one
FLAGS = ["--dropout", "0.0", "--max-update", str(UPDATES), "--distributed-backend", "gloo"]


def two(data: Path, folder: Path, *flags: str, arch: str = ARCH) -> list[Run]:
    """The two processes of a training, each with a record of what it has."""
    port = free_port()
    return [
        run(data, folder, arch, *FLAGS, *flags, rank=rank, port=port, record=f"{folder}.{rank}")
        for rank in range(2)
    ]


@pytest.fixture(scope="module")
def both(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trainings by one process, by two, one of these again with a stop, and one cut off."""
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
    return [tuple(line.split()) for line in (folder / f"{name}.{rank}").read_text().splitlines()]


@pytest.mark.parametrize("name", TRAININGS)
def test_both_processes_have_the_same_after_every_update(name: str, both: Path) -> None:
    first = record(both, name)
    assert record(both, name, 1) == first
    assert [line[0] for line in first] == [str(n + 1) for n in range(UPDATES)]
    allocations = [line[1] for line in first]
    if name == "clusters":  # the first process has clustered its contexts, and told the second
        (move,) = moves(both / "clusters.log")
        assert re.fullmatch(r"reallocation after 4 updates: [1-9]\d* senses placed .*", move)
        return
    # they move when the update after every second one begins
    assert [allocations[n] != allocations[n - 1] for n in range(1, UPDATES)] == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("name", [name for name, (_, one, _) in TRAININGS.items() if one])
def test_two_processes_train_as_one_does_with_twice_the_batches(name: str, both: Path) -> None:
    one = TRAININGS[name][1]
    assert [line[1] for line in record(both, name)] == [line[1] for line in record(both, one)]
    assert moves(both / f"{name}.log") == moves(both / f"{one}.log")
    found, expected = (load(both / each / "checkpoint_last.pt")["model"] for each in (name, one))
    for key, value in expected.items():
        if not key.endswith("._float_tensor"):  # fairseq leaves it uninitialized
            torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.parametrize("rank", range(2))
def test_two_processes_stopped_in_an_interval_go_on_exactly(rank: int, both: Path) -> None:
    assert record(both, "resumed", rank) == record(both, "clusters", rank)


def test_a_process_ends_with_an_error_when_another_one_has_died(both: Path) -> None:
    # as the operating system words it: which of these depends on the moment of the death
    ends = r"Connection (closed|reset) by peer|Broken pipe|Socket Timeout|gloo.*error"
    assert re.search(ends, (both / "cut.log").read_text(), re.IGNORECASE)
    assert load(both / "cut" / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 3
    assert not list((both / "cut").glob("*.tmp"))


def test_torchrun_ends_all_when_one_is_killed(data: Path) -> None:
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
