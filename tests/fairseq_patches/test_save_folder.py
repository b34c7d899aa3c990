"""One training has a folder, also while it saves, dies, or finds no room: real programs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairseq_kerbs.fairseq_patches.checkpoint_files import take_folder
from fairseq_kerbs.utils.checkpoint_file import check_whole
from tests.commands.test_bad_input import mounted, read_only
from tests.helpers import HANGS, tiny_checkpoint
from tests.helpers.training_runs import ROOT, binarize

pytestmark = pytest.mark.slow

FLAGS = [
    *("--user-dir", str(ROOT / "fairseq_kerbs"), "--task", "translation", "--cpu"),
    *("--arch", "lstm_kerbs", "--hidden-size", "6", "--embed-dim", "4"),
    *("--criterion", "kerbs_cross_entropy", "--optimizer", "adam", "--lr", "0.01"),
    *("--max-tokens", "60", "--disable-validation", "--log-format", "none"),
    *("--save-interval-updates", "1", "--keep-interval-updates", "1", "--num-workers", "2"),
]
Training = subprocess.Popen[str]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return binarize(tmp_path_factory.mktemp("data"))


def start(data: Path, folder: Path, *flags: str) -> Training:
    command = [sys.executable, "-m", "fairseq_cli.train", str(data), "--save-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *FLAGS, *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def wait_for(folder: Path, running: list[Training]) -> list[Training]:
    """Wait until a training has saved and all others have ended; those that run."""
    end = time.monotonic() + HANGS
    last = folder / "checkpoint_last.pt"
    while time.monotonic() < end:
        if last.exists():
            check_whole(last)
        left = [one for one in running if one.poll() is None]
        if len(left) <= 1 and last.exists():
            return left
        time.sleep(0.05)
    raise AssertionError("no training has saved, or two go on")


def test_one_of_two_trainings_has_the_folder_until_it_is_killed(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "save"
    both = [start(data, folder) for _ in range(2)]
    try:
        (holder,) = wait_for(folder, both)
        (other,) = (one for one in both if one is not holder)
        said = (other.stderr.read() if other.stderr else "").splitlines()[-1]
        assert other.returncode == 1
        assert said.startswith(f"fairseq_kerbs: error: --save-dir {folder} is in use by another")
        assert f"process {holder.pid} on " in said
        unsaved = start(data, folder, "--no-save", "--max-update", "1", "--reset-dataloader",
                        "--restore-file", "none")  # fmt: skip
        assert unsaved.wait(HANGS) == 0
        assert holder.poll() is None
    finally:
        for one in both:
            one.kill()
            one.wait()
    (left := folder / f".partial-{holder.pid}-checkpoint_last.pt").write_text("half")
    check_whole(folder / "checkpoint_last.pt")
    again = start(data, folder, "--max-update", "1")  # there is nothing left to do
    assert again.wait(HANGS) == 0
    assert not left.exists()


def refusal(data: Path, folder: Path) -> str:
    with pytest.raises(SystemExit) as refused:
        tiny_checkpoint.fairseq_train(data, "--save-dir", folder, "--save-interval-updates", 1)
    take_folder(folder.parent)  # gives up the lock, which would keep the disk in use
    return str(refused.value)


def test_a_folder_that_is_read_only_is_named(data: Path, tmp_path: Path) -> None:
    with read_only(tmp_path / "disk"):
        said = refusal(data, tmp_path / "disk")
    assert said.startswith(f"fairseq_kerbs: error: --save-dir: {tmp_path / 'disk'} cannot be writ")
    assert "Read-only file system" in said
    assert "\n" not in said


def test_a_disk_with_room_for_one_checkpoint_alone(data: Path, tmp_path: Path) -> None:
    """It is full while the first is copied to its second name."""
    tiny_checkpoint.fairseq_train(data, "--save-dir", tmp_path / "save")
    size = (tmp_path / "save" / "checkpoint_last.pt").stat().st_size
    disk = tmp_path / "disk"
    with mounted(disk, f"{size * 3 // 2048}k"):
        said = refusal(data, disk)
        (saved, lock) = sorted(disk.iterdir(), reverse=True)
        assert (saved.name, lock.name) == ("checkpoint_1_1.pt", ".lock")
        check_whole(saved)
    assert f"{disk / 'checkpoint_last.pt'} cannot be written (No space left on device)" in said
    assert "\n" not in said
