"""All contestants compute the same thing: the losses and the gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fairseq_kerbs.benchmarks.likelihood import (
    CONTESTANTS,
    PRODUCTS,
    Inputs,
    kerbs,
    lean_softmax,
    make_inputs,
    naive_losses,
    stock_softmax,
    workload,
)

LOSSES: dict[str, Any] = {n: loss for n, (_, loss) in CONTESTANTS.items() if n != PRODUCTS}
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
        inputs.theta[5:25] *= 10.0
    leaves = (inputs.h, inputs.w, inputs.theta)
    ours = kerbs(inputs)
    theirs = naive_losses(inputs).sum()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0.0)
    for own, other in zip(gradients(ours, *leaves), gradients(theirs, *leaves)):
        torch.testing.assert_close(own, other, rtol=2e-3, atol=2e-3)


def test_lean_softmax_is_fairseqs(inputs: Inputs) -> None:
    from fairseq import utils
    from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

    inputs.target[::9] = 1  # padding
    leaves = (inputs.h, inputs.words)
    scores = utils.log_softmax(inputs.h @ inputs.words.t(), dim=-1)
    _, fairseqs = label_smoothed_nll_loss(scores, inputs.target[:, None], 0.0, ignore_index=1)
    ours, theirs = lean_softmax(inputs), stock_softmax(inputs)
    torch.testing.assert_close(theirs, fairseqs, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0.0)
    for own, other in zip(gradients(ours, *leaves), gradients(theirs, *leaves)):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_smoothing_and_theta_of_a_contestant_take_effect(inputs: Inputs) -> None:
    losses = {name: float(loss(inputs).detach()) for name, loss in LOSSES.items()}
    for other in ("kerbs-smoothed", "kerbs-trained"):
        assert abs(losses["kerbs"] - losses[other]) > 1e-4 * losses["kerbs"]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_call_leaves_gradients_and_reset_drops_them(name: str, dtype: str) -> None:
    arguments: dict[str, Any] = {**SIZES, "dtype": dtype, "device": "cpu", "seed": 3}
    one, inputs = workload(name, **arguments), make_inputs(**arguments)
    one.reset()
    assert inputs.h.grad is None
    loss = one.run()
    assert loss is not None
    assert inputs.h.grad is not None
    weights = inputs.words if name in ("stock", "lean") else inputs.w
    assert weights.grad is not None
    exact = make_inputs(**SIZES, dtype="float32", device="cpu", seed=3)
    mean = float(LOSSES[name](exact).detach()) / SIZES["tokens"]
    assert float(loss) == pytest.approx(mean, rel=0.02)


def test_the_products_are_no_loss(inputs: Inputs) -> None:
    one = workload(PRODUCTS, **SIZES, dtype="float32", device="cpu", seed=3)
    assert one.run() is None
    assert (one.amount, one.reuses, inputs.h.grad) == (70, True, None)
