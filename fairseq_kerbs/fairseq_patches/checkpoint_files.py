"""fairseq's reading and writing of checkpoints, so that what is damaged is neither made nor used.

A file in which bits have changed is refused, whatever the model; a file is whole and on the disk
before it has its name; one training has a folder; what a disk refuses is said in one sentence.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from os.path import samestat
from pathlib import Path
from typing import Any, BinaryIO

import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from omegaconf import OmegaConf, open_dict

from fairseq_kerbs.fairseq_patches.registry import patched
from fairseq_kerbs.utils.checkpoint_file import check_whole, damaged
from fairseq_kerbs.utils.errors import ProgramEnd, UserError, system_refusal
from fairseq_kerbs.utils.files import PARTIAL, atomic_write_bytes

logger = logging.getLogger(__name__)

LOCK = ".lock"
_LEFT = re.compile(rf"{re.escape(PARTIAL)}(\d+)-.*\.pt")

_lock: int | None = None  # the open lock of the folder that this process trains in


@patched(checkpoint_utils, "load_checkpoint_to_cpu", "no checksum is looked at")
def load_checkpoint_to_cpu(stock: Any, path: str, *args: Any, **kwargs: Any) -> Any:
    """Refuse a damaged file."""
    try:
        if Path(path).is_file():  # and not in a remote store
            check_whole(Path(path))
        return stock(path, *args, **kwargs)
    except UserError as error:
        raise ProgramEnd(f"{error}.") from None
    except (RuntimeError, UnicodeDecodeError) as error:  # a name in the archive, too
        if isinstance(error, RuntimeError) and "PytorchStreamReader" not in str(error):
            raise
        raise ProgramEnd(f"{damaged(path)}.") from None


@patched(checkpoint_utils, "load_checkpoint_to_cpu", "architectures fill in flags of today")
def keep_decoding(
    stock: Any, path: str, arg_overrides: dict[str, Any] | None = None, *args: Any, **kwargs: Any
) -> Any:
    """Let a model of before --decoding-passes decode as it did then, unless it is overridden."""
    state = stock(path, arg_overrides, *args, **kwargs)
    model: Any = (state.get("cfg") or {}).get("model")
    passes = getattr(model, "composition_passes", None)
    if passes is not None and "decoding_passes" not in model:
        with open_dict(model) if OmegaConf.is_config(model) else nullcontext():
            model.decoding_passes = (arg_overrides or {}).get("decoding_passes", passes)
    return state


@patched(checkpoint_utils, "torch_persistent_save", "a half-written file would have the final name")
def torch_persistent_save(stock: Any, obj: Any, filename: str, async_write: bool = False) -> None:
    """Write under another name first."""
    if async_write or not PathManager.supports_rename(filename):
        stock(obj, filename, async_write=async_write)
        return
    with _whole_file(filename) as stream:
        torch.save(obj, stream)


@patched(PathManager, "copy", "a copy that is interrupted, or finds no room, ruins the old file")
def copy(stock: Any, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
    """Copy under another name first."""
    if not PathManager.supports_rename(dst_path):  # a remote store has its own ways
        return stock(src_path, dst_path, overwrite=overwrite)
    with Path(src_path).open("rb") as source, _whole_file(dst_path) as target:
        shutil.copyfileobj(source, target)
    return True


@contextmanager
def _whole_file(path: str) -> Iterator[BinaryIO]:
    try:
        with atomic_write_bytes(path) as stream:
            yield stream
    except UserError as error:
        raise ProgramEnd(
            f"{error}; the training goes on from its last whole checkpoint when it is started "
            "again."
        ) from None


@patched(checkpoint_utils, "verify_checkpoint_directory", "what a disk refuses is a traceback")
def verify_checkpoint_directory(stock: Any, save_dir: str) -> None:
    """Say what is wrong with a folder in one sentence."""
    try:
        Path(save_dir).mkdir(parents=True, exist_ok=True)  # before fairseq warns of it, too
        stock(save_dir)
    except OSError as error:
        raise ProgramEnd(f"--save-dir: {system_refusal(error, save_dir)}.") from None


@patched(checkpoint_utils, "load_checkpoint", "two trainings would share a folder")
def load_checkpoint(stock: Any, cfg: Any, trainer: Any, **arguments: Any) -> Any:
    """Lock the folder in the first process alone, before anything is read from it or written."""
    first = distributed_utils.is_master(trainer.cfg.distributed_training)
    if first and not cfg.no_save and PathManager.supports_rename(cfg.save_dir):
        take_folder(Path(cfg.save_dir))
    return stock(cfg, trainer, **arguments)


def take_folder(folder: Path) -> None:
    """Keep other trainings out of a folder as long as this process lives, and tidy it; a ProgramEnd
    if another one has it, or its lock cannot be opened.

    The lock is a record lock (POSIX): it ends with this process, the workers that it forks do not
    inherit it, and it holds between machines whose common file system has locks. A process trains
    in one folder at a time: the lock on an earlier one is given up.
    """
    global _lock
    file = folder / LOCK
    # to open and close the file once more would end a lock that this process has on it
    if _lock is None or not (file.exists() and samestat(os.fstat(_lock), file.stat())):
        earlier, _lock = _lock, None
        if earlier is not None:
            os.close(earlier)
        try:
            _lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise ProgramEnd(f"--save-dir: {system_refusal(error, file)}.") from None
    try:
        fcntl.lockf(_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        holder = os.pread(_lock, 200, 0).decode(errors="replace").strip()
        raise ProgramEnd(
            f"--save-dir {folder} is in use by another training ({holder or 'unknown process'}); "
            "wait for its end, or name another folder."
        ) from None
    except OSError as error:
        logger.warning(
            f"{folder} cannot be locked ({error.strerror}): nothing keeps another training from "
            "writing there at the same time"
        )
        return
    os.ftruncate(_lock, 0)
    os.pwrite(_lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    for left in folder.iterdir():
        of_process = _LEFT.fullmatch(left.name)
        if of_process and not Path("/proc", of_process[1]).exists():
            left.unlink(missing_ok=True)
