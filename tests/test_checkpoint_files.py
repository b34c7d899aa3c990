"""Checkpoints that fairseq cannot read or write: one sentence, and nothing half-written."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

import fairseq_kerbs.models  # noqa: F401  (registers)

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
