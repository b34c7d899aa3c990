"""The chunked likelihood at its edges: empty input, low precision, memory, autograd's manners."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_kerbs.likelihood import kerbs_log_probs, kerbs_nll
from tests.helpers.reference import Problem, make_problem, naive_token_losses


def nll(p: Problem, **options: Any) -> Tensor:
    return kerbs_nll(p.h, p.w, p.theta, p.word_of_sense, p.target, **options)


def relative(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_token_and_only_ignored_tokens_give_zero(reduction: str, smoothing: float) -> None:
    empty = make_problem(0)
    ignored = make_problem(4)._replace(target=torch.full((4,), -100))
    for p in (empty, ignored):
        loss = nll(p, reduction=reduction, label_smoothing=smoothing)
        assert loss.shape == ((len(p.target),) if reduction == "none" else ())
        assert (loss == 0).all()
        loss.sum().backward()
        for leaf in p.leaves:
            assert leaf.grad is not None
            assert (leaf.grad == 0).all()


def test_one_token_and_one_word() -> None:
    single = make_problem(1)
    assert nll(single).item() == pytest.approx(naive_token_losses(single).item(), rel=1e-11)
    word = make_problem(5, 1, 3)
    for smoothing in (0.0, 0.1):
        loss = nll(word, label_smoothing=smoothing)
        assert loss.item() == pytest.approx(0.0, abs=1e-12)  # there is nothing else to say
    torch.testing.assert_close(
        kerbs_log_probs(*word.leaves, word.word_of_sense, 1), torch.zeros(5, 1).double()
    )


def test_ignored_positions_may_hold_anything() -> None:
    p = make_problem(6)
    p.target[2] = -100
    expected = torch.autograd.grad(nll(p, label_smoothing=0.1), p.leaves)
    with torch.no_grad():
        p.h[2] = 1e18
    actual = torch.autograd.grad(nll(p, label_smoothing=0.1), p.leaves)
    for ours, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_low_precision_inputs(dtype: torch.dtype, smoothing: float) -> None:
    low = make_problem(200, 60, 150, 16, theta_scale=0.5, dtype=dtype)
    wide = low.to(torch.float64)  # the same rounded inputs
    expected = torch.autograd.grad(nll(wide, label_smoothing=smoothing), wide.leaves)
    loss = nll(low, label_smoothing=smoothing)
    assert loss.dtype == torch.float32
    bits = {torch.float16: 11, torch.bfloat16: 8}[dtype]
    assert loss.item() == pytest.approx(nll(wide, label_smoothing=smoothing).item(), rel=2.0**-bits)
    for ours, right in zip(torch.autograd.grad(loss, low.leaves), expected, strict=True):
        assert ours.dtype == dtype
        assert relative(ours, right) <= 8 * 2.0**-bits


def test_float16_gradients_are_scaled_before_they_are_rounded() -> None:
    """Probabilities near 1e-8 are nothing in float16, but a loss scale must bring them back."""
    low = make_problem(4, 8, 16, 4, theta_scale=0.1, dtype=torch.float16)
    with torch.no_grad():
        low.h[:] = torch.tensor([3.0, 0.0, 0.0, 0.0])
        low.w[:] = torch.tensor([-3.0, 0.5, 0.0, 0.0])
        low.w[low.word_of_sense == 0] = torch.tensor([3.0, 0.0, 0.0, 0.0], dtype=torch.float16)
        low.theta[:] = 0.0
    low.target[:] = 0
    wide = low.to(torch.float64)
    scale = 2.0**15
    (expected,) = torch.autograd.grad(nll(wide) * scale, wide.w)
    (actual,) = torch.autograd.grad(nll(low) * scale, low.w)
    other = low.word_of_sense != 0
    assert (expected[other] / scale).abs().max() < 6e-7
    assert relative(actual[other], expected[other]) < 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", ["kerbs", "kerbs_released", "lin"])
def test_extreme_inputs_stay_finite(dtype: torch.dtype, kernel: str) -> None:
    p = make_problem(12, 9, 24, 5, dtype=dtype)
    thetas = [0.0, 1e-8, 0.249, 0.251, 1, 10, 50, 63.9, 64, 64.1, 88, 100]
    with torch.no_grad():
        p.theta[:] = torch.tensor([sign * t for t in thetas for sign in (1.0, -1.0)])
        p.h[0], p.h[1], p.h[2] = 0.0, p.h[1] * 1e3, p.h[2] * 1e-6
        p.w[3:6], p.w[6], p.w[7] = 0.0, p.w[6] * 1e3, p.h[1]
        p.w[8] = -p.h[1]
    for smoothing, reduction in ((0.0, "mean"), (0.1, "sum"), (0.1, "none")):
        loss = nll(p, kernel=kernel, label_smoothing=smoothing, reduction=reduction)
        assert torch.isfinite(loss).all()
        if reduction != "none":  # float16 saturates the gradient, and only before the loss scale
            grads = torch.autograd.grad(loss.sum(), p.leaves, allow_unused=True)
            assert all(grad is None or torch.isfinite(grad).all() for grad in grads)
    log_probs = kerbs_log_probs(*p.leaves, p.word_of_sense, 9, kernel=kernel)
    assert torch.isfinite(log_probs).all()
    assert (log_probs.double().exp().sum(1) - 1).abs().max() <= 1e-5


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32() -> None:
    p = make_problem(200, 60, 150, 32, theta_scale=0.3, dtype=torch.float32)
    p = p._replace(h=p.h.detach() * 0.5, w=p.w.detach() * 0.5).to(torch.float32)
    expected = torch.autograd.grad(nll(p), p.leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nll(p)
        each = nll(p, reduction="none").sum()
        log_probs = kerbs_log_probs(*p.leaves, p.word_of_sense, 60)
    assert loss.dtype == log_probs.dtype == torch.float32
    assert loss.item() == pytest.approx(nll(p).item(), rel=1e-3)
    assert loss.item() != nll(p).item()  # bfloat16 was really used
    for reduced in (loss, each):
        for ours, right in zip(torch.autograd.grad(reduced, p.leaves), expected, strict=True):
            assert ours.dtype == torch.float32
            assert relative(ours, right) < 0.02
    assert (log_probs.exp().sum(1) - 1).abs().max() <= 1e-5
    wide = p.to(torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert nll(wide).item() == nll(wide.to(torch.float64)).item()
        inside = nll(wide)
    assert inside.item() == nll(wide).item()  # float64 is left alone


@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_backward_twice_and_accumulation(reduction: str) -> None:
    p = make_problem()
    loss = nll(p, reduction=reduction).sum()
    loss.backward(retain_graph=True)
    first = [leaf.grad.clone() for leaf in p.leaves if leaf.grad is not None]
    loss.backward()
    for leaf, once in zip(p.leaves, first, strict=True):
        torch.testing.assert_close(leaf.grad, 2 * once)
    nll(p, reduction=reduction).sum().backward()
    for leaf, once in zip(p.leaves, first, strict=True):
        torch.testing.assert_close(leaf.grad, 3 * once)


def test_change_in_place_before_backward_is_an_error_for_reduction_none() -> None:
    p = make_problem()
    loss = nll(p, reduction="none").sum()
    with torch.no_grad():
        p.w.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradcheck_at_every_special_theta(smoothing: float, reduction: str) -> None:
    owners = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 0, 3])
    thetas = [0.0, 1e-8, -1e-8, 0.05, -0.05, 0.0499, 0.25, -0.25, 50.0, -50.0, 63.9, -63.9]
    h = torch.rand(4, 3, dtype=torch.float64) + 0.3  # acute angles: no logit of −e^64
    w = torch.rand(12, 3, dtype=torch.float64) + 0.3
    theta = torch.tensor(thetas, dtype=torch.float64)
    target = torch.tensor([3, 0, 2, 5])

    def function(h: Tensor, w: Tensor, theta: Tensor) -> Tensor:
        return kerbs_nll(
            h, w, theta, owners, target, label_smoothing=smoothing, reduction=reduction
        )

    inputs = tuple(value.requires_grad_() for value in (h, w, theta))
    assert torch.autograd.gradcheck(function, inputs, eps=1e-6, atol=1e-7, rtol=1e-5)


def test_gradcheck_at_zero_vectors_of_the_inner_product_limit() -> None:
    """θ = 0 is smooth even where h or w is zero; elsewhere the zero vector is a kink."""
    h, w = torch.randn(3, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    h[0], w[2] = 0.0, 0.0
    owners, target = torch.tensor([0, 1, 2, 3, 0, 1]), torch.tensor([0, 2, 3])
    theta = torch.zeros(6, dtype=torch.float64)

    def function(h: Tensor, w: Tensor) -> Tensor:
        return kerbs_nll(h, w, theta, owners, target)

    assert torch.autograd.gradcheck(function, (h.requires_grad_(), w.requires_grad_()))


# ------------------------------------------------------------------------- memory


class _Memory(TorchDispatchMode):
    """Largest tensor, and peak of living storage in bytes, of what is made inside.

    Tensors under 1 KB are left out: they are many, and none is tokens × senses.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.peak = 0
        self._living: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor) and value.numel() >= 256:
                self.largest = max(self.largest, value.numel())
                self._living.append(weakref.ref(value))
        tensors = [t for t in (ref() for ref in self._living) if t is not None]
        self._living = [weakref.ref(t) for t in tensors]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        self.peak = max(self.peak, sum(storages.values()))
        return result


