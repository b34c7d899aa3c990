"""The likelihood as one operator of torch, and its autograd function.

torch.compile and torch.export do not trace into the operator. Its schema has flat tensors, numbers
and strings only. This module is the border: on the inner side, :func:`.chunks.compute_losses`, they
are dataclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs import torch_compat
from fairseq_kerbs.kernels import Kernel
from fairseq_kerbs.kernels.autograd import first_derivative
from fairseq_kerbs.likelihood.chunks import (
    InputGradients,
    LossInputs,
    LossSettings,
    Smoothing,
    TokenLosses,
    compute_losses,
)
from fairseq_kerbs.senses import SenseTable

KERNELS_BY_KEY: dict[str, Kernel] = {}  # custom operators take no Python objects
_PLAIN = (int, float, str, type(None), torch.dtype)  # what repr() shows as a whole


def _described(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join([_described(item) for item in value])})"
    return repr(value) if isinstance(value, _PLAIN) else f"{type(value)} {id(value)}"


def kernel_key(kernel: Kernel) -> str:
    """Register a kernel for the operator. Kernels with equal options have the same key.

    Options that are no numbers, texts or tuples of these, such as tensors, are equal if they are
    the same object, which the registered kernel keeps.
    """
    options = [(name, _described(value)) for name, value in sorted(vars(kernel).items())]
    key = f"{type(kernel)}{options}"
    # classes of the same name can differ, such as one that a notebook defines again
    while key in KERNELS_BY_KEY and type(KERNELS_BY_KEY[key]) is not type(kernel):
        key += "'"
    KERNELS_BY_KEY.setdefault(key, kernel)
    return key


class OperatorSettings(NamedTuple):
    """The last arguments of the operator: a :class:`.chunks.LossSettings` in types of a schema."""

    smoothing: tuple[float, float]  # fields of Smoothing
    kernel: str  # key in KERNELS_BY_KEY
    products: torch.dtype  # dtype of the matrix products
    compile: bool  # allow torch.compile


# a schema of torch.library has no types but flat ones; hence an argument for each field
def flat_losses(  # noqa: PLR0913
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    table: Sequence[Tensor],
    target: Tensor,
    weight: Tensor,
    gradients: bool,
    smoothing: Sequence[float],
    kernel: str,
    products: torch.dtype,
    compile: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """:func:`.chunks.compute_losses` with the signature of the operator's schema.

    Args:
        h, w, theta, table, target, weight: fields of :class:`.chunks.LossInputs`.
        gradients: compute gradients.
        smoothing, kernel, products, compile: fields of :class:`OperatorSettings`.

    Returns:
        loss, nll and sense probabilities of :class:`.chunks.TokenLosses`, then the gradients by h,
        w and θ, which are empty without ``gradients``.
    """
    inputs = LossInputs(h, w, theta, SenseTable(*table), target, weight)
    settings = LossSettings(KERNELS_BY_KEY[kernel], products, Smoothing(*smoothing), compile)
    losses, by_inputs = compute_losses(inputs, settings, gradients)
    if by_inputs is None:
        nothing = losses.loss.new_empty(0)
        by_inputs = InputGradients(nothing, nothing.clone(), nothing.clone())
    return *losses, *by_inputs


def _shapes(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    table: Sequence[Tensor],
    target: Tensor,
    weight: Tensor,
    gradients: bool,
    *_: Any,
) -> tuple[Tensor, ...]:
    """Empty tensors with the shapes of the results of :func:`flat_losses`."""
    by_inputs = [value.shape if gradients else 0 for value in (h, w, theta)]
    sizes = [weight.shape, weight.shape, (weight.shape[0], table[0].shape[1]), *by_inputs]
    return tuple(weight.new_empty(size) for size in sizes)


_run: Callable[..., tuple[Tensor, ...]] = flat_losses
if torch_compat.COMPILES:
    _run = torch.library.custom_op(
        "fairseq_kerbs::nll",
        flat_losses,
        mutates_args=(),
        schema="(Tensor h, Tensor w, Tensor theta, Tensor[] table, Tensor target, Tensor weight, "
        "bool gradients, float[] smoothing, str kernel, ScalarType products, bool compile) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    )
    _run.register_fake(_shapes)


class Request(NamedTuple):
    """What is asked of :class:`Nll`."""

    gradients: bool  # gradients will be needed
    unreduced: bool  # the loss of each token instead of the sum
    settings: OperatorSettings


class Nll(torch.autograd.Function):
    """Losses of tokens, or their sum with gradients from the forward pass.

    Gradients stay in the compute dtype until the loss scale of mixed precision multiplies them. If
    the losses are unreduced, backward computes the logits again: four products instead of three.
    """

    @staticmethod
    def forward(
        ctx: Any,
        request: Request,
        link: Tensor,
        weight: Tensor,
        target: Tensor,
        *inputs: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.link = link
        # autograd finds the inputs that need a gradient among flat arguments only
        h, w, theta, *table = inputs
        gradients_now = request.gradients and not request.unreduced
        results = _run(h, w, theta, table, target, weight, gradients_now, *request.settings)
        losses = TokenLosses(*results[:3])
        ctx.request = request
        ctx.dtypes = (h.dtype, w.dtype, theta.dtype)
        if request.unreduced:
            ctx.save_for_backward(h, w, theta, target, weight, *table)
        else:
            ctx.save_for_backward(*results[3:])
        ctx.mark_non_differentiable(losses.nll, losses.sense_prob)
        loss = losses.loss if request.unreduced else losses.loss.sum()
        return loss, losses.nll, losses.sense_prob

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.request.unreduced:
            h, w, theta, target, weight, *table = ctx.saved_tensors
            # the weights of tokens carry the gradient, and one factor its size
            factor = grad_loss.abs().sum().clamp_min(torch.finfo(grad_loss.dtype).tiny)
            weight = weight * (grad_loss / factor)
            settings = ctx.request.settings
            gradients = _run(h, w, theta, table, target, weight, True, *settings)[3:]
        else:
            gradients = ctx.saved_tensors
            factor = grad_loss
        needs = ctx.needs_input_grad[4:]  # of h, w, θ and the table
        narrowed = [
            _narrow(gradient, factor, dtype) if need else None
            for need, gradient, dtype in zip(needs, gradients, ctx.dtypes)
        ]
        return None, None, None, None, *narrowed, *[None] * len(needs[3:])


def _narrow(gradient: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Gradient times ``factor`` in ``dtype``. Only the factor, a loss scale, can cause overflow."""
    limits = torch.finfo(dtype)
    if limits.max < torch.finfo(gradient.dtype).max:
        gradient = gradient.clamp(limits.min, limits.max)
    return (gradient * factor).to(dtype)
