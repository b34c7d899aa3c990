"""fairseq's reading and writing of checkpoints, so that what is damaged is neither made nor used.

fairseq loads a checkpoint in which bits have changed, copies one under its final name, lets two
trainings write into one folder, and shows tracebacks for what a disk refuses. In a program with our
``--user-dir`` a file that has changed is refused, whatever the model, a file is whole and on the
disk before it has its name, one training has a folder, and what fails is said in one sentence.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import re
import socket
import sys
from os.path import samestat
from pathlib import Path
from typing import Any, NoReturn

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from fairseq_kerbs.checkpoints import check_whole, damaged
from fairseq_kerbs.models.config import fail
from fairseq_kerbs.utils.errors import UserError, refused_by_system, system_refusal
from fairseq_kerbs.utils.files import PARTIAL, atomic_write_bytes, partial_name, put_in_place

logger = logging.getLogger(__name__)

LOCK = ".lock"
_DONE = "_keeps_files_whole"  # marks what has been replaced
_LEFT = re.compile(rf"{re.escape(PARTIAL)}(\d+)-.*\.pt")

_lock: int | None = None  # the open lock of the folder that this process trains in


def keep_files_whole() -> None:
    """Replace fairseq's functions in the running program; a second call changes nothing."""
    if not hasattr(checkpoint_utils.load_checkpoint_to_cpu, _DONE):
        _check_before_reading()
        _write_under_another_name()
        _copy_under_another_name()
        _lock_before_training()


def _check_before_reading() -> None:
    stock = checkpoint_utils.load_checkpoint_to_cpu

    @functools.wraps(stock)
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> Any:
        if Path(path).is_file():  # and not in a remote store
            try:
                check_whole(Path(path))  # fairseq's reader looks at no checksum
            except UserError as error:
                fail(f"{error}.")
        try:
            return stock(path, *args, **kwargs)
        except (RuntimeError, UnicodeDecodeError) as error:  # a name in the archive, too
            if isinstance(error, RuntimeError) and "PytorchStreamReader" not in str(error):
                raise
            fail(f"{damaged(path)}.")

    setattr(load_checkpoint_to_cpu, _DONE, True)
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu


def _write_under_another_name() -> None:
    stock = checkpoint_utils.torch_persistent_save

    @functools.wraps(stock)
    def torch_persistent_save(obj: Any, filename: str, async_write: bool = False) -> None:
        if async_write or not PathManager.supports_rename(filename):
            stock(obj, filename, async_write=async_write)
            return
        try:
            with atomic_write_bytes(filename) as stream:
                torch.save(obj, stream)
        except UserError as error:
            _not_saved(error)

    checkpoint_utils.torch_persistent_save = torch_persistent_save


def _copy_under_another_name() -> None:
    """A process that is ended while it copies, or finds no room, leaves the old file whole."""
    stock = PathManager.copy

    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
        if not PathManager.supports_rename(dst_path):  # a remote store has its own ways
            return stock(src_path, dst_path, overwrite=overwrite)
        temporary = partial_name(Path(dst_path))
        try:
            copied = stock(src_path, str(temporary), overwrite=True)
            put_in_place(temporary, Path(dst_path))
        except OSError as error:
            if not refused_by_system(error):
                raise
            _not_saved(system_refusal(error, dst_path))
        finally:
            temporary.unlink(missing_ok=True)
        return copied

    PathManager.copy = staticmethod(copy)


def _not_saved(error: UserError) -> NoReturn:
    fail(f"{error}; the training goes on from its last whole checkpoint when it is started again.")


# ------------------------------------------------------------------ one training in one folder


def _lock_before_training() -> None:
    """fairseq's program tries its folder in the first process alone, before it does anything."""
    stock = checkpoint_utils.verify_checkpoint_directory

    @functools.wraps(stock)
    def verify_checkpoint_directory(save_dir: str) -> None:
        # fairseq hands on the folder alone; whether anything is saved, its caller knows
        settings = sys._getframe(1).f_locals.get("cfg")
        saving = settings is None or not settings.checkpoint.no_save
        try:
            if saving and PathManager.supports_rename(save_dir):
                take_folder(Path(save_dir))
            stock(save_dir)
        except OSError as error:
            fail(f"--save-dir: {system_refusal(error, save_dir)}.")

    checkpoint_utils.verify_checkpoint_directory = verify_checkpoint_directory


def take_folder(folder: Path) -> None:
    """Keep other trainings out of a folder as long as this process lives, and tidy it.

    The lock is a record lock (POSIX): it ends with this process, however that ends, and the workers
    that it forks do not inherit it, as they would one of flock's. It also holds between machines
    where their common file system has locks. A process trains in one folder at a time: the lock on
    an earlier one is given up.

    Raises:
        OSError: the folder cannot be made or written to.
        SystemExit: another training has it.
    """
    global _lock
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK
    # to open and close the file once more would end a lock that this process has on it
    if _lock is None or not (file.exists() and samestat(os.fstat(_lock), file.stat())):
        earlier, _lock = _lock, None
        if earlier is not None:
            os.close(earlier)
        _lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        holder = os.pread(_lock, 200, 0).decode(errors="replace").strip()
        fail(
            f"--save-dir {folder} is in use by another training ({holder or 'unknown process'}); "
            "wait for its end, or name another folder."
        )
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
