"""All contestants compute the same thing: the losses, the gradients, the three products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fairseq_kerbs.benchmarks import likelihood
from fairseq_kerbs.benchmarks.contestants import (
    CONTESTANTS,
    Inputs,
    kerbs,
    lean_softmax,
    make_inputs,
    naive_kerbs,
    stock_softmax,
)
from fairseq_kerbs.benchmarks.products import Products, fastest_layout, layout_names

SIZES: dict[str, Any] = {"dim": 16, "vocab": 50, "senses_per_word": 2.5, "tokens": 70}


@pytest.fixture
def inputs() -> Iterator[Inputs]:
    make_inputs.cache_clear()
    yield make_inputs(**SIZES, dtype="float32", device="cpu", seed=3)
    make_inputs.cache_clear()  # tests write into them


def gradients(loss: torch.Tensor, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(loss, leaves)


def test_naive_kerbs_is_kerbs(inputs: Inputs) -> None:
    with torch.no_grad():
        inputs.theta[:5] = torch.tensor([0.0, 1e-8, -1e-8, 3e-5, -2e-4])
        inputs.theta[5:25] *= 10.0
    leaves = (inputs.h, inputs.w, inputs.theta)
    ours = kerbs(inputs)
    theirs = naive_kerbs(inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0.0)
    for own, other in zip(gradients(ours, *leaves), gradients(theirs, *leaves), strict=True):
        torch.testing.assert_close(own, other, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_lean_softmax_is_fairseqs(inputs: Inputs, smoothing: float) -> None:
    inputs.target[::9] = 1  # padding
    leaves = (inputs.h, inputs.words)
    ours, theirs = lean_softmax(inputs, smoothing), stock_softmax(inputs, smoothing)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0.0)
    for own, other in zip(gradients(ours, *leaves), gradients(theirs, *leaves), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_smoothing_and_theta_of_a_contestant_take_effect(inputs: Inputs) -> None:
    losses = {name: float(one.loss(inputs).detach()) for name, one in CONTESTANTS.items()}
    for one, other in (
        ("kerbs", "kerbs-smoothed"),
        ("kerbs", "kerbs-trained"),
        ("stock", "stock-smoothed"),
        ("lean", "lean-smoothed"),
    ):
        assert abs(losses[one] - losses[other]) > 1e-4 * losses[one]


@pytest.mark.parametrize("name", [name for name in CONTESTANTS if name != "stock"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_workload_leaves_the_gradients_that_it_declares(name: str, dtype: str) -> None:
    arguments: dict[str, Any] = {**SIZES, "dtype": dtype, "device": "cpu", "seed": 3}
    workload = likelihood.workload(name, **arguments)
    workload.reset()
    leaves = make_inputs(**arguments).leaves()
    assert all(leaf.grad is None for leaf in leaves)
    loss = workload.run()
    assert loss is not None
    found = sum(leaf.grad.nbytes for leaf in leaves if leaf.grad is not None)
    assert found == workload.gradient_bytes
    exact = make_inputs(**SIZES, dtype="float32", device="cpu", seed=3)
    assert float(loss) == pytest.approx(float(CONTESTANTS[name].loss(exact)), rel=0.02)


@pytest.mark.parametrize(
    "layout", ["tokens", "senses", "tokens:16", "senses:33", "tokens:70", "rows:16"]
)
def test_every_layout_computes_the_three_products(inputs: Inputs, layout: str) -> None:
    h, w = inputs.h.detach(), inputs.w.detach()
    compute = Products(layout)
    compute(h[:20], w)  # smaller: the buffers must be made anew
    compute(h, w)
    compute(h, w)
    logits = h @ w.t()
    torch.testing.assert_close(compute.dh, logits @ w, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(compute.dw, logits.t() @ h, rtol=1e-4, atol=1e-3)


def test_the_fastest_layout_is_one_that_was_timed(inputs: Inputs) -> None:
    h, w = inputs.h.detach(), inputs.w.detach()
    best, times = fastest_layout(h, w, free=10**9)
    assert set(times) == set(layout_names(h, w, 10**9)) >= {"tokens", "senses"}
    assert times[best] == min(times.values())


def test_a_whole_x_that_does_not_fit_is_not_tried() -> None:
    names = layout_names(torch.empty(4096, 1), torch.empty(30_000, 1), free=10**9)
    assert "tokens" not in names
    assert all(":" in name for name in names)


def test_scaling_points_share_one_corner() -> None:
    axes = likelihood.scaling_points([3.0, 1.0], [256, 1024, 512], dim=8, vocab=100)
    sizes = [(one["senses_per_word"], one["tokens"]) for one in axes["senses"]]
    assert sizes == [(1.0, 512), (3.0, 512)]
    assert [one["tokens"] for one in axes["tokens"]] == [256, 512, 1024]
    assert {one["senses_per_word"] for one in axes["tokens"]} == {3.0}


def test_line_through_points() -> None:
    def described(*times: float) -> dict[str, Any]:
        axis = [{"senses_per_word": 1.0, "vocab": 10, "tokens": n} for n in (1, 2, 5)]
        names = [f"10 senses, {one['tokens']} tokens" for one in axis]
        contestants = {name: {"median": t} for name, t in zip(names, times, strict=True)}
        found: dict[str, Any] = likelihood.describe_axis(axis, {"contestants": contestants})
        return found

    found = described(5.0, 8.0, 17.0)
    assert found["line"]["intercept"] == pytest.approx(2.0)
    assert found["line"]["slope"] == pytest.approx(0.3)
    assert found["line"]["largest_relative_error"] == pytest.approx(0.0, abs=1e-9)
    assert found["constant_within"] == pytest.approx(0.25)  # 0.5, 0.4, 0.34 around 0.4
    assert described(5.0, 12.0, 17.0)["line"]["largest_relative_error"] > 0.1
