"""The kernels against mpmath, at their limits, and in low precision."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch
from torch import Tensor

from fairseq_kerbs.kernels import KERNELS, apply_kernel, build_kernel, kerbs_kernel, kernel_logits
from fairseq_kerbs.kernels import kerbs as kernels
from fairseq_kerbs.kernels.base import safe_inverse
from tests.helpers.reference import as_leaves, kernel_reference, naive_logits

THETAS = [0.0, *(sign * size for size in (1e-8, 1e-4, 1e-2, 1, 10, 50) for sign in (1, -1))]
COSINES = [-1.0, -0.999, -0.75, -0.3, -1e-2, -1e-5, 1e-7, 1e-3, 0.125, 0.4, 0.8, 0.9999, 1.0]
NORMS = [(1.5, 0.75), (20.0, 0.06)]


def pair(cosine: float, h_norm: float, w_norm: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two vectors of the plane with about this cosine: the first turned by a fixed angle."""
    turn, angle = 0.4, math.acos(cosine)
    h = [h_norm * math.cos(turn), h_norm * math.sin(turn)]
    w = [w_norm * math.cos(turn + angle), w_norm * math.sin(turn + angle)]
    if abs(cosine) == 1.0:
        w = [cosine * w_norm / h_norm * value for value in h]
    return torch.tensor(h, dtype=dtype), torch.tensor(w, dtype=dtype)


def close(actual: Tensor, expected: list[float], tolerance: float) -> None:
    """Every component within ``tolerance`` of itself; components that are 0 beside the largest
    one within 1e-9 of that."""
    want = torch.tensor(expected, dtype=torch.float64)
    slack = tolerance * want.abs() + 1e-9 * want.abs().max()
    assert torch.all((actual.double() - want).abs() <= slack), (actual, want)


Case = tuple[float, list[list[float]], list[Tensor]]


def cases(theta: float, kernel: str, dtype: torch.dtype) -> list[Case]:
    """|h||w|, what is right, and value and gradients by ``kernel_logits``, or by ``kerbs_kernel``
    for the kernel "front"; for pairs of vectors at many cosines."""
    found: list[Case] = []
    for cosine, (h_norm, w_norm) in itertools.product(COSINES, NORMS):
        h, w = pair(cosine, h_norm, w_norm, dtype)
        leaves = as_leaves(h, w[None], torch.tensor([theta], dtype=dtype))
        front = kernel == "front"
        value = kerbs_kernel(*leaves) if front else kernel_logits(*leaves, kernel)
        assert value.dtype == dtype
        grads = torch.autograd.grad(value.sum(), leaves)
        name = "kerbs" if front else kernel
        right = kernel_reference(tuple(h.tolist()), tuple(w.tolist()), leaves[2].item(), name)
        found.append((h_norm * w_norm, right, [value.detach(), grads[0], grads[1][0], grads[2]]))
    return found


@pytest.mark.parametrize("theta", THETAS)
def test_value_and_gradients_are_those_of_eq_9_to_1e5_in_float32(theta: float) -> None:
    for _, expected, actual in cases(theta, "front", torch.float32):
        for got, want in zip(actual, expected, strict=True):
            close(got, want, 1e-5)


@pytest.mark.parametrize("kernel", ["kerbs", "kerbs_released"])
@pytest.mark.parametrize("theta", THETAS)
def test_float32_logits_stay_within_1e5_of_their_scale(theta: float, kernel: str) -> None:
    for size, expected, actual in cases(theta, kernel, torch.float32):
        # rounding c by 1 part in 2^24 moves e^{−θc} by θ parts
        tolerance = 1e-5 * (1 + abs(theta) / 20)
        (value,), by_h, by_w, (by_theta,) = expected
        scales = [max(map(abs, by)) for by in (by_h, by_w)]
        assert abs(actual[0].item() - value) <= tolerance * max(abs(value), min(size, scales[0]))
        for got, want, scale in zip(actual[1:3], (by_h, by_w), scales, strict=True):
            error = (got.double() - torch.tensor(want, dtype=torch.float64)).abs().max()
            assert error <= tolerance * scale
        # ∂K/∂θ changes its sign within c ∈ (0, 1): there only its size elsewhere is a scale
        limit = tolerance * max(abs(by_theta), abs(value), 0.1 * size)
        assert abs(actual[3].item() - by_theta) <= limit


@pytest.mark.parametrize("kernel", ["kerbs", "kerbs_released"])
@pytest.mark.parametrize("theta", [*THETAS, 0.3, -0.3, 63.9, -63.9, 0.999, 1.001])
def test_float64_logits_agree_with_mpmath_to_1e10(theta: float, kernel: str) -> None:
    for size, expected, actual in cases(theta, kernel, torch.float64):
        for got, want in zip(actual[:3], expected[:3], strict=True):
            close(got, want, 1e-10)
        (by_theta,) = expected[3]
        assert abs(actual[3].item() - by_theta) <= 1e-10 * max(abs(by_theta), 1e-3 * size)


