"""Kernels as differentiable functions of vectors: shapes, dtypes and names."""

import pytest
import torch

from fairseq_kerbs.kernels import KERNELS, apply_kernel, build_kernel, kerbs_kernel, kernel_logits


@pytest.mark.parametrize("name", ["kerbs", "kerbs_released", "lin"])
def test_all_four_quantities_broadcast(name: str) -> None:
    sizes = [(2, 1, 1, 1), (1, 3, 1, 1), (1, 1, 4, 1), (1, 1, 1, 5)]
    parts = [(torch.rand(size).double() + 0.5).requires_grad_() for size in sizes]
    value = apply_kernel(build_kernel(name), *parts)
    whole = [part.detach().expand(2, 3, 4, 5).contiguous().requires_grad_() for part in parts]
    expected = apply_kernel(build_kernel(name), *whole)
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=0.0)
    grads = torch.autograd.grad(value.sum(), parts)
    wanted = torch.autograd.grad(expected.sum(), whole)
    for part, grad, full in zip(parts, grads, wanted, strict=True):
        torch.testing.assert_close(grad, full.sum_to_size(part.shape))


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_logits_are_as_wide_as_the_inputs_and_at_least_float32(name: str) -> None:
    h = torch.randn(3, 8)
    w = torch.randn(4, 8)
    theta = torch.randn(4)
    kernel = build_kernel(name)
    assert build_kernel(kernel) is kernel
    assert kernel_logits(h, w, theta, kernel).dtype == torch.float32
    assert kernel_logits(h.half(), w.half(), theta.half(), kernel).dtype == torch.float32
    for wide in ((h.double(), w, theta), (h, w.double(), theta), (h, w, theta.double())):
        assert kernel_logits(*wide, kernel).dtype == torch.float64
        assert kerbs_kernel(*wide).dtype == torch.float64


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_values_are_as_wide_as_the_inputs_and_at_least_float32(name: str) -> None:
    kernel = build_kernel(name).bind(8)
    parts = [torch.randn(3, 4), torch.rand(3, 1) + 9, torch.rand(4) + 9, torch.randn(4)]
    narrow = [part.bfloat16() for part in parts]
    value = apply_kernel(kernel, *narrow)
    assert value.dtype == torch.float32
    assert torch.equal(value, apply_kernel(kernel, *(part.float() for part in narrow)))
    for place in range(4):
        mixed = [part.double() if n == place else part for n, part in enumerate(parts)]
        assert apply_kernel(kernel, *mixed).dtype == torch.float64


def test_shapes_and_names_are_checked() -> None:
    assert kerbs_kernel(torch.randn(2, 3, 5), torch.randn(4, 5), torch.randn(4)).shape == (2, 3, 4)
    with pytest.raises(ValueError, match=r"\[M, d\]"):
        kerbs_kernel(torch.randn(2, 5), torch.randn(4, 6), torch.randn(4))
    with pytest.raises(ValueError, match="4 senses"):
        kerbs_kernel(torch.randn(2, 5), torch.randn(4, 5), torch.randn(3))
    with pytest.raises(ValueError, match=r"torch.int64, torch.int64, .*dtypes of real numbers"):
        kerbs_kernel(*(torch.ones(size, dtype=torch.long) for size in ((2, 5), (4, 5), (4,))))
    with pytest.raises(ValueError, match=r"`kernel`.*'cosine'.*kerbs, kerbs_released, lin"):
        build_kernel("cosine")
    with pytest.raises(ValueError, match="`kernel`: lin has no option 'power'"):
        build_kernel("lin", power=2.0)
    with pytest.raises(ValueError, match="`kernel` is built already"):
        build_kernel(build_kernel("pow", power=2.0), power=3.0)


def test_no_derivative_of_a_derivative() -> None:
    h, w, theta = (torch.randn(size, requires_grad=True) for size in ((2, 5), (4, 5), (4,)))
    gradients = torch.autograd.grad(
        kernel_logits(h, w, theta, "kerbs").sum(), (h, w, theta), create_graph=True
    )
    for gradient in gradients:
        with pytest.raises(RuntimeError, match="differentiate twice"):
            gradient.sum().backward(retain_graph=True)
