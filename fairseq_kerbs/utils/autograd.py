"""Functions of autograd whose gradients cannot be differentiated again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor

from fairseq_kerbs.torch_compat import is_compiling

Gradients = tuple[Optional[Tensor], ...]


class _Refusal(torch.autograd.Function):
    """Identity of gradients, which refuses their derivatives."""

    @staticmethod
    def forward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient.view_as(gradient) for gradient in gradients)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Gradients:
        raise RuntimeError(
            "trying to differentiate twice: likelihoods and kernels of fairseq_kerbs have first "
            "derivatives only, so a loss cannot contain their gradients."
        )


def first_derivative(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Decorator of ``backward`` of an autograd function that has no second derivative.

    With ``create_graph=True`` the results require gradients, and computing these raises a
    RuntimeError. ``torch.autograd.function.once_differentiable`` does so only if an incoming
    gradient requires one. That of a loss itself does not, so a loss with a penalty on the gradient
    would silently train without it.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *incoming: Tensor) -> Gradients:
        with torch.no_grad():
            results = backward(ctx, *incoming)
        if is_compiling() or not torch.is_grad_enabled():
            return results  # a compiled backward refuses that itself
        given = [result.detach().requires_grad_() for result in results if result is not None]
        refusing = iter(_Refusal.apply(*given) if given else ())
        return tuple(None if result is None else next(refusing) for result in results)

    return wrapped
