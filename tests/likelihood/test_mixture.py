"""Mixtures of softmaxes and of kernels: likelihood and output layer."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.kernels import KERNELS, build_kernel, kernel_logits
from fairseq_kerbs.likelihood.mixture import Mixture, group_components, mixture_nll
from fairseq_kerbs.output_layers import SoftmaxOutputLayer
from fairseq_kerbs.output_layers.mixture import MixtureOutputLayer
from tests.helpers.reference import naive_mixture_log_probs, naive_smoothed_losses
from tests.likelihood.test_chunked import _Memory

KERNEL_LISTS = [
    ["lin"],
    ["lin", "lin", "lin"],
    ["lin", "log", "lin"],
    ["kerbs", "lin", "kerbs", "kerbs_released", "log"],
]


def make(kernels: list[str], dtype: torch.dtype = torch.float64, dim: int = 6) -> Any:
    """A layer for 13 words whose weights and θ are spread far enough to matter."""
    layer = MixtureOutputLayer(dim, 13, kernels, reach=3.0 if len(kernels) == 3 else 1.0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(3.0)
    return layer.to(dtype)


def reference(layer: Any, h: Tensor) -> Tensor:
    """Log-probabilities [N, V] of contexts [N, d], slowly."""
    count, dim = len(layer.kernels), h.shape[1]
    maps = layer.projections.weight.view(count, dim, dim)
    reach = layer.reach.item()
    contexts = torch.stack([reach * torch.tanh(h @ c.t() / reach) for c in maps], 1)
    log_weights = (h @ layer.mixing.weight.t()).log_softmax(1)
    thetas = [layer.thetas.get(str(k)) for k in range(count)]
    names = [kernel.name for kernel in layer.kernels]
    return naive_mixture_log_probs(contexts, layer.weight, log_weights, names, thetas)


@pytest.mark.parametrize("kernels", KERNEL_LISTS, ids=",".join)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_all_gradients_are_those_of_the_reference(
    kernels: list[str], dtype: torch.dtype, smoothing: float
) -> None:
    layer = make(kernels, dtype)
    exact = copy.deepcopy(layer).double()
    h, target = torch.randn(37, 6, dtype=dtype, requires_grad=True), torch.randint(13, (37,))
    wide_h = h.detach().double().requires_grad_()
    counted = torch.arange(37) % 5 != 2
    padded = target.masked_fill(~counted, 1000)
    expected = naive_smoothed_losses(reference(exact, wide_h), target, smoothing) * counted
    factors = torch.rand(37, dtype=torch.float64)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5
    for reduction, weight in (
        ("sum", torch.full((), 1.7).double()),
        ("mean", torch.ones(()).double()),
        ("none", factors),
    ):
        loss = layer.nll(
            h, padded, ignore_index=1000, label_smoothing=smoothing, reduction=reduction
        )
        right = expected if reduction == "none" else expected.sum()
        right = right / counted.sum() if reduction == "mean" else right
        torch.testing.assert_close(loss.double(), right, rtol=tolerance, atol=tolerance)
        wanted = torch.autograd.grad(
            right, [wide_h, *exact.parameters()], weight, retain_graph=True
        )
        found = torch.autograd.grad(loss, [h, *layer.parameters()], weight.to(dtype))
        names = ["h", *(name for name, _ in layer.named_parameters())]
        for name, ours, theirs in zip(names, found, wanted, strict=True):
            assert ours.dtype == dtype
            scale = theirs.abs().max().item()
            torch.testing.assert_close(
                ours.double(), theirs, rtol=tolerance, atol=tolerance * scale, msg=name
            )
    with torch.no_grad():  # the way of validation
        plain = layer.nll(h, padded, ignore_index=1000, label_smoothing=smoothing)
    torch.testing.assert_close(plain.double(), expected.sum(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_gradcheck(smoothing: float, reduction: str) -> None:
    kernels = [build_kernel(name) for name in ("lin", "kerbs", "log", "lin")]
    groups = group_components(kernels, 2)
    assert [group.components for group in groups] == [(0, 3), (1,), (2,)]
    target = torch.tensor([3, -100, 0])

    def function(contexts: Tensor, w: Tensor, weights: Tensor, theta: Tensor) -> Tensor:
        mixture = Mixture(contexts, w, weights.log_softmax(1), groups, [theta] * 3)
        options = {"label_smoothing": smoothing, "reduction": reduction, "chunk_tokens": 2}
        return mixture_nll(mixture, target, **options)[0]

    shapes = [(3, 4, 2), (4, 2), (3, 4), (4,)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(function, inputs, eps=1e-6, atol=1e-7, rtol=1e-5)


def test_components_share_products_only_where_all_options_of_their_kernels_agree() -> None:
    powers = [build_kernel("log", power=power) for power in (2.0, 1.0, 2.0)]
    kernels = [*powers, build_kernel("pow", power=2.0), build_kernel("lin"), build_kernel("lin")]
    groups = group_components(kernels, 4)
    assert [group.components for group in groups] == [(0, 2), (1,), (3,), (4, 5)]
    layer = MixtureOutputLayer(4, 13, powers).eval()
    h = torch.randn(5, 4)
    contexts = layer.contexts(h)
    each = [kernel_logits(contexts[:, k], layer.weight, layer.theta, powers[k]) for k in range(3)]
    expected = (torch.stack(each, 1).log_softmax(2) + layer.log_weights(h).unsqueeze(2)).logsumexp(
        1
    )
    for autograd in (True, False):
        with torch.set_grad_enabled(autograd):
            torch.testing.assert_close(layer.log_probs(h), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_every_kernel_can_be_a_component(name: str) -> None:
    layer = make(["lin", name, name]).eval()
    h = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    target = torch.randint(13, (9,))
    slow = layer.log_probs(h)
    torch.testing.assert_close(slow.exp().sum(1), torch.ones(9).double())
    with torch.no_grad():
        torch.testing.assert_close(layer.log_probs(h), slow)
    for smoothing in (0.0, 0.1):
        wanted = torch.autograd.grad(
            naive_smoothed_losses(slow, target, smoothing).sum(),
            [h, *layer.parameters()],
            retain_graph=True,
        )
        found = torch.autograd.grad(
            layer.nll(h, target, label_smoothing=smoothing), [h, *layer.parameters()]
        )
        for ours, right in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, right, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_chunks_order_and_padding_change_nothing(smoothing: float) -> None:
    kernels = [build_kernel(name) for name in ("lin", "lin", "kerbs", "log")]
    groups = group_components(kernels, 5)
    words, tokens = 123, 50
    contexts = torch.randn(tokens, 4, 5, dtype=torch.float64)
    log_weights = torch.randn(tokens, 4, dtype=torch.float64).log_softmax(1)
    w, theta = torch.randn(words, 5, dtype=torch.float64), torch.randn(words, dtype=torch.float64)
    target = torch.randint(words, (tokens,))

    def run(order: Tensor, chunk: int | None, padding: int = 0) -> list[Tensor]:
        c, v = contexts[order], log_weights[order]
        c, v = (torch.cat([x, 7.0 * torch.ones_like(x[:padding])]) for x in (c, v))
        t = torch.cat([target[order], torch.full((padding,), -1)])
        leaves = [x.clone().requires_grad_() for x in (c, w, v, theta)]
        mixture = Mixture(leaves[0], leaves[1], leaves[2], groups, [theta, leaves[3], theta])
        options = {"ignore_index": -1, "label_smoothing": smoothing, "chunk_tokens": chunk}
        loss, each = mixture_nll(mixture, t, **options)
        by_c, by_w, by_v, by_theta = torch.autograd.grad(loss, leaves)
        if padding:
            for value in (by_c, by_v, each):
                assert not value[-padding:].any()
        back = order.argsort()
        return [loss.detach(), by_w, by_theta, each[back], by_c[back], by_v[back]]

    straight = torch.arange(tokens)
    expected = run(straight, None)
    for order, chunk, padding in ((straight, 1, 0), (straight, 7, 3), (straight.flip(0), 16, 20)):
        for ours, right in zip(run(order, chunk, padding), expected, strict=True):
            torch.testing.assert_close(ours, right, rtol=1e-11, atol=1e-12)


def test_token_losses_of_the_words_that_count() -> None:
    layer, target = make(["lin", "log"]), torch.tensor([3, -100, 12])
    h = torch.randn(3, 6, dtype=torch.float64)
    _, token_nll, evidence = layer.nll_with_evidence(h, target)
    own = layer.log_probs(h)[[0, 2], target[[0, 2]]].detach()
    torch.testing.assert_close(token_nll, torch.stack([-own[0], torch.zeros_like(own[0]), -own[1]]))
    assert evidence is None


def test_no_token_gives_zero() -> None:
    layer = make(["lin", "lin", "log"])
    for target in (torch.zeros(0, dtype=torch.long), torch.full((3,), -100)):
        for smoothing, reduction in ((0.0, "mean"), (0.1, "sum"), (0.1, "none")):
            layer.zero_grad()
            h = torch.randn(len(target), 6, dtype=torch.float64)
            loss = layer.nll(h, target, label_smoothing=smoothing, reduction=reduction)
            loss.sum().backward()
            assert not loss.any()
            assert all(value.grad.eq(0).all() for value in layer.parameters())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_component_is_the_softmax_of_its_context(smoothing: float) -> None:
    layer, softmax = make(["lin"], torch.float32), SoftmaxOutputLayer(6, 13)
    softmax.load_state_dict(layer.state_dict(), strict=False)
    h, target = torch.randn(20, 6), torch.randint(13, (20,))
    inner = torch.tanh(layer.projections(h)).detach().requires_grad_()
    if not smoothing:
        assert torch.equal(layer.nll(h, target), softmax.nll(inner, target))
        with torch.no_grad():
            assert torch.equal(layer.log_probs(h), softmax.log_probs(inner))
    loss = layer.nll(h, target, label_smoothing=smoothing)
    right = softmax.nll(inner, target, label_smoothing=smoothing)
    torch.testing.assert_close(loss, right)
    (ours,), (theirs,) = (
        torch.autograd.grad(value, [weight])
        for value, weight in ((loss, layer.weight), (right, softmax.weight))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    layer.nll(h, target).backward()
    assert not layer.mixing.weight.grad.any()  # one weight is always 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_below_the_least_float_keep_their_gradient(
    smoothing: float, dtype: torch.dtype
) -> None:
    """p_k(y) near e^−2000, weights near e^−500: where sums of probabilities would be 0."""
    groups = group_components([build_kernel("lin")] * 2, 2)
    contexts = torch.tensor([[[1.0, 0.5], [0.9, 0.45]], [[-0.8, 1.0], [-1.0, -0.9]]])
    w = torch.tensor([[2000.0, 0.0], [0.0, 3.0], [-1500.0, 2.0], [1.0, 1.0]])
    log_weights = torch.tensor([[0.0, -500.0], [-1.0, math.log(1 - math.exp(-1))]])
    target = torch.tensor([2, 0])
    leaves = [x.to(dtype).requires_grad_() for x in (contexts, w, log_weights)]
    wide = [x.double().requires_grad_() for x in (contexts, w, log_weights)]
    mixture = Mixture(leaves[0], leaves[1], leaves[2], groups, [w[:, 0]])
    loss, _ = mixture_nll(mixture, target, label_smoothing=smoothing)
    log_probs = naive_mixture_log_probs(wide[0], wide[1], wide[2], ["lin"] * 2, [w, w])
    expected = naive_smoothed_losses(log_probs, target, smoothing).sum()
    assert expected > 1000
    tolerance = 1e-4 if dtype == torch.float32 else 1e-11
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=0.0)
    for ours, right in zip(
        torch.autograd.grad(loss, leaves), torch.autograd.grad(expected, wide), strict=True
    ):
        limit = tolerance * right.abs().max().item()
        torch.testing.assert_close(ours.double(), right, rtol=tolerance, atol=limit)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extreme_inputs_stay_finite(dtype: torch.dtype) -> None:
    layer = make(["lin", "kerbs", "log", "lin"], dtype)
    size = 1e2 if dtype == torch.float16 else 1e4  # what torch's own products leave finite
    with torch.no_grad():
        layer.weight[0], layer.weight[1] = 0.0, size
        layer.projections.weight[:3] = size
        layer.mixing.weight[0] = 1e4
    h = torch.randn(12, 6).to(dtype)
    h[0], h[1], h[2] = 0.0, 20.0, 1e-6
    h.requires_grad_()
    for smoothing, reduction in ((0.0, "sum"), (0.1, "mean"), (0.1, "none")):
        loss = layer.nll(h, torch.arange(12), label_smoothing=smoothing, reduction=reduction)
        assert loss.isfinite().all()
        found = torch.autograd.grad(loss.mean(), [h, *layer.parameters()])
        assert all(value.dtype == dtype and value.isfinite().all() for value in found)
    with torch.no_grad():
        scores = layer.eval().log_probs(h)
    assert (scores.double().exp().sum(1) - 1).abs().max() <= 1e-5


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_low_precision_and_autocast_sum_in_float32(smoothing: float) -> None:
    layer = MixtureOutputLayer(32, 60, ["lin", "lin", "log"])
    h, target = torch.randn(80, 32), torch.randint(60, (80,))
    expected = layer.nll(h, target, label_smoothing=smoothing)
    wanted = torch.autograd.grad(expected, list(layer.parameters()))
    low = copy.deepcopy(layer).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = layer.nll(h, target, label_smoothing=smoothing)
        scores = layer.log_probs(h)
        with torch.no_grad():
            fast = layer.eval().log_probs(h)
    rounded = low.nll(h.bfloat16(), target, label_smoothing=smoothing)
    assert inside.item() != expected.item()  # bfloat16 was really used
    torch.testing.assert_close(fast, scores, rtol=0.02, atol=0.02)
    for loss, module, dtype in ((inside, layer, torch.float32), (rounded, low, torch.bfloat16)):
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(expected.item(), rel=3e-3)
        found = torch.autograd.grad(loss, list(module.parameters()))
        for ours, right in zip(found, wanted, strict=True):
            assert ours.dtype == dtype
            assert (ours.float() - right).norm() < 0.05 * right.norm()


@pytest.mark.parametrize(
    "kernels",
    [["lin"] * 3, pytest.param(["lin", "log", "kerbs"], marks=pytest.mark.slow)],
    ids=",".join,
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_nothing_of_size_tokens_by_words_is_made(kernels: list[str], smoothing: float) -> None:
    tokens, words, dim, chunk = 80, 500, 6, 2
    groups = group_components([build_kernel(name) for name in kernels], dim)
    contexts, w = torch.randn(tokens, 3, dim, requires_grad=True), torch.randn(words, dim)
    log_weights, target = torch.randn(tokens, 3).log_softmax(1), torch.randint(words, (tokens,))
    with _Memory() as memory:
        mixture = Mixture(contexts, w, log_weights, groups, [torch.zeros(words)] * len(groups))
        loss, _ = mixture_nll(mixture, target, label_smoothing=smoothing, chunk_tokens=chunk)
        loss.backward()
    assert memory.largest <= max(3 * chunk * words, 3 * tokens * dim)
    assert memory.peak <= 4 * tokens * words  # by autograd it would be K such matrices, and more


# ------------------------------------------------------------------------- the layer


@pytest.mark.parametrize("kernels", KERNEL_LISTS[1:], ids=",".join)
def test_log_probs_nll_and_predict_agree_and_follow_every_change(kernels: list[str]) -> None:
    layer = make(kernels, torch.float32).eval()
    h, target = torch.randn(4, 5, 6), torch.randint(13, (4, 5))

    def check() -> Tensor:
        with torch.no_grad():
            for _ in range(2):  # the second time from what was prepared
                fast = layer.log_probs(h)
                slow = reference(copy.deepcopy(layer).double(), h.view(20, 6).double())
                torch.testing.assert_close(fast, slow.view(4, 5, 13).float(), rtol=1e-4, atol=1e-5)
            each = layer.nll(h, target, reduction="none")
            nll = -fast.gather(2, target.unsqueeze(2)).squeeze(2)
            torch.testing.assert_close(each, nll, rtol=1e-4, atol=1e-5)
            assert torch.equal(layer.predict(h), fast.argmax(-1))
            assert layer.log_probs(h[0, 0]).shape == (13,)
        torch.testing.assert_close(layer.log_probs(h).detach(), fast, rtol=1e-4, atol=1e-5)
        return fast

    before = check()
    for parameter in layer.parameters():
        with torch.no_grad():
            parameter.mul_(1.5)
        after = check()
        assert not torch.allclose(after, before)
        before = after
    for scored_while_training in (False, True):
        layer.train()
        layer.weight.data.mul_(0.5)  # as optimizers do, unseen by version counters
        if scored_while_training:
            check()
        layer.eval()
        check()
    twins = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), make(kernels, torch.float32)]
    twins[2].load_state_dict(layer.state_dict())
    with torch.no_grad():
        for twin in twins:
            assert torch.equal(twin.eval().log_probs(h), layer.log_probs(h))


def test_parameters_begin_as_documented_and_are_all_anchored() -> None:
    layer = MixtureOutputLayer(64, 500, ["lin", "kerbs", "log"])
    assert {name: value.shape for name, value in layer.named_parameters()} == {
        "weight": (500, 64), "projections.weight": (192, 64), "mixing.weight": (3, 64),
        "thetas.1": (500,),
    }  # fmt: skip
    for _ in range(2):
        assert layer.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
        assert layer.projections.weight.std().item() == pytest.approx((3 * 64) ** -0.5, rel=0.05)
        assert layer.mixing.weight.abs().max() <= 64**-0.5
        assert layer.thetas["1"].std().item() == pytest.approx(0.1, rel=0.15)
        layer.reset_parameters()
    node = layer.anchor(torch.randn(3, 64, requires_grad=True)).grad_fn
    assert node is not None
    anchored = {getattr(parent, "variable", None) for parent, _ in node.next_functions}
    assert set(layer.parameters()) < anchored
    h = torch.randn(8, 64)
    layer.nll(h, torch.arange(8)).backward()
    assert all(value.grad is not None and value.grad.any() for value in layer.parameters())


def test_a_mixture_has_the_rank_that_one_softmax_lacks() -> None:
    """Yang et al. 2018, Section 2: one softmax gives log-probabilities of rank d + 1 at most."""
    h = torch.randn(40, 3, dtype=torch.float64)
    for kernels, is_bounded in ((["lin"], True), (["lin"] * 2, False), (["log"], False)):
        layer = MixtureOutputLayer(3, 30, kernels).double()
        rank = torch.linalg.matrix_rank(layer.log_probs(h), rtol=1e-7).item()
        assert (rank <= 4) == is_bounded
