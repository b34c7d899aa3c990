"""The chunked likelihood equals the naive one: values, every gradient, every option."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.kernels import build_kernel, kernel_logits
from fairseq_kerbs.likelihood import (
    Senses,
    kerbs_log_probs,
    kerbs_nll,
    nll_with_evidence,
    score_words,
)
from fairseq_kerbs.likelihood import functional as likelihood
from fairseq_kerbs.senses import build_sense_table
from tests.helpers.reference import (
    Problem,
    make_problem,
    naive_logits,
    naive_token_losses,
    naive_word_log_probs,
)

KERNELS = ["kerbs", "kerbs_released", "lin"]
SMOOTHING = [0.0, 0.1]


def nll(p: Problem, **options: Any) -> Tensor:
    return kerbs_nll(p.h, p.w, p.theta, p.word_of_sense, p.target, **options)


def senses_of(p: Problem, words: int, kernel: str = "kerbs") -> Senses:
    table = build_sense_table(p.word_of_sense, words)
    return Senses(p.w, p.theta, p.word_of_sense, table, build_kernel(kernel))


def gradients(loss: Tensor, p: Problem) -> list[Tensor]:
    """Gradients of h, w, θ; zeros where a leaf takes no part."""
    found = torch.autograd.grad(loss, p.leaves, allow_unused=True, retain_graph=True)
    return [
        torch.zeros_like(leaf) if grad is None else grad
        for grad, leaf in zip(found, p.leaves, strict=True)
    ]


def assert_same(ours: list[Tensor], truth: list[Tensor], tolerance: float) -> None:
    """Largest error of each tensor within ``tolerance`` of its largest entry."""
    for actual, expected in zip(ours, truth, strict=True):
        scale = expected.abs().max().item()
        assert (actual.double() - expected.double()).abs().max().item() <= tolerance * scale + 1e-30


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("theta_scale", [1e-3, 0.1, 1.0, 8.0])
def test_float64_equals_the_naive_likelihood(
    kernel: str, smoothing: float, theta_scale: float
) -> None:
    for sizes in ((23, 11, 29, 7), (40, 13, 52, 3), (9, 30, 31, 16)):
        p = make_problem(*sizes, theta_scale=theta_scale, seed=sizes[0])
        loss = nll(p, kernel=kernel, label_smoothing=smoothing, chunk_tokens=6)
        truth = naive_token_losses(p, kernel, smoothing).sum()
        assert loss.item() == pytest.approx(truth.item(), rel=1e-11)
        assert_same(gradients(loss, p), gradients(truth, p), 1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("theta_scale", [1e-3, 0.1, 1.0, 8.0])
def test_float32_errs_no_more_than_the_naive_float32_likelihood(
    kernel: str, smoothing: float, theta_scale: float
) -> None:
    narrow = make_problem(64, 40, 110, 24, theta_scale=theta_scale, dtype=torch.float32)
    wide = narrow.to(torch.float64)
    truth = naive_token_losses(wide, kernel, smoothing).sum()
    exact = gradients(truth, wide)
    rough = naive_token_losses(narrow, kernel, smoothing).sum()
    naive_grads = gradients(rough, narrow)
    loss = nll(narrow, kernel=kernel, label_smoothing=smoothing)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(truth.item(), rel=1e-6)
    for ours, naive, right in zip(gradients(loss, narrow), naive_grads, exact, strict=True):
        scale = right.abs().max().item() + 1e-30
        ours_off = (ours.double() - right).abs().max().item() / scale
        naive_off = (naive.double() - right).abs().max().item() / scale
        assert ours_off <= 1e-5
        assert ours_off <= max(2 * naive_off, 2e-6)


@pytest.mark.parametrize("theta", [1e-8, -1e-8, 1e-4, -1e-4, 1e-2, -1e-2, 1, -1, 10, -10, 50, -50])
def test_gradients_in_float32_for_every_theta_of_the_list(theta: float) -> None:
    base = make_problem(30, 12, 30, 6, dtype=torch.float32)
    narrow = base._replace(theta=torch.full((30,), float(theta))).to(torch.float32)
    wide = narrow.to(torch.float64)
    logits = kernel_logits(*wide.leaves)  # held against mpmath in test_kernels
    truth = -naive_word_log_probs(logits, wide.word_of_sense, 12).gather(1, wide.target[:, None])
    loss = nll(narrow)
    assert loss.item() == pytest.approx(truth.sum().item(), rel=2e-5)
    assert_same(gradients(loss, narrow), gradients(truth.sum(), wide), 1e-5 * (1 + abs(theta) / 10))


@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("ignore_index", [-100, 3])
def test_reductions_weights_and_ignored_tokens(smoothing: float, ignore_index: int) -> None:
    p = make_problem()
    if ignore_index < 0:
        p = p._replace(target=p.target.clone())
        p.target[::4] = ignore_index
    each = naive_token_losses(p, "kerbs", smoothing, ignore_index)
    counted = p.target != ignore_index
    assert 0 < counted.sum() < len(counted)
    weights = torch.randn(len(each), dtype=torch.float64)
    options = {"label_smoothing": smoothing, "ignore_index": ignore_index, "chunk_tokens": 5}
    for reduction, truth in (
        ("sum", each.sum() * 3.5),
        ("mean", each.sum() / counted.sum() * 3.5),
        ("none", (each * weights).sum()),
    ):
        result = nll(p, reduction=reduction, **options)
        if reduction == "none":
            torch.testing.assert_close(result.detach(), each.detach(), rtol=1e-11, atol=1e-12)
            assert (result[~counted] == 0).all()
        loss = (result * weights).sum() if reduction == "none" else result * 3.5
        assert loss.item() == pytest.approx(truth.item(), rel=1e-11)
        ours = gradients(loss, p)
        assert_same(ours, gradients(truth, p), 1e-10)
        assert (ours[0][~counted] == 0).all()


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_chunk_size_changes_nothing(reduction: str) -> None:
    p = make_problem(13)
    whole = nll(p, reduction=reduction, chunk_tokens=13, label_smoothing=0.1)
    expected = gradients(whole.sum(), p)
    for chunk in range(1, 15):
        part = nll(p, reduction=reduction, chunk_tokens=chunk, label_smoothing=0.1)
        torch.testing.assert_close(part, whole, rtol=1e-13, atol=0.0)
        assert_same(gradients(part.sum(), p), expected, 1e-12)


def test_token_order_changes_nothing() -> None:
    p = make_problem()
    order = torch.randperm(len(p.target))
    shuffled = p._replace(h=p.h.detach()[order], target=p.target[order]).to(torch.float64)
    straight, turned = nll(p, reduction="none"), nll(shuffled, reduction="none")
    torch.testing.assert_close(turned, straight[order], rtol=1e-13, atol=0.0)
    a, b = gradients(straight.sum(), p), gradients(turned.sum(), shuffled)
    assert_same([b[0], b[1], b[2]], [a[0][order], a[1], a[2]], 1e-12)


@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_one_sense_a_word_with_inner_product_is_cross_entropy(smoothing: float) -> None:
    p = make_problem(50, 17, 17, 5)._replace(word_of_sense=torch.arange(17))
    p.target[::7] = -100
    for reduction in ("sum", "mean", "none"):
        ours = nll(p, kernel="lin", reduction=reduction)
        theirs = F.cross_entropy(p.h @ p.w.t(), p.target, reduction=reduction)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        assert_same(gradients(ours.sum(), p), gradients(theirs.sum(), p), 1e-11)
    # torch spreads ε over all V words, here ε' = ε/(V−1) is added to 1 − ε − ε': same at ε' V
    each = smoothing / 16
    ours = nll(p, kernel="lin", label_smoothing=smoothing)
    theirs = F.cross_entropy(p.h @ p.w.t(), p.target, label_smoothing=each * 17, reduction="sum")
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)


@pytest.mark.parametrize(("dim", "vocab_size", "senses"), [(123, 507, 1521), (507, 123, 401)])
def test_odd_sizes(dim: int, vocab_size: int, senses: int) -> None:
    p = make_problem(33, vocab_size, senses, dim, theta_scale=0.5)
    p = p._replace(h=p.h * dim**-0.25, w=p.w * dim**-0.25).to(torch.float64)
    loss, truth = nll(p, label_smoothing=0.1), naive_token_losses(p, "kerbs", 0.1).sum()
    assert loss.item() == pytest.approx(truth.item(), rel=1e-11)
    assert_same(gradients(loss, p), gradients(truth, p), 1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradient_for_any_subset_of_the_inputs(kernel: str) -> None:
    p = make_problem()
    expected = gradients(naive_token_losses(p, kernel).sum(), p)
    for wanted in itertools.product([False, True], repeat=3):
        for reduction in ("sum", "none"):
            q = p.to(torch.float64)
            for leaf, need in zip(q.leaves, wanted, strict=True):
                leaf.requires_grad_(need)
            loss = nll(q, kernel=kernel, reduction=reduction).sum()
            if not loss.requires_grad:
                assert not any(wanted)
                continue
            loss.backward()
            for leaf, need, right in zip(q.leaves, wanted, expected, strict=True):
                if need and leaf.grad is not None:
                    assert_same([leaf.grad], [right], 1e-10)
                else:
                    assert leaf.grad is None
                    assert not need or kernel == "lin"


@pytest.mark.parametrize("kernel", KERNELS)
def test_evidence_is_what_the_naive_probabilities_say(kernel: str) -> None:
    p = make_problem()
    p.target[2] = p.target[9] = -100
    for smoothing in SMOOTHING:
        given = senses_of(p, 11, kernel)
        _, token_nll, evidence = nll_with_evidence(p.h, given, p.target, label_smoothing=smoothing)
        senses = naive_logits(*p.leaves, kernel).softmax(1)
        assert not token_nll.requires_grad
        assert not evidence.sense_prob.requires_grad
        assert torch.equal(evidence.counted, p.target != -100)
        for t, word in enumerate(p.target.tolist()):
            if word == -100:
                assert evidence.log_prob[t] == 0
                assert (evidence.sense_prob[t] == 0).all()
                continue
            own = (p.word_of_sense == word).nonzero().flatten()
            total = senses[t, own].sum()
            assert evidence.log_prob[t].item() == pytest.approx(total.log().item(), rel=1e-9)
            assert token_nll[t].item() == pytest.approx(-total.log().item(), rel=1e-9)
            assert evidence.senses[t, : len(own)].tolist() == own.tolist()
            torch.testing.assert_close(
                evidence.sense_prob[t, : len(own)], senses[t, own].detach(), rtol=1e-9, atol=0.0
            )
            assert (evidence.sense_prob[t, len(own) :] == 0).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_log_probs_sum_to_one_and_agree_with_the_naive_ones(kernel: str) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        for theta_scale in (0.1, 30.0):
            p = make_problem(50, 40, 110, 9, theta_scale=theta_scale, dtype=dtype)
            ours = kerbs_log_probs(*p.leaves, p.word_of_sense, 40, kernel=kernel)
            assert ours.shape == (50, 40)
            torch.testing.assert_close(
                ours.double().exp().sum(1), torch.ones(50).double(), rtol=0.0, atol=tolerance
            )
    wide = make_problem(20, 12, 30)
    ours = kerbs_log_probs(wide.h.view(4, 5, -1), *wide.leaves[1:], wide.word_of_sense, 12)
    naive = naive_word_log_probs(naive_logits(*wide.leaves), wide.word_of_sense, 12)
    torch.testing.assert_close(ours.view(20, 12), naive, rtol=1e-9, atol=1e-9)
    weight = torch.randn(20, 12, dtype=torch.float64)
    assert_same(
        gradients((ours.view(20, 12) * weight).sum(), wide),
        gradients((naive * weight).sum(), wide),
        1e-9,
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_are_the_naive_ones_with_and_without_autograd(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = make_problem(24, 12, 30)
    naive = naive_word_log_probs(naive_logits(*p.leaves, kernel), p.word_of_sense, 12)
    truth, h = naive.detach().view(2, 3, 4, 12), p.h.view(2, 3, 4, 7)
    senses = (*p.leaves[1:], p.word_of_sense)
    ours = kerbs_log_probs(h, *senses, 12, kernel=kernel)
    assert ours.requires_grad
    torch.testing.assert_close(ours.detach(), truth, rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(likelihood, "kernel_logits", None)  # all logits at once: for autograd only
    with torch.no_grad():
        ours = kerbs_log_probs(h, *senses, 12, kernel=kernel)
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)
    first, backend = score_words(h[0], senses_of(p, 12, kernel))
    second, same = score_words(h[1].transpose(0, 1), senses_of(p, 12, kernel), backend)
    assert same is backend
    assert not first.requires_grad
    torch.testing.assert_close(first, truth[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(second.transpose(0, 1), truth[1], rtol=1e-9, atol=1e-9)
    low = p.to(torch.float32)
    narrow, _ = score_words(low.h, senses_of(low, 12))
    assert narrow.dtype == torch.float32


@pytest.mark.parametrize(
    "owners", [torch.tensor([3, 0, 4, 2, 1]), torch.tensor([1, 0, 2, 2, 1, 0])]
)
def test_words_of_one_sense_or_two_in_any_order(owners: Tensor) -> None:
    words = int(owners.max()) + 1
    p = make_problem(6, words, len(owners))._replace(word_of_sense=owners)
    naive = naive_word_log_probs(naive_logits(*p.leaves), owners, words)
    ours = kerbs_log_probs(p.h.view(2, 3, 7), p.w, p.theta, owners, words)
    torch.testing.assert_close(ours.view(6, words), naive, rtol=1e-9, atol=1e-9)


def test_one_word_is_certain_whatever_its_sense() -> None:
    p = make_problem(5, 1, 3)
    p.target[1] = -100
    _, token_nll, evidence = nll_with_evidence(p.h, senses_of(p, 1), p.target)
    assert token_nll.abs().max() <= 1e-15
    assert evidence.counted.tolist() == [True, False, True, True, True]
    assert evidence.sense_prob.sum(1).tolist() == pytest.approx([1, 0, 1, 1, 1])


def test_a_table_that_is_given_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    p = make_problem()
    table = build_sense_table(p.word_of_sense, 11)
    loss = nll(p)
    monkeypatch.setattr(likelihood, "build_sense_table", None)
    assert torch.equal(nll(p, table=table), loss)


def test_every_wrong_shape_and_option_is_refused() -> None:
    p = make_problem(7)
    changes: list[tuple[dict[str, Tensor], str]] = [
        ({"h": p.h.unsqueeze(2)}, r"\[N, d\] and \[M, d\]"),
        ({"w": p.w.unsqueeze(2)}, r"\[N, d\] and \[M, d\]"),
        ({"w": p.w[:, :6]}, r"\[N, d\] and \[M, d\]"),
        ({"theta": p.theta[:-1]}, "M = 29"),
        ({"target": p.target[:-1]}, "N = 7"),
        ({"target": p.target.clamp_max(10).index_fill(0, torch.tensor([3]), 11)}, "of 11 words"),
        ({"target": p.target.index_fill(0, torch.tensor([3]), -1)}, "of 11 words"),
    ]
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            nll(p._replace(**change))  # type: ignore[arg-type]
    table = build_sense_table(p.word_of_sense, 11)
    with pytest.raises(ValueError, match="M = 29"):
        nll(p._replace(word_of_sense=p.word_of_sense[:-1]), table=table)
    options: list[tuple[dict[str, object], str]] = [
        ({"reduction": "average"}, "'average'"),
        ({"label_smoothing": -1e-9}, "label_smoothing"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
    ]
    for option, message in options:
        with pytest.raises(ValueError, match=message):
            nll(p, **option)
    assert nll(p._replace(target=torch.full((7,), -100))).item() == 0.0
    assert nll(p._replace(target=p.target.index_fill(0, torch.tensor([3]), 10))).isfinite()
