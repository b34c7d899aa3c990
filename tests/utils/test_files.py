"""Whole checkpoints, and the lock of a folder."""

import fcntl
import zipfile
from pathlib import Path
from unittest import mock

import pytest
import torch

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import check_whole, lock_folder
from tests.helpers.cli import Log

STATE = {"model": {"weight": torch.zeros(10_000)}, "args": None, "cfg": None}


def test_archives_that_torch_does_not_write_are_refused(tmp_path: Path) -> None:
    """An entry that a bit marks as a folder leaves a tensor uninitialized; a packed one grows."""
    folder, packed = tmp_path / "folder.pt", tmp_path / "packed.pt"
    torch.save(STATE, folder)
    content = bytearray(folder.read_bytes())
    content[content.rindex(b"data/0") - 8 - len("folder/")] ^= 0x10
    folder.write_bytes(content)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/0", bytes(1 << 20))
    for path in (folder, packed):
        with pytest.raises(UserError, match=f"{path} is no whole checkpoint"):
            check_whole(path)


def test_a_file_system_without_locks_is_said(tmp_path: Path, caplog: Log) -> None:
    with mock.patch.object(fcntl, "lockf", side_effect=OSError(37, "No locks available")):
        lock_folder(tmp_path, "").close()
    assert "cannot be locked (No locks available)" in caplog.text
