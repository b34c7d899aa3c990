"""One training has a folder, also while it saves, dies, or finds no room: real programs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairseq_kerbs.fairseq_patches.checkpoint_files import take_folder
from fairseq_kerbs.utils.checkpoint_file import check_whole
from tests.commands.test_bad_input import mounted, read_only
from tests.fairseq_patches.test_resume import run
from tests.helpers import tiny_checkpoint
from tests.helpers.training_runs import binarize, trainings

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return binarize(tmp_path_factory.mktemp("data"))


def test_one_training_has_the_folder_until_it_is_killed(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "save"
    last = folder / "checkpoint_last.pt"
    flags = ["--save-interval-updates", "1", "--keep-interval-updates", "1"]
    flags += ["--disable-validation"]
    unsaved = ["--no-save", "--max-update", "1", "--restore-file", "none"]
    runs = [
        run(data, folder, "lstm_kerbs", *flags),
        run(data, folder, "lstm_kerbs", *flags, beside=str(last), log=str(tmp_path / "second.log")),
        run(data, folder, "lstm_kerbs", *flags, *unsaved, beside=str(last)),
        run(data, folder, "lstm_kerbs", *flags, "--max-update", "1"),  # nothing is left to do
    ]
    assert trainings(runs, tmp_path) == [-9, 1, 0, 0]
    said = (tmp_path / "second.log").read_text().splitlines()[-1]
    assert said.startswith(f"fairseq_kerbs: error: --save-dir {folder} is in use by another")
    assert re.search(r"\(process \d+ on .+\); wait for its end", said)
    check_whole(last)


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
