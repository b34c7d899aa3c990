"""The kernels of Gao et al. against their equations, at their limits, and in low precision."""

import itertools
import math
from typing import Any

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from fairseq_kerbs.kernels import build_kernel, kernel_logits
from fairseq_kerbs.kernels.gao import VARIANCE_FLOOR, squared_distance
from fairseq_kerbs.likelihood import kerbs_log_probs, kerbs_nll
from fairseq_kerbs.output_layers.decoding import score_words
from tests.helpers import reference
from tests.helpers.gao_reference import NINE, plain_logits
from tests.helpers.likelihood import chunks_of, senses_of
from tests.helpers.reference import make_problem

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
    h = torch.randn(4, generator=g, dtype=torch.float64)
    w = torch.randn(4, generator=g, dtype=torch.float64)
    pairs = [
        (h, w),
        (h, -h),
        (1e-2 * h, 3e-2 * w),
        (h, h + 0.05 * w),
        (5 * h, 0.3 * w),
        (torch.zeros(4, dtype=torch.float64), w),
    ]
    return [(a.to(dtype), b.to(dtype)) for a, b in pairs]


def gradient_of(value: Tensor, leaves: list[Tensor]) -> Tensor:
    """Gradients by all leaves, one after the other."""
    return torch.cat(torch.autograd.grad(value.sum(), leaves))


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
            found = gradient_of(value, leaves)
            expected = gradient_of(right, wide)
            # a short difference of long vectors, cancelled: wrong on the scale of the long ones
            nearness = (h.norm() + w.norm()) / (h - w).norm()
            bound = tolerance * (1 + nearness.item()) * expected.abs().max().item()
            assert (found.double() - expected).abs().max().item() <= bound + 1e-300, (h, w)


def test_the_gaussian_kernels_are_integrals() -> None:
    """Eq. 9 in two dimensions, and Eq. 10 of means in one, by quadrature."""
    w = [0.8, -1.1]
    h = [0.3, 1.9]
    w_deviation, h_deviation = (
        math.sqrt(sum(p * p for p in v) / 2 + VARIANCE_FLOOR) for v in (w, h)
    )

    def log_integral(a: float, b: float) -> float:
        def product(z: float) -> float:
            return float(stats.norm.pdf(z, a, w_deviation) * stats.norm.pdf(z, b, h_deviation))

        return math.log(integrate.quad(product, -30, 30, points=[a, b], limit=200)[0])

    pair = torch.tensor([h, w], dtype=torch.float64)
    means = {"ssg": zip(w, h, strict=True), "mog": itertools.product(w, h)}
    for name, pairs in means.items():
        value = kernel_logits(pair[0], pair[1:], torch.zeros(1).double(), name).item()
        assert value == pytest.approx(sum(log_integral(a, b) for a, b in pairs), rel=1e-9)


@every_case
def test_scores_are_those_of_plain_autograd(name: str, options: dict[str, Any]) -> None:
    p = make_problem(33, 19, 50, 14)
    kernel = build_kernel(name, **options)
    logits = plain_logits(p.h, p.w, name, options)
    log_probs = reference.naive_word_log_probs(logits, p.word_of_sense, 19)
    with_gradient = kerbs_log_probs(*p.leaves, p.word_of_sense, 19, kernel=kernel)
    assert with_gradient.requires_grad
    for scores in (with_gradient, score_words(p.h, senses_of(p, kernel))[0]):
        torch.testing.assert_close(scores, log_probs, rtol=1e-10, atol=1e-10)
        assert (scores.exp().sum(1) - 1).abs().max() <= 1e-12


