"""``gradient_filter``: which senses are left out, and that all else stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.likelihood import kerbs_nll
from fairseq_kerbs.likelihood.chunked import MOST_KEPT

N, D, M = 8, 6, 60
FILTER = 1e-3


def peaked(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Contexts that lie near a few senses, so that most have no probability to speak of."""
    torch.manual_seed(0)
    w = 3.0 * torch.randn(M, D, dtype=torch.float64)
    target = torch.arange(N) * 2
    h = 2.0 * w[target * 2] + 0.1 * torch.randn(N, D, dtype=torch.float64)
    theta = torch.linspace(-1.0, 1.0, M, dtype=torch.float64)
    return (h.to(dtype), w.to(dtype), theta.to(dtype), torch.arange(M) // 2, target)


def gradients(
    inputs: tuple[Tensor, ...], factor: float = 1.0, **options: Any
) -> tuple[Tensor, list[Tensor]]:
    leaves = [value.clone().requires_grad_() for value in inputs[:3]]
    loss = kerbs_nll(*leaves, *inputs[3:], **options)
    (factor * loss.sum()).backward()
    return loss.detach(), [leaf.grad for leaf in leaves if leaf.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_kept_senses_have_exact_gradients_and_others_none(dtype: torch.dtype) -> None:
    inputs = peaked(dtype)
    how = {"chunk_tokens": N}
    loss, exact = gradients(inputs, **how)
    filtered_loss, filtered = gradients(inputs, gradient_filter=FILTER, **how)
    assert torch.equal(filtered_loss, loss)
    dropped = (filtered[1] == 0).all(1)
    assert M * (1 - MOST_KEPT) < dropped.sum() < M
    assert (filtered[2][dropped] == 0).all()
    for found, whole in zip(filtered[1:], exact[1:], strict=True):
        torch.testing.assert_close(found[~dropped], whole[~dropped])
        assert (whole[dropped].abs().amax() > 0).all()
    assert 0 < (filtered[0] - exact[0]).norm() < 0.02 * exact[0].norm()


def test_inner_product_by_hand() -> None:
    h, w, _, word_of_sense, target = inputs = peaked(torch.float64)
    how: dict[str, Any] = {"kernel": "lin", "gradient_filter": FILTER, "chunk_tokens": N}
    _, (by_h, by_w) = gradients(inputs, **how)
    logits = (h @ w.t()).requires_grad_()
    words = torch.stack([logits[:, word_of_sense == i].logsumexp(1) for i in range(M // 2)], 1)
    (logits.logsumexp(1) - words[torch.arange(N), target]).sum().backward()
    assert logits.grad is not None
    grad = torch.where(logits.grad.abs().amax(0) > FILTER, logits.grad, 0.0)
    torch.testing.assert_close(by_w, grad.t() @ h)
    torch.testing.assert_close(by_h, grad @ w)


def test_each_chunk_is_filtered_alone_and_by_the_weight_of_its_tokens() -> None:
    inputs = peaked(torch.float64)
    each = [
        gradients((inputs[0][i : i + 2], *inputs[1:4], inputs[4][i : i + 2]), chunk_tokens=2,
                  gradient_filter=FILTER)[1]
        for i in range(0, N, 2)
    ]  # fmt: skip
    _, whole = gradients(inputs, chunk_tokens=2, gradient_filter=FILTER)
    torch.testing.assert_close(whole[0], torch.cat([by_h for by_h, *_ in each]))
    for place in (1, 2):
        torch.testing.assert_close(whole[place], sum(grads[place] for grads in each))
    for reduction, factor in (("none", 1e-4), ("mean", float(N))):
        how: dict[str, Any] = {"chunk_tokens": 2, "gradient_filter": FILTER, "reduction": reduction}
        _, found = gradients(inputs, factor, **how)
        for one, other in zip(found, whole, strict=True):
            torch.testing.assert_close(one, other if reduction == "mean" else other * factor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_nothing_may_be_left(dtype: torch.dtype) -> None:
    h, w, theta, word_of_sense, _ = peaked(dtype)
    target = word_of_sense[(h @ w.t()).argmax(1)]  # so that no gradient is near 1
    _, (by_h, by_w) = gradients(
        (h, w, theta, word_of_sense, target), kernel="lin", gradient_filter=0.9
    )
    assert not by_h.any()
    assert not by_w.any()


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_range(value: float) -> None:
    with pytest.raises(ValueError, match="gradient_filter"):
        kerbs_nll(*peaked(torch.float64), gradient_filter=value)


@pytest.mark.parametrize("options", [{"kernel": "pow"}, {"label_smoothing": 0.1}])
def test_where_it_would_be_wrong_it_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="gradient_filter"):
        gradients(peaked(torch.float64), gradient_filter=FILTER, **options)
