"""The Triton passes equal the torch passes: on a CUDA device, or in Triton's interpreter.

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
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.kernels import build_kernel
from fairseq_kerbs.likelihood import chunked as chunked_nll
from fairseq_kerbs.likelihood import kerbs_log_probs, kerbs_nll
from fairseq_kerbs.likelihood.backends import triton as fused_cuda
from fairseq_kerbs.likelihood.backends.eager import ChunkPasses, InnerProductPasses, Smoothing
from fairseq_kerbs.likelihood.backends.eager_kerbs import KerbsPasses
from fairseq_kerbs.senses import SenseTable, build_sense_table
from tests.helpers.reference import make_problem, naive_token_losses

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
INSTALLED = importlib.util.find_spec("triton") is not None

needs_triton = pytest.mark.skipif(not INSTALLED, reason="Triton is not installed")
needs_device = pytest.mark.skipif(
    not INSTALLED or not (INTERPRETED or torch.cuda.is_available()),
    reason="no CUDA device: runs in test_again_under_the_interpreter" if INSTALLED else "no Triton",
)
once = pytest.mark.skipif(INTERPRETED, reason="has run outside of the interpreter")

THETAS = [0.0, *(sign * size for size in (1e-8, 0.3, 0.99, 1.01, 5, 50) for sign in (1.0, -1.0))]
KINDS: dict[str, type[ChunkPasses]] = {"kerbs": KerbsPasses, "lin": InnerProductPasses}
ALLOCATIONS = {
    "1 … 4 senses": [*range(11), *range(11), *range(10), 3, 7, 7, 9, 0],  # M = 37, V = 11
    "one sense": list(range(37)),
    "four senses": [*range(9)] * 4,
    "20 senses": [0, 1, 2] + [1] * 19,
}
CASES = [("1 … 4 senses", n) for n in (1, 5, 33, 123)] + [("20 senses", 33)]
CASES += [(name, n) for name in ("one sense", "four senses") for n in (5, 33)]


@pytest.fixture(autouse=True)
def _fresh_reasons() -> Iterator[None]:
    yield
    fused_cuda._decline.cache_clear()
    fused_cuda.load_kernels.cache_clear()


class Case(NamedTuple):
    """Inputs of the passes, in float32 or the same numbers in float64."""

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

    def torch_passes(self) -> ChunkPasses:
        kernel = build_kernel(self.name)
        return KINDS[self.name](kernel, self.w_norm, self.theta, self.table, self.owner)

    def fused_passes(self) -> fused_cuda._Fused:
        kernel = build_kernel(self.name)
        passes = fused_cuda.fused(
            KINDS[self.name], kernel, self.w_norm, self.theta, self.table, self.owner
        )
        assert isinstance(passes, fused_cuda._Fused)
        return passes


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


def sums(passes: ChunkPasses, found: Results) -> Results:
    if isinstance(passes, KerbsPasses):
        found["weighted"] = passes.weighted.clone()
        found["bent"] = passes.bent.where(passes.curved, 0.0)
    else:
        del found["along_h"]
    return found


def by_senses(passes: ChunkPasses, case: Case) -> Results:
    normalizer = passes.reduce(case.x, case.h_norm)
    p = case.x.clone()
    along_h = passes.pull_back(p, case.h_norm, normalizer, case.scale)
    return sums(passes, {"normalizer": normalizer, "p": p, "along_h": along_h})


def by_words(passes: ChunkPasses, case: Case) -> Results:
    normalizer, spread = passes.reduce_words(case.x, case.h_norm)
    p, weights = case.x.clone(), Smoothing.of(0.1, len(case.table.senses))
    along_h = passes.pull_back_words(p, case.h_norm, normalizer, case.scale, weights)
    found = {"normalizer": normalizer, "spread": spread, "p": p, "along_h": along_h}
    return sums(passes, found)


def with_targets(passes: ChunkPasses, case: Case, smoothing: float = 0.1) -> Results:
    """All of the pull back: at once in the fused passes, in two steps in the others."""
    normalizer, _ = passes.reduce_words(case.x, case.h_norm)
    p, weights = case.x.clone(), Smoothing.of(smoothing, len(case.table.senses))
    if isinstance(passes, fused_cuda._Fused):
        along_h = passes.pull_back_targets(
            p, case.h_norm, normalizer, case.scale, weights, case.target
        )
        return sums(passes, {"normalizer": normalizer, "p": p, "along_h": along_h})
    along_h = passes.pull_back_words(p, case.h_norm, normalizer, case.scale, weights)
    senses, mask = case.table.senses[case.target], case.table.mask[case.target]  # [n, K]
    own_x = case.x.t().gather(1, senses)
    own = passes.own_logits(own_x, senses, case.h_norm).masked_fill(~mask, -torch.inf)
    grad = own.softmax(1) * (-weights.share * case.scale).unsqueeze(1)
    along_h = along_h + passes.add_own(p, own_x, senses, grad, case.h_norm)
    return sums(passes, {"normalizer": normalizer, "p": p, "along_h": along_h})


def magnitudes(case: Case, p: Tensor) -> dict[str, Tensor]:
    """Σ_n |h G E| and Σ_n |h G c² r(z)| of every sense, up to a factor: what the sums round by."""
    passes = case.torch_passes()
    if not isinstance(passes, KerbsPasses):
        return {}
    cosine = case.x * passes.inverse_norm.unsqueeze(1)
    z = cosine * passes.minus_theta.unsqueeze(1)
    by_h = (p / (passes.gain.unsqueeze(1) * z.exp()) * case.h_norm).abs()  # |h G|
    return {
        "weighted": (by_h * z.expm1().abs()).sum(1),
        "bent": (by_h * cosine.square()).sum(1).where(passes.curved, 0.0),
    }


def assert_as_exact_as_torch(ours: Results, plain: Results, truth: Results, case: Case) -> None:
    """At most 4 times the error of torch in float32, or what rounding the logits explains.

    Matrices and sums over tokens are held to each sense's own scale: the steep ones would hide the
    flat ones.
    """
    assert ours.keys() == plain.keys() == truth.keys()
    sizes = magnitudes(case.double(), truth["p"])
    level = truth["normalizer"].abs().max().item()
    tolerance = 4e-6 + 4 * level * 2.0**-24  # an error of a logit is relative in its exponential
    for name, right in truth.items():
        error, usual = (ours[name].double() - right).abs(), (plain[name].double() - right).abs()
        size = sizes.get(name, right.abs())
        if name == "p":
            error, usual, size = error.amax(1), usual.amax(1), size.amax(1)
        elif name in ("normalizer", "spread", "along_h"):
            error, usual, size = error.amax(), usual.amax(), size.amax()
        assert (error <= 4 * usual + tolerance * size).all(), name  # false for NaN, too


# ------------------------------------------------------------------------ the passes


def check_passes(case: Case) -> None:
    for run in (by_senses, by_words, with_targets):
        ours, plain = run(case.fused_passes(), case), run(case.torch_passes(), case)
        truth = run(case.double().torch_passes(), case.double())
        assert_as_exact_as_torch(ours, plain, truth, case)
    tokens, words = len(case.scale), len(case.table.senses)
    wide = torch.full((tokens, words + 3), 7.0, device=DEVICE)
    case.fused_passes().log_probs(case.x, case.h_norm, wide[:, :words])
    right = torch.empty(tokens, words, dtype=torch.float64, device=DEVICE)
    exact = case.double()
    exact.torch_passes().log_probs(exact.x, exact.h_norm, right)
    assert ((wide[:, :words] - right).abs() <= 4e-6 * right.abs().amax()).all()
    assert (wide[:, words:] == 7.0).all()


@needs_device
@pytest.mark.parametrize(("allocation", "tokens"), CASES)
@pytest.mark.parametrize("name", list(KINDS))
def test_passes_are_those_of_torch(name: str, allocation: str, tokens: int) -> None:
    check_passes(make_case(name, allocation, tokens))


@needs_device
@pytest.mark.parametrize("programs", [1, 7])
@pytest.mark.parametrize("name", list(KINDS))
def test_tiles_and_shares_of_any_number(
    name: str, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three blocks of tokens, two tiles of senses, by one program a block or by one a tile."""
    monkeypatch.setattr(fused_cuda, "CELLS", 512)
    monkeypatch.setattr(fused_cuda, "WIDEST", 16)
    monkeypatch.setattr(fused_cuda, "PROGRAMS", programs)
    cut = fused_cuda.Cut.of(37, 33, 16)
    assert cut == (32, 16, 3, 64 if programs == 1 else 32, 1 if programs == 1 else 2)
    check_passes(make_case(name, "1 … 4 senses", 33))


