"""The passes over a chunk on a CPU, each in one sweep: the front of ``csrc/passes.c``.

The library is compiled when the package is installed and called through ctypes. It runs on the
threads of the OpenMP runtime that torch has loaded, as many as ``torch.get_num_threads()`` says.
Where it was not compiled, :func:`library` says so once and the classes of
:mod:`fairseq_kerbs.likelihood.backends.eager` do the work.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.likelihood.backends.eager import ChunkPasses, InnerProductPasses, Smoothing
from fairseq_kerbs.likelihood.backends.eager_kerbs import KerbsPasses

logger = logging.getLogger(__name__)

MOST_SENSES = 16
"""Senses of one word that csrc/passes.c has room for, where it goes word by word."""

_REDUCE, _REDUCE_WORDS, _PULL_BACK, _PULL_BACK_WORDS, _LOG_PROBS = range(5)  # as in passes.c

_SENSE_FIELDS = ["inverse_norm", "minus_theta", "radius", "gain", "curved", "weighted", "bent"]
_POINTERS = ["x", "h_norm", "peak", "share", "each", "most", "sum", "words"]
_POINTERS += ["along_h", "result", "table", "count"]


class _Senses(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in _SENSE_FIELDS]


class _Chunk(ctypes.Structure):
    """Same fields, in the same order, as ``Chunk`` in csrc/passes.c."""

    _fields_ = [
        ("senses", _Senses),
        *[(name, ctypes.c_void_p) for name in _POINTERS],
        *[(name, ctypes.c_size_t) for name in ("size", "tokens", "width", "stride", "threads")],
        ("kerbs", ctypes.c_int32),
    ]


class Library:
    """The compiled passes.

    Args:
        path: the shared library.
        plain: use the code for any processor even where there is faster code for this one.
    """

    def __init__(self, path: Path, plain: bool = False) -> None:
        self.path, self.plain = path, plain
        self._run = ctypes.CDLL(str(path)).kerbs_run
        self._run.restype = None
        # torch's own OpenMP runtime is among the libraries that its extension module has loaded
        torch_library = ctypes.CDLL(torch._C.__file__)
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        try:
            found = [ctypes.cast(getattr(torch_library, name), ctypes.c_void_p) for name in names]
            self.threaded = True
        except AttributeError:  # a torch with another thread pool: one thread does it all
            found, self.threaded = [ctypes.c_void_p()] * 3, False
        self._entries = found

    def run(self, which: int, chunk: _Chunk) -> None:
        """Run one pass over a chunk."""
        self._run(which, int(self.plain), ctypes.byref(chunk), *self._entries)


@functools.cache
def library() -> Library | None:
    """The compiled library, or None with a warning in the log."""
    folder = Path(__file__).parent
    for path in sorted(folder.glob("_passes*.so")):
        try:
            return Library(path)
        except (OSError, AttributeError) as error:
            logger.warning("%s cannot be used (%s): install fairseq_kerbs again.", path, error)
    logger.warning(
        "The compiled passes are not there, so the likelihood runs about a third slower on a CPU: "
        "install fairseq_kerbs with a C compiler at hand ('pip install -e .' in its checkout)."
    )
    return None


def enabled() -> bool:
    """Whether the compiled passes are there, and not switched off by FAIRSEQ_KERBS_FUSED=0."""
    return os.environ.get("FAIRSEQ_KERBS_FUSED", "1") != "0" and library() is not None


class _Fused(ChunkPasses):
    """Mixin: the passes of csrc/passes.c in place of torch's."""

    buffers = 1
    cpu_buffer_bytes = 24 << 20  # products want many tokens; this still fits the last cache

    @property
    def library(self) -> Library:
        """The compiled passes (no attribute: they can be neither copied nor pickled)."""
        found = library()
        assert found is not None
        return found

    def _chunk(self, x: Tensor, h_norm: Tensor, **tensors: Tensor) -> _Chunk:
        assert x.is_contiguous()
        threads = torch.get_num_threads() if self.library.threaded else 1
        chunk = _Chunk(size=x.shape[0], tokens=x.shape[1], threads=threads)
        if isinstance(self, KerbsPasses):
            chunk.kerbs = 1
            for name in _SENSE_FIELDS:
                setattr(chunk.senses, name, _pointer(getattr(self, name)))
        for name, tensor in {"x": x, "h_norm": h_norm, **tensors}.items():
            setattr(chunk, name, _pointer(tensor))
        return chunk

    def _by_words(self, chunk: _Chunk) -> _Chunk:
        senses, count = self._word_table()
        chunk.table, chunk.count = senses.data_ptr(), count.data_ptr()
        chunk.size, chunk.width = senses.shape
        return chunk

    def _word_table(self) -> tuple[Tensor, Tensor]:
        if not hasattr(self, "_words"):
            self._words = (self.table.senses.contiguous(), self.table.mask.sum(1))
        return self._words

    def _partial(self, x: Tensor, fill: float, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.full((torch.get_num_threads(), x.shape[1]), fill, dtype=dtype)

    def _reduce(
        self, which: int, x: Tensor, h_norm: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        most, total = self._partial(x, -math.inf, torch.float32), self._partial(x, 0.0)
        words = self._partial(x, 0.0)
        chunk = self._chunk(x, h_norm, most=most, sum=total, words=words)
        if out is not None:
            chunk.result, chunk.stride = _pointer(out), out.stride(0)
        self.library.run(which, chunk if which == _REDUCE else self._by_words(chunk))
        peak = most.amax(0)
        # a thread without senses: −∞ with sum 0
        total = (total * (most - peak).double().exp()).sum(0)
        self._kept = (peak, total)  # G from these two is nearer than from the rounded normalizer
        return peak + total.log(), words.sum(0)

    def reduce(self, x: Tensor, h_norm: Tensor) -> Tensor:
        return self._reduce(_REDUCE, x, h_norm)[0].float()

    def reduce_words(self, x: Tensor, h_norm: Tensor) -> tuple[Tensor, Tensor]:
        normalizer, words = self._reduce(_REDUCE_WORDS, x, h_norm)
        # the words' logsumexps, as many as there are words, cancel all but the last digits
        spread = self.table.senses.shape[0] * normalizer - words
        return normalizer.float(), spread.float()

    def log_probs(self, x: Tensor, h_norm: Tensor, out: Tensor) -> None:
        normalizer, _ = self._reduce(_LOG_PROBS, x, h_norm, out)
        out.sub_(normalizer.float().unsqueeze(1))

    def pull_back(self, x: Tensor, h_norm: Tensor, normalizer: Tensor, scale: Tensor) -> Tensor:
        peak, total = self._kept
        along_h, share = self._partial(x, 0.0), (scale / total).float()
        chunk = self._chunk(x, h_norm, peak=peak, share=share, along_h=along_h)
        self.library.run(_PULL_BACK, chunk)
        return along_h.sum(0).float()

    def pull_back_words(
        self, x: Tensor, h_norm: Tensor, normalizer: Tensor, scale: Tensor, weights: Smoothing
    ) -> Tensor:
        peak, total = self._kept
        along_h, share, each = (
            self._partial(x, 0.0),
            (scale * weights.total / total).float(),
            scale * weights.each,
        )
        chunk = self._chunk(x, h_norm, peak=peak, share=share, each=each, along_h=along_h)
        self.library.run(_PULL_BACK_WORDS, self._by_words(chunk))
        return along_h.sum(0).float()


def _pointer(tensor: Tensor) -> int:
    assert tensor.stride(-1) == 1 or tensor.numel() <= 1
    return tensor.data_ptr()


class FusedKerbs(_Fused, KerbsPasses):
    """:class:`KerbsPasses`, fused."""


class FusedInnerProduct(_Fused, InnerProductPasses):
    """:class:`InnerProductPasses`, fused."""


def fused(kind: type[ChunkPasses], *arguments: Any) -> ChunkPasses | None:
    """The fused form of torch passes, or None where there is none.

    Args:
        kind: class of the torch passes.
        arguments: what its constructor takes.
    """
    kinds: dict[type[ChunkPasses], type[_Fused]] = {
        KerbsPasses: FusedKerbs,
        InnerProductPasses: FusedInnerProduct,
    }
    _, w_norm, _, table, _ = arguments
    if kind not in kinds or w_norm.dtype != torch.float32 or table.senses.shape[1] > MOST_SENSES:
        return None
    return kinds[kind](*arguments) if enabled() else None
