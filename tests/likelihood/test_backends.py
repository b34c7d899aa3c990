"""Backends equal autograd: the general one, the lean ones, and those in C."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.kernels import build_kernel, kernel_logits
from fairseq_kerbs.likelihood.backends import cpu
from fairseq_kerbs.likelihood.backends.closed_forms import InnerProductBackend, KerbsBackend
from fairseq_kerbs.likelihood.backends.cpu import CpuInnerProductBackend, CpuKerbsBackend
from fairseq_kerbs.likelihood.backends.eager import Backend, Senses, Smoothing
from fairseq_kerbs.likelihood.chunked import choose_backend
from fairseq_kerbs.senses import build_sense_table
from tests.helpers.reference import as_leaves, kernel_reference

# both sides of every threshold: the series (0.5, 1), and the limit of θ (64)
THETAS = [0, 1e-12, 1e-8, 1e-4, 1e-2, 0.1, 0.499, 0.501, 0.999, 1.001, 3, 10, 50, 64]
THETAS = [sign * float(theta) for theta in THETAS for sign in (1, -1)] + [64.5, -100.0]

TORCH = {"kerbs": KerbsBackend, "lin": InnerProductBackend, "kerbs_released": Backend}
LOGARITHMS = (
    "normalizer",
    "normalizer_words",
    "uniform_nll",
    "log_probs",
)  # 0 is no scale of theirs
FUSED = {"kerbs": CpuKerbsBackend, "lin": CpuInnerProductBackend}


def senses_of(name: str, w: Tensor, theta: Tensor) -> Senses:
    """Senses that belong to words 0, 1, 2, …, 0, 1, …: up to four each."""
    word_of_sense = torch.arange(len(theta)) % -(-len(theta) // 4)
    table = build_sense_table(word_of_sense, int(word_of_sense.max()) + 1)
    return Senses(w, theta, word_of_sense, table, build_kernel(name))


def build(kind: type[Backend], name: str, w: Tensor, theta: Tensor) -> Backend:
    return kind(senses_of(name, w, theta), w.dtype)


def back(
    backend: Backend, h: Tensor, w: Tensor, grad: Tensor, cuts: list[slice]
) -> tuple[Tensor, ...]:
    """Logits, dh, dW, dθ for a given gradient of the logits."""
    h_norm = h.norm(dim=1)
    logits, by_h, product, sums = [], [], torch.zeros_like(w), w.new_zeros(2, len(w))
    for rows in cuts:
        contexts = h[rows] / h_norm[rows, None].clamp_min(1e-30)
        x = w @ (contexts if backend.unit_contexts else h[rows]).t()
        scores, kept = backend.logits(x, h_norm[rows])
        logits.append(scores.t())
        p, along_h = backend.backward_logits(grad[rows].t().clone(), x, h_norm[rows], kept, sums)
        by_h.append(backend.h_gradient(p.t() @ w, along_h, h[rows], h_norm[rows]))
        product += p @ h[rows]
    return torch.cat(logits), torch.cat(by_h), *backend.sense_gradients(product, w, sums)


def inputs(dtype: torch.dtype, tokens: int = 9) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(5)
    senses = len(THETAS)
    h = torch.randn(tokens, 4, generator=g, dtype=torch.float64)
    w = torch.randn(senses, 4, generator=g, dtype=torch.float64)
    # a logit of −e^64 has no gradient in any likelihood: leave those pairs acute
    steep = torch.tensor(THETAS).abs() >= 10
    w[steep] = w[steep].abs()
    h = h.abs() if dtype == torch.float32 else h
    grad = torch.randn(tokens, senses, generator=g, dtype=torch.float64)
    theta = torch.tensor(THETAS, dtype=torch.float64)
    return h.to(dtype), w.to(dtype), theta.to(dtype), grad.to(dtype)


@pytest.mark.parametrize("name", ["kerbs", "kerbs_released", "lin"])
def test_torch_backends_equal_autograd_in_float64(name: str) -> None:
    h, w, theta, grad = inputs(torch.float64)
    leaves = as_leaves(h, w, theta)
    logits = kernel_logits(*leaves, kernel=name)
    expected = [logits.detach(), *torch.autograd.grad(logits, leaves, grad, allow_unused=True)]
    for kind in (TORCH[name], Backend):
        backend = build(kind, name, w, theta)
        actual = back(backend, h, w, grad, [slice(0, 2), slice(2, 9)])
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


@pytest.mark.parametrize("name", ["kerbs", "lin"])
def test_lean_backends_are_the_general_one(name: str) -> None:
    h, w, theta, _ = inputs(torch.float64)
    lean, general = (run_all(build(kind, name, w, theta), h, w) for kind in (TORCH[name], Backend))
    for key in general:
        if not (name == "lin" and "theta" in key):
            scale = general[key].abs().max().item()
            torch.testing.assert_close(lean[key], general[key], rtol=1e-9, atol=1e-11 * scale)


def test_kerbs_in_float32_errs_against_its_scale_only() -> None:
    h, w, theta, grad = inputs(torch.float32)
    wide = as_leaves(h.double(), w.double(), theta.double())
    logits = kernel_logits(*wide)
    by_h, by_w, by_theta = torch.autograd.grad(logits, wide, grad.double())
    ours = back(build(KerbsBackend, "kerbs", w, theta), h, w, grad, [slice(0, 9)])
    size = (h.norm() * w.norm(dim=1)).double()  # [M]
    tolerance = 1e-5 * (1 + theta.double().abs() / 10)
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
        backend = build(KerbsBackend, "kerbs", w, theta)
        grad = torch.ones(1, len(thetas), dtype=dtype)
        by_theta = back(backend, h, w.contiguous(), grad, [slice(0, 1)])[3]
        for t, slope in zip(theta.tolist(), by_theta.tolist(), strict=True):
            right = kernel_reference(tuple(h[0].tolist()), tuple(w[0].tolist()), t).by_theta
            assert slope == pytest.approx(right, abs=2.0 * tolerance * (1 + abs(right)))


def test_zero_vectors_get_the_gradient_of_the_product() -> None:
    h, w, theta, grad = inputs(torch.float64)
    h, w = h.clone(), w.clone()
    h[3], w[4], w[20] = 0.0, 0.0, 0.0
    leaves = as_leaves(h, w, theta)
    logits = kernel_logits(*leaves)
    expected = torch.autograd.grad(logits, leaves, grad)
    for kind in (KerbsBackend, Backend):
        actual = back(build(kind, "kerbs", w, theta), h, w, grad, [slice(0, 9)])
        assert (actual[0][3] == 0).all()
        assert (actual[0][:, 4] == 0).all()
        torch.testing.assert_close(actual[1][3], expected[0][3], rtol=1e-9, atol=0.0)
        torch.testing.assert_close(actual[2][[4, 20]], expected[1][[4, 20]], rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------------- the fused passes


@pytest.fixture(
    params=["best", *[pytest.param(target, marks=pytest.mark.slow) for target in cpu.TARGETS[1:]]]
)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The compiled passes with each of this processor's instruction sets, on three threads."""
    library = cpu.library()
    assert library is not None, "fairseq_kerbs was installed without its compiled passes"
    if request.param != "best":
        try:
            chosen = cpu.Library(library.path, request.param)
        except ValueError as error:
            pytest.skip(str(error))
        monkeypatch.setattr(cpu, "library", lambda: chosen)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def run_all(backend: Backend, h: Tensor, w: Tensor) -> dict[str, Tensor]:
    """Everything that a backend computes for one chunk, with label smoothing and without.

    Both chunks go forward before one goes back: what is saved depends on no order of calls.
    """
    h_norm, words = h.norm(dim=1), len(backend.table.senses)
    scale = torch.linspace(0.5, 2.0, len(h)).to(h.dtype)
    scale[::4] = 0.0
    contexts = h / h_norm[:, None].clamp_min(1e-30) if backend.unit_contexts else h
    x, target = w @ contexts.t(), torch.arange(len(h)) % words
    # the terms of the gradient one by one: of all senses, of the target's, and with smoothing
    smoothed = Smoothing.of(0.1, words)._replace(target_weight=0.0)
    weights = {"": Smoothing(0.0), "_target": Smoothing(total=0.0), "_words": smoothed}
    saved = {key: backend.forward(x.clone(), h_norm, target, one) for key, one in weights.items()}
    found: dict[str, Tensor] = {}
    for suffix, one in saved.items():
        sums = w.new_zeros(2, len(w))
        found |= {"normalizer" + suffix: one.normalizer, "target" + suffix: one.target.logits}
        if one.uniform_nll is not None:
            found["uniform_nll"] = one.uniform_nll
        p, along = backend.backward(one, scale, sums)
        found["p" + suffix] = p.clone()
        if isinstance(backend, KerbsBackend):
            found["along" + suffix] = along.clone()
        found["dh" + suffix] = backend.h_gradient(p.t() @ w, along, h, h_norm)
        gradients = backend.sense_gradients(p @ h, w, sums)
        found["dw" + suffix], found["dtheta" + suffix] = gradients
    out = h.new_empty(len(h), words)
    backend.log_probs(x, h_norm, out)
    return {key: value.nan_to_num(neginf=0.0) if key.startswith("target") else value
            for key, value in found.items()} | {"log_probs": out}  # fmt: skip


