"""The likelihood equals the naive one: values, every gradient, every option, and its edges."""

import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, build_kernel, kernel_logits, prepared
from fairseq_kerbs.likelihood import chunks, compilation, kerbs_log_probs, kerbs_nll, passes
from fairseq_kerbs.likelihood import nll as module
from fairseq_kerbs.likelihood.nll import NllOptions, Senses, nll_with_evidence
from fairseq_kerbs.output_layers import ranked_senses
from fairseq_kerbs.output_layers.ranked_senses import score_words
from fairseq_kerbs.senses import build_sense_table
from tests.helpers.cli import Patch
from tests.helpers.reference import Memory, Problem, make_problem, naive_logits, naive_token_losses
from tests.helpers.reference import naive_word_log_probs as naive_words

KERNELS, SMOOTHING = ["kerbs", "kerbs_released", "lin"], [0.0, 0.1]
COMPILED = [  # the case, then the scales of θ that its one compilation serves
    ("kerbs", 0.0, torch.float32, (0.0, 1e-8, 1e-3, 1.0, 8.0)),
    ("kerbs", 0.1, torch.float32, (0.0, 1e-8, 1e-3, 1.0, 8.0)),
    ("kerbs", 0.1, torch.float64, (1e-8, 1.0, 8.0)),
    ("kerbs_released", 0.1, torch.float32, (1.0,)),
    ("lin", 0.1, torch.float32, (1.0,)),
]


def nll(p: Problem, **options: Any) -> Tensor:
    return kerbs_nll(*p.leaves, p.word_of_sense, p.target, **options)


def chunks_of(tokens: int) -> Any:
    """A context in which a chunk has so many tokens."""
    return mock.patch.object(chunks, "chunk_size", return_value=tokens)


def senses_of(p: Problem, kernel: str | Kernel = "kerbs") -> Senses:
    table = build_sense_table(p.word_of_sense, p.vocab_size)
    return Senses(p.w, p.theta, table, build_kernel(kernel))


def gradients(loss: Tensor, p: Problem) -> list[Tensor]:
    """Gradients of h, w, θ; zeros where a leaf takes no part."""
    how: Any = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    return list(torch.autograd.grad(loss, p.leaves, **how))


def assert_same(ours: list[Tensor], truth: list[Tensor], tolerance: float) -> None:
    """Largest error of each tensor within ``tolerance`` of its largest entry."""
    for actual, expected in zip(ours, truth, strict=True):
        scale = expected.abs().max().item()
        assert (actual.double() - expected.double()).abs().max().item() <= tolerance * scale + 1e-30


def relative(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.fixture
def compiled(monkeypatch: Patch) -> Iterator[None]:
    """Everything of 16 tokens or more is compiled, or the test fails."""
    monkeypatch.setenv(compilation.SWITCH, "1")
    torch._dynamo.reset()
    yield
    assert compilation._works
    torch._dynamo.reset()


def assert_float32_is_right(narrow: Problem, kernel: str, smoothing: float) -> None:
    """Within 1e-5, and within twice the error of the naive likelihood in float32."""
    wide = narrow.to(torch.float64)
    truth = naive_token_losses(wide, kernel, smoothing).sum()
    rough = gradients(naive_token_losses(narrow, kernel, smoothing).sum(), narrow)
    loss = nll(narrow, kernel=kernel, label_smoothing=smoothing)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(truth.item(), rel=1e-6)
    exact = gradients(truth, wide)
    for ours, naive, right in zip(gradients(loss, narrow), rough, exact, strict=True):
        scale = right.abs().max().item() + 1e-30
        ours_off = (ours.double() - right).abs().max().item() / scale
        naive_off = (naive.double() - right).abs().max().item() / scale
        assert ours_off <= min(1e-5, max(2 * naive_off, 2e-6))


def assert_float64_is_right(p: Problem, kernel: str, smoothing: float) -> None:
    """Values and gradients of all reductions, with a word that is ignored."""
    each, counted = naive_token_losses(p, kernel, smoothing, 3), p.target != 3
    weights = torch.randn(len(each), dtype=torch.float64)
    assert 0 < counted.sum() < len(each)
    # nobody reads what is ignored
    q = p._replace(h=p.h.detach().where(counted[:, None], torch.nan).requires_grad_())
    options: Any = {"kernel": kernel, "label_smoothing": smoothing, "ignore_index": 3}
    rounding = 1e-12 if kernel == "lin" else 1e-11
    truths = each.sum(), each.sum() / counted.sum(), (each * weights).sum()
    for reduction, truth in zip(("sum", "mean", "none"), truths, strict=True):
        loss = nll(q, reduction=reduction, **options)
        if reduction == "none":
            torch.testing.assert_close(loss.detach(), each.detach(), rtol=rounding, atol=1e-12)
            assert not loss[~counted].any()
            loss = (loss * weights).sum()
        assert loss.item() == pytest.approx(truth.item(), rel=rounding)
        ours = gradients(loss, q)
        assert_same(ours, gradients(truth, p), 1e-11 if kernel == "lin" else 1e-9)
        assert not ours[0][~counted].any()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 8.0])
