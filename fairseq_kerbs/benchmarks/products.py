"""The bar: nothing but the three matrix products that any exact method of this M must do.

    X = h Wᵀ,   dh = P W,   dW = Pᵀ h        X, P: [N, M]

How fast they are depends on the order of the loops and on the layout of X, so several are tried
and the fastest one is taken. P is X itself here: its values do not matter for the time.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fairseq_kerbs.benchmarks.measuring import progress, synchronize
from fairseq_kerbs.chunked_nll import fast_product

CHUNK_MEGABYTES = {"cpu": (2, 8, 32), "cuda": (32, 128, 512)}
WHOLE_SHARE = 0.4  # of the free memory that a whole X may take
HOPELESS = 1.3  # a layout this much slower than the best is tried once


class Products(ABC):
    """The three products with preallocated results, in one order and layout.

    Args:
        chunk: tokens or senses taken at a time; 0 for all.
    """

    def __init__(self, chunk: int = 0) -> None:
        self.chunk = chunk
        self._buffers: tuple[Tensor, Tensor, Tensor] | None = None
        self._shapes: tuple[torch.Size, torch.Size] | None = None

    def __call__(self, h: Tensor, w: Tensor) -> None:
        """Compute for h [N, d] and w [M, d]; the next call overwrites the results."""
        with torch.no_grad():
            self._compute(h.detach(), w.detach(), *self.reserve(h, w))

    def forget(self) -> None:
        """Give the memory of X, dh and dW back."""
        self._buffers = None

    def reserve(self, h: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Make X, dh and dW unless they are there; also written to, as fresh pages cost time."""
        if self._buffers is None or self._shapes != (h.shape, w.shape):
            with torch.no_grad():
                self._buffers = (
                    h.new_empty(self._logits_shape(len(h), len(w))).fill_(0),
                    torch.empty_like(h, requires_grad=False).fill_(0),
                    torch.empty_like(w, requires_grad=False).fill_(0),
                )
            self._shapes = (h.shape, w.shape)
        return self._buffers

    @abstractmethod
    def _logits_shape(self, tokens: int, senses: int) -> tuple[int, int]:
        """Shape of the buffer of X."""

    @abstractmethod
    def _compute(self, h: Tensor, w: Tensor, x: Tensor, dh: Tensor, dw: Tensor) -> None:
        """The three products."""


class ByTokens(Products):
    """Chunks of tokens; X is [n, M]."""

    def _logits_shape(self, tokens: int, senses: int) -> tuple[int, int]:
        return (min(self.chunk or tokens, tokens), senses)

    def _compute(self, h: Tensor, w: Tensor, x: Tensor, dh: Tensor, dw: Tensor) -> None:
        step = len(x)
        for start in range(0, len(h), step):
            part = h[start : start + step]
            logits = x[: len(part)]
            torch.mm(part, w.t(), out=logits)
            torch.mm(logits, w, out=dh[start : start + step])
            if start == 0:
                torch.mm(logits.t(), part, out=dw)
            else:
                dw.addmm_(logits.t(), part)


class BySenses(Products):
    """Chunks of senses; X is transposed, [m, N]."""

    def _logits_shape(self, tokens: int, senses: int) -> tuple[int, int]:
        return (min(self.chunk or senses, senses), tokens)

    def _compute(self, h: Tensor, w: Tensor, x: Tensor, dh: Tensor, dw: Tensor) -> None:
        step = len(x)
        for start in range(0, len(w), step):
            part = w[start : start + step]
            logits = x[: len(part)]
            torch.mm(part, h.t(), out=logits)
            torch.mm(logits, h, out=dw[start : start + step])
            if start == 0:
                torch.mm(logits.t(), part, out=dh)
            else:
                dh.addmm_(logits.t(), part)


class ByTokensAsRows(Products):
    """Chunks of tokens; X is [M, n] and comes from oneDNN, as in :mod:`fairseq_kerbs.chunked_nll`.

    oneDNN returns a new X for each chunk.
    """

    def _logits_shape(self, tokens: int, senses: int) -> tuple[int, int]:
        return (0, 0)

    def _compute(self, h: Tensor, w: Tensor, x: Tensor, dh: Tensor, dw: Tensor) -> None:
        product = fast_product()
        assert product is not None
        step = self.chunk or len(h)
        for start in range(0, len(h), step):
            part = h[start : start + step]
            logits = product(w, part, None, "none", [], "")
            torch.mm(logits.t(), w, out=dh[start : start + step])
            if start == 0:
                torch.mm(logits, part, out=dw)
            else:
                dw.addmm_(logits, part)
            del logits


def make_layout(name: str) -> Products:
    """A layout by its name: "tokens", "senses" (all at once), "tokens:64", "senses:512", …"""
    kind, _, chunk = name.partition(":")
    size = int(chunk or 0)
    if kind == "rows":
        return ByTokensAsRows(size)
    return ByTokens(size) if kind == "tokens" else BySenses(size)


def layout_names(h: Tensor, w: Tensor, free: int) -> list[str]:
    """Layouts worth trying for these inputs, within the free memory (bytes)."""
    size = h.element_size()
    names = []
    if len(h) * len(w) * size <= WHOLE_SHARE * free:
        names += ["tokens", "senses"]
    for megabytes in CHUNK_MEGABYTES[h.device.type]:
        budget = (megabytes << 20) // size
        tokens, senses = max(1, budget // len(w)), max(1, budget // len(h))
        names += [f"tokens:{tokens}"] if tokens < len(h) else []
        names += [f"senses:{senses}"] if senses < len(w) else []
        if h.device.type == "cpu" and h.dtype == torch.float32 and fast_product() is not None:
            names += [f"rows:{tokens}"] if tokens < len(h) else []
    return names or ["tokens"]


def fastest_layout(h: Tensor, w: Tensor, free: int) -> tuple[str, dict[str, float]]:
    """Try all layouts; the name of the fastest, and the best of two times of each, in seconds.

    Layouts that lie behind :data:`HOPELESS` after the first round are not tried again.
    """
    device = h.device.type
    times: dict[str, float] = {}
    for trial in range(2):
        best = min(times.values(), default=0.0)
        for name in layout_names(h, w, free):
            if trial and times[name] > HOPELESS * best:
                continue
            progress(f"bare products, trial {trial + 1}: {name}")
            compute = make_layout(name)
            times[name] = min(times.get(name, float("inf")), _time(compute, h, w, device))
    progress("")
    return min(times, key=lambda name: times[name]), times


def _time(compute: Products, h: Tensor, w: Tensor, device: str) -> float:
    compute.reserve(h, w)
    synchronize(device)
    start = time.perf_counter()
    compute(h, w)
    synchronize(device)
    return time.perf_counter() - start
