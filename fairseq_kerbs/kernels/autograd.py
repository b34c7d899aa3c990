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
    def forward(ctx: Any, link: Tensor, *gradients: Tensor) -> tuple[Tensor, ...]:
        ctx.mark_dirty(*gradients)  # otherwise they would be views, which cannot be changed
        return gradients

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Gradients:
        raise RuntimeError(
            "trying to differentiate twice: likelihoods and kernels of fairseq_kerbs have first "
            "derivatives only, so a loss cannot contain their gradients."
        )


def link_of(*inputs: Tensor) -> Tensor:
    """An empty tensor that depends on inputs, for :func:`first_derivative`."""
    # flatten() would copy a tensor that is expanded or transposed, so its rows are left out first
    return torch.cat([value.unsqueeze(0)[:0].flatten().float() for value in inputs])


def first_derivative(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Decorator of ``backward`` of an autograd function that has no second derivative.

    The function has an argument :func:`link_of` its other inputs, and its ``forward`` keeps it as
    ``ctx.link``. With ``create_graph=True`` the gradients then depend on these inputs, and their
    derivatives raise a RuntimeError, also those by a part of the inputs.
    ``torch.autograd.function.once_differentiable`` raises it only if an incoming gradient requires
    a gradient. That of a loss itself does not, so a loss with a penalty on the gradient would
    silently train without it.
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *incoming: Tensor) -> Gradients:
        with torch.no_grad():
            results = backward(ctx, *incoming)
        if is_compiling() or not torch.is_grad_enabled():
            return results
        places = []
        copies = []  # of views, too, which an autograd function may not return
        for place, result in enumerate(results):
            if result is not None:
                places.append(place)
                copies.append(result.clone())
        guarded = list(results)
        for place, gradient in zip(places, _Refusal.apply(ctx.link, *copies)):
            guarded[place] = gradient
        return tuple(guarded)

    return wrapped
