"""The kernels against mpmath and equations, at their limits, and in low precision."""

import argparse
import itertools
import math
from collections.abc import Iterator
from typing import Any

import mpmath
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from fairseq_kerbs.kernels import (
    KERNELS,
    apply_kernel,
    build_kernel,
    kerbs_kernel,
    kernel_logits,
    kernel_options,
)
from fairseq_kerbs.kernels import kerbs as kernels
from fairseq_kerbs.kernels.base import safe_inverse
from fairseq_kerbs.kernels.gao import VARIANCE_FLOOR, squared_distance
from fairseq_kerbs.likelihood import kerbs_log_probs, kerbs_nll
from fairseq_kerbs.models.config import KerbsConfig, kernels_from_flags
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.output_layers.ranked_senses import score_words
from tests.helpers import reference
from tests.helpers.gao_reference import plain_logits
from tests.helpers.reference import as_leaves, kernel_reference, make_problem, naive_logits
from tests.likelihood.test_nll import chunks_of, senses_of

THETAS = [0.0, *(sign * size for size in (1e-8, 1e-4, 1e-2, 1, 10, 50) for sign in (1, -1))]
COSINES = [-1.0, -0.999, -0.75, -0.3, -1e-2, -1e-5, 1e-7, 1e-3, 0.125, 0.4, 0.8, 0.9999, 1.0]


