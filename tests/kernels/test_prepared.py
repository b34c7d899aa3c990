"""Products for decoding and for chunks, and the inputs of kernels."""

from unittest import mock

import pytest
import torch

from fairseq_kerbs.kernels import build_kernel, kernel_logits, prepared
from fairseq_kerbs.kernels.prepared import PreparedSenses, multiply, pack, product_dtype, widen
from tests.helpers.reference import make_problem


@pytest.mark.parametrize("mkl", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_product_is_the_same_by_each_library(mkl: bool, rows: int) -> None:
    a = torch.randn(rows, 7)
    b = torch.randn(11, 7)
    with mock.patch.object(prepared, "_mkl_is_faster", return_value=mkl):
        packed = pack(b)
        assert packed.is_mkldnn == (prepared._has_onednn() and not mkl)
        for right in (b, packed):
            product = multiply(a, right)
            assert product.shape == (rows, 11)
            torch.testing.assert_close(product, a @ b.t())


def test_products_have_the_dtype_of_autocast_except_for_float64() -> None:
    h = torch.randn(2, 3)
    assert product_dtype(h, h.half()) == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product_dtype(h, h) == torch.bfloat16
        assert product_dtype(h, h.double()) == torch.float64


def test_infinite_float16_products_become_the_largest_finite_ones() -> None:
    values = torch.tensor([1.5, torch.inf, -torch.inf], dtype=torch.float16)
    assert widen(values, torch.float32).tolist() == [1.5, 65504.0, -65504.0]
    infinite = torch.tensor([torch.inf])
    assert widen(infinite, torch.float64).tolist() == [torch.inf]


@pytest.mark.parametrize("name", ["kerbs", "kerbs_released", "ssg"])
def test_inputs_of_blocks_and_of_single_senses_give_the_kernels_logits(name: str) -> None:
    p = make_problem(5, 11, 29)
    kernel = build_kernel(name).bind(7)
    expected = kernel_logits(*p.leaves, kernel).detach().t()  # [M, n]
    senses = PreparedSenses.of(p.h, p.w.detach(), p.theta.detach(), kernel, torch.float64)
    x = senses.w @ p.h.detach().t()
    h_norm = p.h.detach().norm(dim=1)
    block = senses.inputs(x, h_norm, slice(3, 12)).value()
    torch.testing.assert_close(block, expected[3:12])
    numbers = torch.tensor([[0, 28, 3, 3, 7], [1, 2, 3, 4, 5]])
    single = senses.inputs_at(x, h_norm, numbers).value()
    torch.testing.assert_close(single, expected.gather(0, numbers))
