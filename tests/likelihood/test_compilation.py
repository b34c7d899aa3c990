"""torch.compile inside the likelihood and around it, and the other transformations of torch."""

import functools
import logging
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from fairseq_kerbs import torch_compat
from fairseq_kerbs.likelihood import compilation, kerbs_nll, mixture
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.output_layers.composition import ComposedEmbedding
from tests.helpers.cli import Log, Patch
from tests.helpers.likelihood import chunks_of
from tests.helpers.output_layers import DIM, Model, make
from tests.helpers.reference import Problem, make_problem

WORDS = 30


def loss_and_gradients(p: Problem, **options: Any) -> list[Tensor]:
    loss = kerbs_nll(*p.leaves, p.word_of_sense, p.target, **options)
    return [loss, *torch.autograd.grad(loss, p.leaves)]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: Patch) -> Iterator[None]:
    """Nothing is compiled, logged or broken yet, and nothing will stay so."""
    torch._dynamo.reset()
    monkeypatch.setattr(compilation, "_works", True)
    monkeypatch.setattr(compilation, "_seconds", {})
    monkeypatch.setattr(compilation, "_updates", None)
    yield
    torch._dynamo.reset()


def test_one_compilation_serves_all_sizes_and_allocations(monkeypatch: Patch, caplog: Log) -> None:
    def run(tokens: int, seed: int) -> None:
        p = make_problem(tokens, 40, 110, 7, seed=seed, dtype=torch.float32)
        options: dict[str, Any] = {"label_smoothing": 0.1, "reduction": "mean"}
        monkeypatch.setenv(compilation.SWITCH, "1")
        found = loss_and_gradients(p, **options)
        monkeypatch.setenv(compilation.SWITCH, "0")
        for ours, right in zip(found, loss_and_gradients(p, **options), strict=True):
            torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5 * right.abs().max().item())

    counters = torch._dynamo.utils.counters
    counters.clear()
    with caplog.at_level(logging.INFO, compilation.__name__):
        for number, tokens in enumerate((40, 41, 64, 16, 97, 200, 333, 400)):
            run(tokens, seed=number)
            assert counters["stats"]["unique_graphs"] == 4
            assert not counters["graph_break"]
    names = [record.getMessage().split()[1] for record in caplog.records]
    assert names == ["write_logits", "logsumexp_and_mean", "write_word_logits", "write_gradients"]


@pytest.fixture
def counters(monkeypatch: Patch) -> Any:
    """What torch.compile counts, where everything compiles and CPU tensors claim to be on a GPU."""
    counted = torch._dynamo.utils.counters
    counted.clear()
    compiled = functools.cache(lambda f: torch.compile(f, backend="eager", dynamic=False))
    monkeypatch.setattr(compilation, "_compiled", compiled)
    monkeypatch.setenv(compilation.SWITCH, "1")
    monkeypatch.setattr(torch, "_assert_async", lambda *_: None)
    gpu = SimpleNamespace(total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True))
    return counted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_compilation_serves_a_gpu(dtype: torch.dtype, counters: Any) -> None:
    """But for chunks that fill the matrix of logits, which are another layout."""
    for tokens in (40, 64, 41, 97, 16, 128, 333):
        loss_and_gradients(make_problem(tokens, 40, 110, 7, dtype=dtype), label_smoothing=0.1)
    assert compilation._works
    assert counters["stats"]["unique_graphs"] == 4
    assert not counters["graph_break"]


