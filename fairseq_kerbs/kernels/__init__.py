"""Kernels: how a context vector is scored against a sense (Eq. 9; Gao et al. 2019, Eq. 4-12)."""

from fairseq_kerbs.kernels.base import Kernel
from fairseq_kerbs.kernels.kerbs import (
    KERNELS,
    THETA_LIMIT,
    InnerProductKernel,
    KerbsKernel,
    apply_kernel,
    build_kernel,
    compute_dtype,
    kerbs_gain,
    kerbs_kernel,
    kernel_logits,
    safe_inverse,
    safe_norm,
)

__all__ = [
    "KERNELS",
    "THETA_LIMIT",
    "InnerProductKernel",
    "KerbsKernel",
    "Kernel",
    "apply_kernel",
    "build_kernel",
    "compute_dtype",
    "kerbs_gain",
    "kerbs_kernel",
    "kernel_logits",
    "safe_inverse",
    "safe_norm",
]