@once
@pytest.mark.parametrize("senses", [100, 1000, 30_000, 100_000, 1_000_000])
def test_running_sums_in_float32_stay_short(senses: int) -> None:
    """One running sum adds a number a tile: hundreds are as near as torch's, thousands are not."""
    chunk = (1 << 28) // senses  # tokens in 1 GiB of products, the most there is
    for tokens in (16, min(300, chunk), chunk):
        cut = fused_cuda.Cut.of(senses, tokens, fused_cuda.WIDEST)
        assert cut.share <= 200 * cut.rows
        assert cut.share * cut.shares >= senses


@needs_device
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", list(KINDS))
def test_targets_without_smoothing_and_products_in_bfloat16(name: str, smoothing: float) -> None:
    case = make_case(name, "1 … 4 senses", 33)
    case = case._replace(x=case.x.bfloat16().float())
    truth = with_targets(case.double().torch_passes(), case.double(), smoothing)
    plain = with_targets(case.torch_passes(), case, smoothing)
    ours = with_targets(case.fused_passes(), case, smoothing)
    assert_as_exact_as_torch(ours, plain, truth, case)
    narrow = case._replace(x=case.x.bfloat16())
    ours = with_targets(case.fused_passes(), narrow, smoothing)
    assert ours["p"].dtype == torch.bfloat16
    # P is rounded once, cell by cell; at a word that is all but certain, too
    unit = 2.0 ** (-7 if INTERPRETED else -8)  # the interpreter cuts off what a device rounds
    rounding = unit * truth["p"].abs() + 4e-6 * truth["p"].abs().amax()
    assert ((ours["p"].double() - truth["p"]).abs() <= rounding).all()
    assert_as_exact_as_torch({**ours, "p": plain["p"]}, plain, truth, case)