@pytest.mark.parametrize("kernel", ["kerbs", "kerbs_released", "lin", "log"])
def test_one_compilation_composes_all_positions_of_all_batches(kernel: str, counters: Any) -> None:
    layer = KerbsOutputLayer(6, 20, 50, kernel=kernel)
    embed = ComposedEmbedding(layer, padding_idx=1)
    for batch, length in ((5, 4), (3, 7), (8, 2)):
        words = torch.arange(batch * length).view(batch, -1)
        contexts = torch.randn(batch, length, 6, requires_grad=True)
        positions = embed.look_up(words % 20, prepare=True).by_position()
        composed = [embed.compose(found, contexts[:, t]) for t, found in enumerate(positions)]
        stepwise = torch.stack(composed, 1)
        at_once = embed(words % 20, contexts)
        torch.testing.assert_close(stepwise, at_once)
        leaves = (contexts, *layer.parameters())
        ours = torch.autograd.grad(stepwise.square().sum(), leaves, allow_unused=True)
        right = torch.autograd.grad(at_once.square().sum(), leaves, allow_unused=True)
        torch.testing.assert_close(ours, right)
    assert compilation._works
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    counters.clear()
    layer.compile = False  # type: ignore[method-assign, assignment]
    with torch.no_grad():
        embed.compose(next(embed.look_up(words, prepare=True).by_position()), contexts[:, 0])
    embed.compose(next(embed.look_up(words, prepare=True).by_position()), contexts[:, 0])
    assert not counters


