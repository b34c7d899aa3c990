"""Names of checkpoints, and files that are none."""

import zipfile
from pathlib import Path

import pytest
import torch

from fairseq_kerbs.utils.checkpoint_files import check_checkpoint, check_whole, with_suffix
from fairseq_kerbs.utils.errors import UserError

STATE = {"model": {"weight": torch.zeros(10_000)}, "args": None, "cfg": None}


def test_archives_that_torch_does_not_write_are_refused(tmp_path: Path) -> None:
    """An entry that a bit marks as a folder leaves a tensor uninitialized; a packed one grows."""
    folder = tmp_path / "folder.pt"
    packed = tmp_path / "packed.pt"
    torch.save(STATE, folder)
    content = bytearray(folder.read_bytes())
    content[content.rindex(b"data/0") - 8 - len("folder/")] ^= 0x10
    folder.write_bytes(content)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/0", bytes(1 << 20))
    for path in (folder, packed):
        with pytest.raises(UserError, match=f"{path} is no whole checkpoint"):
            check_whole(path)


def test_a_suffix_is_before_the_ending_of_every_name() -> None:
    assert with_suffix("a/checkpoint_last.pt:b.pt", "-shard0") == (
        "a/checkpoint_last-shard0.pt:b-shard0.pt"
    )
    assert with_suffix("a.pt", None) == with_suffix("a.pt", "") == "a.pt"


def test_of_a_folder_the_best_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder without checkpoints"):
        check_checkpoint(tmp_path)
    for name in ("checkpoint1.pt", "checkpoint_last.pt", "checkpoint_best.pt"):
        (tmp_path / name).touch()
        with pytest.raises(UserError, match=f"--path {tmp_path} is a folder; .*/{name}$"):
            check_checkpoint(tmp_path, "--path")
    with pytest.raises(UserError, match=r"--path: there is no checkpoint .*none\.pt; name"):
        check_checkpoint(tmp_path / "none.pt", "--path")
