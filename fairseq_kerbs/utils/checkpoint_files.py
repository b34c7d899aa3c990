"""Names of fairseq's checkpoints, and checks of their files and parameters. No file is loaded."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_kerbs.utils.errors import UserError

if TYPE_CHECKING:  # commands that only look for a file need no torch
    from torch import Tensor

LAST = "checkpoint_last.pt"
"""The last checkpoint of a training, and the default of --restore-file."""

BEST = "checkpoint_best.pt"

NO_FILE = "none"
"""Value of --restore-file to begin anew although there is a last checkpoint."""


def with_suffix(names: str, suffix: str | None) -> str:
    """Names of checkpoints with fairseq's --checkpoint-suffix, one or several separated by ``:``.

    >>> with_suffix("checkpoint_last.pt", "-shard0")
    'checkpoint_last-shard0.pt'
    """
    return names.replace(".pt", f"{suffix or ''}.pt")


def is_remote(path: str) -> bool:
    """Tell whether a path names another machine's file, such as s3://, which fairseq may read."""
    return "://" in path


def check_whole(path: Path) -> None:
    """Raise a UserError if a checkpoint is truncated or a checksum is wrong.

    torch itself does not verify checksums. The checkpoint is not loaded.
    """
    try:
        with path.open("rb") as stream:
            if stream.read(1) == b"\x80":  # a pickle, by torch before 1.6, without checksums
                return
        with zipfile.ZipFile(path) as archive:
            # torch reads entries that are marked as folders (0x10) as empty, and reads compressed
            # ones, which can expand to gigabytes, but writes neither
            plain = all(
                not entry.external_attr & 0x10 and entry.compress_type == zipfile.ZIP_STORED
                for entry in archive.infolist()
            )
            whole = plain and archive.testzip() is None
    except PermissionError:
        raise UserError(f"{path} cannot be read (Permission denied)") from None
    except Exception:  # a damaged archive can cause any error
        whole = False
    if not whole:
        raise damaged(path)


def check_is_of_fairseq(path: Path) -> None:
    """Raise a UserError if a whole file of torch has no model of fairseq-train.

    Names of its entries are looked for in the pickle, which is not loaded.
    """
    if not zipfile.is_zipfile(path):  # a pickle, by torch before 1.6
        return
    content = _pickle_of(path)
    if b"model" not in content or not (b"cfg" in content or b"args" in content):
        raise UserError(f"{path} holds no model of fairseq-train; name one of its checkpoints")


def is_checkpoint(path: Path) -> bool:
    """Tell whether a file was written by torch 1.6 or later."""
    return bool(_pickle_of(path))


def _pickle_of(path: Path) -> bytes:
    """The pickle in a file of torch, which is not loaded; empty for other files."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
            return archive.read(pickles[0]) if pickles else b""
    except Exception:  # another file, or a damaged archive, which can cause any error
        return b""


def check_can_replace(path: Path, flag: str, *, by_model: bool = False) -> None:
    """Raise a UserError for an output file that is a checkpoint, or a file of binarized data.

    Args:
        path: path of the file, which need not exist.
        flag: flag or argument that names it.
        by_model: whether a model is written. It may replace one that 'convert' made, but no
            checkpoint of a training, which could then not be resumed.
    """
    if not path.is_file():
        return
    if is_checkpoint(path):
        trained = b"previous_training_time" in _pickle_of(path)  # fairseq's trainer writes it
        if trained or not by_model:
            what = "a checkpoint of a training" if by_model else "a checkpoint"
            raise UserError(f"{flag}: {path} is {what}; name another file")
    dictionaries = [*path.parent.glob("dict.txt"), *path.parent.glob("dict.*.txt")]
    if dictionaries and (path.suffix in (".bin", ".idx") or path in dictionaries):
        raise UserError(f"{flag}: {path} is a file of binarized data; name another file")


def check_checkpoint(path: Path, flag: str = "") -> None:
    """Raise a UserError unless a path is a whole checkpoint of fairseq-train.

    Args:
        path: path of the file.
        flag: flag that names it, for the message.
    """
    where = f"{flag} {path}" if flag else str(path)
    if path.is_dir():
        files = sorted(file.name for file in path.glob("*.pt"))
        best = [name for name in (BEST, LAST) if name in files]
        if not files:
            raise UserError(f"{where} is a folder without checkpoints; name a file, *.pt")
        raise UserError(f"{where} is a folder; name a file in it, {path / [*best, *files][0]}")
    if not path.is_file():
        name = f"{flag}: " if flag else ""
        raise UserError(
            f"{name}there is no checkpoint {path}; name a file that fairseq-train wrote"
        )
    check_whole(path)
    check_is_of_fairseq(path)


def not_finite(parameters: Mapping[str, Tensor]) -> str | None:
    """Name of the first parameter of a checkpoint that holds NaN or infinity, or None."""
    for name, value in parameters.items():
        # of these buffers fairseq uses the dtype alone, and leaves the value uninitialized
        if not (name.endswith("._float_tensor") or value.isfinite().all()):
            return name
    return None


def damaged(path: Path | str) -> UserError:
    """The error for a checkpoint that cannot be read."""
    return UserError(
        f"{path} is no whole checkpoint of fairseq-train (truncated, damaged, or another kind of "
        "file); take another copy or another checkpoint"
    )
