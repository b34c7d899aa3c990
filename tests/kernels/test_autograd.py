"""Gradients that cannot be differentiated again."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.kernels.autograd import first_derivative, link_of


class Product(torch.autograd.Function):
    """x·y with a constant, whose gradient is none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, factor: float, link: Tensor) -> Tensor:
        ctx.link = link
        ctx.save_for_backward(x, y)
        return factor * x * y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        assert not torch.is_grad_enabled()
        return 3 * grad * y, 3 * grad * x, None, None


def product(x: Tensor, y: Tensor) -> Any:
    return Product.apply(x, y, 3.0, link_of(x, y))


@pytest.mark.parametrize("incoming", [False, True])
def test_first_derivatives_are_right_and_second_ones_refused(incoming: bool) -> None:
    x, y = (torch.tensor([value], requires_grad=True) for value in (2.0, 5.0))
    scale = torch.tensor([7.0], requires_grad=incoming)
    plain = torch.autograd.grad(product(x, y) * scale, (x, y))
    assert [value.item() for value in plain] == [105.0, 42.0]
    assert not any(value.requires_grad for value in plain)
    kept = torch.autograd.grad(product(x, y) * scale, (x, y), create_graph=True)
    assert [value.item() for value in kept] == [105.0, 42.0]
    for gradient in kept:
        penalty = gradient.square().sum()
        for inputs in ([x], [y], [x, y]):
            with pytest.raises(RuntimeError, match="differentiate twice: likelihoods"):
                torch.autograd.grad(penalty, inputs, retain_graph=True, allow_unused=True)
        with pytest.raises(RuntimeError, match="differentiate twice: likelihoods"):
            penalty.backward(inputs=[x], retain_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice: likelihoods"):
            penalty.backward()
    changed = torch.autograd.grad(product(x, y), x, create_graph=True)[0]
    assert changed.mul_(2.0).detach_().item() == 30.0


def test_a_graph_of_gradients_that_nobody_differentiates() -> None:
    x = torch.tensor([2.0], requires_grad=True)
    product(x, torch.tensor([5.0])).sum().backward(create_graph=True)
    assert x.grad is not None
    assert x.grad.item() == 15.0


def test_a_link_copies_nothing() -> None:
    """Of an expanded tensor, whose copy would have 8 TB."""
    x = torch.ones(1, 2, requires_grad=True)
    scalar = torch.ones((), requires_grad=True)
    link = link_of(x.expand(10**12, 2), scalar, torch.ones(2, 3, dtype=torch.float64).t())
    assert link.shape == (0,)
    assert link.requires_grad
