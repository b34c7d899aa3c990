"""Mixtures of softmaxes and of kernels: likelihood and output layer."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_kerbs.kernels import KERNELS, InnerProductKernel, Kernel, build_kernel
from fairseq_kerbs.kernels.base import Partials
from fairseq_kerbs.likelihood import mixture
from fairseq_kerbs.likelihood.mixture import Mixture, mixture_nll
from fairseq_kerbs.likelihood.nll import NllOptions, nll_with_probabilities
from fairseq_kerbs.output_layers.mixture import MixtureOutputLayer
from tests.helpers.likelihood import chunks_of
from tests.helpers.reference import (
    Memory,
    naive_mixture_contexts,
    naive_mixture_log_probs,
    naive_smoothed_losses,
)

KERNEL_LISTS = [
    ["lin"],
    ["lin", "lin", "lin"],
    ["lin", "kerbs"],
    ["lin", "log", "lin"],
    ["kerbs", "lin", "kerbs", "kerbs_released", "log"],
]


class Twice(InnerProductKernel):
    """Two times the inner product, with a bias that would be doubled as well."""

    def value(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Tensor:
        return 2.0 * x

    def partials(self, x: Tensor, h_norm: Tensor, w_norm: Tensor, prepared: Tensor) -> Partials:
        return Partials(2.0)


def make(
    kernels: list[str], dtype: torch.dtype = torch.float64, dim: int = 6, biases: bool = False
) -> Any:
    """A layer for 13 words whose weights, θ and biases are spread far enough to matter."""
    tanh_scale = 3.0 if len(kernels) == 3 else 1.0
    layer = MixtureOutputLayer(dim, 13, kernels, tanh_scale=tanh_scale, biases=biases)
    with torch.no_grad():
        if layer.bias is not None:
            layer.bias.normal_()
        for parameter in layer.parameters():
            parameter.mul_(3.0)
    return layer.to(dtype)


def reference(layer: Any, h: Tensor) -> Tensor:
    count = len(layer.kernels)
    dim = h.shape[1]
    maps = layer.projections.weight.view(count, dim, dim)
    biases = layer.projections.bias
    if biases is not None:
        biases = biases.view(count, dim)
    contexts = naive_mixture_contexts(h, maps, biases, layer.tanh_scale)
    log_weights = (h @ layer.mixing.weight.t()).log_softmax(1)
    thetas = [layer.thetas.get(str(k)) for k in range(count)]
    names = [kernel.name for kernel in layer.kernels]
    return naive_mixture_log_probs(contexts, layer.weight, log_weights, names, thetas, layer.bias)


@pytest.fixture(params=["chunk", "component"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Losses by chunks of 8, or by component in chunks of 8."""
    monkeypatch.setattr(mixture, "CHUNK_BYTES", 1)
    monkeypatch.setattr(mixture, "LEAST_WORDS", 1 if request.param == "component" else 10**9)
    with chunks_of(8):
        yield request.param


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("kernels", KERNEL_LISTS, ids=",".join)
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_scores_loss_and_all_gradients_are_those_of_the_reference(
    kernels: list[str],
    biases: bool,
    dtype: torch.dtype,
    smoothing: float,
) -> None:
    layer = make(kernels, dtype, biases=biases)
    exact = copy.deepcopy(layer).double()
    h = torch.randn(37, 6, dtype=dtype, requires_grad=True)
    wide_h = h.detach().double().requires_grad_()
    target = torch.randint(13, (37,))
    counted = torch.arange(37) % 5 != 2
    padded = target.masked_fill(~counted, 1000)
    log_probs = reference(exact, wide_h)
    expected = naive_smoothed_losses(log_probs, target, smoothing) * counted
    factors = torch.rand(37, dtype=torch.float64)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5
    scores = layer.log_probs(h).double()
    torch.testing.assert_close(scores, log_probs, rtol=tolerance, atol=tolerance)
    with torch.no_grad():  # as in decoding
        scores = layer.eval().log_probs(h).double()
        torch.testing.assert_close(scores, log_probs, rtol=tolerance, atol=tolerance)
        assert torch.equal(layer.predict(h), log_probs.argmax(1))
    options: dict[str, Any] = {"ignore_index": 1000, "label_smoothing": smoothing}
    names = ["h", *(name for name, _ in layer.named_parameters())]
    truths = {
        "sum": expected.sum(),
        "mean": expected.sum() / counted.sum(),
        "none": expected,
    }
    for reduction, right in truths.items():
        loss = layer.nll(h, padded, reduction=reduction, **options)
        torch.testing.assert_close(loss.double(), right, rtol=tolerance, atol=tolerance)
        weight = factors if right.dim() else torch.tensor(1.7).double()
        leaves = [wide_h, *exact.parameters()]
        wanted = torch.autograd.grad(right, leaves, weight, retain_graph=True)
        found = torch.autograd.grad(loss, [h, *layer.parameters()], weight.to(dtype))
        for name, ours, theirs in zip(names, found, wanted, strict=True):
            assert ours.dtype == dtype
            limit = tolerance * theirs.abs().max().item()
            torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=limit, msg=name)


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("names", [("lin", "lin"), ("lin", "kerbs")], ids=",".join)
def test_gradients_are_finite_differences(
    names: tuple[str, str], biased: bool, smoothing: float
) -> None:
    kernels = [build_kernel(name).bind(4) for name in names]
    target = torch.randint(7, (9,))
    options = NllOptions(label_smoothing=smoothing, reduction="none")

    def loss(contexts: Tensor, w: Tensor, weights: Tensor, theta: Tensor, bias: Tensor) -> Tensor:
        output_bias = bias if biased else None
        drawn = Mixture(contexts, w, weights.log_softmax(1), kernels, [theta, theta], output_bias)
        return mixture_nll(drawn, target, options)[0]

    sizes: list[tuple[int, ...]] = [(9, 2, 4), (7, 4), (9, 2), (7,), (7,)]
    leaves = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    every_number = (names, biased, smoothing) == (("lin", "kerbs"), True, 0.1)
    # otherwise along one direction, drawn at random
    assert torch.autograd.gradcheck(loss, leaves, fast_mode=not every_number)


