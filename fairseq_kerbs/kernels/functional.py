"""Kernels by name, and differentiable kernel functions of vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.kernels.autograd import first_derivative, link_of
from fairseq_kerbs.kernels.base import (
    KERNELS,
    Kernel,
    compute_dtype,
    is_zero,
    safe_inverse,
    safe_norm,
)
from fairseq_kerbs.kernels.prepared import widen


def build_kernel(name: str | Kernel, **options: Any) -> Kernel:
    """Build the kernel ``name`` with its options. A :class:`Kernel` is returned as it is.

    Raises:
        ValueError: no kernel has that name, it has no such option or an option is out of range, or
            a :class:`Kernel` is given together with options.
    """
    if isinstance(name, Kernel):
        if options:
            raise ValueError("`kernel` is built already: give its name together with options.")
        return name
    if name not in KERNELS:
        known = ", ".join(sorted(KERNELS))
        raise ValueError(f"`kernel`: there is no kernel named '{name}'; choose one of {known}.")
    unknown = sorted(options.keys() - KERNELS[name].options.keys())
    if unknown:
        raise ValueError(f"`kernel`: {name} has no option '{unknown[0]}'.")
    return KERNELS[name](**options)


class _KernelFunction(torch.autograd.Function):
    """Autograd function of a kernel. It saves only the inputs x, |h|, |w|, θ and prepare(θ)."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, link: Tensor, prepared: Tensor, *inputs: Tensor
    ) -> Tensor:
        ctx.kernel = kernel
        ctx.link = link
        ctx.save_for_backward(*inputs, prepared)
        x, h_norm, w_norm, _ = inputs
        return kernel.value(x, h_norm, w_norm, prepared)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, prepared = ctx.saved_tensors
        kernel = ctx.kernel
        x, h_norm, w_norm, _ = inputs
        partials = kernel.partials(x, h_norm, w_norm, prepared)
        if kernel.homogeneous:
            rest = kernel.value(x, h_norm, w_norm, prepared) - x * partials.x
            partials = partials._replace(
                h_norm=rest * safe_inverse(h_norm), w_norm=rest * safe_inverse(w_norm)
            )
        needs = ctx.needs_input_grad[3:]
        gradients: list[Tensor | None] = []
        for partial, like, need in zip(partials, inputs, needs):
            gradients.append(_reduced(grad_output, partial, like) if need else None)
        return None, None, None, *gradients


def _reduced(grad: Tensor, partial: Tensor | float, like: Tensor) -> Tensor:
    """Gradient by an input that was broadcast, from the partial derivative by it."""
    if is_zero(partial):
        return torch.zeros_like(like)
    return (grad * partial).sum_to_size(like.shape)


def apply_kernel(
    kernel: Kernel,
    x: Tensor,
    h_norm: Tensor,
    w_norm: Tensor,
    theta: Tensor,
    prepared: Tensor | None = None,
) -> Tensor:
    """Differentiable kernel value K(x, |h|, |w|, θ).

    Args:
        kernel: the kernel.
        x: h·w, [..., M].
        h_norm: |h|, [..., 1].
        w_norm: |w|, [M].
        theta: θ, [M]. Other shapes that broadcast to one are accepted, too.
        prepared: ``kernel.prepare(theta)`` in the dtype of the result, if it is known.

    Returns:
        the broadcast shape, in float64 if an input is float64, else float32.
    """
    dtype = compute_dtype(x, h_norm, w_norm, theta)
    shape = torch.broadcast_shapes(x.shape, h_norm.shape, w_norm.shape, theta.shape)
    x = x.expand(shape).to(dtype)
    h_norm = h_norm.to(dtype)
    w_norm = w_norm.to(dtype)
    theta = theta.to(dtype)
    if prepared is None:
        prepared = kernel.prepare(theta.detach())
    link = link_of(x, h_norm, w_norm, theta)
    return _KernelFunction.apply(kernel, link, prepared, x, h_norm, w_norm, theta)


def check_inputs(h: Tensor, w: Tensor, theta: Tensor) -> None:
    """Raise a ValueError unless h is [..., d], w [M, d] and θ [M], with dtypes of real numbers.

    They must be on one device.
    """
    if w.dim() != 2 or not h.dim() or h.shape[-1] != w.shape[1]:
        raise ValueError(
            f"`h` has shape {tuple(h.shape)} and `w` {tuple(w.shape)}; they must be [..., d] and "
            "[M, d]."
        )
    if theta.shape != w.shape[:1]:
        raise ValueError(
            f"`theta` has shape {tuple(theta.shape)}, but there are {w.shape[0]} senses: it is [M]."
        )
    inputs = (h, w, theta)
    if not all(value.is_floating_point() for value in inputs):
        kinds = ", ".join(str(value.dtype) for value in inputs)
        raise ValueError(
            f"`h`, `w` and `theta` are {kinds}; they must have dtypes of real numbers, such as "
            "torch.float32."
        )
    if not h.device == w.device == theta.device:
        places = ", ".join(str(value.device) for value in inputs)
        raise ValueError(f"`h`, `w` and `theta` are on {places}; they must be on one device.")


def kernel_logits(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    kernel: str | Kernel = "kerbs",
    products: torch.dtype | None = None,
) -> Tensor:
    """Logits K(h, w_m; θ_m) of every context vector and every sense.

    Args:
        h: context vectors, [..., d].
        w: sense embeddings, [M, d].
        theta: kernel parameters, [M]. Kernels without a parameter ignore it.
        kernel: a kernel, or its name in :data:`KERNELS`.
        products: dtype of the products h·w. Default: that of the result.

    Returns:
        [..., M], in float64 if an input is float64, else float32.

    Raises:
        ValueError: shapes do not match each other or the kernel, a dtype or device does not fit, or
            no kernel has that name.
    """
    check_inputs(h, w, theta)
    dtype = compute_dtype(h, w, theta)
    with torch.autocast(h.device.type, enabled=False):
        wide_h = h.to(dtype)
        wide_w = w.to(dtype)
        bound = build_kernel(kernel).bind(w.shape[1])
        narrow = dtype if products is None else products
        x = widen(bound.map_contexts(wide_h).to(narrow) @ w.to(narrow).t(), dtype)  # [..., M]
        return apply_kernel(bound, x, safe_norm(wide_h), safe_norm(wide_w).squeeze(-1), theta)


def kerbs_kernel(h: Tensor, w: Tensor, theta: Tensor) -> Tensor:
    """The KerBS kernel (Eq. 9) of every context vector and every sense, computed in float64.

    Value and gradients are exact to the precision of the inputs' dtype. The faster
    :func:`kernel_logits` computes in float32.

    Args:
        h: context vectors, [..., d].
        w: sense embeddings, [M, d].
        theta: kernel parameters, [M], limited to ±:data:`.kernels.kerbs.THETA_LIMIT`.

    Returns:
        [..., M], in the common dtype of the inputs, clamped to its finite range.

    Raises:
        ValueError: shapes do not match, or a dtype or device does not fit.
    """
    check_inputs(h, w, theta)
    logits = kernel_logits(h.double(), w.double(), theta.double(), "kerbs")
    dtype = torch.promote_types(torch.promote_types(h.dtype, w.dtype), theta.dtype)
    limits = torch.finfo(dtype)
    return logits.clamp(limits.min, limits.max).to(dtype)
