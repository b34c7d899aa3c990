"""What torch and numpy call differently from version to version: each with versions and reason.

No other module asks for a version of these.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairseq_kerbs import LOWEST
from fairseq_kerbs.utils.errors import UserError


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


VERSION = _numbers(torch.__version__)

for _name, _present in {"Python": sys.version_info[:2], "torch": VERSION}.items():
    if _present < _numbers(LOWEST[_name]):
        raise UserError(f"{_name} {'.'.join(map(str, _present))} is older than {LOWEST[_name]}.")

COMPILES = VERSION >= (2, 4)
"""Whether ``torch.compile`` may be used: ``torch.library.custom_op``, by which it takes the
likelihood as one operation, came with 2.4."""

OUT_OF_MEMORY: Any = ()
"""What an accelerator without memory raises: a class of its own since 1.13, renamed in 2.5; before,
a RuntimeError like any other, of which nothing is caught."""
if VERSION >= (1, 13):
    OUT_OF_MEMORY = torch.OutOfMemoryError if VERSION >= (2, 5) else torch.cuda.OutOfMemoryError


def is_compiling() -> bool:
    """Whether ``torch.compile`` or ``torch.export`` reads the code instead of running it.

    Before 2.3 nothing says so, and nothing here is compiled.
    """
    return VERSION >= (2, 3) and torch.compiler.is_compiling()


def autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype of autocast on a kind of device, None where it is off.

    Functions that take the device came with 2.4.
    """
    if VERSION >= (2, 4):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cpu":
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def assert_later(holds: torch.Tensor, text: str) -> None:
    """Fail on the accelerator if a scalar is false, without waiting for it.

    The text of the error came with 2.1.
    """
    if VERSION >= (2, 1):
        torch._assert_async(holds, text)
    else:
        torch._assert_async(holds)


def load(path: Path, **options: Any) -> Any:
    """``torch.load`` on the CPU, with options as far as this torch has them.

    ``weights_only`` came with 1.13 and ``mmap`` with 2.1. Earlier versions load all objects, and
    read the whole file into memory.
    """
    since = {"weights_only": (1, 13), "mmap": (2, 1)}
    known = {name: value for name, value in options.items() if since[name] <= VERSION}
    return torch.load(str(path), map_location="cpu", **known)  # 2.1 maps no Path


def load_plain(path: Path, plain: Sequence[Any]) -> Any:
    """:func:`load` of tensors and of the given classes alone.

    Instead of a class there may be a pair of it and the name that it has in the file.
    ``safe_globals`` came with 2.5, pairs in it with 2.6.
    """
    if VERSION < (2, 5):
        raise UserError(
            f"{path}: torch {torch.__version__} cannot read a checkpoint without running what it "
            "holds; add --trust-checkpoint if you trust its source, or take torch 2.5 or later"
        )
    single = [
        entry[0] if isinstance(entry, tuple) and VERSION < (2, 6) else entry for entry in plain
    ]
    with torch.serialization.safe_globals(single):
        return load(path, weights_only=True)


if not hasattr(np, "_core"):
    # where checkpoints of numpy 2 find the figures of --eval-bleu; before 1.26 there is no such
    # module (numpy._core itself stays away: Cython's modules would take it for numpy 2's)
    sys.modules["numpy._core.multiarray"] = np.core.multiarray  # type: ignore[attr-defined]