def test_a_mixture_of_two_softmaxes_by_hand() -> None:
    """Two words, d = 1, h = 1: contexts 2 tanh((1 + 1)/2) and 2 tanh((0 − 3)/2), π = (¾, ¼)."""
    layer: Any = MixtureOutputLayer(1, 2, ["lin", "lin"], tanh_scale=2.0, biases=True).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0], [-0.5]]))
        layer.bias.copy_(torch.tensor([0.25, 1.0]))
        layer.projections.weight.copy_(torch.tensor([[1.0], [0.0]]))
        layer.projections.bias.copy_(torch.tensor([1.0, -3.0]))
        layer.mixing.weight.copy_(torch.tensor([[math.log(3.0)], [0.0]]))
    # logits differ by 1.5 x - 0.75 with x = 2 tanh 1 and x = -2 tanh 1.5
    first = 1 / (1 + math.exp(0.75 - 3 * math.tanh(1.0)))
    second = 1 / (1 + math.exp(0.75 + 3 * math.tanh(1.5)))
    expected = 0.75 * first + 0.25 * second
    found = layer.log_probs(torch.ones(1, dtype=torch.float64)).exp()
    torch.testing.assert_close(found, torch.tensor([expected, 1 - expected], dtype=torch.float64))


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_every_kernel_can_be_a_component(name: str) -> None:
    layer = make(["lin", name, name]).eval()
    h = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    target = torch.randint(13, (9,))
    slow = layer.log_probs(h)
    torch.testing.assert_close(slow.exp().sum(1), torch.ones(9).double())
    with torch.no_grad():
        torch.testing.assert_close(layer.log_probs(h), slow)
    leaves = [h, *layer.parameters()]
    for smoothing in (0.0, 0.1):
        truth = naive_smoothed_losses(slow, target, smoothing).sum()
        wanted = torch.autograd.grad(truth, leaves, retain_graph=True)
        found = torch.autograd.grad(layer.nll(h, target, label_smoothing=smoothing), leaves)
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize("tokens", [0, 3])
def test_no_token_gives_zero(tokens: int, reduction: str) -> None:
    layer = make(["lin", "lin", "log"])
    h = torch.randn(tokens, 6, dtype=torch.float64)
    loss = layer.nll(h, torch.full((tokens,), -100), label_smoothing=0.1, reduction=reduction)
    loss.sum().backward()
    assert not loss.any()
    assert all(value.grad.eq(0).all() for value in layer.parameters())


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_probabilities_below_the_least_float_keep_their_gradient(smoothing: float) -> None:
    """p_k(y) near e^−2000, weights near e^−500: where sums of probabilities would be 0."""
    contexts = torch.tensor([[[1.0, 0.5], [0.9, 0.45]], [[-0.8, 1.0], [-1.0, -0.9]]])
    w = torch.tensor([[2000.0, 0.0], [0.0, 3.0], [-1500.0, 2.0], [1.0, 1.0]])
    log_weights = torch.tensor([[0.0, -500.0], [-1.0, math.log(1 - math.exp(-1))]])
    leaves = [x.requires_grad_() for x in (contexts, w, log_weights)]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    sharp = Mixture(leaves[0], leaves[1], leaves[2], [build_kernel("lin")] * 2, [w[:, 0]] * 2)
    target = torch.tensor([2, 0])
    loss, _ = mixture_nll(sharp, target, NllOptions(label_smoothing=smoothing))
    log_probs = naive_mixture_log_probs(wide[0], wide[1], wide[2], ["lin"] * 2, [w, w])
    expected = naive_smoothed_losses(log_probs, target, smoothing).sum()
    assert expected > 1000
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=0.0)
    wanted = torch.autograd.grad(expected, wide)
    for ours, right in zip(torch.autograd.grad(loss, leaves), wanted, strict=True):
        limit = 1e-4 * right.abs().max().item()
        torch.testing.assert_close(ours.double(), right, rtol=1e-4, atol=limit)


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_extreme_inputs_stay_finite(dtype: torch.dtype) -> None:
    layer = make(["lin", "kerbs", "log", "lin"], dtype, biases=True)
    size = 1e2 if dtype == torch.float16 else 1e4  # what torch's own products leave finite
    with torch.no_grad():
        layer.weight[0] = 0.0
        layer.weight[1] = size
        layer.bias[2] = size
        layer.bias[3] = -size
        layer.projections.weight[:3] = size
        layer.mixing.weight[0] = 1e4
    h = torch.randn(12, 6).to(dtype)
    h[0] = 0.0
    h[1] = 20.0
    h[2] = 1e-6
    h.requires_grad_()
    for smoothing, reduction in ((0.0, "sum"), (0.1, "mean"), (0.1, "none")):
        loss = layer.nll(h, torch.arange(12), label_smoothing=smoothing, reduction=reduction)
        assert loss.isfinite().all()
        found = torch.autograd.grad(loss.mean(), [h, *layer.parameters()])
        for value in found:
            assert value.dtype == dtype
            assert value.isfinite().all()
    with torch.no_grad():
        scores = layer.eval().log_probs(h)
    assert (scores.double().exp().sum(1) - 1).abs().max() <= 1e-5


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biases", [False, True])
def test_low_precision_and_autocast_sum_in_float32(smoothing: float, biases: bool) -> None:
    layer = MixtureOutputLayer(32, 60, ["lin", "lin", "log"], biases=biases)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    low = copy.deepcopy(layer).bfloat16()
    h = torch.randn(80, 32)
    target = torch.randint(60, (80,))
    options: dict[str, Any] = {"label_smoothing": smoothing}
    expected = layer.nll(h, target, **options)
    wanted = torch.autograd.grad(expected, list(layer.parameters()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = layer.nll(h, target, **options)
        assert layer.log_probs(h).dtype == torch.float32
    assert inside.item() != expected.item()  # bfloat16 was really used
    for loss, one in ((inside, layer), (low.nll(h.bfloat16(), target, **options), low)):
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(expected.item(), rel=3e-3)
        found = torch.autograd.grad(loss, list(one.parameters()))
        for ours, right in zip(found, wanted, strict=True):
            assert ours.dtype == one.weight.dtype
            assert (ours.float() - right).norm() < 0.05 * right.norm()


@pytest.mark.parametrize("kernels", [["lin"] * 3, ["lin", "log", "kerbs"]], ids=",".join)
def test_nothing_is_tokens_by_words(kernels: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By chunks; the likelihood of a component has tests of its own."""
    tokens = 320
    words = 500
    dim = 6
    chunk = 8
    monkeypatch.setattr(mixture, "CHUNK_BYTES", 1)  # chunks of 8
    contexts = torch.randn(tokens, 3, dim, requires_grad=True)
    w = torch.randn(words, dim)
    log_weights = torch.randn(tokens, 3).log_softmax(1)
    target = torch.randint(words, (tokens,))
    built = [build_kernel(name).bind(dim) for name in kernels]
    with Memory() as memory:
        thetas = [torch.zeros(words)] * 3
        bias = torch.randn(words, requires_grad=True)
        drawn = Mixture(contexts, w, log_weights, built, thetas, bias)
        mixture_nll(drawn, target, NllOptions(label_smoothing=0.1))[0].backward()
    assert memory.largest >= 2 * chunk * words
    assert memory.largest <= max(3 * chunk * words, 3 * tokens * dim)
    assert memory.peak <= 4 * tokens * words  # by autograd it would be K such matrices, and more


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_ignored_tokens_may_be_nan(smoothing: float, reduction: str) -> None:
    contexts = torch.randn(5, 2, 4).requires_grad_()
    log_weights = torch.randn(5, 2).requires_grad_()
    w = torch.randn(7, 4).requires_grad_()
    with torch.no_grad():
        contexts[3] = math.nan
        log_weights[3] = math.nan
    target = torch.tensor([2, 0, 6, -100, 1])
    kernels = [build_kernel("lin")] * 2
    drawn = Mixture(contexts, w, log_weights, kernels, [w[:, 0].detach()] * 2)
    options = NllOptions(label_smoothing=smoothing, reduction=reduction)
    loss, nll = mixture_nll(drawn, target, options)
    assert loss.isfinite().all()
    assert nll[3] == 0.0
    for gradient in torch.autograd.grad(loss.sum(), [contexts, log_weights, w]):
        assert gradient.isfinite().all()
        assert len(gradient) == 7 or not gradient[3].any()


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_ignored_context_vectors_of_a_layer_may_be_nan(value: float) -> None:
    """Gradients of all parameters are those without the ignored token."""
    layer = MixtureOutputLayer(4, 7, ["lin", "lin"], biases=True)
    h = torch.randn(3, 4)
    target = torch.tensor([1, -100, 3])
    layer.nll(h[[0, 2]], target[[0, 2]]).backward()
    expected = {name: parameter.grad for name, parameter in layer.named_parameters()}
    layer.zero_grad()
    h[1] = value
    h.requires_grad_()
    layer.nll(h, target).backward()
    assert h.grad is not None
    assert h.grad[1].tolist() == [0.0] * 4
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


@pytest.mark.parametrize(
    ("words", "kernels", "options", "dtype", "expected"),
    [
        (4096, ["lin", "lin"], {}, torch.float32, True),
        (4096, ["lin", "log"], {}, torch.float64, True),
        (4095, ["lin", "lin"], {}, torch.float32, False),
        (4096, ["lin", "lin"], {"label_smoothing": 0.1}, torch.float32, False),
        (4096, ["lin", "lin"], {}, torch.bfloat16, False),
        (4096, ["lin", "log"], {"biased": True}, torch.float32, False),
        (4096, ["lin", Twice()], {"biased": True}, torch.float32, False),
        (4096, ["lin", Twice()], {}, torch.float32, True),
    ],
)
def test_components_are_computed_on_their_own_where_that_is_exact_and_faster(
    words: int,
    kernels: list[str | Kernel],
    options: dict[str, Any],
    dtype: torch.dtype,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return nll_with_probabilities(*arguments)

    monkeypatch.setattr(mixture, "nll_with_probabilities", counted)
    biased = options.get("biased", False)
    layer = MixtureOutputLayer(4, words, kernels, biases=biased).to(dtype)
    h = torch.randn(5, 4, dtype=dtype)
    target = torch.randint(words, (5,))
    smoothing = options.get("label_smoothing", 0.0)
    loss = layer.nll(h, target, label_smoothing=smoothing)
    assert len(calls) == (2 if expected else 0)
    right = naive_smoothed_losses(layer.log_probs(h), target, smoothing).sum()
    torch.testing.assert_close(loss, right.to(loss.dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("by")
def test_wrong_targets_are_refused() -> None:
    layer = make(["lin"])
    h = torch.zeros(4, 6).double()
    for target in (torch.zeros(4).int(), torch.full((4,), 13)):
        with pytest.raises(ValueError, match=r"`target` (is torch.int32|holds 13, .* 13 words)"):
            layer.nll(h, target)
    with pytest.raises(ValueError, match=r"`target` holds -100, .* 13 words"):
        layer.nll(h, torch.full((4,), -100), ignore_index=0)


def test_logits_of_words_have_the_output_bias() -> None:
    layer = make(["lin"], biases=True)
    senses = torch.tensor([3, 0, 12])
    h = torch.randn(5, 6)
    expected = h @ layer.weight[senses].float().t() + layer.bias[senses].float()
    torch.testing.assert_close(layer.sense_logits(h, senses), expected)
    plain = make(["lin"])
    expected = h @ plain.weight[senses].float().t()
    torch.testing.assert_close(plain.sense_logits(h, senses), expected)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_tanh_scale_that_is_not_positive_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"`tanh_scale` is .*, but must be within \(0, inf\)"):
        MixtureOutputLayer(6, 13, ["lin"], tanh_scale=scale)


def test_parameters_begin_as_documented_and_are_all_anchored() -> None:
    layer = MixtureOutputLayer(64, 500, ["lin", "kerbs", "log"], biases=True)
    stds = {"weight": 64**-0.5, "thetas.1": 0.1, "bias": 0.0}
    linear = ("projections.weight", "projections.bias", "mixing.weight")  # uniform in ±1/8
    found = {name: value.std().item() for name, value in layer.named_parameters()}
    assert found == pytest.approx(stds | dict.fromkeys(linear, 192**-0.5), rel=0.15)
    assert layer.projections.bias.abs().max() <= 1 / 8
    assert not layer.state_dict()["bias"].any()
    node: Any = layer.anchor(torch.randn(3, 64, requires_grad=True)).grad_fn
    anchored = {getattr(parent, "variable", None) for parent, _ in node.next_functions}
    assert set(layer.parameters()) < anchored
