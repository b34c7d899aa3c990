"""Whether a file of a checkpoint is whole; torch was built without looking at its checksums."""

from __future__ import annotations

import zipfile
from pathlib import Path

from fairseq_kerbs.utils.errors import UserError, refused_by_system, system_refusal


def check_whole(path: Path) -> None:
    """Raise a UserError, without loading it, if a checkpoint was cut off or a checksum is wrong."""
    try:
        with path.open("rb") as stream:
            if stream.read(1) == b"\x80":  # pickle of a torch before 1.6: has no checksums
                return
        with zipfile.ZipFile(path) as archive:
            # torch reads nothing of an entry that is marked as a folder (0x10), and compresses none
            odd = any(
                entry.external_attr & 0x10 or entry.compress_type != zipfile.ZIP_STORED
                for entry in archive.infolist()
            )
            sound = not odd and archive.testzip() is None
    except Exception as error:  # of every kind, where the archive's list of contents is damaged
        if refused_by_system(error):
            raise system_refusal(error, path, "read") from None
        sound = False
    if not sound:
        raise damaged(path)


def damaged(path: Path | str) -> UserError:
    """What is said of a checkpoint that cannot be read."""
    return UserError(
        f"{path} is no whole checkpoint of fairseq-train (cut off, damaged, or another kind of "
        "file); take another copy or another checkpoint"
    )