@needs_device
def test_a_chunk_adds_to_the_sums_and_gives_the_same_bits_again() -> None:
    case = make_case("kerbs", "1 … 4 senses", 33)
    passes = case.fused_passes()
    first = by_senses(passes, case)
    twice = by_senses(passes, case)
    passes.reset()
    again = by_senses(copy.deepcopy(passes), case)  # as a model that keeps its passes may be
    for name, value in first.items():
        assert torch.equal(again[name], value)
        assert torch.equal(twice[name], 2 * value if name in ("weighted", "bent") else value)


@needs_device
def test_levels_of_many_words_are_summed_beyond_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_cuda, "PROGRAMS", 1)
    words = 4096
    x = 1000.0 + torch.randn(words, 16, generator=torch.Generator().manual_seed(0))
    owner, ones = torch.arange(words, device=DEVICE), torch.ones(words, device=DEVICE)
    arguments = (build_kernel("lin"), ones, ones, build_sense_table(owner, words), owner)
    passes = fused_cuda.fused(InnerProductPasses, *arguments)
    assert passes is not None
    _, spread = passes.reduce_words(x.to(DEVICE), ones[:16])
    wide = x.double()
    right = words * wide.logsumexp(0) - wide.sum(0)
    torch.testing.assert_close(spread.double().cpu(), right, rtol=5e-7, atol=0)


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
    arguments = (build_kernel("kerbs"), one, parameter, table, owner)
    passes = fused_cuda.fused(KerbsPasses, *arguments)
    assert passes is not None
    ours = passes.reduce(cosine.unsqueeze(0), torch.ones_like(cosine)).double()
    wide = KerbsPasses(build_kernel("kerbs"), one.double(), parameter.double(), table, owner)
    right = wide.reduce(cosine.double().unsqueeze(0), torch.ones_like(cosine).double())
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
    for words in (False, True):
        passes, p = case.fused_passes(), x.clone()
        reduced = passes.reduce_words(x, case.h_norm) if words else (passes.reduce(x, case.h_norm),)
        normalizer = reduced[0]
        assert normalizer[:2].tolist() == [0.0, 1e4]
        assert normalizer[2].isnan()
        assert normalizer[3].item() == pytest.approx(2.0 + torch.tensor(2.0).log().item())
        ones = torch.ones(4, device=DEVICE)
        if words:
            passes.pull_back_words(p, case.h_norm, normalizer, ones, Smoothing.of(0.0, 9))
        else:
            passes.pull_back(p, case.h_norm, normalizer, ones)
        assert p[:, :2].count_nonzero().item() == 2
        assert p[3, 0] == p[7, 1] == 1.0
        assert p[:, 2].isnan().any()
        if not words:  # a word all of whose senses are at −∞ has no distribution within
            assert p[2:, 3].count_nonzero().item() == 0


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
    arguments = (build_kernel("lin"), zeros, zeros, table, owner)
    passes = fused_cuda.fused(InnerProductPasses, *arguments)
    assert passes is not None
    last = x[:, -64:].clone()
    right = last.double().logsumexp(0)
    torch.testing.assert_close(passes.reduce(x, ones)[-64:].double(), right, rtol=1e-6, atol=0)
    normalizer, _ = passes.reduce_words(x, ones)
    torch.testing.assert_close(normalizer[-64:].double(), right, rtol=1e-6, atol=0)
    passes.pull_back(x, ones, normalizer, ones)
    probability = (last.double() - right).exp().float()
    torch.testing.assert_close(x[:, -64:], probability, rtol=1e-5, atol=0)


