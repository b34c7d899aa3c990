"""One training has a folder, also while it saves, dies, or finds no room: real programs."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from fairseq_kerbs.fairseq_patches.checkpoint_files import take_folder
from fairseq_kerbs.utils.checkpoint_file import check_whole
from tests.commands.test_bad_input import mounted, read_only
from tests.fairseq_patches.test_resume import run
from tests.helpers import HANGS, tiny_checkpoint
from tests.helpers.commands import ENVIRONMENT, PROGRAMS
from tests.helpers.training_runs import binarize, trainings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return binarize(tmp_path_factory.mktemp("data"))


def test_one_training_has_the_folder_until_it_is_killed(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "save"
    last, log = folder / "checkpoint_last.pt", tmp_path / "second.log"
    flags = ["--save-interval-updates", "1", "--keep-interval-updates", "1"]
    flags += ["--disable-validation"]
    unsaved = ["--no-save", "--max-update", "1", "--restore-file", "none"]
    first = run(data, folder, "lstm_kerbs", *flags, "--max-update", "1000000")["arguments"]
    holder = subprocess.Popen(
        [PROGRAMS / "fairseq-train", *first],
        env=os.environ | ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + HANGS
        while not last.exists():
            assert holder.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        second = run(data, folder, "lstm_kerbs", *flags, log=str(log))
        assert trainings([second, run(data, folder, "lstm_kerbs", *flags, *unsaved)]) == [1, 0]
        assert holder.poll() is None
    finally:
        holder.kill()
        holder.wait()
    said = log.read_text().splitlines()[-1]
    assert said.startswith(f"fairseq_kerbs: error: --save-dir {folder} is in use by another")
    assert f"(process {holder.pid} on " in said
    check_whole(last)
    (left := folder / f".partial-{holder.pid}-checkpoint_last.pt").write_text("half")
    assert trainings([run(data, folder, "lstm_kerbs", *flags, "--max-update", "1")]) == [0]
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