def pair(cosine: float, h_norm: float, w_norm: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two vectors of the plane with about this cosine: the first turned by a fixed angle."""
    turn, angle = 0.4, math.acos(cosine)
    h = [h_norm * math.cos(turn), h_norm * math.sin(turn)]
    w = [w_norm * math.cos(turn + angle), w_norm * math.sin(turn + angle)]
    if abs(cosine) == 1.0:
        w = [cosine * w_norm / h_norm * value for value in h]
    return torch.tensor(h, dtype=dtype), torch.tensor(w, dtype=dtype)


def close(actual: Tensor, expected: list[float], tolerance: float) -> None:
    """Every component within ``tolerance`` of itself, or 1e-9 of the largest one."""
    want = torch.tensor(expected, dtype=torch.float64)
    slack = tolerance * want.abs() + 1e-9 * want.abs().max()
    assert torch.all((actual.double() - want).abs() <= slack), (actual, want)


def cases(theta: float, kernel: str, dtype: torch.dtype) -> Iterator[Any]:
    """|h||w|, what is right, and value and gradients, at many cosines; "front" is the function."""
    for cosine, (h_norm, w_norm) in itertools.product(COSINES, [(1.5, 0.75), (20.0, 0.06)]):
        h, w = pair(cosine, h_norm, w_norm, dtype)
        leaves = as_leaves(h, w[None], torch.tensor([theta], dtype=dtype))
        front = kernel == "front"
        value = kerbs_kernel(*leaves) if front else kernel_logits(*leaves, kernel)
        assert value.dtype == dtype
        grads = torch.autograd.grad(value.sum(), leaves)
        name = "kerbs" if front else kernel
        right = kernel_reference(tuple(h.tolist()), tuple(w.tolist()), leaves[2].item(), name)
        yield h_norm * w_norm, right, [value.detach(), grads[0], grads[1][0], grads[2]]


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
    epsilon, pairs = torch.finfo(actual.dtype).eps, zip(actual.tolist(), exact, strict=True)
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
    logits, exact = kerbs_kernel(h, w, torch.zeros(30)), (h.double() @ w.double().t()).float()
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
            leaves = as_leaves(h, w, torch.full((25,), theta, dtype=dtype))
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
    zero, one, kernel = torch.zeros(1), torch.ones(1), build_kernel("kerbs_released")
    partials = kernel.partials(zero, one, one, kernel.prepare(3.0 * one))
    assert [float(value) for value in partials] == [1.0, 0.0, 0.0, 0.0]


def released_parameters(g: torch.Generator) -> Tensor:
    """Parameters r within [−4, 3], at and beside its ends, and far outside, [12] in float64."""
    ends = [-4.0, 3.0, -4.0 - 1e-6, -4.0 + 1e-6, 3.0 - 1e-6, 3.0 + 1e-6]
    drawn = [-4.0 + 7.0 * torch.rand(3, generator=g), 40.0 * torch.randn(2, generator=g)]
    return torch.cat([torch.tensor([*ends, 0.0], dtype=torch.float64), *drawn])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_released_kernel_is_its_loop_in_100_cases(dtype: torch.dtype) -> None:
    """Cosines of all signs, also 0; a value and the derivatives by h, w and r of each pair."""
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
        tolerance = 1e-13 if dtype == torch.float64 else 1e-6
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
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(logits.sum(), leaves))


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
    wide, kernel = make_problem(41, 17, 45, 8, theta_scale=4.0), build_kernel("kerbs_released")
    with torch.no_grad():
        wide.theta[:3] = torch.tensor([-40.0, 40.0, 3.0])
    p = wide.to(dtype)
    tolerance = 1e-9 if dtype == torch.float64 else 3e-5
    exact = naive_logits(*wide.leaves, "kerbs_released")
    log_probs = reference.naive_word_log_probs(exact, wide.word_of_sense, 17)
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
    columns, right = kernel.prepare(p.theta.detach()), kernel.prepare(p.theta.detach().double())
    torch.testing.assert_close(columns.double(), right, rtol=torch.finfo(dtype).eps, atol=0.0)


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
    bound, narrow = kernel.bind(8), [part.bfloat16() for part in parts]
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


NINE = ["lin", "log", "pow", "pol", "rbf", "ssg", "mog", "hpb", "wav"]

# name and options: the defaults, and what takes another branch
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NINE),
    *(("log", {"power": power}) for power in (1.0, 3.5)),
    *(("pow", {"power": power}) for power in (0.7, 3.0)),
    ("pol", {"power": 2, "alpha": 0.5, "offset": -0.3}),
    ("rbf", {"gamma": 0.7}),
    ("wav", {"a": 1.3, "b": 4.0}),
]
every_case = pytest.mark.parametrize(("name", "options"), CASES)


def vectors(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Pairs that are apart, opposite, short, near to each other, and of different lengths."""
    g = torch.Generator().manual_seed(3)
    h, w = (torch.randn(4, generator=g, dtype=torch.float64) for _ in range(2))
    pairs = [(h, w), (h, -h), (1e-2 * h, 3e-2 * w), (h, h + 0.05 * w), (5 * h, 0.3 * w)]
    pairs.append((torch.zeros(4, dtype=torch.float64), w))
    return [(a.to(dtype), b.to(dtype)) for a, b in pairs]


@every_case
def test_values_and_gradients_are_those_of_equations(name: str, options: dict[str, Any]) -> None:
    kernel = build_kernel(name, **options)
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
        for h, w in vectors(dtype):
            leaves = [v[None].clone().requires_grad_() for v in (h, w)]
            wide = [v[None].double().clone().requires_grad_() for v in (h, w)]
            value = kernel_logits(leaves[0], leaves[1], torch.zeros(1, dtype=dtype), kernel)
            right = plain_logits(wide[0], wide[1], name, options)
            assert value.item() == pytest.approx(right.item(), rel=tolerance, abs=tolerance)
            pairs = ((value, leaves), (right, wide))
            found, expected = (torch.cat(torch.autograd.grad(a.sum(), b)) for a, b in pairs)
            # a short difference of long vectors, cancelled: wrong on the scale of the long ones
            nearness = (h.norm() + w.norm()) / (h - w).norm()
            bound = tolerance * (1 + nearness.item()) * expected.abs().max().item()
            assert (found.double() - expected).abs().max().item() <= bound + 1e-300, (h, w)


def test_the_gaussian_kernels_are_integrals() -> None:
    """Eq. 9 in two dimensions, and Eq. 10 of means in one, by quadrature."""
    w, h = [0.8, -1.1], [0.3, 1.9]
    s, t = (math.sqrt(sum(p * p for p in v) / 2 + VARIANCE_FLOOR) for v in (w, h))

    def log_integral(a: float, b: float) -> float:
        def product(z: float) -> float:
            return float(stats.norm.pdf(z, a, s) * stats.norm.pdf(z, b, t))

        return math.log(integrate.quad(product, -30, 30, points=[a, b], limit=200)[0])

    pair = torch.tensor([h, w], dtype=torch.float64)
    for name, pairs in (("ssg", zip(w, h, strict=True)), ("mog", itertools.product(w, h))):
        value = kernel_logits(pair[0], pair[1:], torch.zeros(1).double(), name).item()
        assert value == pytest.approx(sum(log_integral(*means) for means in pairs), rel=1e-9)


@every_case
def test_losses_and_scores_are_those_of_plain_autograd(name: str, options: dict[str, Any]) -> None:
    wide, kernel = make_problem(33, 19, 50, 14), build_kernel(name, **options)
    logits = plain_logits(wide.h, wide.w, name, options)
    log_probs = reference.naive_word_log_probs(logits, wide.word_of_sense, 19)
    with_gradient = kerbs_log_probs(*wide[:4], 19, kernel=kernel)
    assert with_gradient.requires_grad
    for scores in (with_gradient, score_words(wide.h, senses_of(wide, kernel))[0]):
        torch.testing.assert_close(scores, log_probs, rtol=1e-10, atol=1e-10)
        assert (scores.exp().sum(1) - 1).abs().max() <= 1e-12
    wide.target[4] = -100
    for smoothing in (0.0, 0.1):
        losses = reference.naive_smoothed_losses(log_probs, wide.target.clamp_min(0), smoothing)
        truth = (losses * (wide.target != -100)).sum()
        expected = torch.autograd.grad(truth, (wide.h, wide.w), retain_graph=True)
        for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
            p = wide.to(dtype)
            arguments = (p.h, p.w, p.theta, p.word_of_sense, p.target)
            with chunks_of(10):
                loss = kerbs_nll(*arguments, kernel=kernel, label_smoothing=smoothing)
            assert loss.item() == pytest.approx(truth.item(), rel=tolerance)
            each = kerbs_nll(*arguments, kernel=kernel, label_smoothing=smoothing, reduction="none")
            for result in (loss, each.sum()):
                actual = torch.autograd.grad(result, (p.h, p.w))
                for ours, right in zip(actual, expected, strict=True):
                    assert (ours.double() - right).norm() / right.norm().item() <= tolerance, dtype


@pytest.mark.parametrize("name", NINE)
def test_low_precision_and_autocast(name: str) -> None:
    p = make_problem(40, 20, 50, 16)
    p = p._replace(h=0.5 * p.h, w=0.5 * p.w).to(torch.float32)
    for dtype, bits in ((torch.float16, 11), (torch.bfloat16, 8)):
        low = p.to(dtype)
        wide = low.to(torch.float64)
        truth = kerbs_nll(*wide[:5], kernel=name)
        expected = torch.autograd.grad(truth, (wide.h, wide.w))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = kerbs_nll(*p[:5], kernel=name)
        assert cast.item() == pytest.approx(kerbs_nll(*p[:5], kernel=name).item(), rel=0.01)
        loss = kerbs_nll(*low[:5], kernel=name)
        assert loss.item() == pytest.approx(truth.item(), rel=2 * 2.0**-bits)
        for ours, right in zip(torch.autograd.grad(loss, (low.h, low.w)), expected, strict=True):
            assert ((ours.double() - right).norm() / right.norm()).item() <= 16 * 2.0**-bits


@every_case
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-12, 1.0, 1e3])
def test_gaos_kernels_are_finite(name: str, options: dict[str, Any], scale: float) -> None:
    base = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.6, 0.8], [0.0, 0.0], [1e-3, -1.0]])
    h, w = ((base * scale).requires_grad_() for _ in range(2))
    theta, kernel = torch.zeros(5), build_kernel(name, **options)
    owners, target = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 1, 2, 1, 0])
    logits = kernel_logits(h, w, theta, kernel)
    loss = kerbs_nll(h, w, theta, owners, target, kernel=kernel, label_smoothing=0.1)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(loss)
    for result in (logits.sum(), loss):
        gradients = torch.autograd.grad(result, (h, w), retain_graph=True)
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize(("name", "power"), [("pow", 40.0), ("log", 40.0), ("pol", 15)])
def test_high_powers_of_long_vectors_stay_finite(name: str, power: float) -> None:
    h = torch.tensor([[900.0, 0.0], [0.0, 1.0]], requires_grad=True)
    w = torch.tensor([[-900.0, 0.0], [900.0, 1.0], [0.0, 2.0]], requires_grad=True)
    kernel = build_kernel(name, power=power)
    logits = kernel_logits(h, w, torch.zeros(3), kernel)
    assert torch.isfinite(logits).all()
    loss = kerbs_nll(h, w, torch.zeros(3), torch.arange(3), torch.tensor([1, 2]), kernel=kernel)
    for gradient in torch.autograd.grad(loss, (h, w)):
        assert torch.isfinite(gradient).all()
    if name == "log":  # −p log of the distance, which no power saturates
        assert logits[0, 0].item() == pytest.approx(-40 * math.log(1800.0), rel=1e-5)