def test_torch_reference_is_the_mpmath_reference() -> None:
    """The naive float64 formula of the other tests is itself held against mpmath."""
    for theta, cosine in itertools.product([*THETAS, 0.999, -1.001], COSINES):
        h, w = pair(cosine, 1.5, 0.75, torch.float64)
        for name in ("kerbs", "kerbs_released"):
            ((exact,), *_) = kernel_reference(tuple(h.tolist()), tuple(w.tolist()), theta, name)
            naive = naive_logits(h[None], w[None], torch.tensor([theta], dtype=torch.float64), name)
            assert naive.item() == pytest.approx(exact, rel=1e-8, abs=1e-12)


def units_in_the_last_place(actual: Tensor, exact: list[mpmath.mpf]) -> list[float]:
    """Relative errors in units of the dtype's epsilon."""
    epsilon = torch.finfo(actual.dtype).eps
    pairs = zip(actual.tolist(), exact, strict=True)
    return [float(abs(mpmath.mpf(a) / b - 1)) / epsilon for a, b in pairs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_series_and_quotients_are_right_to_the_last_places(dtype: torch.dtype) -> None:
    sizes = [1e-9, 1e-3, 0.1, 0.29, 0.49, 0.51, 0.95, 0.999, 1.001, 1.2, 1.9, 3.0, 20.0, 64.0]
    z = torch.tensor([sign * size for size in sizes for sign in (1, -1)], dtype=dtype)
    with mpmath.workdps(60):
        exact = [mpmath.mpf(value) for value in z.tolist()]
        phi1 = [mpmath.expm1(value) / value for value in exact]
        log_slope = [1 / (1 - mpmath.exp(-v)) - 1 / v for v in exact]
        phi2 = [(first - 1) / v for v, first in zip(exact, phi1, strict=True)]
        bent = [(a - 2 * b) / v for v, a, b in zip(exact, phi1, phi2, strict=True)]
        errors = units_in_the_last_place(kernels._log_slope(z, torch.expm1(z)), log_slope)
        assert max(errors) <= 10.0
        assert max(e for e, v in zip(errors, exact, strict=True) if abs(v) < 0.5) <= 1.5
        gain, gain_slope = kernels.kerbs_gain(-z)  # in float64 inside, rounded once
        assert gain.dtype == gain_slope.dtype == dtype
        tolerances = (0.6, 0.6) if dtype == torch.float32 else (2.0, 10.0)
        curved = [b / (2 * a * a) for a, b in zip(phi2, bent, strict=True)]
        assert max(units_in_the_last_place(gain, [1 / (2 * a) for a in phi2])) <= tolerances[0]
        assert max(units_in_the_last_place(gain_slope, curved)) <= tolerances[1]
    zero = z.new_zeros(1)
    assert kernels._log_slope(zero, zero).item() == 0.5


def test_theta_zero_is_the_inner_product() -> None:
    h, w = torch.randn(40, 6), torch.randn(30, 6)
    logits = kerbs_kernel(h, w, torch.zeros(30))
    exact = (h.double() @ w.double().t()).float()
    assert torch.equal(logits, exact)
    for tiny in (1e-8, -1e-8, 1e-12):
        near = kerbs_kernel(h, w, torch.full((30,), tiny))
        torch.testing.assert_close(near, exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-4, 1.0, 3e4])
def test_nothing_is_nan_or_infinite(dtype: torch.dtype, scale: float) -> None:
    base = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.6, 0.8], [0.0, 0.0], [1e-3, -1.0]])
    h, w = (base * scale).to(dtype), base.repeat(5, 1).to(dtype) * min(scale, 1e3)
    sizes = [0.0, 1e-8, 0.04, 0.3, 1.0, 10.0, 50.0, 63.99, 64.0, 64.01, 88.0, 100.0]
    for theta in (sign * size for size in sizes for sign in (1, -1)):
        for name in ("kerbs", "kerbs_released", "lin", "front"):
            parameter = torch.full((25,), theta, dtype=dtype)
            leaves = as_leaves(h, w, parameter)
            if name == "front":
                logits = kerbs_kernel(*leaves)
                assert logits.dtype == dtype
            else:
                logits = kernel_logits(*leaves, kernel=name)
            assert torch.isfinite(logits).all(), (theta, name)
            if dtype == torch.float16 and max(abs(theta), scale) > 1:
                continue  # the true gradient may be beyond float16: a loss scaler wants that inf
            grads = torch.autograd.grad(logits.sum(), leaves, allow_unused=True)
            assert all(grad is None or torch.isfinite(grad).all() for grad in grads), (theta, name)


