"""The likelihood equals the naive one: values, every gradient, every option, and its edges."""

import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_kerbs.kernels import kernel_logits
from fairseq_kerbs.likelihood import compilation, kerbs_log_probs, kerbs_nll
from fairseq_kerbs.likelihood import nll as module
from fairseq_kerbs.likelihood.nll import NllOptions, nll_with_probabilities
from fairseq_kerbs.output_layers.decoding import score_words
from tests.helpers.cli import Patch
from tests.helpers.likelihood import (
    KERNELS,
    SMOOTHING,
    assert_same,
    chunks_of,
    gradients,
    nll,
    relative,
    senses_of,
)
from tests.helpers.reference import (
    Problem,
    make_problem,
    naive_logits,
    naive_token_losses,
    naive_word_log_probs,
)

COMPILED = [  # the case, then the scales of θ that its one compilation serves
    ("kerbs", 0.0, torch.float32, (0.0, 1e-8, 1e-3, 1.0, 8.0)),
    ("kerbs", 0.1, torch.float32, (0.0, 1e-8, 1e-3, 1.0, 8.0)),
    ("kerbs", 0.1, torch.float64, (1e-8, 1.0, 8.0)),
    ("kerbs_released", 0.1, torch.float32, (1.0,)),
    ("lin", 0.1, torch.float32, (1.0,)),
]


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
    exact = gradients(truth, wide)
    rough = gradients(naive_token_losses(narrow, kernel, smoothing).sum(), narrow)
    loss = nll(narrow, kernel=kernel, label_smoothing=smoothing)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(truth.item(), rel=1e-6)
    for ours, naive, right in zip(gradients(loss, narrow), rough, exact, strict=True):
        scale = right.abs().max().item() + 1e-30
        our_error = (ours.double() - right).abs().max().item() / scale
        naive_error = (naive.double() - right).abs().max().item() / scale
        assert our_error <= 1e-5
        assert our_error <= max(2 * naive_error, 2e-6)