@pytest.mark.parametrize("broken", ["write_logits", "write_gradients"])
def test_a_failing_compilation_warns_once(broken: str, monkeypatch: Patch, caplog: Log) -> None:
    def backend(*_: Any) -> Any:
        raise OSError("no compiler here")

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, backend=backend) if function.__name__ == broken else function

    p = make_problem(40, 40, 110, 7)
    expected = loss_and_gradients(p, compile=False)
    monkeypatch.setattr(compilation, "_compiled", compiled)
    monkeypatch.setenv(compilation.SWITCH, "1")
    for _ in range(2):
        torch.testing.assert_close(loss_and_gradients(p), expected)
    (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "torch.compile failed" in warning.getMessage()
    assert not compilation.worthwhile(10**6, 10**5)


def test_passes_are_compiled_only_where_that_pays(monkeypatch: Patch) -> None:
    few = make_problem(20)
    many = make_problem(20, 3000, compilation.LEAST_SENSES, 4)
    asked: list[str] = []
    passes = ["write_logits", "logsumexp_and_mean", "write_gradients"]

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        asked.append(function.__name__)
        return function

    def run(p: Problem, switch: str = "", **options: Any) -> list[str]:
        asked.clear()
        monkeypatch.setenv(compilation.SWITCH, switch)
        kerbs_nll(*p.leaves, p.word_of_sense, p.target, **options)
        return [*asked]

    monkeypatch.setattr(compilation, "_compiled", note)
    assert run(many) == passes
    assert run(few, "1") == passes
    assert run(few) == []
    assert run(many, "0") == []
    assert run(many, compile=False) == []
    with chunks_of(15):
        assert run(few, "1") == 2 * passes
    with torch.no_grad():
        assert run(many, "1") == []
    layer = KerbsOutputLayer(7, 11, 29)
    layer.compile = False  # type: ignore[assignment]
    asked.clear()
    layer.nll(few.h.float(), few.target)
    assert asked == []
    monkeypatch.setattr(torch_compat, "COMPILES", False)
    assert run(many, "1") == []


@pytest.mark.parametrize(
    ("senses", "words", "updates", "compiled"),
    [
        (2000, 1000, None, False),
        (4096, 4096, None, True),
        (2000, 2000, 1999, False),
        (2000, 2000, 2000, True),
        (100_000, 100_000, 39, False),
        (100_000, 100_000, 40, True),
        # several senses save more
        (2000, 1999, 499, False),
        (2000, 1999, 500, True),
        (100_000, 40_000, 9, False),
        (100_000, 40_000, 10, True),
    ],
)
def test_a_training_compiles_if_it_is_long_enough(
    senses: int, words: int, updates: int | None, compiled: bool, monkeypatch: Patch
) -> None:
    monkeypatch.delenv(compilation.SWITCH, raising=False)
    compilation.expect_updates(updates)
    assert compilation.worthwhile(senses, words) == compiled
    if updates is not None:
        said = compilation.describe(senses, words)
        assert f"{senses} senses and {updates} updates" in said
        assert ("is compiled" in said) == compiled
        assert f"{compilation.SWITCH}={0 if compiled else 1}" in said
    monkeypatch.setenv(compilation.SWITCH, "0")
    assert not compilation.worthwhile(senses, words)
    monkeypatch.setenv(compilation.SWITCH, "1")
    assert compilation.worthwhile(senses, words)
    monkeypatch.setattr(torch_compat, "COMPILES", False)
    assert not compilation.worthwhile(senses, words)
    assert "cannot compile" in compilation.describe(senses, words)


def make_model(kind: str = "kerbs", reduction: str = "mean", smoothing: float = 0.1) -> Model:
    torch.manual_seed(1)
    return Model(make(kind, WORDS), reduction=reduction, label_smoothing=smoothing)


def batch(tokens: int) -> tuple[Tensor, Tensor]:
    return torch.randn(tokens, DIM), torch.randint(WORDS, (tokens,))


def step(model: Model, function: Callable[..., Tensor], *inputs: Any) -> list[Tensor]:
    """Value, gradients, and what was recorded until now."""
    value = function(*inputs)
    found = torch.autograd.grad(value.square().mean(), list(model.parameters()))
    return [value, *found, recorded(model)]


def recorded(model: Model) -> Tensor:
    inventory = getattr(model.out, "inventory", None)
    return torch.zeros(0) if inventory is None else inventory.pending.clone()


COMPILED = [
    ("softmax", "sum", 0.1, "aot_eager"),
    ("kerbs", "none", 0.1, "aot_eager"),
    ("kerbs", "mean", 0.0, "inductor"),
    ("mos", "mean", 0.0, "aot_eager"),
]


@pytest.mark.parametrize(
    "case", [*COMPILED[:2], *(pytest.param(c, marks=pytest.mark.slow) for c in COMPILED[2:])]
)
def test_a_compiled_model_is_the_model(
    case: tuple[str, str, float, str], monkeypatch: Patch
) -> None:
    """All but a mixture, which goes through its tokens in Python, is compiled once for all N."""
    kind, reduction, smoothing, backend = case
    monkeypatch.setattr(mixture, "LEAST_WORDS", 1)  # as for a large vocabulary
    counter = CompileCounterWithBackend(backend)
    model = make_model(kind, reduction, smoothing)
    twin = make_model(kind, reduction, smoothing)
    once = kind != "mos"
    compiled = torch.compile(model, fullgraph=True, backend=counter)

    def check(*inputs: Tensor) -> None:
        for value in inputs if once else ():
            torch._dynamo.mark_dynamic(value, 0)
        found = step(model, compiled, *inputs)
        expected = step(twin, twin, *inputs)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for tokens in (24, 40, 33) if once else (24, 40):
            check(*batch(tokens))
        trained = counter.frame_count
        model.eval()
        twin.eval()
        for tokens in (24, 40):
            h, _ = batch(tokens)
            check(h)
            with torch.no_grad():
                torch.testing.assert_close(compiled(h), twin(h))
    if once:
        assert trained == 1
        assert counter.frame_count == 3


@pytest.mark.parametrize("kind", ["kerbs", "softmax", "mixture", "mos"])
def test_scoring_is_exported(kind: str) -> None:
    model = make_model(kind).eval()
    tokens = torch.export.Dim("tokens", min=2, max=1000)
    with torch.no_grad():
        exported = torch.export.export(model, (batch(5)[0],), dynamic_shapes=({0: tokens},))
        for number in (5, 12):
            h, _ = batch(number)
            torch.testing.assert_close(exported.module()(h), model(h))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_records_once(reentrant: bool) -> None:
    model = make_model()
    twin = make_model()
    h, target = batch(30)
    h.requires_grad_()
    checkpoint(model, h, target, use_reentrant=reentrant).backward()
    twin(h, target).backward()
    for ours, right in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, right.grad)
    torch.testing.assert_close(recorded(model), recorded(twin))
    assert recorded(model).any()
