"""The passes over a chunk on a CUDA device, each in one sweep: the front of the Triton kernels.

Plain torch sweeps over matrices of the products' size some forty times a chunk. The kernels of
:mod:`.backends.triton_kernels` read the products to reduce them and again to pull back, and
need no other matrix of their size. Triton comes with torch's CUDA builds and compiles at the first
use. Where it is missing or does not work, :func:`fused` says so once and the classes of
:mod:`fairseq_kerbs.likelihood.backends.eager` do the work.

Under Triton's interpreter (TRITON_INTERPRET=1 before Triton is imported) tensors may lie on a CPU.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel
from fairseq_kerbs.likelihood.backends.eager import ChunkPasses, InnerProductPasses, Smoothing
from fairseq_kerbs.likelihood.backends.eager_kerbs import KerbsPasses
from fairseq_kerbs.senses import SenseTable

logger = logging.getLogger(__name__)

CELLS = 1024
"""Products in a tile: 8 for each of its 128 threads. Twice as many want so many registers that only
two programs fit on a multiprocessor (of compute capability 9.0); with these, four to nine do."""

WIDEST = 128
"""Tokens in a tile at most: a row is then the work of one warp, four tokens for each thread, so
that loads are wide and a sum over a row stays inside the warp."""

WIDEST_RESULT = 32
"""The same where words of a token lie side by side in the result: a tile must be wide both ways."""

PROGRAMS = 2048
"""Programs of a launch, about: several rounds for a device that holds some hundreds at a time. So
many leave each of them some 130 tiles of the largest chunk, and float32 is enough for its sums."""


class Cut(NamedTuple):
    """How rows × tokens are shared out among programs.

    Attributes:
        rows, tokens: size of a tile.
        blocks: blocks of tokens.
        share: rows of one program.
        shares: programs of one block.
    """

    rows: int
    tokens: int
    blocks: int
    share: int
    shares: int

    @classmethod
    def of(cls, size: int, tokens: int, widest: int) -> Cut:
        """Cut ``size`` senses, or words, × ``tokens``; tiles have at most ``widest`` tokens."""
        width = min(widest, max(16, 1 << (tokens - 1).bit_length()))
        rows = CELLS // width
        blocks = -(-tokens // width)
        shares = min(-(-size // rows), -(-PROGRAMS // blocks))
        share = -(-size // (shares * rows)) * rows
        return cls(rows, width, blocks, share, -(-size // share))


class _Fused(ChunkPasses):
    """Mixin: the passes of the Triton kernels in place of torch's.

    Attributes:
        product_dtypes: dtypes in which products are taken as they come, and P leaves.
    """

    buffers = 1
    product_dtypes = (torch.float32, torch.bfloat16)

    def __init__(
        self, kernel: Kernel, w_norm: Tensor, theta: Tensor, table: SenseTable, owner: Tensor
    ) -> None:
        super().__init__(kernel, w_norm, theta, table, owner)
        self._words = (table.senses.contiguous(), table.mask.sum(1))  # [V, K], [V]
        self._senses: Tensor | None = None
        if isinstance(self, KerbsPasses):
            rows = (self.inverse_norm, self.minus_theta, self.radius, self.gain, self.curved)
            self._senses = torch.stack([row.to(w_norm.dtype) for row in rows])  # [5, M]

    @property
    def kernels(self) -> ModuleType:
        """The Triton kernels (no attribute: a module can be neither copied nor pickled)."""
        found = load_kernels(self.w_norm.device)
        assert found is not None
        return found

    def _launch(self, name: str, cut: Cut, x: Tensor, *arguments: Any, **constants: Any) -> None:
        assert x.is_contiguous()
        assert x.dtype in self.product_dtypes
        constants.update(KERBS=self._senses is not None, ROWS=cut.rows, TOKENS=cut.tokens)
        with torch.cuda.device_of(x):  # nothing for a CPU tensor
            getattr(self.kernels, name)[(cut.blocks, cut.shares)](x, *arguments, **constants)

    def _partial(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.w_norm.device)

    def _add_sums(self, weighted: Tensor, bent: Tensor) -> None:
        if isinstance(self, KerbsPasses):
            self.weighted += weighted.sum(0)
            self.bent += bent.sum(0)

    # ------------------------------------------------------------ logits and their sums

    def reduce(self, x: Tensor, h_norm: Tensor) -> Tensor:
        size, tokens = x.shape
        cut = Cut.of(size, tokens, WIDEST)
        peaks, sums = self._partial(cut.shares, tokens), self._partial(cut.shares, tokens)
        self._launch(
            "reduce", cut, x, h_norm, self._senses, peaks, sums, size, tokens, cut.share
        )  # fmt: skip
        return self._combined(peaks, sums)

    def reduce_words(self, x: Tensor, h_norm: Tensor) -> tuple[Tensor, Tensor]:
        size, tokens = x.shape
        words, width = self._words[0].shape
        cut = Cut.of(words, tokens, WIDEST)
        peaks, sums = self._partial(cut.shares, tokens), self._partial(cut.shares, tokens)
        levels = self._partial(cut.shares, tokens, dtype=torch.float64)
        self._launch(
            "reduce_words", cut, x, h_norm, self._senses, *self._words, peaks, sums, levels,
            size, words, width, tokens, cut.share,
        )  # fmt: skip
        normalizer = self._combined(peaks, sums)
        largest, total = self._kept
        # the words' logsumexps, as many as there are words, cancel all but the last digits
        spread = words * (largest.double() + total.double().log()) - levels.sum(0)
        return normalizer, spread.to(normalizer.dtype)

    def _combined(self, peaks: Tensor, sums: Tensor) -> Tensor:
        """Logsumexp of all shares, [shares, n] -> [n]."""
        largest = peaks.amax(0)
        total = (sums * (peaks - largest).exp()).sum(0)
        # G from these two is nearer than from the rounded normalizer
        self._kept = (largest, total)
        return largest + total.log()

    def log_probs(self, x: Tensor, h_norm: Tensor, out: Tensor) -> None:
        assert out.stride(1) == 1 or out.shape[1] == 1
        size, tokens = x.shape
        words, width = self._words[0].shape
        cut = Cut.of(words, tokens, WIDEST_RESULT)
        self._launch(
            "log_probs", cut, x, h_norm, self.reduce(x, h_norm), self._senses, *self._words, out,
            size, words, width, tokens, out.stride(0), cut.share,
        )  # fmt: skip

    # ------------------------------------------------------------ and back

    def pull_back(self, x: Tensor, h_norm: Tensor, normalizer: Tensor, scale: Tensor) -> Tensor:
        size, tokens = x.shape
        cut = Cut.of(size, tokens, WIDEST)
        largest, total = self._kept
        along_h, weighted, bent = self._back_sums(cut, tokens)
        self._launch(
            "pull_back", cut, x, h_norm, largest, scale / total, self._senses, along_h, weighted,
            bent, size, tokens, cut.share,
        )  # fmt: skip
        self._add_sums(weighted, bent)
        return along_h.sum(0)

    def pull_back_words(
        self, x: Tensor, h_norm: Tensor, normalizer: Tensor, scale: Tensor, weights: Smoothing
    ) -> Tensor:
        return self._pull_back_words(x, h_norm, scale, weights, None)

    def pull_back_targets(
        self,
        x: Tensor,
        h_norm: Tensor,
        normalizer: Tensor,
        scale: Tensor,
        weights: Smoothing,
        target: Tensor,
    ) -> Tensor:
        """As the torch passes, in one sweep: P is rounded once where ``x`` is bfloat16, and the
        sums are the same bits in every run."""
        return self._pull_back_words(x, h_norm, scale, weights, target)

    def _pull_back_words(
        self, x: Tensor, h_norm: Tensor, scale: Tensor, weights: Smoothing, target: Tensor | None
    ) -> Tensor:
        size, tokens = x.shape
        words, width = self._words[0].shape
        cut = Cut.of(words, tokens, WIDEST)
        largest, total = self._kept
        parts = (scale * weights.total / total, scale * weights.each, scale * weights.share)
        along_h, weighted, bent = self._back_sums(cut, tokens)
        self._launch(
            "pull_back_words", cut, x, h_norm, largest, *parts, target, self._senses,
            *self._words, along_h, weighted, bent, size, words, width, tokens, cut.share,
            OWN=target is not None,
        )  # fmt: skip
        self._add_sums(weighted, bent)
        return along_h.sum(0)

    def _back_sums(self, cut: Cut, tokens: int) -> tuple[Tensor, Tensor, Tensor]:
        """Room for Σ_m G s/|h|, Σ_n |h| G E and Σ_n |h| G c² r(z); inner products need none."""
        if self._senses is None:
            return self.w_norm.new_zeros(1, tokens), self._partial(0), self._partial(0)
        size = self._senses.shape[1]
        weighted, bent = self._partial(cut.blocks, size), self._partial(cut.blocks, size)
        return self._partial(cut.shares, tokens), weighted, bent


class FusedCudaKerbs(_Fused, KerbsPasses):
    """:class:`KerbsPasses`, fused."""


class FusedCudaInnerProduct(_Fused, InnerProductPasses):
    """:class:`InnerProductPasses`, fused."""


@functools.cache
def _decline(reason: str) -> None:
    """Say once why the fused passes are not used."""
    logger.warning("The likelihood runs without its fused CUDA passes: %s.", reason)


@functools.cache
def load_kernels(device: torch.device) -> ModuleType | None:
    """The Triton kernels once one of them has run on ``device``, or None with a warning."""
    try:
        kernels = importlib.import_module("fairseq_kerbs.likelihood.backends.triton_kernels")
    except ImportError as error:
        _decline(f"Triton cannot be imported ({error}); 'pip install triton' provides it")
        return None
    x, ones = torch.zeros(2, 1, device=device), torch.ones(1, device=device)
    peaks, sums = torch.zeros(1, 1, device=device), torch.zeros(1, 1, device=device)
    try:
        with torch.cuda.device_of(x):
            kernels.reduce[(1, 1)](
                x, ones, None, peaks, sums, 2, 1, CELLS, KERBS=False, ROWS=CELLS // 16, TOKENS=16
            )
        works = math.isclose(sums.item(), 2.0)
    # an old device, a driver or a C compiler that Triton misses: each has its own exception
    except Exception as error:
        _decline(f"Triton does not run on {device} ({type(error).__name__}: {error})")
        return None
    if not works:
        _decline(f"Triton computes wrong sums on {device}")
        return None
    return kernels


def fused(
    kind: type[ChunkPasses],
    kernel: Kernel,
    w_norm: Tensor,
    theta: Tensor,
    table: SenseTable,
    owner: Tensor,
) -> ChunkPasses | None:
    """The fused form of torch passes, or None, with a reason in the log, where there is none.

    Args:
        kind: class of the torch passes; those of any kernel have no fused form.
        kernel, w_norm, theta, table, owner: what its constructor takes.
    """
    kinds: dict[type[ChunkPasses], type[_Fused]] = {
        KerbsPasses: FusedCudaKerbs,
        InnerProductPasses: FusedCudaInnerProduct,
    }
    if kind not in kinds:
        return None
    if w_norm.dtype != torch.float32:
        _decline(
            f"they are for float32 and this one is in {str(w_norm.dtype).removeprefix('torch.')}"
        )
        return None
    if load_kernels(w_norm.device) is None:
        return None
    return kinds[kind](kernel, w_norm, theta, table, owner)
