"""The likelihood as an operator of torch, and its autograd function."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, build_kernel
from fairseq_kerbs.kernels.base import Partials
from fairseq_kerbs.likelihood import kerbs_nll
from fairseq_kerbs.likelihood.custom_operator import KERNELS_BY_KEY, kernel_key
from fairseq_kerbs.senses import build_sense_table
from tests.helpers.likelihood import SMOOTHING, gradients, nll
from tests.helpers.reference import make_problem


@pytest.mark.parametrize("wanted", [True, False])
def test_the_operator_is_one_that_torch_accepts(wanted: bool) -> None:
    p = make_problem(9)
    key = kernel_key(build_kernel("kerbs").bind(7))
    table = [*build_sense_table(p.word_of_sense, p.vocab_size)]
    weight = (p.target != 3).double()
    h, w, theta = (value.detach() for value in p.leaves)
    tensors = (h, w, theta, table, p.target, weight)
    arguments = (*tensors, wanted, [0.8, 0.01], key, torch.float64, False)
    torch.library.opcheck(torch.ops.fairseq_kerbs.nll.default, arguments)


def test_kernels_with_the_same_options_have_the_same_key() -> None:
    key = kernel_key(build_kernel("pow", power=1.5))
    assert kernel_key(build_kernel("pow", power=1.5)) == key
    assert kernel_key(build_kernel("pow", power=2.5)) != key
    assert kernel_key(build_kernel("log", power=1.5)) != key
    assert kernel_key(build_kernel("ssg").bind(4)) != kernel_key(build_kernel("ssg").bind(6))
    assert KERNELS_BY_KEY[key] == build_kernel("pow", power=1.5)
    scales = ((1.0, (2.0, "x")), (1.0, (2.0, "x")), (1.0, (2.0,)))
    first, equal, other = (kernel_key(Stretched(scale)) for scale in scales)
    assert first == equal != other


class Stretched(Kernel):
    """An inner product of context vectors whose coordinates are scaled."""

    name = "stretched"
    homogeneous = True
    has_theta = False

    def __init__(self, scale: Any) -> None:
        self.scale = scale

    def map_contexts(self, h: Tensor) -> Tensor:
        scaled: Tensor = h * self.scale
        return scaled

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Tensor:
        return x

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
        return Partials(torch.ones_like(x))


def test_kernels_with_other_tensors_are_told_apart() -> None:
    """Also if torch prints them alike: it abbreviates long tensors, and rounds numbers."""
    p = make_problem(1100)
    senses = (p.w, p.theta, p.word_of_sense)
    for factor in (1.0, 1.00001, 7.0):
        scale = torch.ones(p.w.shape[1], dtype=torch.float64)
        scale[len(scale) // 2] = factor
        kernel = Stretched(scale)
        assert kernel_key(kernel) == kernel_key(kernel)
        loss = kerbs_nll(p.h, *senses, p.target, kernel=kernel)
        expected = kerbs_nll(p.h * scale, *senses, p.target, kernel="lin")
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0.0)


def scaled(scale: float) -> Kernel:
    """An inner product times a constant, of a class that closes over it."""

    class Scaled(Kernel):
        name = "scaled"
        homogeneous = True
        has_theta = False

        def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Tensor:
            return scale * x

        def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
            return Partials(torch.full_like(x, scale))

    return Scaled()


def test_kernel_classes_of_the_same_name_are_told_apart() -> None:
    """A notebook defines a class anew when its cell runs again."""
    p = make_problem(9)
    senses = (p.w, p.theta, p.word_of_sense)
    for scale in (2.0, 3.0):
        loss = kerbs_nll(p.h, *senses, p.target, kernel=scaled(scale))
        expected = kerbs_nll(p.h, scale * p.w, *senses[1:], p.target, kernel="lin")
        torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_backward_again_and_no_derivative_of_a_derivative(reduction: str) -> None:
    p = make_problem()
    loss = nll(p, reduction=reduction).sum()
    first = gradients(loss, p)
    loss.backward(retain_graph=True)
    nll(p, reduction=reduction).sum().backward()
    torch.testing.assert_close([leaf.grad for leaf in p.leaves], [2 * once for once in first])
    (grad,) = torch.autograd.grad(loss, p.h, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()
    loss = nll(p, reduction=reduction).sum()
    (grad,) = torch.autograd.grad(loss, p.h, create_graph=True)
    penalty = loss + (grad**2).sum()  # which would train without its second term
    for inputs in ([p.w], [p.theta], [p.h, p.w]):
        with pytest.raises(RuntimeError, match="differentiate twice"):
            torch.autograd.grad(penalty, inputs, retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        penalty.backward()


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_gradcheck_at_special_thetas_and_at_zero_vectors(smoothing: float, reduction: str) -> None:
    owners = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 0, 3])
    target = torch.tensor([3, 0, 2, 5])
    h = torch.rand(4, 3) + 0.3  # acute angles
    w = torch.rand(12, 3) + 0.3
    theta = torch.tensor(
        [0.0, 1e-8, -1e-8, 0.05, -0.05, 0.0499, 0.5, -0.5, 50.0, -50.0, 63.9, -63.9]
    )
    options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": reduction}

    def loss(h: Tensor, w: Tensor, theta: Tensor) -> Tensor:
        return kerbs_nll(h, w, theta, owners, target, **options)

    def loss_at_theta_zero(h: Tensor, w: Tensor) -> Tensor:
        return loss(h, w, torch.zeros(12).double())

    leaves = [value.double().requires_grad_() for value in (h, w, theta)]
    assert torch.autograd.gradcheck(loss, leaves, eps=1e-6, atol=1e-7, rtol=1e-5)
    leaves[0].data[0] = 0.0  # θ = 0 has no kink there
    leaves[1].data[2] = 0.0
    assert torch.autograd.gradcheck(loss_at_theta_zero, leaves[:2])
