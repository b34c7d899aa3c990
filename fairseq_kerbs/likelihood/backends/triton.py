"""The backend of a CUDA device: each direction in one sweep, by Triton kernels.

Plain torch sweeps over matrices of the products' size some twenty times a chunk. The kernels of
:mod:`.backends.triton_kernels` read the products once in either direction and need no other matrix
of their size. Triton comes with torch's CUDA builds and compiles at the first use, when the kernels
are compared with plain torch. Where they are missing or fail, the log says so once and the classes
of :mod:`.backends.closed_forms` do the work; with ``FAIRSEQ_KERBS_FUSED=0`` always, with 1 unless
missing.

Under Triton's interpreter (TRITON_INTERPRET=1 before Triton is imported) tensors may lie on a CPU.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import InnerProductKernel, KerbsKernel
from fairseq_kerbs.likelihood.backends import closed_forms, eager
from fairseq_kerbs.senses import SenseTable, build_sense_table

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
many leave each of them some 500 tiles of the largest chunk, and float32 is enough for its sums."""


class Cut(NamedTuple):
    """How rows × tokens are shared out among programs."""

    rows: int  # of a tile
    tokens: int  # of a tile
    blocks: int  # of tokens
    share: int  # rows of one program
    shares: int  # programs of one block

    @classmethod
    def of(cls, size: int, tokens: int, widest: int) -> Cut:
        """Cut ``size`` senses, or words, × ``tokens``; tiles have at most ``widest`` tokens."""
        width = min(widest, max(16, 1 << (tokens - 1).bit_length()))
        rows = CELLS // width
        blocks = -(-tokens // width)
        shares = min(-(-size // rows), -(-PROGRAMS // blocks))
        share = -(-size // (shares * rows)) * rows
        return cls(rows, width, blocks, share, -(-size // share))


class _TritonBackend(eager.Backend):
    """Mixin: the Triton kernels in place of torch's."""

    has_threads, buffers = False, 1

    def __init__(self, senses: eager.Senses, dtype: torch.dtype) -> None:
        super().__init__(senses, dtype)
        self._words = (self.table.senses.contiguous(), self.table.mask.sum(1))  # [V, K], [V]
        self._senses: Tensor | None = None
        if isinstance(self, closed_forms.KerbsBackend):
            rows = (self.inverse_norm, self.minus_theta, self.radius, self.gain, self.curved)
            self._senses = torch.stack([row.to(dtype) for row in rows])  # [5, M]

    def takes(self, dtype: torch.dtype) -> bool:
        kind: Any = type(self)
        return dtype == torch.bfloat16 and works(kind, self.w_norm.device, dtype)

    def _launch(self, name: str, cut: Cut, x: Tensor, *arguments: Any) -> None:
        assert x.is_contiguous()
        assert x.dtype in (torch.float32, torch.bfloat16)
        kernel = getattr(load_kernels(), name)
        with torch.cuda.device_of(x):  # nothing for a CPU tensor
            kernel[(cut.blocks, cut.shares)](
                x, *arguments, cut.share,
                KERBS=self._senses is not None, ROWS=cut.rows, TOKENS=cut.tokens,
            )  # fmt: skip

    def _empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.w_norm.device)

    def _level(
        self, x: Tensor, h_norm: Tensor, by_words: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The largest logit, the sum of exponentials relative to it, and Σ of the words' levels.

        Each is [n]; the last, in float64, is read off a pass ``by_words`` only.
        """
        (size, tokens), (words, width) = x.shape, self._words[0].shape
        cut = Cut.of(words if by_words else size, tokens, WIDEST)
        peaks, sums = self._empty(2, cut.shares, tokens)
        levels = self._empty(cut.shares if by_words else 0, tokens, dtype=torch.float64)
        if by_words:
            out = (*self._words, peaks, sums, levels, size, words, width, tokens)
            self._launch("forward_words", cut, x, h_norm, self._senses, *out)
        else:
            self._launch("forward", cut, x, h_norm, self._senses, peaks, sums, size, tokens)
        largest = peaks.amax(0)
        return largest, (sums * (peaks - largest).exp()).sum(0), levels.sum(0)

    def forward(
        self, x: Tensor, h_norm: Tensor, target: Tensor, smoothing: eager.Smoothing
    ) -> eager.Saved:
        uniform_nll, smooth = None, smoothing.uniform_weight != 0.0
        largest, total, levels = self._level(x, h_norm, smooth)
        if smooth:
            # the words' logsumexps, as many as there are words, cancel all but the last digits
            whole = len(self._words[0]) * (largest.double() + total.double().log())
            uniform_nll = (whole - levels).to(largest.dtype)
        own = self._target(x, h_norm, target)
        # G from these two is nearer than from the rounded normalizer
        kept = (largest, total)
        return eager.Saved(x, h_norm, largest + total.log(), uniform_nll, own, smoothing, kept)

    def backward(self, saved: eager.Saved, scale: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """As :meth:`Backend.backward`, the target's senses in the same sweep.

        P is rounded once where ``x`` is bfloat16, and the sums are the same bits in every run.
        """
        x, (largest, total), weights = saved.x, saved.kept, saved.smoothing
        (size, tokens), (words, width) = x.shape, self._words[0].shape
        cut = Cut.of(words, tokens, WIDEST)
        kerbs = self._senses is not None  # inner products need no sums
        along_h = self._empty(cut.shares, tokens) if kerbs else self.w_norm.new_zeros(1, tokens)
        parts = self._empty(2, cut.blocks, size if kerbs else 0)
        self._launch(
            "backward", cut, x, saved.h_norm, largest, scale * weights.total / total,
            scale * weights.uniform_weight, scale * weights.target_weight, saved.target.word,
            self._senses, *self._words, along_h, *parts, size, words, width, tokens,
        )  # fmt: skip
        if kerbs:
            sums += parts.sum(1)
        return x, along_h.sum(0)

    def log_probs(self, x: Tensor, h_norm: Tensor, out: Tensor) -> None:
        assert out.stride(1) == 1 or out.shape[1] == 1
        (size, tokens), (words, width) = x.shape, self._words[0].shape
        largest, total, _ = self._level(x, h_norm)
        self._launch(
            "log_probs", Cut.of(words, tokens, WIDEST_RESULT), x, h_norm, largest + total.log(),
            self._senses, *self._words, out, size, words, width, tokens, out.stride(0),
        )  # fmt: skip


class TritonKerbsBackend(_TritonBackend, closed_forms.KerbsBackend):
    """:class:`.closed_forms.KerbsBackend` in Triton."""


class TritonInnerProductBackend(_TritonBackend, closed_forms.InnerProductBackend):
    """:class:`.closed_forms.InnerProductBackend` in Triton."""


@functools.cache
def _decline(reason: str) -> None:
    """Say once why the Triton kernels are not used."""
    logger.warning("The likelihood runs without its fused CUDA passes: %s.", reason)


@functools.cache
def load_kernels() -> ModuleType | None:
    """The Triton kernels, or None with a warning."""
    try:
        return importlib.import_module("fairseq_kerbs.likelihood.backends.triton_kernels")
    except ImportError as error:
        _decline(f"Triton cannot be imported ({error}); 'pip install triton' provides it")
        return None


def build(senses: eager.Senses, dtype: torch.dtype) -> eager.Backend | None:
    """The backend in Triton, or None, with a reason in the log, where there is none.

    Kernels that have none at all, whatever the device, get None without a reason.
    """
    kinds: Any = {KerbsKernel: TritonKerbsBackend, InnerProductKernel: TritonInnerProductBackend}
    kind = kinds.get(type(senses.kernel))
    if kind is None or os.environ.get("FAIRSEQ_KERBS_FUSED") == "0":
        return None
    if dtype != torch.float32:
        _decline(f"they are for float32 and this one is in {str(dtype).removeprefix('torch.')}")
        return None
    usable = load_kernels() is not None and works(kind, senses.w.device, dtype)
    return kind(senses, dtype) if usable else None


# ------------------------------------------------------------------------ the first use

COMPARED = (160, 157, 5)
"""Tokens of the compared cases: of two tiles, which are as wide as real ones; as many without an
alignment, for which other code is compiled; of one narrow tile."""


@functools.cache
def works(kind: type[_TritonBackend], device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels find on a small case what torch does; if not, a warning says what.

    Asked once in a process for each kind, device and ``dtype`` of the products.
    """
    if os.environ.get("FAIRSEQ_KERBS_FUSED") == "1":
        return True
    try:
        for tokens in COMPARED:
            _compare(kind, device, dtype, tokens)
    except torch.OutOfMemoryError:  # says nothing of the kernels
        raise
    # an old device, a driver or a C compiler that Triton misses: each has its own exception
    except Exception as error:
        what = " ".join(str(error).split())  # a compiler says it in many lines
        card = torch.cuda.get_device_name(device) if device.type == "cuda" else "no card"
        _decline(
            f"on {device} with products in {str(dtype).removeprefix('torch.')} they fail "
            f"({type(error).__name__}: {what}); please report this line as an issue of "
            f"fairseq_kerbs, with torch {torch.__version__} and {card} (FAIRSEQ_KERBS_FUSED=1 "
            "takes them all the same)"
        )
        return False
    return True


@torch.no_grad()
def _compare(
    kind: type[_TritonBackend], device: torch.device, dtype: torch.dtype, tokens: int
) -> None:
    """Raise an ArithmeticError if the kernels are further from torch in float64 than rounding
    explains: of logits, relative in their exponentials, and of P where ``dtype`` is bfloat16."""
    kerbs = issubclass(kind, closed_forms.KerbsBackend)
    kernel = KerbsKernel() if kerbs else InnerProductKernel()
    generator = torch.Generator("cpu").manual_seed(0)  # the caller's stays as it is
    draw = functools.partial(torch.randn, generator=generator, device="cpu", dtype=torch.float32)
    w, h = draw(28, 8), draw(tokens, 8)
    h_norm, theta = h.norm(dim=1), torch.tensor([0.4, -3.0, -0.4, 3.0] * 7, device="cpu")
    owner = torch.tensor([*range(12), *range(8), *range(4), *range(4)], device="cpu")
    table = SenseTable(*(part.to(device) for part in build_sense_table(owner, 12)))
    owner, target = owner.to(device), torch.arange(tokens, device=device) % 12
    x = (w @ (h / h_norm.unsqueeze(1) if kerbs else h).t()).to(device, dtype)

    def results(build_one: type[eager.Backend], x: Tensor, wide: torch.dtype) -> tuple[Any, ...]:
        rows, slopes, norms = (value.to(device, wide) for value in (w, theta, h_norm))
        backend = build_one(eager.Senses(rows, slopes, owner, table, kernel), wide)
        scores, sums = norms.new_empty(tokens, 12), norms.new_zeros(2, 28)
        backend.log_probs(x.clone(), norms, scores)
        saved = backend.forward(x.clone(), norms, target, eager.Smoothing.of(0.1, 12))
        p, along_h = backend.backward(saved, torch.ones_like(norms), sums)
        # the second sum is read of curved senses alone, here the even ones
        return scores, saved.normalizer, saved.uniform_nll, p, along_h, sums[0], sums[1, ::2]

    with torch.autocast(device.type, enabled=False):
        ours = results(kind, x, torch.float32)
        plain = closed_forms.KerbsBackend if kerbs else closed_forms.InnerProductBackend
        truth = results(plain, x.double(), torch.float64)
    names = ["log-probabilities", "normalizers", "smoothed losses"]
    names += [f"gradients by {what}" for what in ("products", "|h|", "|w|", "θ")]
    logits = 4e-6 + float(truth[1].abs().amax()) * 2.0**-22
    for name, one, right in zip(names, ours, truth, strict=True):
        error, size = float((one - right).norm()), float(right.norm())
        rounding = 2.0**-7 if one.dtype == torch.bfloat16 else logits
        if not error <= rounding * size:  # nor is it for NaN
            raise ArithmeticError(f"{name} differ from torch's by {error / size:.1e} of their size")
