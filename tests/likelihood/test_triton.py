"""The Triton backend equals the one in plain torch: on a CUDA device, or in Triton's interpreter.

Where the environment says TRITON_INTERPRET=1, everything here runs in the interpreter, on the CPU;
otherwise what needs a device runs on CUDA, or is skipped. As Triton decides that for a process when
it is imported, :func:`test_again_under_the_interpreter` runs this file in a process of its own.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.kernels import build_kernel
from fairseq_kerbs.likelihood import chunked, kerbs_log_probs, kerbs_nll
from fairseq_kerbs.likelihood.backends import triton as backend_module
from fairseq_kerbs.likelihood.backends.closed_forms import InnerProductBackend, KerbsBackend
from fairseq_kerbs.likelihood.backends.eager import Backend, Senses, Smoothing
from fairseq_kerbs.senses import SenseTable, build_sense_table
from tests.helpers.reference import make_problem, naive_token_losses

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda:0")
INSTALLED = importlib.util.find_spec("triton") is not None

needs_triton = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
needs_device = pytest.mark.skipif(
    not INSTALLED or not (INTERPRETED or torch.cuda.is_available()),
    reason="no CUDA device: runs in test_again_under_the_interpreter" if INSTALLED else "no Triton",
)
once = pytest.mark.skipif(INTERPRETED, reason="has run outside of the interpreter")

THETAS = [0.0, *(sign * size for size in (1e-8, 0.3, 0.99, 1.01, 5, 50) for sign in (1.0, -1.0))]
KINDS: dict[str, type[Backend]] = {"kerbs": KerbsBackend, "lin": InnerProductBackend}
ALLOCATIONS = {
    "1 … 4 senses": [*range(11), *range(11), *range(10), 3, 7, 7, 9, 0],  # M = 37, V = 11
    "one sense": list(range(37)),
    "four senses": [*range(9)] * 4,
    "20 senses": [0, 1, 2] + [1] * 19,
}
CASES = [("1 … 4 senses", n) for n in (1, 5, 33, 123)] + [("20 senses", 33)]
CASES += [(name, n) for name in ("one sense", "four senses") for n in (5, 33)]


@pytest.fixture(autouse=True)
def _fresh_reasons(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the comparison at the first use, which the interpreter takes seconds for."""
    monkeypatch.setenv("FAIRSEQ_KERBS_FUSED", "1")
    yield
    for function in (backend_module._decline, backend_module.load_kernels, backend_module.works):
        function.cache_clear()


class Case(NamedTuple):
    """Inputs of a backend, in float32 or the same numbers in float64."""

    name: str
    x: Tensor
    h_norm: Tensor
    w_norm: Tensor
    theta: Tensor
    scale: Tensor
    target: Tensor
    owner: Tensor
    table: SenseTable

    def double(self) -> Case:
        values = {field: getattr(self, field).double() for field in self._fields[1:6]}
        return self._replace(**values)

    def senses(self) -> Senses:
        kernel = build_kernel(self.name)
        return Senses(self.w_norm.unsqueeze(1), self.theta, self.owner, self.table, kernel)

    def in_torch(self) -> Backend:
        return KINDS[self.name](self.senses(), self.theta.dtype)

    def in_triton(self) -> Backend:
        backend = backend_module.build(self.senses(), torch.float32)
        assert isinstance(backend, backend_module._TritonBackend)
        return backend


