"""The bar: nothing but the three matrix products that any exact method of this M must do.

    X = h Wᵀ,   dh = P W,   dW = Pᵀ h        X, P: [N, M]

How fast they are depends on the order of the loops and on the layout of X, so several are tried
and the fastest one is taken. P is X itself here: its values do not matter for the time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_kerbs.benchmarks.comparison import Workload, progress, time_once
from fairseq_kerbs.likelihood.chunked import fast_product

CHUNK_MEGABYTES = {"cpu": (2, 8, 32), "cuda": (32, 128, 512)}
WHOLE_SHARE = 0.4  # of the free memory that a whole X may take


class Products:
    """The three products with preallocated results, in one order and layout.

    Args:
        layout: "tokens" (X is [N, M]), "senses" (X is [M, N]), the same by chunks ("tokens:64",
            "senses:512"), or "rows:64": chunks of tokens whose X is [M, n] and comes, new for each
            chunk, from oneDNN, as in :mod:`fairseq_kerbs.likelihood.chunked`.
    """

    def __init__(self, layout: str) -> None:
        self.kind, _, chunk = layout.partition(":")
        self.chunk = int(chunk or 0)
        self.forget()

    def forget(self) -> None:
        """Give the memory of X, dh and dW back."""
        self.dh = self.dw = self.x = torch.empty(0, 0)

    def reserve(self, h: Tensor, w: Tensor) -> None:
        """Make X, dh and dW unless they are there; also written to, as fresh pages cost time."""
        if (self.dh.shape, self.dw.shape) == (h.shape, w.shape):
            return
        self.dh, self.dw = (torch.zeros_like(one).fill_(0) for one in (h.detach(), w.detach()))
        if self.kind != "rows":
            rows, columns = (w, h) if self.kind == "senses" else (h, w)
            size = min(self.chunk or len(rows), len(rows))
            self.x = h.new_zeros(size, len(columns)).fill_(0)

    @torch.no_grad()
    def __call__(self, h: Tensor, w: Tensor) -> None:
        """Compute dh [N, d] and dw [M, d] for h [N, d] and w [M, d]; the next call overwrites."""
        self.reserve(h, w)
        a, b, da, db = h, w, self.dh, self.dw
        if self.kind == "senses":
            a, b, da, db = b, a, db, da
        product, step = fast_product(), self.chunk or len(a)
        for start in range(0, len(a), step):
            part = a[start : start + step]
            if self.kind == "rows":
                assert product is not None
                logits = product(b, part, None, "none", [], "").t()
            else:
                logits = torch.mm(part, b.t(), out=self.x[: len(part)])
            torch.mm(logits, b, out=da[start : start + step])
            torch.addmm(db, logits.t(), part, beta=float(start > 0), out=db)
            del logits  # before the next chunk's is made


def layout_names(h: Tensor, w: Tensor, free: int) -> list[str]:
    """Layouts worth trying for these inputs, within the free memory (bytes)."""
    size, device = h.element_size(), h.device.type
    names = ["tokens", "senses"] if len(h) * len(w) * size <= WHOLE_SHARE * free else []
    fast = device == "cpu" and h.dtype == torch.float32 and fast_product() is not None
    kinds = {"tokens": (h, w), "senses": (w, h)} | ({"rows": (h, w)} if fast else {})
    for megabytes in CHUNK_MEGABYTES[device]:
        for kind, (rows, columns) in kinds.items():
            chunk = max(1, (megabytes << 20) // size // len(columns))
            names += [f"{kind}:{chunk}"] if chunk < len(rows) else []
    return names or ["tokens"]


def fastest_layout(h: Tensor, w: Tensor, free: int) -> tuple[str, dict[str, float]]:
    """Try all layouts; the name of the fastest, and the best of two times of each, in seconds."""
    times: dict[str, float] = {}
    for trial in (1, 2):
        for name in layout_names(h, w, free):
            progress(f"bare products, trial {trial}: {name}")
            products = Products(name)
            products.reserve(h, w)
            workload = Workload(lambda: products(h, w))  # noqa: B023
            times[name] = min(times.get(name, float("inf")), time_once(workload, h.device.type))
    progress("")
    return min(times, key=lambda name: times[name]), times
