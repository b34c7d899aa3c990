"""The lean chunk kernels equal the general one, which multiplies out the partial derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.chunk_kernels import (
    ChunkInnerProduct,
    ChunkKerbs,
    ChunkKernel,
    over_chunks,
)
from fairseq_kerbs.kernels import build_kernel, kernel_logits
from tests.reference import as_leaves, kernel_reference

# both sides of every threshold: the series (0.25, 1), and the limit of θ (64)
THETAS = [0, 1e-12, 1e-8, 1e-4, 1e-2, 0.0499, 0.0501, 0.249, 0.251, 0.999, 1.001, 3, 10, 50, 64]
THETAS = [sign * float(theta) for theta in THETAS for sign in (1, -1)] + [64.5, -100.0]


def evaluate(
    chunks: ChunkKernel, h: Tensor, w: Tensor, grad: Tensor, cuts: list[slice]
) -> list[Tensor]:
    """Logits, dh, dW, dθ the way the likelihood asks for them."""
    h_norm = h.norm(dim=1, keepdim=True)
    logits, by_h, product = [], [], torch.zeros_like(w)
    for rows in cuts:
        value, state = chunks.logits(h[rows] @ w.t(), h_norm[rows])
        logits.append(value.clone())
        by_x, along = chunks.pull_back(grad[rows].clone(), state, h_norm[rows])
        by_h.append(chunks.h_gradient(by_x @ w, along, h[rows], h_norm[rows]))
        product += by_x.t() @ h[rows]
    by_theta = chunks.theta_gradient(product, w).clone()
    return [torch.cat(logits), torch.cat(by_h), chunks.w_gradient(product, w), by_theta]


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(5)
    senses = len(THETAS)
    h = torch.randn(9, 4, generator=g, dtype=torch.float64)
    w = torch.randn(senses, 4, generator=g, dtype=torch.float64)
    # a logit of −e^64 has no gradient in any likelihood: leave those pairs acute
    steep = torch.tensor(THETAS) >= 10
    w[steep] = w[steep].abs()
    h = h.abs() if dtype == torch.float32 else h
    grad = torch.randn(9, senses, generator=g, dtype=torch.float64)
    theta = torch.tensor(THETAS, dtype=torch.float64)
    return h.to(dtype), w.to(dtype), theta.to(dtype), grad.to(dtype)


@pytest.mark.parametrize("name", ["kerbs", "kerbs_released", "lin"])
def test_gradients_equal_autograd_in_float64(name: str) -> None:
    h, w, theta, grad = inputs(torch.float64)
    leaves = as_leaves(h, w, theta)
    logits = kernel_logits(*leaves, kernel=name)
    expected = [logits.detach(), *torch.autograd.grad(logits, leaves, grad, allow_unused=True)]
    norms = w.norm(dim=1)
    for chunks in (
        over_chunks(build_kernel(name), norms, theta),
        ChunkKernel(build_kernel(name), norms, theta),
    ):
        actual = evaluate(chunks, h, w, grad, [slice(0, 2), slice(2, 9)])
        for i, (ours, right) in enumerate(zip(actual, expected, strict=True)):
            if i == 3 and name == "lin":
                assert (ours == 0).all()
                continue
            # each sense on its own scale: the steep ones would hide the flat ones
            if i == 1:
                torch.testing.assert_close(ours, right, rtol=1e-9, atol=0.0)
            else:
                last = right.movedim(1, 0).flatten(1) if i == 0 else right.view(len(THETAS), -1)
                own = ours.movedim(1, 0).flatten(1) if i == 0 else ours.view(len(THETAS), -1)
                scale = last.abs().amax(1, keepdim=True).clamp_min(1e-3)
                assert ((own - last).abs() <= 2e-10 * scale).all()


def test_kerbs_in_float32_errs_against_its_scale_only() -> None:
    h, w, theta, grad = inputs(torch.float32)
    wide = as_leaves(h.double(), w.double(), theta.double())
    logits = kernel_logits(*wide)
    by_h, by_w, by_theta = torch.autograd.grad(logits, wide, grad.double())
    chunks = ChunkKerbs(build_kernel("kerbs"), w.norm(dim=1), theta)
    ours = evaluate(chunks, h, w, grad, [slice(0, 9)])
    size = (h.norm() * w.norm(dim=1)).double()  # [M]
    steepness = 1 + theta.double().abs() / 10
    tolerance = 1e-5 * steepness
    peak = logits.abs().amax(0).maximum(size)
    assert ((ours[0].double() - logits).abs() <= tolerance * peak).all()
    assert ((ours[1].double() - by_h).abs().max() <= 1e-5 * by_h.abs().max()).all()
    by_w_scale = by_w.abs().amax(1).maximum(h.norm().double())
    assert ((ours[2].double() - by_w).abs().amax(1) <= tolerance * by_w_scale).all()
    assert ((ours[3].double() - by_theta).abs() <= tolerance * by_theta.abs().maximum(peak)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slope_by_theta_of_single_pairs_is_that_of_mpmath(dtype: torch.dtype) -> None:
    """One sense at a time, where nothing averages out: relative to |h||w|."""
    tolerance = {torch.float32: 2e-6, torch.float64: 2e-13}[dtype]
    thetas = [t for t in THETAS if abs(t) <= 3]
    for cosine in (-1.0, -0.6, -1e-3, 0.28, 0.8, 1.0):
        h = torch.tensor([[2.0, 0.0]], dtype=dtype)
        w = torch.tensor([[cosine, (1 - cosine**2) ** 0.5]], dtype=dtype).expand(len(thetas), 2)
        theta = torch.tensor(thetas, dtype=dtype)
        chunks = ChunkKerbs(build_kernel("kerbs"), w.norm(dim=1), theta)
        grad = torch.ones(1, len(thetas), dtype=dtype)
        by_theta = evaluate(chunks, h, w.contiguous(), grad, [slice(0, 1)])[3]
        for t, slope in zip(theta.tolist(), by_theta.tolist(), strict=True):
            right = kernel_reference(tuple(h[0].tolist()), tuple(w[0].tolist()), t).by_theta
            assert slope == pytest.approx(right, abs=2.0 * tolerance * (1 + abs(right)))


def test_sums_begin_anew_after_reset() -> None:
    h, w, theta, grad = inputs(torch.float64)
    for name in ("kerbs", "kerbs_released", "lin"):
        chunks = over_chunks(build_kernel(name), w.norm(dim=1), theta)
        first = evaluate(chunks, h, w, grad, [slice(0, 9)])
        chunks.reset()
        again = evaluate(chunks, h, w, grad, [slice(0, 9)])
        for a, b in zip(first, again, strict=True):
            assert torch.equal(a, b)


def test_zero_vectors_get_the_gradient_of_the_product() -> None:
    h, w, theta, grad = inputs(torch.float64)
    h, w = h.clone(), w.clone()
    h[3], w[4], w[20] = 0.0, 0.0, 0.0
    leaves = as_leaves(h, w, theta)
    logits = kernel_logits(*leaves)
    expected = torch.autograd.grad(logits, leaves, grad)
    for kind in (ChunkKerbs, ChunkKernel):
        chunks = kind(build_kernel("kerbs"), w.norm(dim=1), theta)
        actual = evaluate(chunks, h, w, grad, [slice(0, 9)])
        assert (actual[0][3] == 0).all()
        assert (actual[0][:, 4] == 0).all()
        torch.testing.assert_close(actual[1][3], expected[0][3], rtol=1e-9, atol=0.0)
        torch.testing.assert_close(actual[2][[4, 20]], expected[1][[4, 20]], rtol=1e-9, atol=1e-12)


def test_the_leanest_form_is_chosen() -> None:
    norm, theta = torch.ones(3), torch.zeros(3)
    kinds = {"kerbs": ChunkKerbs, "lin": ChunkInnerProduct, "kerbs_released": ChunkKernel}
    for name, kind in kinds.items():
        assert type(over_chunks(build_kernel(name), norm, theta)) is kind
