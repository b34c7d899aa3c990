"""The KerBS kernel and the released one against mpmath, at their limits, and in low precision."""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import mpmath
import pytest
import torch
from torch import Tensor

from fairseq_kerbs.kernels import build_kernel, kerbs_kernel, kernel_logits
from fairseq_kerbs.kernels import kerbs as kernels
from fairseq_kerbs.likelihood import kerbs_nll
from fairseq_kerbs.output_layers.decoding import score_words
from tests.helpers import reference
from tests.helpers.likelihood import chunks_of, senses_of
from tests.helpers.reference import as_leaves, kernel_reference, make_problem, naive_logits

THETAS = [0.0, *(sign * size for size in (1e-8, 1e-4, 1e-2, 1, 10, 50) for sign in (1, -1))]
COSINES = [-1.0, -0.999, -0.75, -0.3, -1e-2, -1e-5, 1e-7, 1e-3, 0.125, 0.4, 0.8, 0.9999, 1.0]


def pair(cosine: float, h_norm: float, w_norm: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two vectors of the plane with about this cosine: the first turned by a fixed angle."""
    turn = 0.4
    angle = math.acos(cosine)
    h = [h_norm * math.cos(turn), h_norm * math.sin(turn)]
    w = [w_norm * math.cos(turn + angle), w_norm * math.sin(turn + angle)]
    if abs(cosine) == 1.0:
        w = [cosine * w_norm / h_norm * value for value in h]
    return torch.tensor(h, dtype=dtype), torch.tensor(w, dtype=dtype)


class Case(NamedTuple):
    """A kernel at one pair of vectors."""

    size: float  # |h||w|
    expected: list[list[float]]  # value and gradients by h, w and θ, by mpmath
    actual: list[Tensor]  # ours


def cases(theta: float, kernel: str, dtype: torch.dtype) -> Iterator[Case]:
    """Many cosines. The kernel "front" is the function kerbs_kernel()."""
    for cosine, (h_norm, w_norm) in itertools.product(COSINES, [(1.5, 0.75), (20.0, 0.06)]):
        h, w = pair(cosine, h_norm, w_norm, dtype)
        leaves = as_leaves(h, w[None], torch.tensor([theta], dtype=dtype))
        value = kerbs_kernel(*leaves) if kernel == "front" else kernel_logits(*leaves, kernel)
        assert value.dtype == dtype
        by_h, by_w, by_theta = torch.autograd.grad(value.sum(), leaves)
        name = "kerbs" if kernel == "front" else kernel
        rounded = leaves[2].item()
        expected = kernel_reference(tuple(h.tolist()), tuple(w.tolist()), rounded, name)
        yield Case(h_norm * w_norm, expected, [value.detach(), by_h, by_w[0], by_theta])


def close(actual: Tensor, expected: list[float], tolerance: float) -> None:
    """Every component within ``tolerance`` of itself, or 1e-9 of the largest one."""
    want = torch.tensor(expected, dtype=torch.float64)
    slack = tolerance * want.abs() + 1e-9 * want.abs().max()
    assert torch.all((actual.double() - want).abs() <= slack), (actual, want)


@pytest.mark.parametrize("theta", THETAS)
def test_value_and_gradients_are_those_of_eq_9_to_1e5_in_float32(theta: float) -> None:
    for case in cases(theta, "front", torch.float32):
        for got, want in zip(case.actual, case.expected, strict=True):
            close(got, want, 1e-5)


@pytest.mark.parametrize("kernel", ["kerbs", "kerbs_released"])
@pytest.mark.parametrize("theta", THETAS)
def test_float32_logits_stay_within_1e5_of_their_scale(theta: float, kernel: str) -> None:
    # rounding c by 1 part in 2^24 moves e^{−θc} by θ parts
    tolerance = 1e-5 * (1 + abs(theta) / 20)
    for size, expected, actual in cases(theta, kernel, torch.float32):
        (value,), by_h, by_w, (by_theta,) = expected
        h_scale = max(map(abs, by_h))
        w_scale = max(map(abs, by_w))
        assert abs(actual[0].item() - value) <= tolerance * max(abs(value), min(size, h_scale))
        for got, want, scale in ((actual[1], by_h, h_scale), (actual[2], by_w, w_scale)):
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
    return [
        float(abs(mpmath.mpf(value) / right - 1)) / epsilon
        for value, right in zip(actual.tolist(), exact, strict=True)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_series_and_quotients_are_right_to_the_last_places(dtype: torch.dtype) -> None:
    sizes = [1e-9, 1e-3, 0.1, 0.29, 0.49, 0.51, 0.95, 0.999, 1.001, 1.2, 1.9, 3.0, 20.0, 64.0]
    z = torch.tensor([sign * size for size in sizes for sign in (1, -1)], dtype=dtype)
    with mpmath.workdps(60):
        exact = [mpmath.mpf(value) for value in z.tolist()]
        phi1 = [mpmath.expm1(v) / v for v in exact]
        log_slope = [1 / (1 - mpmath.exp(-v)) - 1 / v for v in exact]
        phi2 = [(first - 1) / v for v, first in zip(exact, phi1, strict=True)]
        phi2_slope = [(a - 2 * b) / v for v, a, b in zip(exact, phi1, phi2, strict=True)]
        expected_gain = [1 / (2 * a) for a in phi2]
        expected_slope = [b / (2 * a * a) for a, b in zip(phi2, phi2_slope, strict=True)]
        errors = units_in_the_last_place(kernels._log_slope(z, torch.expm1(z)), log_slope)
        assert max(errors) <= 10.0
        assert max(e for e, v in zip(errors, exact, strict=True) if abs(v) < 0.5) <= 1.5
        gain, gain_slope = kernels.kerbs_gain(-z)  # in float64 inside, rounded once
        assert gain.dtype == dtype
        assert gain_slope.dtype == dtype
        gain_limit = 0.6 if dtype == torch.float32 else 2.0
        slope_limit = 0.6 if dtype == torch.float32 else 10.0
        assert max(units_in_the_last_place(gain, expected_gain)) <= gain_limit
        assert max(units_in_the_last_place(gain_slope, expected_slope)) <= slope_limit
    zero = z.new_zeros(1)
    assert kernels._log_slope(zero, zero).item() == 0.5


def test_theta_zero_is_the_inner_product() -> None:
    h = torch.randn(40, 6)
    w = torch.randn(30, 6)
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
    h = (base * scale).to(dtype)
    w = base.repeat(5, 1).to(dtype) * min(scale, 1e3)
    sizes = [0.0, 1e-8, 0.04, 0.3, 1.0, 10.0, 50.0, 63.99, 64.0, 64.01, 88.0, 100.0]
    for theta in (sign * size for size in sizes for sign in (1, -1)):
        for name in ("kerbs", "kerbs_released", "lin", "front"):
            leaves = as_leaves(h, w, torch.full((25,), theta, dtype=dtype))
            if name == "front":
                logits = kerbs_kernel(*leaves)
                assert logits.dtype == dtype
            else:
                logits = kernel_logits(*leaves, kernel=name)
            assert torch.isfinite(logits).all(), (theta, name)
            if dtype == torch.float16 and max(abs(theta), scale) > 1:
                continue  # the true gradient may be beyond float16: a loss scaler wants that inf
            for grad in torch.autograd.grad(logits.sum(), leaves, allow_unused=True):
                assert grad is None or torch.isfinite(grad).all(), (theta, name)


def test_zero_vectors_score_zero_and_pass_a_gradient_on() -> None:
    h = torch.zeros(2, 3, requires_grad=True)
    w = torch.ones(4, 3, requires_grad=True)
    logits = kerbs_kernel(h, w, torch.tensor([0.0, 1.0, -50.0, 50.0]))
    assert torch.equal(logits, torch.zeros(2, 4))
    by_h, by_w = torch.autograd.grad(logits[:, :2].sum(), (h, w))
    assert (by_h != 0).all()  # h can leave the origin
    assert torch.equal(by_w, torch.zeros(4, 3))


def test_theta_beyond_the_limit_keeps_the_kernel_of_the_limit() -> None:
    h = torch.randn(5, 4)
    w = torch.randn(6, 4)
    for sign in (1, -1):
        at_limit = kerbs_kernel(h, w, torch.full((6,), sign * 64.0))
        for size in (64.0, 64.01, 100.0):
            theta = torch.full((6,), sign * size, requires_grad=True)
            logits = kerbs_kernel(h, w, theta)
            assert torch.equal(logits, at_limit)
            (slope,) = torch.autograd.grad(logits.sum(), theta)
            assert (slope != 0).tolist() == [size == 64.0] * 6


@pytest.mark.parametrize("theta", [-20.0, 20.0])
@pytest.mark.parametrize(("name", "bounded"), [("kerbs", 2), ("kerbs_released", 1)])
def test_products_longer_than_their_norms_count_as_parallel(
    name: str, bounded: int, theta: float
) -> None:
    """x comes from a product in bfloat16, |h| and |w| do not: |c| may come out above 1.

    Only the first value of the released kernel is bounded, which is h·w for c < 0.
    """
    one = torch.ones(2)
    both = torch.tensor([1.0, -1.0])
    kernel = build_kernel(name)
    columns = kernel.prepare(torch.full((2,), theta))
    at = kernel.value(both, one, one, columns)
    beyond = kernel.value(1.5 * both, one, one, columns)
    torch.testing.assert_close(beyond[:bounded], at[:bounded])
    slopes_at = kernel.partials(both, one, one, columns)
    slopes_beyond = kernel.partials(1.5 * both, one, one, columns)
    torch.testing.assert_close(slopes_beyond, slopes_at)


def test_the_released_kernel_is_the_inner_product_at_right_angles_too() -> None:
    zero = torch.zeros(1)
    one = torch.ones(1)
    kernel = build_kernel("kerbs_released")
    partials = kernel.partials(zero, one, one, kernel.prepare(3.0 * one))
    assert [float(value) for value in partials] == [1.0, 0.0, 0.0, 0.0]


def released_parameters(g: torch.Generator) -> Tensor:
    """Parameters r within [−4, 3], at and beside its ends, and far outside, [12] in float64."""
    ends = [-4.0, 3.0, -4.0 - 1e-6, -4.0 + 1e-6, 3.0 - 1e-6, 3.0 + 1e-6]
    fixed = torch.tensor([*ends, 0.0], dtype=torch.float64)
    inside = -4.0 + 7.0 * torch.rand(3, generator=g)
    outside = 40.0 * torch.randn(2, generator=g)
    return torch.cat([fixed, inside, outside])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_released_kernel_is_its_loop_in_100_cases(dtype: torch.dtype) -> None:
    """Cosines of all signs, also 0; a value and the derivatives by h, w and r of each pair."""
    tolerance = 1e-13 if dtype == torch.float64 else 1e-6
    for seed in range(100):
        g = torch.Generator().manual_seed(seed)
        parameters = released_parameters(g).to(dtype)
        w = torch.randn(len(parameters), 4, generator=g).to(dtype)
        h = 2.0 * torch.randn(4, generator=g).to(dtype)
        h[3] = 0.0
        w[seed % 12] = torch.tensor([0.0, 0.0, 0.0, 1.5])  # c = 0, without rounding
        w[(seed + 1) % 12] = -h
        w[(seed + 2) % 12] = 0.5 * h
        leaves = as_leaves(h, w, parameters)
        logits = kernel_logits(*leaves, kernel="kerbs_released")
        by_h, by_w, by_r = torch.autograd.grad(logits.sum(), leaves)
        rows = []
        for row, parameter in zip(w.tolist(), parameters.tolist(), strict=True):
            right_angle = row[:3] == [0.0] * 3  # where the slope by x jumps
            name = "lin" if right_angle else "kerbs_released"
            rows.append(kernel_reference(tuple(h.tolist()), tuple(row), parameter, name))
        values, by_h_each, by_w_each, slopes = (
            torch.tensor([row[i] for row in rows], dtype=torch.float64) for i in range(4)
        )
        scales = h.norm().double() * w.norm(dim=1).double()
        # a rounded c moves the logit by up to θ² times that, and its gradients by up to θ³ times
        steep = 1.0 + parameters.double().clamp(-4.0, 4.0).exp()
        assert ((logits - values[:, 0]).abs() <= tolerance * scales * steep**2).all()
        errors = (by_w - by_w_each).norm(dim=1)
        assert (errors <= tolerance * h.norm() * steep**3).all()
        assert (by_h - by_h_each.sum(0)).norm() <= tolerance * (w.norm(dim=1) * steep**3).sum()
        assert ((by_r - slopes[:, 0]).abs() <= tolerance * scales * steep**3).all()


def test_the_bound_of_the_released_parameter_is_smooth_at_its_joints() -> None:
    theta_of = build_kernel("kerbs_released").theta_of
    inside = torch.linspace(-4.0, 3.0, 57).double()
    assert torch.equal(theta_of(inside), inside.exp())  # taken as it is
    for joint in (-4.0, 3.0):
        for step in (1e-3, 1e-5):
            points = [joint - step, joint, joint + step]
            r = torch.tensor(points, dtype=torch.float64).requires_grad_()
            exponent = theta_of(r).log()
            (slope,) = torch.autograd.grad(exponent.sum(), r)
            # b(r) − r is quadratic in the step, and its slope linear
            assert (exponent - r).abs().max() <= step**2
            assert (slope - 1.0).abs().max() <= 1.001 * step
    far = torch.tensor([-torch.inf, -1e30, -50.0, 50.0, 1e30, torch.inf]).double()
    expected = torch.tensor([-5.0] * 3 + [4.0] * 3).double()
    torch.testing.assert_close(theta_of(far).log(), expected, rtol=1e-14, atol=0.0)
    assert theta_of(torch.zeros(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_released_logits_are_finite_for_every_parameter(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    sizes = [0.0, 1e-30, 3.0, 4.0, 5.0, 88.0, 800.0, 1e5, largest, math.inf]
    r = torch.tensor([sign * size for size in sizes for sign in (1, -1)], dtype=dtype)
    h = torch.tensor([[1e4, 0.0], [-1e4, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=dtype)
    w = torch.tensor([[1e4, 1.0]], dtype=dtype).expand(len(r), 2)
    leaves = as_leaves(h, w, r)
    logits = kernel_logits(*leaves, kernel="kerbs_released")
    assert logits.isfinite().all()
    # |h||w| θ/2 with θ < e^4 is the highest at c = 1, but for e^−θ
    assert logits.max() <= 1e8 * math.exp(4.0) / 2 * 1.001
    for grad in torch.autograd.grad(logits.sum(), leaves):
        assert grad.isfinite().all()


def test_gradients_of_the_released_kernel_pass_gradcheck() -> None:
    g = torch.Generator().manual_seed(1)
    h = torch.randn(4, 3, generator=g).double().requires_grad_()
    w = torch.randn(12, 3, generator=g).double().requires_grad_()
    r = released_parameters(g).clamp(-12.0, 12.0).requires_grad_()

    def logits(h: Tensor, w: Tensor, parameter: Tensor) -> Tensor:
        return kernel_logits(h, w, parameter, kernel="kerbs_released")

    assert torch.autograd.gradcheck(logits, (h, w, r), eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fast_paths_of_the_released_kernel_are_plain_autograd(dtype: torch.dtype) -> None:
    """Loss in chunks, scores of decoding and posteriors, with r within and far outside its range.

    ``prepare`` is the same in both precisions, as it computes in float64.
    """
    kernel = build_kernel("kerbs_released")
    wide = make_problem(41, 17, 45, 8, theta_scale=4.0)
    with torch.no_grad():
        wide.theta[:3] = torch.tensor([-40.0, 40.0, 3.0])
    p = wide.to(dtype)
    tolerance = 1e-9 if dtype == torch.float64 else 3e-5
    logits = naive_logits(*wide.leaves, "kerbs_released")
    log_probs = reference.naive_word_log_probs(logits, wide.word_of_sense, 17)
    scores = score_words(p.h, senses_of(p, kernel))[0]
    torch.testing.assert_close(scores.double(), log_probs, rtol=tolerance, atol=100 * tolerance)
    for smoothing in (0.0, 0.1):
        truth = reference.naive_smoothed_losses(log_probs, wide.target, smoothing).sum()
        expected = torch.autograd.grad(truth, wide.leaves, retain_graph=True)
        for reduction, compiled in (("sum", False), ("none", False), ("sum", True)):
            options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": reduction}
            with chunks_of(10):
                loss = kerbs_nll(*p[:5], kernel=kernel, compile=compiled, **options).sum()
            assert loss.item() == pytest.approx(truth.item(), rel=tolerance)
            for ours, right in zip(torch.autograd.grad(loss, p.leaves), expected, strict=True):
                assert (ours.double() - right).norm() <= 10 * tolerance * right.norm()
    columns = kernel.prepare(p.theta.detach())
    right = kernel.prepare(p.theta.detach().double())
    torch.testing.assert_close(columns.double(), right, rtol=torch.finfo(dtype).eps, atol=0.0)