@pytest.mark.parametrize(
    ("kernel", "reduction"),
    [
        ("kerbs", "mean"),
        ("kerbs", "none"),
        ("lin", "mean"),
        pytest.param("kerbs_released", "mean", marks=pytest.mark.slow),
    ],
)
def test_nothing_of_size_tokens_by_senses_is_made_or_kept(kernel: str, reduction: str) -> None:
    tokens, vocab_size, senses, dim, chunk = 800, 100, 300, 6, 20
    p = make_problem(tokens, vocab_size, senses, dim, dtype=torch.float32)
    with _Memory() as memory:
        loss = nll(p, kernel=kernel, reduction=reduction, chunk_tokens=chunk, label_smoothing=0.1)
        loss.sum().backward()
    # [chunk, V, 4] is the widest buffer; a dozen of them and the gradients are the peak
    assert memory.largest <= chunk * vocab_size * 4
    assert memory.peak <= 4 * tokens * senses / 2
    with _Memory() as naive:
        naive_token_losses(p, kernel, 0.1).sum().backward()
    assert naive.peak >= 3 * 4 * tokens * senses  # so the measure measures

    kept: list[Tensor] = []

    def keep(value: Tensor) -> Tensor:
        kept.append(value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = nll(p, kernel=kernel, reduction=reduction, chunk_tokens=chunk)
    gc.collect()
    reachable = [o for o in gc.get_objects() if isinstance(o, Tensor)] + kept
    assert max(t.numel() for t in reachable if t.dtype == torch.float32) < tokens * senses / 8
    assert loss.requires_grad


def test_no_gradient_is_computed_where_autograd_is_off() -> None:
    p = make_problem(100, 50, 150, 16)

    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.count += "mm" in str(func)
            return func(*args, **(kwargs or {}))

    with Products() as training:
        nll(p)
    with torch.no_grad(), Products() as validation:
        nll(p)
    assert validation.count < training.count


def test_errors_are_sentences() -> None:
    p = make_problem()
    for change, message in (
        ({"h": p.h[:, :3]}, r"\[N, d\] and \[M, d\]"),
        ({"theta": p.theta[:5]}, "M = 29"),
        ({"target": p.target[:5]}, r"\[N\]"),
        ({"target": p.target + 100}, "outside the vocabulary of 11 words"),
        ({"word_of_sense": p.word_of_sense.clamp_min(1)}, "Word 0 has no sense"),
    ):
        with pytest.raises(ValueError, match=message):
            nll(p._replace(**change))  # type: ignore[arg-type]
    for option, message in (
        ({"reduction": "average"}, "'average'"),
        ({"label_smoothing": 1.0}, r"within \[0, 1\)"),
        ({"kernel": "rbf2"}, "`kernel`"),
    ):
        with pytest.raises(ValueError, match=message):
            nll(p, **option)


def test_second_derivatives_are_refused() -> None:
    p = make_problem()
    (grad,) = torch.autograd.grad(nll(p), p.h, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        grad.sum().backward()