def test_distances_in_float32_are_right_to_the_last_places_of_the_squares() -> None:
    g = torch.Generator().manual_seed(0)
    h = torch.randn(200, 123, generator=g) * 3
    w = h + 10.0 ** torch.linspace(-6, 0, 200)[:, None] * torch.randn(200, 123, generator=g)
    norms = h.norm(dim=1), w.norm(dim=1)
    distance = squared_distance((h * w).sum(1), *norms)
    right = (h.double() - w.double()).square().sum(1)
    scale = norms[0].square() + norms[1].square()
    assert (distance >= 0).all()
    assert ((distance.double() - right).abs() <= 4 * 2.0**-23 * scale).all()


@pytest.mark.parametrize("case", [("pow", {"power": 1.0}), ("pow", {"power": 0.5}), ("hpb", {})])
def test_steep_kernels_have_no_gradient_at_their_top_and_a_bounded_one_beside_it(case: Any) -> None:
    kernel, start = build_kernel(case[0], **case[1]), torch.tensor([3.0, -4.0, 1.5, 0.5])
    for offset in (0.0, 1e-7, 1e-5, 1e-3, 1e-2):
        h, w = start.clone().requires_grad_(), (start + offset).requires_grad_()
        value = kernel_logits(h, w[None], torch.zeros(1), kernel)
        by_h, by_w = torch.autograd.grad(value.sum(), (h, w))
        if offset == 0.0:
            assert value.item() == pytest.approx(0.0, abs=0.05)
            assert (by_h.abs().max(), by_w.abs().max()) == (0.0, 0.0)
        # cones have slope p·|w − h|^(p − 1), at the resolution of float32 for p < 1
        assert max(by_h.norm().item(), by_w.norm().item()) <= 10.0


