"""scripts/benchmark.py at tiny sizes: order of calls, memory, and what contestants compute."""

import gc
import json
import math
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import utils
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

from fairseq_kerbs.evaluation import numerics
from fairseq_kerbs.models.attention import BahdanauAttention, LuongAttention
from scripts import benchmark
from scripts.benchmarks import likelihood, translation
from scripts.benchmarks.comparison import Workload, alternate, compare, peak_memory, tables
from tests.helpers.commands import ROOT, run_program

TINY_MODEL = ["--dim", "16", "--vocab", "60", "--ffn", "24", "--layers", "1"]
FEW = ["--quick", "--repetitions", "2", "--threads", "1"]
MEGABYTE = 1_000_000


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmark, "quiet", lambda: None)  # it would silence the tests that follow
    monkeypatch.setattr(gc, "collect", lambda: 0)  # slow beside all that pytest keeps


def check(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The contestants of a document that has what all have."""
    assert document["benchmark"] == name
    assert {"cpu", "cores", "threads", "gpu", "load_average"} <= set(document["machine"])
    assert document["versions"]["torch"] == torch.__version__
    assert (document["settings"]["seed"], document["settings"]["threads"]) == (1, 1)
    assert "FAIRSEQ_KERBS_COMPILE" in document["settings"]
    for entry in document["contestants"].values():
        assert 0.0 < entry["lowest"] <= entry["median"] <= entry["highest"]
    for ratio in document["ratios"]:
        of, over = (document["contestants"][ratio[key]]["seconds"] for key in ("of", "over"))
        expected = [a / b for a, b in zip(of, over, strict=True)]
        assert len(expected) == 2
        assert ratio["per_repetition"] == pytest.approx(expected)
        assert min(expected) == ratio["lowest"] <= ratio["median"] <= ratio["highest"]
    return document["contestants"]


def run(name: str, *flags: str) -> dict[str, Any]:
    benchmark.main([name, *FEW, *flags])
    return check(json.loads(Path(f"benchmark-{name}.json").read_text()), name)


@pytest.mark.slow
def test_likelihood_as_users_run_it(tmp_path: Path) -> None:
    script, file = ROOT / "scripts" / "benchmark.py", tmp_path / "found.json"
    command = (sys.executable, script, "likelihood", *FEW, "--output", file)
    said = run_program(*command, cwd=tmp_path, PYTHONPATH="")
    assert [*tmp_path.iterdir()] == [file]
    assert str(tmp_path) not in file.read_text()  # results are published
    entries = check(json.loads(file.read_text()), "likelihood")
    assert tuple(entries) == benchmark.BENCHMARKS["likelihood"][1]
    for name, other in (("kerbs", "naive"), ("lean", "stock")):
        assert entries[name]["loss"] == pytest.approx(entries[other]["loss"], rel=1e-5)
    assert "kerbs ÷ naive" in said
    assert "load average" in said


def test_step_and_decode(capsys: pytest.CaptureFixture[str]) -> None:
    stock_and_kerbs = ["--contestants", "stock", "kerbs"]
    with_a_mixture = ["--contestants", "softmax", "kerbs", "mos"]
    entries = run("step", *TINY_MODEL, "--tokens", "128", *stock_and_kerbs)
    assert "kerbs ÷ stock" in capsys.readouterr().out
    assert all(entry["loss"] > 0 and entry["peak_bytes"] is None for entry in entries.values())
    for entry in run("decode", *TINY_MODEL, "--batch", "2", *with_a_mixture).values():
        assert entry["seconds_per_unit"] == pytest.approx(entry["median"] / 2)
    said = capsys.readouterr().out
    assert "a sentence" in said
    assert "mos ÷ softmax" in said


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(benchmark.BENCHMARKS))
def test_on_cuda(name: str) -> None:
    run(name, "--device", "cuda", "--memory")


def test_contestants_alternate_and_nobody_keeps_a_neighbour() -> None:
    calls: list[str] = []

    def workload(name: str) -> Workload:
        def run() -> None:
            assert not gc.isenabled()
            calls.append(name)

        return Workload(run, reset=lambda: calls.append("reset"))

    times = alternate({name: workload(name) for name in "abc"}, 4)
    assert calls[::2] == ["reset"] * 12
    assert "".join(calls[1::2]) == "abc" + "bca" + "cab" + "abc"
    assert [len(times[name]) for name in "abc"] == [4, 4, 4]
    assert gc.isenabled()


def test_figures_and_their_table() -> None:
    work = partial(Workload, lambda: torch.tensor(1.5), amount=10.0, unit="token", reuses=True)
    entries = {"a": ("first", work), "b": ("second", partial(Workload, lambda: None, unit="token"))}
    result = compare(entries, [("a", "b"), ("a", "c")], repetitions=3)
    assert [entry["loss"] for entry in result["contestants"].values()] == [1.5, None]
    peaks = [entry["peak_bytes"] for entry in result["contestants"].values()]
    assert (peaks[0], type(peaks[1])) == (None, int)  # it says nothing of calls that share buffers
    assert [(ratio["of"], ratio["memory"]) for ratio in result["ratios"]] == [("a", None)]
    first, row, *_, last = tables(result).splitlines()
    assert "µs a token" in first
    assert row.split()[-3:] == ["1.50000", "–", "first"]
    assert last.startswith("a ÷ b ")


@pytest.mark.slow
def test_peak_memory_of_known_allocations() -> None:
    results: list[torch.Tensor] = []

    def run() -> None:
        results.append(torch.ones(30 * MEGABYTE, dtype=torch.uint8))
        for _ in range(3):
            torch.ones(100 * MEGABYTE, dtype=torch.uint8)

    run()
    peak = peak_memory(Workload(run, reset=results.clear), "cpu")
    assert peak == pytest.approx(130 * MEGABYTE, abs=4 * MEGABYTE)


LOSSES: dict[str, Any] = {name: loss for name, (_, loss) in likelihood.CONTESTANTS.items()}
LOSSES.pop(likelihood.PRODUCTS)
SIZES: dict[str, Any] = {"dim": 16, "vocab": 50, "senses_per_word": 2.5, "tokens": 70}
EXACT: dict[str, Any] = {**SIZES, "dtype": "float32", "device": "cpu", "seed": 3}


@pytest.fixture
def inputs() -> Iterator[numerics.Inputs]:
    numerics.make_inputs.cache_clear()
    yield numerics.make_inputs(**EXACT)
    numerics.make_inputs.cache_clear()  # tests write into them


def test_lean_softmax_is_fairseqs(inputs: numerics.Inputs) -> None:
    inputs.target[::9] = 1  # padding
    leaves = (inputs.h, inputs.words)
    scores = utils.log_softmax(inputs.h @ inputs.words.t(), dim=-1)
    _, fairseqs = label_smoothed_nll_loss(scores, inputs.target[:, None], 0.0, ignore_index=1)
    ours, theirs = likelihood.lean_softmax(inputs), likelihood.stock_softmax(inputs)
    torch.testing.assert_close(theirs, fairseqs, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0.0)
    for own, other in zip(*(torch.autograd.grad(loss, leaves) for loss in (ours, theirs))):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_smoothing_and_theta_of_a_contestant_take_effect(inputs: numerics.Inputs) -> None:
    one = likelihood.workload(likelihood.PRODUCTS, **EXACT)
    assert (one.run(), one.amount, one.reuses, inputs.h.grad) == (None, 70, True, None)
    losses = {name: float(loss(inputs).detach()) for name, loss in LOSSES.items()}
    for other in ("kerbs-smoothed", "kerbs-trained"):
        assert abs(losses["kerbs"] - losses[other]) > 1e-4 * losses["kerbs"]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_call_leaves_gradients_and_reset_drops_them(name: str, dtype: str) -> None:
    arguments = EXACT | {"dtype": dtype}
    one, inputs = likelihood.workload(name, **arguments), numerics.make_inputs(**arguments)
    one.reset()
    assert inputs.h.grad is None
    assert (loss := one.run()) is not None
    assert inputs.h.grad is not None
    assert (inputs.words if name in ("stock", "lean") else inputs.w).grad is not None
    mean = float(LOSSES[name](numerics.make_inputs(**EXACT)).detach()) / SIZES["tokens"]
    assert float(loss) == pytest.approx(mean, rel=0.02)


MODEL: dict[str, Any] = {"dim": 16, "vocab": 60, "senses_per_word": 2.0}
MODEL |= {"ffn": 24, "layers": 1, "heads": 2, "hidden": 12}
HERE: dict[str, Any] = {"dtype": "float32", "device": "cpu", "seed": 1}


def test_models_differ_in_the_output_layer_alone() -> None:
    names = [name for name in translation.MODELS if "smooth" not in name]
    models = {name: translation.set_up(name, MODEL, "cpu", 1)[2] for name in names}
    size = {name: sum(w.numel() for w in model.parameters()) for name, model in models.items()}
    assert size["softmax"] == size["stock"]
    extra = 60 * MODEL["dim"] + 2 * 60  # further rows of W, and θ
    assert size["kerbs"] - size["softmax"] == size["kerbs-lstm"] - size["softmax-lstm"] == extra
    dim = MODEL["dim"]
    projections = 3 * dim * (dim + 1)  # with their biases
    assert size["mos"] - size["softmax"] == projections + 3 * dim + 60  # M, and the output bias
    decoder = models["stock"].decoder
    assert decoder.output_projection.weight is decoder.embed_tokens.weight
    assert models["kerbs-lstm"].decoder.embed_tokens.posterior
    for name, attention in (
        ("kerbs-lstm", BahdanauAttention),
        ("kerbs-lstm-luong", LuongAttention),
    ):
        assert isinstance(models[name].decoder.attention, attention)
        assert models[name].decoder.rnn.hidden_size == 12


def test_batches_have_sentences_of_words() -> None:
    _, task, _ = translation.set_up("stock", MODEL, "cpu", 1)
    batch = translation.make_batch(task, 1, 43, length=23)
    target = batch["target"]
    assert batch["ntokens"] == int(target.ne(1).sum())
    assert 20 < batch["ntokens"] / 43 < 26
    assert 7 < translation.make_batch(task, 1, 43, length=10)["ntokens"] / 43 < 13
    assert int(target[target.ne(1) & target.ne(2)].min()) >= 4  # words, no other specials
    assert int(target.eq(2).sum()) == len(target) == 43
    assert int(target.max()) < MODEL["vocab"]


@pytest.mark.parametrize(
    "name", ["kerbs-smoothed", "stock-smoothed", "kerbs-lstm", "kerbs-lstm-luong"]
)
def test_a_step_trains(name: str) -> None:
    workload = translation.step_workload(name, tokens=100, length=20, **HERE, **MODEL)
    losses = [float(workload.run() or 0.0) for _ in range(3)]
    assert workload.amount == pytest.approx(100, abs=20)
    # bits by token of an untrained model, then lower: the update was made
    assert losses[0] == pytest.approx(math.log2(MODEL["vocab"]), rel=0.5)
    assert losses[2] != losses[0]


@pytest.mark.parametrize("name", ["kerbs-prior", "mos", "softmax-lstm"])
def test_decoding_takes_the_steps_asked_for(name: str) -> None:
    sizes: dict[str, Any] = {"batch": 3, "length": 9, "beam": 2, "steps": 6}
    workload = translation.decode_workload(name, **sizes, **HERE, **MODEL)
    workload.run()  # raises where a hypothesis has another length
    assert (workload.amount, workload.unit) == (3, "sentence")