def test_zero_vectors_score_zero_and_pass_a_gradient_on() -> None:
    h, w = torch.zeros(2, 3, requires_grad=True), torch.ones(4, 3, requires_grad=True)
    logits = kerbs_kernel(h, w, torch.tensor([0.0, 1.0, -50.0, 50.0]))
    assert torch.equal(logits, torch.zeros(2, 4))
    by_h, by_w = torch.autograd.grad(logits[:, :2].sum(), (h, w))
    assert (by_h != 0).all()  # h can leave the origin
    assert torch.equal(by_w, torch.zeros(4, 3))


def test_theta_beyond_the_limit_keeps_the_kernel_of_the_limit() -> None:
    h, w = torch.randn(5, 4), torch.randn(6, 4)
    for sign in (1, -1):
        for size in (64.0, 64.01, 100.0):
            theta = torch.full((6,), sign * size, requires_grad=True)
            logits = kerbs_kernel(h, w, theta)
            assert torch.equal(logits, kerbs_kernel(h, w, torch.full((6,), sign * 64.0)))
            (slope,) = torch.autograd.grad(logits.sum(), theta)
            assert (slope != 0).tolist() == [size == 64.0] * 6


@pytest.mark.parametrize("theta", [-20.0, 20.0])
def test_products_longer_than_their_norms_count_as_parallel(theta: float) -> None:
    """x comes from a product in bfloat16, |h| and |w| do not: |c| may come out above 1."""
    one, sides = torch.ones(2), torch.tensor([1.0, -1.0])
    for name, last in (("kerbs", 2), ("kerbs_released", 1)):  # which is h·w for c < 0
        kernel = build_kernel(name)
        columns = kernel.prepare(torch.full((2,), theta))
        at, beyond = (kernel.value(f * sides, one, one, columns) for f in (1.0, 1.5))
        torch.testing.assert_close(beyond[:last], at[:last])
        at_x, beyond_x = (kernel.partials(f * sides, one, one, columns) for f in (1.0, 1.5))
        torch.testing.assert_close(beyond_x, at_x)


def test_a_norm_without_a_finite_inverse_counts_as_zero() -> None:
    for dtype in (torch.float32, torch.float64):
        tiny = torch.finfo(dtype).tiny
        norms = torch.tensor([0.0, tiny / 4, tiny, 1.0, 8.0], dtype=dtype)
        assert safe_inverse(norms).tolist() == [0.0, 0.0, 1.0 / tiny, 1.0, 0.125]


def test_the_released_kernel_is_the_inner_product_at_right_angles_too() -> None:
    zero, one = torch.zeros(1), torch.ones(1)
    kernel = build_kernel("kerbs_released")
    partials = kernel.partials(zero, one, one, kernel.prepare(3.0 * one))
    assert [float(value) for value in partials] == [1.0, 0.0, 0.0, 0.0]


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
    h, w, theta = torch.randn(3, 8), torch.randn(4, 8), torch.randn(4)
    kernel = build_kernel(name)
    assert build_kernel(kernel) is kernel
    assert kernel_logits(h, w, theta, kernel).dtype == torch.float32
    assert kernel_logits(h.half(), w.half(), theta.half(), kernel).dtype == torch.float32
    for wide in ((h.double(), w, theta), (h, w.double(), theta), (h, w, theta.double())):
        assert kernel_logits(*wide, kernel).dtype == torch.float64
    parts = [torch.randn(3, 4), torch.rand(3, 1) + 9, torch.rand(4) + 9, theta]
    bound = kernel.bind(8)
    narrow = [part.bfloat16() for part in parts]
    value = apply_kernel(bound, *narrow)
    assert value.dtype == torch.float32
    assert torch.equal(value, apply_kernel(bound, *(part.float() for part in narrow)))
    for place in range(4):
        mixed = [part.double() if n == place else part for n, part in enumerate(parts)]
        assert apply_kernel(bound, *mixed).dtype == torch.float64


def test_shapes_and_names_are_checked() -> None:
    assert kerbs_kernel(torch.randn(2, 3, 5), torch.randn(4, 5), torch.randn(4)).shape == (2, 3, 4)
    with pytest.raises(ValueError, match=r"\[M, d\]"):
        kerbs_kernel(torch.randn(2, 5), torch.randn(4, 6), torch.randn(4))
    with pytest.raises(ValueError, match="4 senses"):
        kerbs_kernel(torch.randn(2, 5), torch.randn(4, 5), torch.randn(3))
    with pytest.raises(ValueError, match=r"`kernel`.*'cosine'.*kerbs, kerbs_released, lin"):
        build_kernel("cosine")