def make_case(name: str, allocation: str, tokens: int, seed: int = 0) -> Case:
    """Random inputs with a zero vector among the senses and the contexts, and ignored tokens."""
    g = torch.Generator().manual_seed(seed)
    owners = ALLOCATIONS[allocation]
    owner = torch.tensor(owners)[torch.randperm(len(owners), generator=g)]
    w = torch.randn(len(owners), 6, generator=g)
    h = torch.randn(tokens, 6, generator=g)
    theta = torch.tensor([THETAS[m % len(THETAS)] for m in range(len(owners))])
    scale = torch.rand(tokens, generator=g)
    w[5 % len(w)] = 0.0
    if tokens > 1:
        h[tokens // 2], scale[tokens - 1] = 0.0, 0.0
    h_norm = h.norm(dim=1)
    contexts = h / h_norm.clamp_min(1e-30).unsqueeze(1) if name == "kerbs" else h
    table = build_sense_table(owner, int(owner.max()) + 1)
    target = torch.randint(len(table.senses), (tokens,), generator=g)
    x = w @ contexts.t()
    case = Case(name, x, h_norm, w.norm(dim=1), theta, scale, target, owner, table)
    moved = {field: getattr(case, field).to(DEVICE) for field in case._fields[1:-1]}
    table = SenseTable(table.senses.to(DEVICE), table.mask.to(DEVICE))
    return case._replace(**moved, table=table)


Results = dict[str, Tensor]


def run(backend: Backend, case: Case, weights: Smoothing) -> Results:
    """Forward and backward over one chunk."""
    saved = backend.forward(case.x.clone(), case.h_norm, case.target, weights)
    sums = torch.zeros(2, len(case.x), dtype=case.theta.dtype, device=DEVICE)
    p, along_h = backend.backward(saved, case.scale, sums)
    found = {"normalizer": saved.normalizer, "p": p.clone()}
    if saved.uniform_nll is not None:
        found["uniform_nll"] = saved.uniform_nll
    if isinstance(backend, KerbsBackend):
        found |= {"along_h": along_h, "weighted": sums[0]}
        found["bent"] = sums[1].where(backend.curved, 0.0)
    return found


def smoothings(case: Case) -> list[Smoothing]:
    """The gradient of all senses alone, that of the loss, and that with label smoothing."""
    return [Smoothing(0.0), Smoothing(), Smoothing.of(0.1, len(case.table.senses))]


def magnitudes(case: Case, p: Tensor) -> dict[str, Tensor]:
    """Σ_n |h G E| and Σ_n |h G c² r(z)| of every sense, up to a factor: what the sums round by."""
    backend = case.in_torch()
    if not isinstance(backend, KerbsBackend):
        return {}
    cosine = case.x * backend.inverse_norm.unsqueeze(1)
    z = cosine * backend.minus_theta.unsqueeze(1)
    by_h = (p / (backend.gain.unsqueeze(1) * z.exp()) * case.h_norm).abs()  # |h G|
    return {
        "weighted": (by_h * z.expm1().abs()).sum(1),
        "bent": (by_h * cosine.square()).sum(1).where(backend.curved, 0.0),
    }


def assert_as_exact_as_torch(ours: Results, plain: Results, truth: Results, case: Case) -> None:
    """At most 4 times the error of torch in float32, or what rounding logits and −θc explains.

    Matrices and sums over tokens are held to each sense's own scale: the steep ones would hide the
    flat ones.
    """
    assert ours.keys() == plain.keys() == truth.keys()
    sizes = magnitudes(case.double(), truth["p"])
    level = truth["normalizer"].abs().max().item()
    tolerance = 4e-6 + 4 * level * 2.0**-24  # an error of a logit is relative in its exponential
    steep = 3 * case.theta.double().abs().clamp_max(64.0) * 2.0**-24  # as is one of −θc, in E
    for name, right in truth.items():
        error, usual = (ours[name].double() - right).abs(), (plain[name].double() - right).abs()
        size = sizes.get(name, right.abs())
        bound = tolerance + steep if name in sizes else tolerance
        if name == "p":
            error, usual, size = error.amax(1), usual.amax(1), size.amax(1)
        elif name in ("normalizer", "uniform_nll", "along_h"):
            error, usual, size = error.amax(), usual.amax(), size.amax()
        assert (error <= 4 * usual + bound * size).all(), name  # false for NaN, too


# ------------------------------------------------------------------------ one chunk


def check(case: Case) -> None:
    for weights in smoothings(case):
        ours, plain = (run(one, case, weights) for one in (case.in_triton(), case.in_torch()))
        truth = run(case.double().in_torch(), case.double(), weights)
        assert_as_exact_as_torch(ours, plain, truth, case)
    tokens, words = len(case.scale), len(case.table.senses)
    wide = torch.full((tokens, words + 3), 7.0, device=DEVICE)
    case.in_triton().log_probs(case.x, case.h_norm, wide[:, :words])
    right = torch.empty(tokens, words, dtype=torch.float64, device=DEVICE)
    exact = case.double()
    exact.in_torch().log_probs(exact.x, exact.h_norm, right)
    assert ((wide[:, :words] - right).abs() <= 4e-6 * right.abs().amax()).all()
    assert (wide[:, words:] == 7.0).all()


@needs_device
@pytest.mark.parametrize(("allocation", "tokens"), CASES)
@pytest.mark.parametrize("name", list(KINDS))
def test_triton_computes_what_torch_does(name: str, allocation: str, tokens: int) -> None:
    check(make_case(name, allocation, tokens))


@needs_device
@pytest.mark.parametrize("programs", [1, 7])
@pytest.mark.parametrize("name", list(KINDS))
def test_tiles_and_shares_of_any_number(
    name: str, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three blocks of tokens, two tiles of senses, by one program a block or by one a tile."""
    monkeypatch.setattr(backend_module, "CELLS", 512)
    monkeypatch.setattr(backend_module, "WIDEST", 16)
    monkeypatch.setattr(backend_module, "PROGRAMS", programs)
    cut = backend_module.Cut.of(37, 33, 16)
    assert cut == (32, 16, 3, 64 if programs == 1 else 32, 1 if programs == 1 else 2)
    check(make_case(name, "1 … 4 senses", 33))


@once
@pytest.mark.parametrize("senses", [100, 1000, 30_000, 100_000, 1_000_000])
def test_running_sums_in_float32_stay_short(senses: int) -> None:
    """One running sum adds a number a tile: hundreds are as near as torch's, thousands are not."""
    chunk = (1 << 28) // senses  # tokens in 1 GiB of products, the most there is
    for tokens in (16, min(300, chunk), chunk):
        cut = backend_module.Cut.of(senses, tokens, backend_module.WIDEST)
        assert cut.share <= 200 * cut.rows
        assert cut.share * cut.shares >= senses


@needs_device
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", list(KINDS))
def test_products_in_bfloat16(name: str, smoothing: float) -> None:
    case = make_case(name, "1 … 4 senses", 33)
    case = case._replace(x=case.x.bfloat16().float())
    weights = Smoothing.of(smoothing, len(case.table.senses))
    truth = run(case.double().in_torch(), case.double(), weights)
    plain = run(case.in_torch(), case, weights)
    ours = run(case.in_triton(), case._replace(x=case.x.bfloat16()), weights)
    assert ours["p"].dtype == torch.bfloat16
    # P is rounded once, cell by cell; at a word that is all but certain, too
    unit = 2.0 ** (-7 if INTERPRETED else -8)  # the interpreter cuts off what a device rounds
    rounding = unit * truth["p"].abs() + 4e-6 * truth["p"].abs().amax()
    assert ((ours["p"].double() - truth["p"]).abs() <= rounding).all()
    assert_as_exact_as_torch({**ours, "p": plain["p"]}, plain, truth, case)


@needs_device
def test_a_chunk_adds_to_the_sums_and_gives_the_same_bits_again() -> None:
    case = make_case("kerbs", "1 … 4 senses", 33)
    backend, found = case.in_triton(), []
    sums = torch.zeros(2, len(case.x), device=DEVICE)
    for one in (backend, copy.deepcopy(backend)):  # as a model that keeps its backend may be
        saved = one.forward(case.x.clone(), case.h_norm, case.target, Smoothing())
        p, along_h = one.backward(saved, case.scale, sums)
        found.append([saved.normalizer, p, along_h, sums.clone()])
    for first, second in zip(*found, strict=True):
        assert torch.equal(second, 2 * first if first.shape == sums.shape else first)


@needs_device
def test_levels_of_many_words_are_summed_beyond_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "PROGRAMS", 1)
    words = 4096
    x = 1000.0 + torch.randn(words, 16, generator=torch.Generator().manual_seed(0))
    owner, ones = torch.arange(words, device=DEVICE), torch.ones(words, device=DEVICE)
    table = build_sense_table(owner, words)
    senses = Senses(ones[:, None], ones, owner, table, build_kernel("lin"))
    backend = backend_module.build(senses, torch.float32)
    assert backend is not None
    saved = backend.forward(x.to(DEVICE), ones[:16], owner[:16], Smoothing.of(0.1, words))
    assert saved.uniform_nll is not None
    wide = x.double()
    right = words * wide.logsumexp(0) - wide.sum(0)
    torch.testing.assert_close(saved.uniform_nll.double().cpu(), right, rtol=5e-7, atol=0)


# ------------------------------------------------------------------------ single numbers


@needs_device
@pytest.mark.parametrize("theta", [1e-12, 1e-8, 1e-3, 0.3, 1.0, 5.0, 50.0, 64.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_single_logits_are_exact_relative_to_themselves(theta: float, sign: float) -> None:
    """The logsumexp of one sense is its logit: nothing else hides the error of e^z − 1."""
    cosine = torch.cat([torch.linspace(-1, 1, 101), torch.logspace(-20, 0, 41)]).to(DEVICE)
    parameter = torch.tensor([sign * theta], device=DEVICE)
    one, owner = torch.ones(1, device=DEVICE), torch.zeros(1, dtype=torch.long, device=DEVICE)
    table = build_sense_table(owner, 1)
    senses = Senses(one[:, None], parameter, owner, table, build_kernel("kerbs"))
    backend = backend_module.build(senses, torch.float32)
    assert backend is not None
    x, h_norm, target = (
        cosine.unsqueeze(0),
        torch.ones_like(cosine),
        torch.zeros_like(cosine).long(),
    )
    ours = backend.forward(x, h_norm, target, Smoothing()).normalizer.double()
    wide = KerbsBackend(senses, torch.float64)
    right = wide.forward(x.double(), h_norm.double(), target, Smoothing()).normalizer
    bound = (6.0 + 2.0 * theta) * 2.0**-24  # the argument of the exponential is rounded as well
    # below the normal range of float32 numbers are rounded more
    assert ((ours - right).abs() <= bound * right.abs() + 1e-37).all()


@needs_device
def test_far_logits_are_worth_nothing_and_nan_stays_in_its_column() -> None:
    case = make_case("lin", "four senses", 4)
    x = case.x.clone()
    x[:, 0], x[3, 0] = -1e4, 0.0
    x[:, 1], x[7, 1] = -3e38, 1e4
    x[9, 2] = torch.nan
    x[:, 3], x[2:, 3] = 2.0, -torch.inf
    ones = torch.ones(4, device=DEVICE)
    for weights in (Smoothing(0.0), Smoothing(0.0, 1e-30)):  # sense by sense, and word by word
        backend = case.in_triton()
        saved = backend.forward(x.clone(), case.h_norm, case.target, weights)
        assert saved.normalizer[:2].tolist() == [0.0, 1e4]
        assert saved.normalizer[2].isnan()
        assert saved.normalizer[3].item() == pytest.approx(2.0 + torch.tensor(2.0).log().item())
        p, _ = backend.backward(saved, ones, torch.zeros(2, len(x), device=DEVICE))
        assert (p[:, :2].abs() > 1e-20).sum().item() == 2
        assert p[3, 0] == p[7, 1] == 1.0
        assert p[:, 2].isnan().any()


@needs_device
@pytest.mark.skipif(INTERPRETED, reason="the interpreter has no room for so many products")
def test_more_products_than_fit_in_32_bits() -> None:
    senses, tokens = 70_000, 32_768
    if torch.cuda.mem_get_info()[0] < 14 << 30:
        pytest.skip("needs 14 GiB of free device memory")
    x = torch.randn(senses, tokens, device=DEVICE)
    owner = torch.arange(senses, device=DEVICE) // 2
    table = build_sense_table(owner, senses // 2)
    ones = torch.ones(tokens, device=DEVICE)
    zeros = torch.zeros(senses, device=DEVICE)
    senses_of = Senses(zeros[:, None], zeros, owner, table, build_kernel("lin"))
    backend = backend_module.build(senses_of, torch.float32)
    assert backend is not None
    last, target = x[:, -64:].clone(), torch.zeros(tokens, dtype=torch.long, device=DEVICE)
    right = last.double().logsumexp(0)
    for weights in (Smoothing.of(0.1, senses // 2), Smoothing(0.0)):
        saved = backend.forward(x, ones, target, weights)
        normalizer = saved.normalizer[-64:].double()
        torch.testing.assert_close(normalizer, right, rtol=1e-6, atol=0)
    p, _ = backend.backward(saved, ones, torch.zeros(2, senses, device=DEVICE))
    probability = (last.double() - right).exp().float()
    torch.testing.assert_close(p[:, -64:], probability, rtol=1e-5, atol=0)


# ------------------------------------------------------------------------ the whole likelihood


@needs_device
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", list(KINDS))
def test_likelihood_through_triton(
    name: str, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def choose(senses: Senses, dtype: torch.dtype) -> Backend:
        backend = backend_module.build(senses, dtype)
        assert backend is not None
        used.append(backend)
        return backend

    p = make_problem(50, 11, 29, 7)
    p.target[3] = -100
    losses = naive_token_losses(p, name, smoothing)
    needed = p.leaves if name == "kerbs" else p.leaves[:2]
    expected = torch.autograd.grad(losses.sum(), needed)
    monkeypatch.setattr(chunked, "choose_backend", choose)
    narrow = p.to(torch.float32)
    h, w, theta = (leaf.detach().to(DEVICE).requires_grad_() for leaf in narrow.leaves)
    owner, target = p.word_of_sense.to(DEVICE), p.target.to(DEVICE)
    for reduction in ("sum", "none"):
        loss = kerbs_nll(
            h, w, theta, owner, target,
            kernel=name, label_smoothing=smoothing, reduction=reduction, chunk_tokens=21,
        )  # fmt: skip
        assert loss.sum().item() == pytest.approx(losses.sum().item(), rel=2e-6)
        actual = torch.autograd.grad(loss.sum(), (h, w, theta)[: len(needed)])
        for ours, right in zip(actual, expected, strict=True):
            assert (ours.cpu() - right).norm() <= 3e-6 * right.norm()
    with torch.no_grad():
        log_probs = kerbs_log_probs(h, w, theta, owner, 11, kernel=name)
    torch.testing.assert_close(
        log_probs.exp().sum(1), torch.ones(50, device=DEVICE), rtol=1e-5, atol=0
    )
    picked = log_probs.gather(1, target.clamp_min(0).unsqueeze(1)).squeeze(1)
    picked = picked.masked_fill(target == -100, 0.0).cpu()
    torch.testing.assert_close(-picked, naive_token_losses(p, name).float(), rtol=1e-5, atol=1e-5)
    assert len(used) == 3


# ------------------------------------------------------------------------ the first use


@needs_device
@pytest.mark.parametrize(
    ("name", "dtype"), [("kerbs", torch.float32), ("kerbs", torch.bfloat16), ("lin", torch.float32)]
)
def test_the_first_use_finds_no_difference_and_draws_nothing(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kind: Any = type(make_case(name, "one sense", 5).in_triton())
    backend_module.works.cache_clear()
    monkeypatch.delenv("FAIRSEQ_KERBS_FUSED")
    before = torch.get_rng_state()
    assert backend_module.works(kind, DEVICE, dtype)
    assert torch.equal(torch.get_rng_state(), before)
    assert not caplog.messages


class Changed:
    """A kernel after which something else happens to the products."""

    def __init__(self, kernel: Any, change: Callable[[Tensor], object]) -> None:
        self.kernel, self.change = kernel, change

    def __getitem__(self, grid: tuple[int, int]) -> Callable[..., None]:
        def launch(x: Tensor, *arguments: Any, **options: Any) -> None:
            self.kernel[grid](x, *arguments, **options)
            self.change(x)

        return launch


def refuse(x: Tensor) -> None:
    raise RuntimeError("at 5:3:\n  no such type")


@needs_device
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda x: x.mul_(1.001),
            "by products differ from torch's by 1.0e-03 of their size); please",
        ),
        (lambda x: x.fill_(torch.nan), "by products differ from torch's by nan"),
        (refuse, "they fail (RuntimeError: at 5:3: no such type); please"),
    ],
)
def test_kernels_that_differ_or_fail_leave_the_work_to_torch(
    change: Callable[[Tensor], object],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kernels = backend_module.load_kernels()
    assert kernels is not None
    monkeypatch.setattr(kernels, "backward", Changed(kernels.backward, change))
    senses = make_case("lin", "one sense", 5).senses()
    assert backend_module.build(senses, torch.float32) is not None  # by FAIRSEQ_KERBS_FUSED=1
    assert not caplog.messages
    backend_module.works.cache_clear()
    monkeypatch.setenv("FAIRSEQ_KERBS_FUSED", "0")
    assert backend_module.build(senses, torch.float32) is None
    assert not caplog.messages
    monkeypatch.delenv("FAIRSEQ_KERBS_FUSED")
    for _ in range(2):
        assert backend_module.build(senses, torch.float32) is None
    (message,) = caplog.messages
    assert f"on {DEVICE} with products in float32" in message
    assert reason in message
    assert len(message.splitlines()) == 1


@needs_device
def test_kernels_that_fail_in_bfloat16_alone_get_products_in_float32(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernels, backend = backend_module.load_kernels(), make_case("lin", "one sense", 5).in_triton()
    assert kernels is not None
    assert backend.takes(torch.bfloat16)
    assert not backend.takes(torch.float16)
    backend_module.works.cache_clear()
    monkeypatch.delenv("FAIRSEQ_KERBS_FUSED")
    monkeypatch.setattr(kernels, "backward", Changed(kernels.backward, lambda x: x.mul_(1.1)))
    assert not backend.takes(torch.bfloat16)
    assert (
        "with products in bfloat16 they fail (ArithmeticError: gradients by products differ"
        in caplog.messages[0]
    )


# ------------------------------------------------------------------------ where there is no device


@needs_triton
@once
def test_again_under_the_interpreter() -> None:
    triton = pytest.importorskip("triton", reason="Triton cannot be imported", exc_type=ImportError)
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 7):
        pytest.skip("the interpreter of Triton before 3.7 does not work with numpy 2.4")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", __file__]
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        command, env=environment, cwd=root, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "no CUDA device" not in run.stdout


@needs_triton
@once
@pytest.mark.parametrize("name", list(KINDS))
def test_kernels_compile_for_a_device_that_is_not_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter takes what the compiler refuses; that needs no device, for a given target."""
    triton = pytest.importorskip("triton", exc_type=ImportError)
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from fairseq_kerbs.likelihood.backends import triton_kernels as kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = dict.fromkeys(("table", "count", "target"), "*i64") | {"levels": "*fp64"}
    types |= dict.fromkeys(("size", "words", "width", "tokens", "share", "stride"), "i32")
    types |= {"x": "*bf16"}
    fixed: dict[str, object] = {"KERBS": name == "kerbs", "ROWS": 8, "TOKENS": 128}
    if name != "kerbs":
        fixed["senses"] = None
    for kernel in ("forward", "forward_words", "backward", "log_probs"):
        function = getattr(kernels, kernel)
        parameters = inspect.signature(function.fn).parameters
        constants = {key: value for key, value in fixed.items() if key in parameters}
        signature = {
            key: "constexpr" if key in constants else types.get(key, "*fp32") for key in parameters
        }
        source = ASTSource(function, signature, constants)
        compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32))
        assert f".visible .entry {kernel}" in compiled.asm["ptx"]


@once
def test_where_triton_is_missing_one_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(
        sys.modules, "fairseq_kerbs.likelihood.backends.triton_kernels", raising=False
    )
    owner = torch.arange(3)
    table, ones = build_sense_table(owner, 3), torch.ones(3)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            senses = Senses(ones[:, None], ones, owner, table, build_kernel("kerbs"))
            assert backend_module.build(senses, torch.float32) is None
    assert len(caplog.messages) == 1
    assert "pip install triton" in caplog.messages[0]


@once
def test_what_the_kernels_are_not_for(caplog: pytest.LogCaptureFixture) -> None:
    owner = torch.arange(3)
    table, ones = build_sense_table(owner, 3), torch.ones(3)
    senses = Senses(ones[:, None], ones, owner, table, build_kernel("kerbs"))
    general = senses._replace(kernel=build_kernel("kerbs_released"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert backend_module.build(senses, torch.float64) is None
        assert backend_module.build(general, torch.float32) is None  # nothing to say of it
    assert len(caplog.messages) == 1
    assert "float64" in caplog.messages[0]


@once
@needs_triton
def test_the_first_use_compares_tokens_with_and_without_an_alignment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[int] = []

    def compare(*arguments: Any) -> None:
        compared.append(arguments[-1])
        if compared[-1] == 5 and len(compared) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.delenv("FAIRSEQ_KERBS_FUSED")
    monkeypatch.setattr(backend_module, "_compare", compare)
    backend_module.works.cache_clear()
    arguments = backend_module.TritonKerbsBackend, torch.device("cuda:0"), torch.float32
    with pytest.raises(torch.OutOfMemoryError):  # and is no reason to leave the kernels out
        backend_module.works(*arguments)
    assert backend_module.works(*arguments)
    assert compared == 2 * [160, 157, 5]
    backend_module.works.cache_clear()


@once
def test_a_chunk_on_a_card_goes_by_the_size_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by what is free: that may be another size in another run."""
    backend: Any = SimpleNamespace(buffers=2, cpu_buffer_bytes=0)
    for memory, chunk in ((24 << 30, 24 << 26), (80 << 30, 4 << 30)):
        card = SimpleNamespace(total_memory=memory)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, card=card: card)
        found = chunked.chunk_tokens(backend, 100_000, torch.device("cuda"), torch.float32)
        assert found == chunk // 2 // 400_000 // 32 * 32