def assert_float64_is_right(p: Problem, kernel: str, smoothing: float) -> None:
    """Values and gradients of all reductions, with a word that is ignored."""
    ignored = 3
    each = naive_token_losses(p, kernel, smoothing, ignored)
    counted = p.target != ignored
    assert 0 < counted.sum() < len(each)
    weights = torch.randn(len(each), dtype=torch.float64)
    truths = {
        "sum": each.sum(),
        "mean": each.sum() / counted.sum(),
        "none": (each * weights).sum(),
    }
    # nobody reads what is ignored
    h = p.h.detach().where(counted[:, None], torch.nan).requires_grad_()
    q = p._replace(h=h)
    rounding = 1e-12 if kernel == "lin" else 1e-11
    for reduction, truth in truths.items():
        loss = nll(
            q, reduction=reduction, kernel=kernel, label_smoothing=smoothing, ignore_index=ignored
        )
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
        logits = kernel_logits(*wide.leaves)  # held against mpmath in test_kerbs
        log_probs = naive_word_log_probs(logits, wide.word_of_sense, 40)
        truth = -log_probs.gather(1, wide.target[:, None]).sum()
        loss = nll(narrow)
        assert loss.item() == pytest.approx(truth.item(), rel=2e-5)
        assert_same(gradients(loss, narrow), gradients(truth, wide), 1e-5 * (1 + abs(theta) / 10))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_gradient_for_any_subset_of_the_inputs(kernel: str, reduction: str) -> None:
    p = make_problem()
    expected = gradients(naive_token_losses(p, kernel).sum(), p)
    differentiable = 2 if kernel == "lin" else 3
    for wanted in itertools.product([False, True], repeat=3):
        q = p.to(torch.float64)
        for leaf, need in zip(q.leaves, wanted, strict=True):
            leaf.requires_grad_(need)
        loss = nll(q, kernel=kernel, reduction=reduction).sum()
        assert loss.requires_grad == any(wanted[:differentiable])
        if loss.requires_grad:
            loss.backward()
        for leaf, need, right in zip(q.leaves, wanted, expected, strict=True):
            assert (leaf.grad is not None) == (need and bool(right.any()))
            if leaf.grad is not None:
                assert_same([leaf.grad], [right], 1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_posteriors_are_what_the_naive_probabilities_say(kernel: str, smoothing: float) -> None:
    p = make_problem()
    p.target[2] = -100
    p.target[9] = -100
    counted = p.target != -100
    words = p.target.clamp_min(0)
    table = senses_of(p).table
    every = naive_logits(*p.leaves, kernel).softmax(1).detach()
    own = every.gather(1, table.senses[words]) * table.mask[words] * counted[:, None]
    log_prob = torch.where(counted, own.sum(1).log(), 0.0)
    options = NllOptions(label_smoothing=smoothing)
    with chunks_of(4):
        _, token_nll, posteriors = nll_with_probabilities(
            p.h, senses_of(p, kernel), p.target, options
        )
    assert not token_nll.requires_grad
    assert not posteriors.sense_prob.requires_grad
    torch.testing.assert_close(token_nll, -log_prob, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(posteriors.log_prob, log_prob, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(posteriors.sense_prob, own, rtol=1e-9, atol=0.0)
    assert torch.equal(posteriors.senses, table.senses[words])
    assert torch.equal(posteriors.counted, counted)


@pytest.mark.parametrize("words", [1, 2, 3])
@pytest.mark.parametrize("senses", [1, 3])
@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_a_few_words_and_a_single_token(words: int, senses: int, smoothing: float) -> None:
    p = make_problem(6, words, words * senses)
    single = p._replace(h=p.h[:1], target=p.target[:1]).to(torch.float64)
    for q in (p, single):
        loss = nll(q, label_smoothing=smoothing)
        truth = naive_token_losses(q, "kerbs", smoothing).sum()
        torch.testing.assert_close(loss, truth, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(gradients(loss, q), gradients(truth, q), rtol=1e-9, atol=1e-12)
    naive = naive_word_log_probs(naive_logits(*p.leaves), p.word_of_sense, words)
    with mock.patch.object(module, "chunk_size", return_value=4):
        for grad in (True, False):  # without gradient a chunk at a time
            with torch.set_grad_enabled(grad):
                ours = kerbs_log_probs(*p.leaves, p.word_of_sense, words)
            torch.testing.assert_close(ours, naive, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_no_token_and_only_ignored_tokens_give_zero(reduction: str, smoothing: float) -> None:
    empty = make_problem(0)
    ignored = make_problem(4)._replace(target=torch.full((4,), -100))
    for p in (empty, ignored):
        loss = nll(p, reduction=reduction, label_smoothing=smoothing)
        assert loss.shape == ((len(p.target),) if reduction == "none" else ())
        assert not loss.any()
        loss.sum().backward()
        for leaf in p.leaves:
            assert leaf.grad is not None
            assert not leaf.grad.any()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 3)])
@pytest.mark.parametrize("grad", [False, True])
def test_scores_of_context_vectors_of_any_shape(shape: tuple[int, ...], grad: bool) -> None:
    p = make_problem(4)
    with torch.set_grad_enabled(grad):
        h = torch.randn(*shape, 7)
        scores = kerbs_log_probs(h, p.w, p.theta, p.word_of_sense, p.vocab_size)
    assert scores.shape == (*shape, p.vocab_size)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("sizes", [(200, 60, 150, 16), (12, 60_000, 90_000, 8)])
def test_low_precision_errs_as_it_rounds(dtype: torch.dtype, smoothing: float, sizes: Any) -> None:
    low = make_problem(*sizes, theta_scale=0.5, dtype=dtype)
    wide = low.to(torch.float64)  # the same rounded inputs
    scale = min(sizes[2], 1024)
    loss = nll(low, label_smoothing=smoothing)
    truth = nll(wide, label_smoothing=smoothing)
    assert loss.dtype == torch.float32
    error = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    assert loss.item() == pytest.approx(truth.item(), rel=error)
    exact = gradients(truth * scale, wide)
    found = gradients(loss * scale, low)
    assert [gradient.dtype for gradient in found] == [dtype] * 3
    for ours, right in zip(found, exact, strict=True):
        assert relative(ours, right) <= 8 * error


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", KERNELS)
def test_extreme_inputs_stay_finite(dtype: torch.dtype, kernel: str) -> None:
    p = make_problem(12, 9, 24, 5, dtype=dtype)
    thetas = [0.0, 1e-8, 0.249, 0.251, 1, 10, 50, 63.9, 64, 64.1, 88, 100]
    with torch.no_grad():
        p.theta[:] = torch.tensor([sign * t for t in thetas for sign in (1.0, -1.0)])
        p.h[0] = 0.0
        p.h[1] *= 1e3
        p.h[2] *= 1e-6
        p.h[3] = 0.0
        p.h[3, 0] = 1e4
        p.w[3:6] = 0.0
        p.w[6] *= 1e3
        p.w[7] = p.h[1]
        p.w[8] = -p.h[1]
    for smoothing, reduction in ((0.0, "mean"), (0.1, "sum"), (0.1, "none")):
        loss = nll(p, kernel=kernel, label_smoothing=smoothing, reduction=reduction)
        assert loss.isfinite().all()
        if reduction != "none":  # float16 saturates the gradient, and only before the loss scale
            for gradient in gradients(loss, p):
                assert gradient.isfinite().all()
    log_probs = kerbs_log_probs(*p.leaves, p.word_of_sense, 9, kernel=kernel)
    assert (log_probs.double().exp().sum(1) - 1).abs().max() <= 1e-5


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32() -> None:
    p = make_problem(200, 60, 150, 32, theta_scale=0.3, dtype=torch.float32)
    p = p._replace(h=p.h * 0.5, w=p.w * 0.5).to(torch.float32)
    wide = p.to(torch.float64)
    right = nll(p)
    expected = gradients(right, p)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [nll(p), nll(p, reduction="none").sum()]
        log_probs = kerbs_log_probs(*p.leaves, p.word_of_sense, 60)
        of_targets = nll(p, reduction="none")
        inside = nll(wide)
    assert inside.item() == nll(wide).item()  # float64 is left alone
    assert log_probs.dtype == torch.float32
    assert (log_probs.exp().sum(1) - 1).abs().max() <= 1e-5
    torch.testing.assert_close(-log_probs[torch.arange(200), p.target], of_targets)
    for loss in losses:
        assert loss.dtype == torch.float32
        assert loss.item() != right.item()  # bfloat16 was really used
        assert loss.item() == pytest.approx(right.item(), rel=1e-3)
        for ours, theirs in zip(gradients(loss, p), expected, strict=True):
            assert relative(ours, theirs) < 0.02


def test_errors_are_sentences() -> None:
    p = make_problem(7)
    third = torch.tensor([3])
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
        ({"word_of_sense": p.word_of_sense.float()}, "`word_of_sense` is torch.float32; it must"),
        ({"h": p.h > 0}, "torch.bool, torch.float64, torch.float64; they must have dtypes of real"),
        ({"w": p.w.long()}, "torch.float64, torch.int64, torch.float64; they"),
        ({"theta": p.theta.to(torch.complex64)}, "torch.float64, torch.complex64; they"),
        ({"w": p.w.to("meta")}, "`word_of_sense` is on cpu and `w` on meta; they must be on one"),
        ({"h": p.h.to("meta")}, "meta, cpu, cpu; they must be on one device"),
        ({"word_of_sense": p.word_of_sense.to("meta")}, "`word_of_sense` is on meta and `w`"),
        ({"theta": p.theta.to("meta")}, "cpu, cpu, meta; they must be on one device"),
        ({"ignore_index": None}, "`ignore_index` is None; it must be an integer"),
        ({"reduction": "average"}, "'average'"),
        ({"label_smoothing": -1e-9}, "label_smoothing"),
        ({"label_smoothing": 1.0}, r"within \[0, 1\)"),
    ]
    for change, message in changes:
        with pytest.raises(ValueError, match=message):
            kerbs_nll(**inputs | change)
    for owners in (p.word_of_sense[:-1], torch.cat([p.word_of_sense, third])):
        with pytest.raises(ValueError, match=r"M = (29|30)"):
            kerbs_log_probs(p.h, p.w, p.theta, owners, p.vocab_size)
    assert nll(p._replace(target=p.target.index_fill(0, third, 10))).isfinite()


@st.composite
def problems(draw: st.DrawFn, *dtypes: torch.dtype) -> Problem:
    """Any numbers of tokens, words, senses and dimensions; θ from flat to steep."""
    words = draw(st.integers(1, 40))
    seed = draw(st.integers(0, 2**31))
    senses = draw(st.integers(words, 4 * words))
    tokens = draw(st.integers(1, 30))
    dim = draw(st.integers(1, 33))
    theta_scale = draw(st.sampled_from([0.0, 1e-4, 0.3, 3.0, 12]))
    p = make_problem(tokens, words, senses, dim, seed=seed, theta_scale=theta_scale)
    size = draw(st.sampled_from([1e-3, 0.3, 1.0])) * dim**-0.25
    return p._replace(h=p.h * size, w=p.w * size).to(draw(st.sampled_from(dtypes)))


@settings(max_examples=30)
@given(problems(torch.float64, torch.float32), st.sampled_from(KERNELS), st.booleans())
def test_probabilities_and_losses_are_the_naive_ones(p: Problem, kernel: str, smooth: bool) -> None:
    # float32 errs in the logits, in proportion to their size; the tight bounds are above
    tolerance = 1e-9 if p.h.dtype == torch.float64 else 2e-4
    exact = p.to(torch.float64)
    smoothing = 0.1 if smooth else 0.0
    logits = naive_logits(*exact.leaves, kernel)
    expected = naive_word_log_probs(logits, p.word_of_sense, p.vocab_size).exp()
    found = kerbs_log_probs(*p.leaves, p.word_of_sense, p.vocab_size, kernel=kernel)
    for scores in (found, score_words(p.h, senses_of(p, kernel))[0]):
        torch.testing.assert_close(scores.double().exp(), expected, rtol=0, atol=tolerance)
    each = nll(p, reduction="none", kernel=kernel, label_smoothing=smoothing)
    truth = naive_token_losses(exact, kernel, smoothing)
    torch.testing.assert_close(each.double(), truth, rtol=tolerance, atol=tolerance)


ANY = problems(torch.float64, torch.float32, torch.bfloat16, torch.float16)


@given(ANY, st.sampled_from(KERNELS), st.sampled_from([1.0, 30.0]))
def test_probabilities_sum_to_one(p: Problem, kernel: str, scale: float) -> None:
    h, w, theta = (value.detach() * scale for value in p.leaves)
    found = kerbs_log_probs(h, w, theta, p.word_of_sense, p.vocab_size, kernel=kernel)
    assert found.shape == (len(p.target), p.vocab_size)
    assert found.isfinite().all()
    assert (found <= 1e-5).all()
    assert (found.double().exp().sum(1) - 1).abs().max() <= 1e-5