# ------------------------------------------------------------------------ the whole likelihood


@needs_device
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("name", list(KINDS))
def test_likelihood_through_the_fused_passes(
    name: str, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def choose(*arguments: object) -> ChunkPasses:
        passes = fused_cuda.fused(KINDS[name], *arguments)  # type: ignore[arg-type]
        assert passes is not None
        used.append(passes)
        return passes

    p = make_problem(50, 11, 29, 7)
    p.target[3] = -100
    losses = naive_token_losses(p, name, smoothing)
    needed = p.leaves if name == "kerbs" else p.leaves[:2]
    expected = torch.autograd.grad(losses.sum(), needed)
    monkeypatch.setattr(chunked_nll, "choose_passes", choose)
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
    fixed: dict[str, object] = {"KERBS": name == "kerbs", "OWN": True, "ROWS": 8, "TOKENS": 128}
    if name != "kerbs":
        fixed["senses"] = None
    for kernel in ("reduce", "reduce_words", "pull_back", "pull_back_words", "log_probs"):
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
    arguments = (build_kernel("kerbs"), torch.ones(3), torch.ones(3), build_sense_table(owner, 3))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert fused_cuda.fused(KerbsPasses, *arguments, owner) is None
    assert len(caplog.messages) == 1
    assert "pip install triton" in caplog.messages[0]


@once
def test_what_the_kernels_are_not_for(caplog: pytest.LogCaptureFixture) -> None:
    owner = torch.arange(3)
    table = build_sense_table(owner, 3)
    wide = torch.ones(3, dtype=torch.float64)
    with caplog.at_level(logging.WARNING):
        assert (
            fused_cuda.fused(KerbsPasses, build_kernel("kerbs"), wide, wide, table, owner) is None
        )
        assert (
            fused_cuda.fused(KerbsPasses, build_kernel("kerbs"), wide, wide, table, owner) is None
        )
        one = wide.float()
        general = (build_kernel("kerbs_released"), one, one, table, owner)
        assert fused_cuda.fused(ChunkPasses, *general) is None  # as it must be: nothing to say
    assert len(caplog.messages) == 1
    assert "float64" in caplog.messages[0]
