"""Files of checkpoints, read without running anything that they hold.

To load a pickle is to run whatever program its maker put into it. So commands that only look at a
model load tensors and plain settings alone, unless the user says that a file is to be trusted.
"""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.errors import UserError, refused_by_system, system_refusal

TRUST_FLAG = "--trust-checkpoint"

_OBJECT = re.compile(r"(?:GLOBAL|class) ([\w.]+)")  # in torch's message on what it refuses


def read_file(path: Path, trust: bool = False) -> Any:
    """What a file of ``torch.save`` holds, on the CPU; a UserError if it is missing, damaged, or
    (without ``trust``) holds objects that run code when they are loaded."""
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}; name a file that fairseq-train wrote")
    import torch
    from torch.serialization import safe_globals

    check_whole(path)
    try:
        with safe_globals(_plain_types()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what is refused below
            return torch.load(path, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError as error:
        found = _OBJECT.search(str(error))
        if trust or not (found or zipfile.is_zipfile(path)):
            raise damaged(path) from None
        raise UserError(
            f"{path} holds more than tensors and settings ({found[1] if found else 'objects'}), "
            f"which could run a program when loaded; if you trust its maker, add {TRUST_FLAG}"
        ) from None
    except Exception:  # whatever a damaged file, or another program's, makes of the reader
        raise damaged(path) from None


def _plain_types() -> list[Any]:
    """What fairseq's checkpoints hold besides tensors and built-in types; none of it runs code."""
    import numpy as np

    # validation figures of --eval-bleu are arrays; numpy 2 has moved what rebuilds them
    arrays = np._core.multiarray  # type: ignore[attr-defined]
    rebuilding = [
        (getattr(arrays, name), f"numpy.{core}.multiarray.{name}")
        for name in ("_reconstruct", "scalar")
        for core in ("_core", "core")
    ]
    numbers = [type(np.dtype(kind)) for kind in ("int64", "int32", "float64", "float32", "bool")]
    return [argparse.Namespace, np.ndarray, np.dtype, *rebuilding, *numbers]


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
