"""fairseq's reading and writing of checkpoints, with one sentence where a file or a disk fails.

fairseq shows a traceback for a checkpoint that was cut off, and several for a disk that is full.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from fairseq_kerbs.checkpoints import check_whole
from fairseq_kerbs.errors import UserError, system_cause, system_refusal
from fairseq_kerbs.models.options import fail

_DONE = "_says_what_failed"  # marks what has been replaced


def say_what_failed() -> None:
    """Replace both functions in the running program; a second call changes nothing."""
    if not hasattr(checkpoint_utils.load_checkpoint_to_cpu, _DONE):
        _read_with_a_sentence()
        _write_with_a_sentence()


def _read_with_a_sentence() -> None:
    stock = checkpoint_utils.load_checkpoint_to_cpu

    @functools.wraps(stock)
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return stock(path, *args, **kwargs)
        except Exception:
            file = Path(path)
            if file.is_file():  # and not in a remote store
                try:
                    check_whole(file)
                except UserError as error:
                    fail(f"{error}.")
            raise

    setattr(load_checkpoint_to_cpu, _DONE, True)
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu


def _write_with_a_sentence() -> None:
    stock = checkpoint_utils.torch_persistent_save

    @functools.wraps(stock)
    def torch_persistent_save(obj: Any, filename: str, async_write: bool = False) -> None:
        if async_write or not PathManager.supports_rename(filename):
            stock(obj, filename, async_write=async_write)
            return
        temporary = Path(f"{filename}.tmp")
        try:
            with temporary.open("wb") as stream:
                torch.save(obj, stream)
            temporary.replace(filename)
        except Exception as error:
            with suppress(OSError):
                temporary.unlink()
            refusal = error if isinstance(error, OSError) else system_cause(error)
            if refusal is None:
                raise
            fail(
                f"{system_refusal(refusal, filename)}; the training goes on from its last whole "
                "checkpoint when it is started again."
            )

    checkpoint_utils.torch_persistent_save = torch_persistent_save
