"""The backend of a CPU: each direction in one sweep, by ``csrc/passes.c``.

The library is compiled when the package is installed, or at first use, and called through ctypes.
It runs on the threads of the OpenMP runtime that torch has loaded, as many as
``torch.get_num_threads()`` says. Where it cannot be compiled, :func:`library` says so once and the
classes of :mod:`.backends.closed_forms` do the work.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
from pathlib import Path

import torch
from torch import Tensor

from fairseq_kerbs.kernels import InnerProductKernel, KerbsKernel
from fairseq_kerbs.likelihood.backends import closed_forms, eager
from fairseq_kerbs.likelihood.backends.compiler import cached_library

logger = logging.getLogger(__name__)

MOST_SENSES = 16
"""Senses of one word that csrc/passes.c has room for, where it goes word by word."""

TARGETS = ("best", "plain", "avx2", "avx512")
"""Instruction sets that csrc/passes.c is compiled for; the first is the best that is there."""

_FORWARD, _FORWARD_WORDS, _BACKWARD = range(3)  # as in passes.c
_PREPARED = ("inverse_norm", "minus_theta", "radius", "gain", "curved")
_SUMS = ("weighted", "bent", "x", "h_norm", "peak", "weight", "uniform", "most", "sum", "words")
_POINTERS = (*_PREPARED, *_SUMS, "along_h", "result", "table", "count")
_SIZES = ("size", "tokens", "width", "stride", "threads")


class _Chunk(ctypes.Structure):
    """Same fields, in the same order, as ``Chunk`` in csrc/passes.c."""

    _fields_ = [
        *[(name, ctypes.c_void_p) for name in _POINTERS],
        *[(name, ctypes.c_size_t) for name in _SIZES],
        ("kerbs", ctypes.c_int32),
    ]


class Library:
    """The compiled passes, by default with the best instructions of this processor.

    Raises:
        OSError, AttributeError: the file is no such library, or torch is without OpenMP.
        ValueError: this processor lacks the instructions of ``target``, one of :data:`TARGETS`.
    """

    def __init__(self, path: Path, target: str = "best") -> None:
        self.path, self._target = path, TARGETS.index(target)
        library = ctypes.CDLL(str(path))
        # named anew when _Chunk changes: a library from before is refused, and not called
        self._run = library.kerbs_run_pass
        self._run.restype = None
        if not library.kerbs_has_target(self._target):
            raise ValueError(f"this processor has no {target}")
        # torch's own OpenMP runtime is among the libraries that its extension module has loaded
        torch_library = ctypes.CDLL(torch._C.__file__)
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        self._entries = [
            ctypes.cast(getattr(torch_library, name), ctypes.c_void_p) for name in names
        ]

    def run(self, which: int, chunk: _Chunk) -> None:
        """Run one pass over a chunk."""
        self._run(which, self._target, ctypes.byref(chunk), *self._entries)


@functools.cache
def library() -> Library | None:
    """The compiled library, if need be compiled now, or None with a warning in the log."""
    for path in sorted(Path(__file__).parent.glob("_passes*.so")):
        try:
            return Library(path)
        except (OSError, AttributeError) as error:
            logger.warning("%s cannot be used (%s): install fairseq_kerbs again.", path, error)
    try:
        return Library(cached_library())
    except (OSError, AttributeError) as error:
        logger.warning(
            "The compiled passes are not there (%s), so the likelihood takes about 1.5 times as "
            "long on a CPU. A C compiler, a cache folder that only you can write to (in "
            "$XDG_CACHE_HOME, or ~/.cache) and a torch with OpenMP mend this at the next start.",
            error,
        )
    return None


def enabled() -> bool:
    """Whether the compiled passes are there, and not switched off by FAIRSEQ_KERBS_FUSED=0."""
    return os.environ.get("FAIRSEQ_KERBS_FUSED", "1") != "0" and library() is not None


class _CpuBackend(eager.Backend):
    """Mixin: the passes of csrc/passes.c in place of torch's."""

    has_threads, buffers = False, 1
    cpu_buffer_bytes = 24 << 20  # products want many tokens; this still fits the last cache

    def _run(self, which: int, x: Tensor, tensors: dict[str, Tensor]) -> None:
        assert x.is_contiguous()
        found = library()
        assert found is not None
        chunk = _Chunk(size=x.shape[0], tokens=x.shape[1], threads=torch.get_num_threads())
        if isinstance(self, closed_forms.KerbsBackend):
            chunk.kerbs = 1
            tensors |= {name: getattr(self, name) for name in _PREPARED}
        if which == _FORWARD_WORDS or "uniform" in tensors:  # word by word
            tensors["table"], tensors["count"] = self._words
            chunk.size, chunk.width = self._words[0].shape
        if "result" in tensors:
            chunk.stride = tensors["result"].stride(0)
        for name, tensor in {"x": x, **tensors}.items():
            assert tensor.stride(-1) == 1 or tensor.numel() <= 1
            setattr(chunk, name, tensor.data_ptr())
        found.run(which, chunk)

    @functools.cached_property
    def _words(self) -> tuple[Tensor, Tensor]:
        return self.table.senses.contiguous(), self.table.mask.sum(1)

    def _sweep(
        self, which: int, x: Tensor, h_norm: Tensor, **out: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Level of the logits (to base 2), sum of exponentials relative to it, Σ of logsumexps."""
        shape = (torch.get_num_threads(), x.shape[1])
        most = torch.full(shape, -math.inf)
        total, words = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
        tensors = {"h_norm": h_norm, "most": most, "sum": total, "words": words}
        self._run(which, x, tensors | out)
        peak = most.amax(0)
        # a thread without senses: −∞ with sum 0
        return peak, (total * (most.double() - peak).exp2()).sum(0), words.sum(0) * math.log(2.0)

    def forward(
        self, x: Tensor, h_norm: Tensor, target: Tensor, smoothing: eager.Smoothing
    ) -> eager.Saved:
        smooth = smoothing.uniform_weight != 0.0
        peak, total, words = self._sweep(_FORWARD_WORDS if smooth else _FORWARD, x, h_norm)
        normalizer = peak.double() * math.log(2.0) + total.log()  # float64
        # the words' logsumexps, as many as there are words, cancel all but the last digits
        uniform = (self.table.senses.shape[0] * normalizer - words).float() if smooth else None
        own = self._target(x, h_norm, target)
        # G from these two is nearer than from the rounded normalizer
        return eager.Saved(x, h_norm, normalizer.float(), uniform, own, smoothing, (peak, total))

    def backward(self, saved: eager.Saved, scale: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        x, (peak, total), smoothing = saved.x, saved.kept, saved.smoothing
        along_h = torch.zeros(torch.get_num_threads(), x.shape[1], dtype=torch.float64)
        tensors = {"h_norm": saved.h_norm, "peak": peak, "along_h": along_h}
        tensors |= {"weight": (scale * smoothing.total / total).float()}
        if saved.uniform_nll is not None:
            tensors["uniform"] = scale * smoothing.uniform_weight
        tensors |= {"weighted": sums[0], "bent": sums[1]}
        self._run(_BACKWARD, x, tensors)
        return x, along_h.sum(0).float() + self._add_target(x, saved, scale, sums)

    def log_probs(self, x: Tensor, h_norm: Tensor, out: Tensor) -> None:
        peak, total, _ = self._sweep(_FORWARD_WORDS, x, h_norm, result=out)
        out.sub_((peak.double() * math.log(2.0) + total.log()).float().unsqueeze(1))


class CpuKerbsBackend(_CpuBackend, closed_forms.KerbsBackend):
    """:class:`.closed_forms.KerbsBackend` in C."""


class CpuInnerProductBackend(_CpuBackend, closed_forms.InnerProductBackend):
    """:class:`.closed_forms.InnerProductBackend` in C."""


def build(senses: eager.Senses, dtype: torch.dtype) -> eager.Backend | None:
    """The backend in C, or None where there is none for these senses."""
    kinds = {KerbsKernel: CpuKerbsBackend, InnerProductKernel: CpuInnerProductBackend}
    kind, width = kinds.get(type(senses.kernel)), senses.table.senses.shape[1]
    if kind is None or dtype != torch.float32 or width > MOST_SENSES or not enabled():
        return None
    return kind(senses, dtype)