@every_case
def test_losses_are_those_of_plain_autograd(name: str, options: dict[str, Any]) -> None:
    wide = make_problem(33, 19, 50, 14)
    kernel = build_kernel(name, **options)
    logits = plain_logits(wide.h, wide.w, name, options)
    log_probs = reference.naive_word_log_probs(logits, wide.word_of_sense, 19)
    wide.target[4] = -100
    counted = wide.target != -100
    words = wide.target.clamp_min(0)
    for smoothing in (0.0, 0.1):
        losses = reference.naive_smoothed_losses(log_probs, words, smoothing)
        truth = (losses * counted).sum()
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
    loss = kerbs_nll(*p[:5], kernel=name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = kerbs_nll(*p[:5], kernel=name)
    assert cast.item() == pytest.approx(loss.item(), rel=0.01)
    for dtype, bits in ((torch.float16, 11), (torch.bfloat16, 8)):
        low = p.to(dtype)
        wide = low.to(torch.float64)
        truth = kerbs_nll(*wide[:5], kernel=name)
        expected = torch.autograd.grad(truth, (wide.h, wide.w))
        loss = kerbs_nll(*low[:5], kernel=name)
        assert loss.item() == pytest.approx(truth.item(), rel=2 * 2.0**-bits)
        for ours, right in zip(torch.autograd.grad(loss, (low.h, low.w)), expected, strict=True):
            assert ((ours.double() - right).norm() / right.norm()).item() <= 16 * 2.0**-bits


@every_case
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-12, 1.0, 1e3])
def test_gaos_kernels_are_finite(name: str, options: dict[str, Any], scale: float) -> None:
    base = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.6, 0.8], [0.0, 0.0], [1e-3, -1.0]])
    h = (base * scale).requires_grad_()
    w = (base * scale).requires_grad_()
    theta = torch.zeros(5)
    kernel = build_kernel(name, **options)
    owners = torch.tensor([0, 1, 2, 0, 1])
    target = torch.tensor([0, 1, 2, 1, 0])
    logits = kernel_logits(h, w, theta, kernel)
    loss = kerbs_nll(h, w, theta, owners, target, kernel=kernel, label_smoothing=0.1)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(loss)
    for result in (logits.sum(), loss):
        for gradient in torch.autograd.grad(result, (h, w), retain_graph=True):
            assert torch.isfinite(gradient).all()


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
    h_norm = h.norm(dim=1)
    w_norm = w.norm(dim=1)
    distance = squared_distance((h * w).sum(1), h_norm, w_norm)
    right = (h.double() - w.double()).square().sum(1)
    scale = h_norm.square() + w_norm.square()
    assert (distance >= 0).all()
    assert ((distance.double() - right).abs() <= 4 * 2.0**-23 * scale).all()


@pytest.mark.parametrize("case", [("pow", {"power": 1.0}), ("pow", {"power": 0.5}), ("hpb", {})])
def test_steep_kernels_have_no_gradient_at_their_top_and_a_bounded_one_beside_it(case: Any) -> None:
    name, options = case
    kernel = build_kernel(name, **options)
    start = torch.tensor([3.0, -4.0, 1.5, 0.5])
    for offset in (0.0, 1e-7, 1e-5, 1e-3, 1e-2):
        h = start.clone().requires_grad_()
        w = (start + offset).requires_grad_()
        value = kernel_logits(h, w[None], torch.zeros(1), kernel)
        by_h, by_w = torch.autograd.grad(value.sum(), (h, w))
        if offset == 0.0:
            assert value.item() == pytest.approx(0.0, abs=0.05)
            assert not by_h.any()
            assert not by_w.any()
        # cones have slope p·|w − h|^(p − 1), at the resolution of float32 for p < 1
        assert by_h.norm().item() <= 10.0
        assert by_w.norm().item() <= 10.0


@pytest.mark.parametrize("name", ["pow", "ssg", "mog"])
def test_at_equal_vectors_smooth_kernels_are_at_rest(name: str) -> None:
    start = make_problem(1, 1, 1, 6).h.detach()
    if name == "mog":  # its distance is least at equal halves
        start = start[:, :3].repeat(1, 2)
    pair = [start.clone().requires_grad_() for _ in range(2)]
    theta = torch.zeros(1).double()
    kernel = build_kernel(name)

    def logits(h: Tensor, w: Tensor) -> Tensor:
        return kernel_logits(h, w, theta, kernel)

    assert torch.autograd.gradcheck(logits, pair, eps=1e-6, atol=1e-5)