def test_loss_and_gradients_are_the_naive_ones(kernel: str, smoothing: float, scale: float) -> None:
    for words, senses, dim in ((16, 16, 7), (24, 30, 16), (12, 36, 3)):
        p = make_problem(61, words, senses, dim, theta_scale=scale, seed=senses)
        with chunks_of(6):
            assert_float64_is_right(p, kernel, smoothing)
    for senses in (40, 110):
        p = make_problem(64, 40, senses, 24, theta_scale=scale, dtype=torch.float32)
        assert_float32_is_right(p, kernel, smoothing)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "case", [COMPILED[0], *(pytest.param(c, marks=pytest.mark.slow) for c in COMPILED[1:])]
)
def test_compiled_passes_are_as_right(case: tuple[str, float, torch.dtype, list[float]]) -> None:
    kernel, smoothing, dtype, scales = case
    for scale in scales:
        p = make_problem(64, 40, 110, 24, theta_scale=scale, dtype=dtype)
        if dtype == torch.float64:
            with chunks_of(24):
                assert_float64_is_right(p, kernel, smoothing)
        else:
            assert_float32_is_right(p, kernel, smoothing)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("switch", ["0", "1"])
def test_float32_at_every_theta_of_the_list(switch: str, monkeypatch: Patch) -> None:
    """torch.compile makes e^z − 1 of torch.expm1, which is 0 at θ = 1e-8."""
    monkeypatch.setenv(compilation.SWITCH, switch)
    base = make_problem(64, 40, 110, 24, dtype=torch.float32)
    sizes = (0.0, 1e-8, 1e-4, 1e-2, 0.35, 1.0, 10.0, 50.0, 64.0)
    for theta in (sign * size for size in sizes for sign in (1.0, -1.0)):
        narrow = base._replace(theta=torch.full((110,), theta)).to(torch.float32)
        wide = narrow.to(torch.float64)
        logits = kernel_logits(*wide.leaves)  # held against mpmath in test_kernels
        log_probs = naive_words(logits, wide.word_of_sense, 40)
        truth, loss = -log_probs.gather(1, wide.target[:, None]).sum(), nll(narrow)
        assert loss.item() == pytest.approx(truth.item(), rel=2e-5)
        assert_same(gradients(loss, narrow), gradients(truth, wide), 1e-5 * (1 + abs(theta) / 10))