@pytest.mark.parametrize("name", ["pow", "ssg", "mog"])
def test_at_equal_vectors_smooth_kernels_are_at_rest(name: str) -> None:
    start = make_problem(1, 1, 1, 6).h.detach()
    if name == "mog":  # its distance is least at equal halves
        start = start[:, :3].repeat(1, 2)
    pair = [start.clone().requires_grad_() for _ in range(2)]
    theta, kernel = torch.zeros(1).double(), build_kernel(name)

    def logits(h: Tensor, w: Tensor) -> Tensor:
        return kernel_logits(h, w, theta, kernel)

    assert torch.autograd.gradcheck(logits, pair, eps=1e-6, atol=1e-5)


def test_flags_reach_the_kernels_that_read_them_and_that_learn_nothing() -> None:
    read = {"power": 5.0, "alpha": 0.2, "offset": -1.0, "gamma": 0.3, "a": 2.0, "b": 3.0}
    flags = argparse.Namespace(**{f"kernel_{key}": value for key, value in read.items()})
    flags.output_layer, flags.mixture_kernels = "mixture", ", ".join(NINE)
    for name, kernel in zip(NINE, kernels_from_flags(flags), strict=True):
        assert kernel.name == name
        options = KERNELS[name].options
        assert {key: getattr(kernel, key) for key in options} == {key: read[key] for key in options}
        layer = KerbsOutputLayer(10, 31, 31, max_senses=1, kernel=kernel)
        assert [value.shape for value in layer.parameters()] == [(31, 10)]
    every = {key[7:] for key in KerbsConfig.__dataclass_fields__ if key.startswith("kernel_")}
    assert every == set(kernel_options()) == set(read)
    assert {option for name in NINE for option in KERNELS[name].options} == every
    alone = argparse.Namespace(output_layer="kerbs", kernel="pow")
    assert kernels_from_flags(alone) == [build_kernel("pow")]