def assert_fused_errs_no_more(name: str, h: Tensor, w: Tensor, theta: Tensor) -> None:
    """The fused passes in float32 against float64, bounded by the error of torch's in float32."""
    wide: dict[str, Any] = {"h": h.double(), "w": w.double()}
    truth = run_all(build(TORCH[name], name, w.double(), theta.double()), **wide)
    rough = run_all(build(TORCH[name], name, w, theta), h, w)
    ours = run_all(build(FUSED[name], name, w, theta), h, w)
    for key, right in truth.items():
        scale = max(right.abs().max().item(), 1.0 if key in LOGARITHMS else 1e-30)
        off = (ours[key].double() - right).abs().max().item() / scale
        usual = (rough[key].double() - right).abs().max().item() / scale
        # torch's own error differs from processor to processor; logits of 15 are rounded to 1e-6
        assert off <= max(4 * usual, 2e-6), key


@pytest.mark.parametrize("name", ["kerbs", "lin"])
@pytest.mark.parametrize(("tokens", "senses"), [(1, 1), (5, 3), (9, 30), (123, 507), (300, 57)])
@pytest.mark.parametrize("deviation", [0.0, 1e-8, 0.1, 2.0])
@pytest.mark.usefixtures("compiled")
def test_compiled_passes_err_no_more_than_torch(
    name: str, tokens: int, senses: int, deviation: float
) -> None:
    h, w = torch.randn(tokens, 7), torch.randn(senses, 7)
    theta = torch.randn(senses) * deviation
    h[tokens // 2], w[senses // 2] = 0.0, 0.0
    assert_fused_errs_no_more(name, h, w, theta)


@pytest.mark.parametrize("name", ["kerbs", "lin"])
@pytest.mark.parametrize("logits", ["all but equal", "rising", "one dominant", "widely spread"])
@pytest.mark.usefixtures("compiled")
def test_sums_over_very_many_senses_are_as_near(name: str, logits: str) -> None:
    """Added one by one in float32, a hundred thousand exponentials are off in the fourth digit."""
    torch.set_num_threads(1)  # or the threads' shares would be shorter sums
    senses = 100_000
    h, theta = torch.randn(2, 4), torch.randn(senses) * 1e-3
    w = torch.randn(4) + 1e-3 * torch.randn(senses, 4)
    if logits == "rising":  # by 2.9e-8 from 8 to the next 8: e to the minus that is 1 in float32
        h[0], w = torch.eye(4)[0], torch.linspace(1e-6, 3.6e-4, senses)[:, None] * torch.eye(4)[0]
    elif logits == "one dominant":
        w[senses // 3] = 12 * h[0] / h[0].norm()
    elif logits == "widely spread":
        w, theta = 3 * torch.randn(senses, 4), torch.randn(senses)
    assert_fused_errs_no_more(name, h, w, theta)


@pytest.mark.usefixtures("compiled")
def test_sums_over_very_many_tokens_are_as_near() -> None:
    h = torch.randn(6) + 1e-2 * torch.randn(30_000, 6)
    assert_fused_errs_no_more("kerbs", h, torch.randn(9, 6), torch.linspace(-1.5, 1.5, 9))


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.usefixtures("compiled")
def test_compiled_passes_at_every_special_theta(theta: float) -> None:
    h, w = torch.rand(40, 5) + 0.1, torch.rand(60, 5) + 0.1
    assert_fused_errs_no_more("kerbs", h, w, torch.full((60,), theta))


@pytest.mark.usefixtures("compiled")
def test_senses_of_a_word_far_below_the_others_are_all_kept() -> None:
    """The second is e^−8 of its word, whose sum fits float32 with or without a level of its own."""
    for depth in range(35, 100):
        w = torch.tensor([[0.0], [-depth], [-1.0], [-depth - 8.0], [-2.0]])
        assert_fused_errs_no_more("lin", torch.ones(3, 1), w, torch.zeros(5))


@pytest.mark.usefixtures("compiled")
def test_compiled_passes_keep_tiny_arguments_and_drop_hopeless_senses() -> None:
    h, w = torch.tensor([[1.0, 0.0]]), torch.tensor([[1e-3, 0.5], [-30.0, 0.0], [-200.0, 0.0]])
    found = run_all(build(CpuKerbsBackend, "kerbs", w, torch.full((3,), 1e-12)), h.repeat(2, 1), w)
    # linspace makes the scale of the second token 2
    torch.testing.assert_close(found["p"][0, 1].item(), 2.0, rtol=1e-6, atol=0.0)
    assert 0 < found["p"][1, 1] < 1e-12
    assert found["p"][2, 1] == 0.0


@pytest.mark.parametrize("name", ["kerbs", "lin"])
@pytest.mark.usefixtures("compiled")
def test_compiled_passes_let_nan_through_to_the_loss(name: str) -> None:
    h, w = torch.randn(4, 3), torch.randn(6, 3)
    h[2, 1] = torch.nan
    found = run_all(build(FUSED[name], name, w, torch.zeros(6)), h, w)
    for key in ("normalizer", "normalizer_words", "uniform_nll"):
        assert found[key].isnan().tolist() == [False, False, True, False]


def test_the_leanest_backend_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(name: str, dtype: torch.dtype = torch.float32) -> type[Backend]:
        ones = torch.ones(3, 3, dtype=dtype)
        return type(choose_backend(senses_of(name, ones, ones[0]), dtype))

    assert [kind(name) for name in TORCH] == [CpuKerbsBackend, CpuInnerProductBackend, Backend]
    assert [kind(name, torch.float64) for name in TORCH] == list(TORCH.values())
    monkeypatch.setenv("FAIRSEQ_KERBS_FUSED", "0")
    assert [kind(name) for name in TORCH] == list(TORCH.values())


def test_a_word_with_very_many_senses_is_left_to_torch() -> None:
    owner = torch.zeros(17, dtype=torch.long)
    w = torch.ones(17, 1)
    senses = Senses(w, w[:, 0], owner, build_sense_table(owner, 1), build_kernel("kerbs"))
    assert type(choose_backend(senses, torch.float32)) is KerbsBackend
