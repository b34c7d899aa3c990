"""Kernels between context vectors and sense embeddings (Eq. 9; Gao et al. 2019, Eq. 4-12).

A kernel is registered when its module is imported: a new module is imported here.
"""

from fairseq_kerbs.kernels import kerbs, gao  # isort: skip (this is the order of KERNELS)
from fairseq_kerbs.kernels.base import (
    KERNELS,
    Kernel,
    KernelOption,
    compute_dtype,
    kernel_options,
    option,
    register,
    safe_inverse,
    safe_norm,
)
from fairseq_kerbs.kernels.functional import (
    apply_kernel,
    build_kernel,
    check_inputs,
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
    "KernelOption",
    "apply_kernel",
    "build_kernel",
    "check_inputs",
    "compute_dtype",
    "gao",
    "kerbs",
    "kerbs_gain",
    "kerbs_kernel",
    "kernel_logits",
    "kernel_options",
    "option",
    "register",
    "safe_inverse",
    "safe_norm",
]
