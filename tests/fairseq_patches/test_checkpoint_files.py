"""Checkpoints that fairseq cannot read or write: one sentence, and nothing half-written."""

from __future__ import annotations

import fcntl
import os
import random
import resource
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

import fairseq_kerbs.models  # noqa: F401  (registers)
from fairseq_kerbs.fairseq_patches.checkpoint_files import take_folder
from fairseq_kerbs.utils.files import partial_name

STATE = {"model": {"weight": torch.zeros(10_000)}, "args": None, "cfg": None}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the system refuse to write more into a file, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_does_not_fit_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_last.pt"
    checkpoint_utils.torch_persistent_save(STATE, str(path))
    old = path.read_bytes()
    with largest_file(20_000), pytest.raises(SystemExit) as refused:
        checkpoint_utils.torch_persistent_save(STATE, str(path))
    assert f"fairseq_kerbs: error: {path} cannot be written (File too large)" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_copy_that_does_not_fit_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path, other = tmp_path / "checkpoint_1_1.pt", tmp_path / "checkpoint_last.pt"
    torch.save(STATE, path)
    other.write_bytes(b"the old one")
    with largest_file(20_000), pytest.raises(SystemExit) as refused:
        PathManager.copy(str(path), str(other), overwrite=True)
    assert f"fairseq_kerbs: error: {other} cannot be written (File too large)" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert other.read_bytes() == b"the old one"
    assert set(tmp_path.iterdir()) == {path, other}
    PathManager.copy(str(path), str(other), overwrite=True)
    assert other.read_bytes() == path.read_bytes()


def test_content_and_name_are_on_the_disk_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock_sync, stock_replace = os.fsync, os.replace
    done: list[str] = []

    def fsync(handle: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        stock_sync(handle)

    def replace(source: Path, target: Path) -> None:
        done.append("renamed")
        stock_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    first, second = tmp_path / "checkpoint1.pt", tmp_path / "checkpoint_last.pt"
    checkpoint_utils.torch_persistent_save(STATE, str(first))
    PathManager.copy(str(first), str(second), overwrite=True)
    names = [partial_name(path).name for path in (first, second)]
    assert done == [
        step for name in names for step in (name, "renamed", tmp_path.name)
    ]  # fmt: skip


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="a part of its path is a file"):
        checkpoint_utils.torch_persistent_save(STATE, str(tmp_path / "file" / "a.pt"))


def test_defects_of_the_program_keep_their_traceback(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="lambda"):
        checkpoint_utils.torch_persistent_save({"model": lambda: None}, str(tmp_path / "a.pt"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kept", [0, 500, 30_000])
def test_a_checkpoint_that_was_cut_off_is_named(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "checkpoint_last.pt"
    torch.save(STATE, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(SystemExit) as refused:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    assert f"{path} is no whole checkpoint" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_other_errors_of_reading_stay(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "none.pt"))


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_is_refused_or_means_nothing(tmp_path: Path, seed: int) -> None:
    """Wherever it is: in numbers, settings, the archive's contents, or between all these."""
    path = tmp_path / "checkpoint_last.pt"
    weights = {f"w{number}": torch.randn(50) for number in range(5)}
    history = [{"optimizer_name": "adam", "lr_scheduler_state": {}, "num_updates": 1}]
    torch.save({**STATE, "model": weights, "optimizer_history": history, "extra_state": {
        "train_iterator": {"epoch": 1}}}, path)  # fmt: skip
    whole, chance = path.read_bytes(), random.Random(seed)
    refused = harmless = 0
    for _ in range(250):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            found = checkpoint_utils.load_checkpoint_to_cpu(str(path))["model"]
        except SystemExit as ended:
            refused += str(ended).startswith(f"fairseq_kerbs: error: {path} is no whole checkpoint")
        else:
            harmless += all(torch.equal(found[name], weights[name]) for name in weights)
    assert refused + harmless == 250
    assert refused > 100


def test_an_entry_that_is_marked_as_a_folder_is_refused(tmp_path: Path) -> None:
    """A single bit, which checksums do not cover, has torch leave a tensor uninitialized."""
    path = tmp_path / "checkpoint_last.pt"
    torch.save(STATE, path)
    content = bytearray(path.read_bytes())
    content[content.rindex(b"data/0") - 8 - len("checkpoint_last/")] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(SystemExit, match="is no whole checkpoint"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_a_compressed_archive_is_refused_before_it_grows(tmp_path: Path) -> None:
    """torch compresses nothing; a small file could hold gigabytes."""
    path = tmp_path / "checkpoint_last.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/0", bytes(1 << 20))
    with pytest.raises(SystemExit, match="is no whole checkpoint"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_a_link_gives_way_to_the_file(tmp_path: Path) -> None:
    """Also one that leads to itself; what it led to stays."""
    (tmp_path / "new").write_text("new")
    (tmp_path / "real").write_text("real")
    for leads_to in ("real", "link"):
        for write in (
            lambda link: PathManager.copy(str(tmp_path / "new"), link, overwrite=True),
            lambda link: checkpoint_utils.torch_persistent_save(STATE, link),
        ):
            (link := tmp_path / "link").unlink(missing_ok=True)
            link.symlink_to(leads_to)
            write(str(link))
            assert not link.is_symlink()
            assert (tmp_path / "real").read_text() == "real"


def test_a_name_that_is_too_long_is_said(tmp_path: Path) -> None:
    (tmp_path / "new").write_text("new")
    with pytest.raises(SystemExit, match="cannot be written"):
        PathManager.copy(str(tmp_path / "new"), str(tmp_path / ("x" * 243)), overwrite=True)


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_checkpoint_from_before_checksums_loads(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "old.pt"
    history: Any = [{"optimizer": {}, "best_loss": 0}]
    whole: dict[str, object]
    whole = {"model": {}, "args": None, "optimizer_history": history, "extra_state": {}}
    torch.save(whole, path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)
    assert checkpoint_utils.load_checkpoint_to_cpu(str(path))["model"] == {}


def test_a_file_system_without_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    (left := tmp_path / ".partial-999999999-checkpoint_last.pt").touch()
    take_folder(tmp_path)
    assert "cannot be locked (No locks available)" in caplog.text
    assert left.exists()  # it may be another training's


def test_leftovers_of_dead_processes_alone_are_removed(tmp_path: Path) -> None:
    names = [f".partial-{os.getpid()}-checkpoint1.pt", ".partial-999999999-report.html", "mine.tmp"]
    for name in [*names, ".partial-999999999-checkpoint1.pt"]:
        (tmp_path / name).touch()
    take_folder(tmp_path)
    take_folder(tmp_path)  # a second training of the same process
    assert {path.name for path in tmp_path.iterdir()} == {*names, ".lock"}
