"""Kernels between context vectors and sense embeddings (Eq. 9; Gao et al. 2019, Eq. 4-12)."""

from fairseq_kerbs.kernels.base import Kernel, compute_dtype, safe_inverse, safe_norm
from fairseq_kerbs.kernels.functional import (
    KERNELS,
    apply_kernel,
    build_kernel,
    check_shapes,
    kerbs_kernel,
    kernel_logits,
)
from fairseq_kerbs.kernels.kerbs import THETA_LIMIT, InnerProductKernel, KerbsKernel, kerbs_gain

__all__ = [
    "KERNELS",
    "THETA_LIMIT",
    "InnerProductKernel",
    "KerbsKernel",
    "Kernel",
    "apply_kernel",
    "build_kernel",
    "check_shapes",
    "compute_dtype",
    "kerbs_gain",
    "kerbs_kernel",
    "kernel_logits",
    "safe_inverse",
    "safe_norm",
]