@pytest.mark.parametrize("kernel", ["kerbs", "lin", "rbf", "kerbs_released"])
@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_chunks_blocks_and_order_change_nothing(
    kernel: str, smoothing: float, reduction: str, monkeypatch: Patch
) -> None:
    p, options = make_problem(13), {"kernel": kernel, "label_smoothing": smoothing}
    order = torch.randperm(13)

    def run(q: Problem, chunk: int) -> list[Tensor]:
        with chunks_of(chunk):
            loss = nll(q, reduction=reduction, **options)
            return [loss.detach(), *gradients(loss.sum(), q)]

    whole = run(p, 13)
    turned = run(p._replace(h=p.h.detach()[order], target=p.target[order]).to(torch.float64), 13)
    moved = [whole[0][order] if reduction == "none" else whole[0], whole[1][order], *whole[2:]]
    assert_same(turned, moved, 1e-12)
    monkeypatch.setattr(chunks, "BLOCK", 100)
    for chunk in range(1, 15):
        assert_same(run(p, chunk), whole, 1e-12)
    # compiled, tokens without weight fill up the last chunk; here they do it uncompiled
    monkeypatch.setattr(compilation, "worthwhile", lambda _: True)
    monkeypatch.setattr(compilation, "call", lambda function, *inputs: function(*inputs))
    for chunk in (6, 13, 64):
        assert_same(run(p, chunk), whole, 1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_gradient_for_any_subset_of_the_inputs(kernel: str, reduction: str) -> None:
    p = make_problem()
    expected = gradients(naive_token_losses(p, kernel).sum(), p)
    for wanted in itertools.product([False, True], repeat=3):
        q = p.to(torch.float64)
        for leaf, need in zip(q.leaves, wanted, strict=True):
            leaf.requires_grad_(need)
        loss = nll(q, kernel=kernel, reduction=reduction).sum()
        assert loss.requires_grad == any(wanted[: 2 if kernel == "lin" else 3])
        if loss.requires_grad:
            loss.backward()
        for leaf, need, right in zip(q.leaves, wanted, expected, strict=True):
            assert (leaf.grad is not None) == (need and bool(right.any()))
            if leaf.grad is not None:
                assert_same([leaf.grad], [right], 1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_evidence_is_what_the_naive_probabilities_say(kernel: str, smoothing: float) -> None:
    p, options = make_problem(), NllOptions(label_smoothing=smoothing)
    p.target[2] = p.target[9] = -100
    counted, words = p.target != -100, p.target.clamp_min(0)
    every, table = naive_logits(*p.leaves, kernel).softmax(1).detach(), senses_of(p).table
    own = every.gather(1, table.senses[words]) * table.mask[words] * counted[:, None]
    log_prob = torch.where(counted, own.sum(1).log(), 0.0)
    with chunks_of(4):
        found = nll_with_evidence(p.h, senses_of(p, kernel), p.target, options)
    assert not found[1].requires_grad
    assert not found[2].sense_prob.requires_grad
    torch.testing.assert_close(found[1], -log_prob, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found[2].log_prob, log_prob, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found[2].sense_prob, own, rtol=1e-9, atol=0.0)
    assert torch.equal(found[2].senses, table.senses[words])
    assert torch.equal(found[2].counted, counted)


@pytest.mark.parametrize("words", [1, 2, 3])
@pytest.mark.parametrize("senses", [1, 3])
@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_a_few_words_and_a_single_token(words: int, senses: int, smoothing: float) -> None:
    p = make_problem(6, words, words * senses)
    for q in (p, p._replace(h=p.h[:1], target=p.target[:1]).to(torch.float64)):
        loss = nll(q, label_smoothing=smoothing)
        truth = naive_token_losses(q, "kerbs", smoothing).sum()
        torch.testing.assert_close(loss, truth, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(gradients(loss, q), gradients(truth, q), rtol=1e-9, atol=1e-12)
    naive = naive_words(naive_logits(*p.leaves), p.word_of_sense, words)
    with mock.patch.object(module, "chunk_size", return_value=4):
        for grad in (True, False):  # without gradient a chunk at a time
            with torch.set_grad_enabled(grad):
                ours = kerbs_log_probs(*p.leaves, p.word_of_sense, words)
            torch.testing.assert_close(ours, naive, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_no_token_and_only_ignored_tokens_give_zero(reduction: str, smoothing: float) -> None:
    for p in (make_problem(0), make_problem(4)._replace(target=torch.full((4,), -100))):
        loss = nll(p, reduction=reduction, label_smoothing=smoothing)
        assert loss.shape == ((len(p.target),) if reduction == "none" else ())
        assert not loss.any()
        loss.sum().backward()
        assert all(leaf.grad is not None and not leaf.grad.any() for leaf in p.leaves)
    for shape, grad in itertools.product([(), (0,), (2, 0), (2, 3)], [False, True]):
        with torch.set_grad_enabled(grad):
            arguments = p.w, p.theta, p.word_of_sense, p.vocab_size
            scores = kerbs_log_probs(torch.randn(*shape, 7), *arguments)
        assert scores.shape == (*shape, p.vocab_size)


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_for_decoding_in_chunks_and_blocks(kernel: str) -> None:
    p = make_problem(24, 12, 30)
    naive = naive_words(naive_logits(*p.leaves, kernel), p.word_of_sense, 12)
    right, h, senses = naive.view(2, 12, 12), p.h.view(2, 12, 7), senses_of(p, kernel)
    blocks: Any = {"row_blocks": lambda x: [slice(0, 4), slice(4, len(x))]}
    with mock.patch.multiple(ranked_senses, chunk_size=lambda *_, **__: 5, **blocks):
        first, prepared = score_words(h[0, 3], senses)
        second, same = score_words(h.transpose(0, 1), senses, prepared)
        assert score_words(h[:0], senses)[0].shape == (0, 12, 12)
        assert score_words(h[:0].float(), senses_of(p.to(torch.float32), kernel))[0].numel() == 0
    assert same is prepared
    assert not first.requires_grad
    torch.testing.assert_close(first, right[0, 3], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(second, right.transpose(0, 1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("total", [12, 30])
@pytest.mark.parametrize("mkl", [False, True])
def test_scores_for_decoding_by_each_library(mkl: bool, total: int) -> None:
    p = make_problem(24, 12, total, dtype=torch.float32)
    right = naive_words(naive_logits(*p.leaves).double(), p.word_of_sense, 12)
    chunks_of_five = mock.patch.object(ranked_senses, "chunk_size", return_value=5)
    with chunks_of_five, mock.patch.object(prepared, "_mkl_is_faster", return_value=mkl):
        scores, ranked = score_words(p.h, senses_of(p))
    assert ranked.w.is_mkldnn == (prepared._has_onednn() and not mkl)
    torch.testing.assert_close(scores.double(), right, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shift", [-200.0, 0.0, 200.0])
def test_words_of_two_senses_with_logits_of_any_size(shift: float) -> None:
    p = make_problem(24, 12, 24, dtype=torch.float32)._replace(word_of_sense=torch.arange(24) % 12)
    with torch.no_grad():
        p.h[:, -1], p.w[:] = 1.0, 0.1 * p.w
        p.w[:, -1] = shift - 2.0 * (torch.arange(24) >= 12)  # biases
    right = naive_words(naive_logits(*p.leaves, "lin").double(), p.word_of_sense, 12)
    found = kerbs_log_probs(*p.leaves, p.word_of_sense, 12, kernel="lin")
    for scores in (found, score_words(p.h, senses_of(p, "lin"))[0]):
        torch.testing.assert_close(scores.double(), right, rtol=0, atol=1e-4 if shift else 3e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("sizes", [(200, 60, 150, 16), (12, 60_000, 90_000, 8)])
def test_low_precision_errs_as_it_rounds(dtype: torch.dtype, smoothing: float, sizes: Any) -> None:
    low = make_problem(*sizes, theta_scale=0.5, dtype=dtype)
    wide, scale = low.to(torch.float64), min(sizes[2], 1024)  # the same rounded inputs
    loss, truth = nll(low, label_smoothing=smoothing), nll(wide, label_smoothing=smoothing)
    assert loss.dtype == torch.float32
    error = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    assert loss.item() == pytest.approx(truth.item(), rel=error)
    exact, found = gradients(truth * scale, wide), gradients(loss * scale, low)
    assert [gradient.dtype for gradient in found] == [dtype] * 3
    assert all(off <= 8 * error for off in map(relative, found, exact))


def test_float16_gradients_are_scaled_before_they_are_rounded() -> None:
    """Probabilities near 1e-8 are nothing in float16, but a loss scale must bring them back."""
    p, scale = make_problem(4, 8, 16, 4, dtype=torch.float16), 2.0**15
    other = p.word_of_sense != 0
    h, w = torch.tensor([3.0, 0, 0, 0]), torch.tensor([-3.0, 0.5, 0, 0])
    rows = torch.where(other[:, None], w, h)
    low = p._replace(h=h.expand(4, 4), w=rows, theta=0 * p.theta, target=0 * p.target)
    low = low.to(torch.float16)
    wide = low.to(torch.float64)
    (expected,) = torch.autograd.grad(nll(wide) * scale, wide.w)
    assert (expected[other] / scale).abs().max() < 6e-7
    for reduction in ("sum", "none"):
        loss = nll(low, reduction=reduction).sum()
        (actual,) = torch.autograd.grad(loss * scale, low.w, retain_graph=True)
        assert relative(actual[other], expected[other]) < 0.02
        (actual,) = torch.autograd.grad(loss * 1e20, low.w)  # which the loss scaler has to see
        assert actual.isinf().any()


def test_gradients_of_a_frequent_word_that_is_certain_do_not_cancel() -> None:
    p = make_problem(600, 30, 60, dtype=torch.float32)
    with torch.no_grad():
        p.w[0], p.target[:], p.h[:] = 3.0, p.word_of_sense[0], 3.0 + 0.1 * p.h
    for gradient in gradients(nll(p), p)[1:]:  # of w and θ, in float64 below 1e-12
        assert gradient[0].abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", KERNELS)
def test_extreme_inputs_stay_finite(dtype: torch.dtype, kernel: str) -> None:
    p = make_problem(12, 9, 24, 5, dtype=dtype)
    thetas = [0.0, 1e-8, 0.249, 0.251, 1, 10, 50, 63.9, 64, 64.1, 88, 100]
    with torch.no_grad():
        p.theta[:] = torch.tensor([sign * t for t in thetas for sign in (1.0, -1.0)])
        p.h[0], p.h[1], p.h[2], p.h[3] = 0.0, p.h[1] * 1e3, p.h[2] * 1e-6, 0.0
        p.h[3, 0] = 1e4
        p.w[3:6], p.w[6], p.w[7] = 0.0, p.w[6] * 1e3, p.h[1]
        p.w[8] = -p.h[1]
    for smoothing, reduction in ((0.0, "mean"), (0.1, "sum"), (0.1, "none")):
        loss = nll(p, kernel=kernel, label_smoothing=smoothing, reduction=reduction)
        assert loss.isfinite().all()
        if reduction != "none":  # float16 saturates the gradient, and only before the loss scale
            assert all(grad.isfinite().all() for grad in gradients(loss, p))
    log_probs = kerbs_log_probs(*p.leaves, p.word_of_sense, 9, kernel=kernel)
    assert (log_probs.double().exp().sum(1) - 1).abs().max() <= 1e-5


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32() -> None:
    p = make_problem(200, 60, 150, 32, theta_scale=0.3, dtype=torch.float32)
    p = p._replace(h=p.h * 0.5, w=p.w * 0.5).to(torch.float32)
    right, expected, wide = nll(p), gradients(nll(p), p), p.to(torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = nll(p), nll(p, reduction="none").sum()
        log_probs = kerbs_log_probs(*p.leaves, p.word_of_sense, 60)
        inside = nll(wide)
    assert inside.item() == nll(wide).item()  # float64 is left alone
    assert (log_probs.exp().sum(1) - 1).abs().max() <= 1e-5
    for loss in losses:
        assert loss.dtype == log_probs.dtype == torch.float32
        assert loss.item() != right.item()  # bfloat16 was really used
        assert loss.item() == pytest.approx(right.item(), rel=1e-3)
        assert all(error < 0.02 for error in map(relative, gradients(loss, p), expected))


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_backward_again_and_no_derivative_of_a_derivative(reduction: str) -> None:
    p = make_problem()
    loss = nll(p, reduction=reduction).sum()
    first = gradients(loss, p)
    loss.backward(retain_graph=True)
    nll(p, reduction=reduction).sum().backward()
    torch.testing.assert_close([leaf.grad for leaf in p.leaves], [2 * once for once in first])
    (grad,) = torch.autograd.grad(loss, p.h, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad.sum().backward()


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_gradcheck_at_special_thetas_and_at_zero_vectors(smoothing: float, reduction: str) -> None:
    owners = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 0, 3])
    thetas = [0.0, 1e-8, -1e-8, 0.05, -0.05, 0.0499, 0.5, -0.5, 50.0, -50.0, 63.9, -63.9]
    inputs = [torch.rand(4, 3) + 0.3, torch.rand(12, 3) + 0.3, torch.tensor(thetas)]  # acute angles
    options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": reduction}

    def function(h: Tensor, w: Tensor, *theta: Tensor) -> Tensor:
        parameters = theta[0] if theta else torch.zeros(12).double()
        return kerbs_nll(h, w, parameters, owners, torch.tensor([3, 0, 2, 5]), **options)

    leaves = [value.double().requires_grad_() for value in inputs]
    assert torch.autograd.gradcheck(function, leaves, eps=1e-6, atol=1e-7, rtol=1e-5)
    leaves[0].data[0], leaves[1].data[2] = 0.0, 0.0  # θ = 0 has no kink there
    assert torch.autograd.gradcheck(function, leaves[:2])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_nothing_is_tokens_by_senses(kernel: str, reduction: str, monkeypatch: Patch) -> None:
    tokens, senses, chunk = 800, 300, 20
    p = make_problem(tokens, 100, senses, 6, dtype=torch.float32)
    options: dict[str, Any] = {"kernel": kernel, "reduction": reduction}
    monkeypatch.setattr(chunks, "chunk_size", lambda *_: chunk)
    monkeypatch.setattr(module, "_run", chunks.run_chunks)  # no mode sees inside an operator
    with Memory() as memory:
        nll(p, label_smoothing=0.1, **options).sum().backward()
    assert chunk * senses <= memory.largest <= 2 * chunk * senses
    assert memory.peak <= 4 * tokens * senses / 2
    assert memory.products == tokens // chunk * (3 if reduction == "mean" else 4)
    with torch.no_grad(), Memory() as validation:
        nll(p, label_smoothing=0.1, **options)
    assert validation.products == tokens // chunk
    with Memory() as naive:
        naive_token_losses(p, kernel, 0.1).sum().backward()
    assert naive.peak >= 3 * 4 * tokens * senses  # so the measure measures


def test_errors_are_sentences() -> None:
    p, third = make_problem(7), torch.tensor([3])
    inputs = {name: value for name, value in p._asdict().items() if name != "vocab_size"}
    changes: list[tuple[dict[str, Any], str]] = [
        ({"h": p.h.unsqueeze(2)}, r"\[..., d\] and \[M, d\]"),
        ({"w": p.w[:, :6]}, r"\[..., d\] and \[M, d\]"),
        ({"theta": p.theta[:-1]}, "`theta` .* 29 senses"),
        ({"h": p.h.unsqueeze(1)}, r"`h` .* \[N, d\]"),
        ({"target": p.target[:-1]}, r"int64 \[6\] on cpu; it must be torch.int64 \[7\] on cpu"),
        ({"target": p.target.int()}, "`target` is torch.int32"),
        ({"target": p.target.double()}, "`target` is torch.float64"),
        ({"target": p.target.to("meta")}, "`target` is .* on meta"),
        ({"target": p.target.index_fill(0, third, 11)}, "`target` holds 11, .* of 11 words"),
        ({"target": p.target.index_fill(0, third, -1)}, "`target` holds -1, .* of 11 words"),
        ({"word_of_sense": p.word_of_sense.clamp_min(1)}, "Word 0 has no sense"),
        ({"word_of_sense": p.word_of_sense[:-1]}, "M = 29"),
        ({"reduction": "average"}, "'average'"),
        ({"label_smoothing": -1e-9}, "label_smoothing"),
        ({"label_smoothing": 1.0}, r"within \[0, 1\)"),
    ]
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            kerbs_nll(**inputs | change)
    assert nll(p._replace(target=p.target.index_fill(0, third, 10))).isfinite()


@st.composite
def problems(draw: st.DrawFn, *dtypes: torch.dtype) -> Problem:
    """Any numbers of tokens, words, senses and dimensions; θ from flat to steep."""
    words, seed = draw(st.integers(1, 40)), draw(st.integers(0, 2**31))
    senses, scale = draw(st.integers(words, 4 * words)), st.sampled_from([0.0, 1e-4, 0.3, 3.0, 12])
    sizes = (draw(st.integers(1, 30)), words, senses, draw(st.integers(1, 33)))
    p = make_problem(*sizes, seed=seed, theta_scale=draw(scale))
    size = draw(st.sampled_from([1e-3, 0.3, 1.0])) * p.h.shape[1] ** -0.25
    return p._replace(h=p.h * size, w=p.w * size).to(draw(st.sampled_from(dtypes)))


@settings(max_examples=30)
@given(problems(torch.float64, torch.float32), st.sampled_from(KERNELS), st.booleans())
def test_probabilities_and_losses_are_the_naive_ones(p: Problem, kernel: str, smooth: bool) -> None:
    # float32 errs in the logits, in proportion to their size; the tight bounds are above
    tolerance = 1e-9 if p.h.dtype == torch.float64 else 2e-4
    exact, smoothing = p.to(torch.float64), 0.1 if smooth else 0.0
    found = kerbs_log_probs(*p.leaves, p.word_of_sense, p.vocab_size, kernel=kernel)
    expected = naive_words(naive_logits(*exact.leaves, kernel), p.word_of_sense, p.vocab_size).exp()
    for scores in (found, score_words(p.h, senses_of(p, kernel))[0]):
        torch.testing.assert_close(scores.double().exp(), expected, rtol=0, atol=tolerance)
    options: dict[str, Any] = {"kernel": kernel, "label_smoothing": smoothing}
    each = kerbs_nll(*p.leaves, p.word_of_sense, p.target, reduction="none", **options)
    truth = naive_token_losses(exact, kernel, smoothing)
    torch.testing.assert_close(each.double(), truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("senses", [1, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_sums_over_blocks_of_64_senses_are_those_over_all(senses: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(senses)
    logits = scale * torch.randn(senses, 5, generator=generator, dtype=torch.float64)
    log_z, mean = passes.log_sum(logits, True)
    torch.testing.assert_close(log_z, logits.logsumexp(0))
    torch.testing.assert_close(mean, (logits.softmax(0) * logits).sum(0))
    assert passes.ROWS == 64


ANY = problems(torch.float64, torch.float32, torch.bfloat16, torch.float16)


@given(ANY, st.sampled_from(KERNELS), st.sampled_from([1.0, 30.0]))
def test_probabilities_sum_to_one(p: Problem, kernel: str, scale: float) -> None:
    h, w, theta = (value.detach() * scale for value in p.leaves)
    found = kerbs_log_probs(h, w, theta, p.word_of_sense, p.vocab_size, kernel=kernel)
    assert found.shape == (len(p.target), p.vocab_size)
    assert found.isfinite().all()
    assert (found <= 1e-5).all()
    assert (found.double().exp().sum(1) - 1).abs().max() <= 1e-5
