"""Sense embeddings prepared for fast products with many context vectors, without autograd."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels.base import Kernel, Partials, compute_dtype, safe_norm
from fairseq_kerbs.torch_compat import autocast_dtype, is_compiling

MKL_NUMBERS = 2**22  # in a larger matrix MKL takes longer than oneDNN for a few rows


@functools.cache
def _has_onednn() -> bool:
    """Whether torch has oneDNN's operators for a bᵀ.

    On an AMD CPU they take half the time of torch.mm.
    """
    some = torch.ones(2, 3, device="cpu", dtype=torch.float32)
    try:
        _onednn(some, torch.ops.mkldnn._reorder_linear_weight(some))
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True


def _onednn(a: Tensor, b: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b, None, "none", [], "")
    return product


@functools.cache
def _mkl_is_faster() -> bool:
    """Whether torch.mm uses MKL on an Intel CPU, where it is up to 1.6 times as fast as oneDNN."""
    try:
        cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "GenuineIntel" in cpu and torch.backends.mkl.is_available()


def _onednn_reads(matrix: Tensor) -> bool:
    on_cpu = matrix.device.type == "cpu" and matrix.dtype == torch.float32 and matrix.numel() > 0
    return on_cpu and not is_compiling() and _has_onednn()


def pack(b: Tensor) -> Tensor:
    """b for many products by :func:`multiply`, in the order in which oneDNN or MKL reads it."""
    if not _onednn_reads(b):
        return b
    if _mkl_is_faster() and b.numel() < MKL_NUMBERS:
        return b.t().contiguous().t()
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(b)
    return packed


def _takes_onednn(a: Tensor, b: Tensor) -> bool:
    return _onednn_reads(a) and _onednn_reads(b) and not _mkl_is_faster()


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ of [m, k] and [n, k]. b may be the result of :func:`pack`."""
    if b.is_mkldnn:
        return _onednn(a, b) if a.numel() else a.new_empty(a.shape[0], b.shape[0])
    return _onednn(a, b) if _takes_onednn(a, b) else a @ b.t()


def writes_products(a: Tensor, b: Tensor, result: Tensor) -> bool:
    """Whether a bᵀ is written or added to a result without a copy, by torch.mm or torch.addmm.

    oneDNN returns a new matrix, and so does a product that is converted to another dtype.
    """
    return a.dtype == b.dtype == result.dtype and not _takes_onednn(a, b)


def product_dtype(h: Tensor, w: Tensor) -> torch.dtype:
    """Dtype of products of h and w: autocast's, except for float64, as in torch."""
    common = torch.promote_types(h.dtype, w.dtype)
    of_autocast = autocast_dtype(h.device.type)
    if common == torch.float64 or of_autocast is None:
        return common
    return of_autocast


def widen(products: Tensor, dtype: torch.dtype) -> Tensor:
    """Products in the compute dtype. Infinite float16 values become the largest finite ones."""
    if products.dtype != torch.float16:
        return products.to(dtype)
    limits = torch.finfo(products.dtype)
    return products.to(dtype).clamp(limits.min, limits.max)


class KernelInputs(NamedTuple):
    """A kernel and its arguments, for m senses (rows) and n context vectors (columns)."""

    kernel: Kernel
    x: Tensor  # products h·w, [m, n], in the compute dtype or in that of the products
    h_norm: Tensor  # |h|, [n]
    w_norm: Tensor  # |w|, [m, 1] or [m, n]
    prepared: Tensor  # Kernel.prepare(θ), [..., m, 1] or [..., m, n]

    def value(self) -> Tensor:
        """Kernel values, [m, n] in the compute dtype."""
        x = widen(self.x, self.h_norm.dtype)
        return self.kernel.value(x, self.h_norm, self.w_norm, self.prepared)

    def partials(self) -> Partials:
        """Partial derivatives of the values."""
        x = widen(self.x, self.h_norm.dtype)
        return self.kernel.partials(x, self.h_norm, self.w_norm, self.prepared)


class PreparedSenses(NamedTuple):
    """Sense embeddings and kernel parameters in the form that products and kernel need."""

    kernel: Kernel
    w: Tensor  # [M, d] in the dtype of products
    w_norm: Tensor  # [M, 1] in the compute dtype
    prepared: Tensor  # Kernel.prepare(θ), [..., M, 1]

    @classmethod
    def of(
        cls, h: Tensor, w: Tensor, theta: Tensor, kernel: Kernel, products: torch.dtype
    ) -> PreparedSenses:
        """Prepare senses w [M, d] and θ [M] for context vectors with the dtype of h."""
        dtype = compute_dtype(h, w, theta)
        prepared = kernel.prepare(theta.to(dtype)).unsqueeze(-1)
        return cls(kernel, w.to(products), safe_norm(w.to(dtype)), prepared)

    def inputs(self, x: Tensor, h_norm: Tensor, rows: slice) -> KernelInputs:
        """Inputs of the kernel for some rows of X [M, n], the products with n context vectors."""
        return KernelInputs(
            self.kernel, x[rows], h_norm, self.w_norm[rows], self.prepared[..., rows, :]
        )

    def inputs_at(self, x: Tensor, h_norm: Tensor, senses: Tensor) -> KernelInputs:
        """Inputs of the kernel for some senses of each context vector, their numbers [K, n]."""
        at_senses = x.gather(0, senses)
        return KernelInputs(
            self.kernel, at_senses, h_norm, self.w_norm[senses, 0], self.prepared[..., senses, 0]
        )
