"""Trainings, decoding and layers on a GPU that is not there, and where they would wait for it.

On :class:`~tests.helpers.rehearsed_gpu.RehearsedGpu` all has to give what it gives on the CPU. What
this cannot show (kernels of CUDA and cuDNN, autocast to float16, compiled code) ``fairseq-kerbs
self-check`` does.
"""

import itertools
import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fairseq_kerbs.analysis.occurrences import Extras, read_text
from fairseq_kerbs.checkpoints import contexts
from fairseq_kerbs.cli import self_check
from fairseq_kerbs.kernels import KERNELS
from fairseq_kerbs.likelihood.chunks import chunk_size
from fairseq_kerbs.likelihood.mixture import Mixture, _chunks
from fairseq_kerbs.output_layers import KerbsOutputLayer, MixtureOutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.reallocation import context_sample, kmeans
from scripts.benchmarks.comparison import compare
from scripts.benchmarks.contestants import entries
from tests.helpers.cli import Patch
from tests.helpers.commands import USER_DIR, Command, run_together
from tests.helpers.fairseq_fixtures import make_batch, make_model, make_task, make_text
from tests.helpers.hook_updates import PlainOptimizer, training
from tests.helpers.rehearsed_gpu import GPU, RehearsedGpu, on_gpu, values_of, waits
from tests.helpers.tiny_trainings import FLAGS as TINY

EVERY_UPDATE = {"models/recurrent.py:forward"}  # cuDNN wants lengths on the CPU; so does fairseq
# which targets count; and words and contexts go to the sample, which is on the CPU
SAMPLING = {"output_layers/kerbs.py:_nll", "reallocation/context_sample.py:add"}
DECODING = {"output_layers/decoding.py:of"}  # the order of senses: once a model, not each step
SELDOM = {
    f"{file}.py:{function}"
    for file, functions in {
        # the first update: what is logged of moves
        "training/sense_updates": "_reallocate master_copy summarize",
        # the first update: the sums go to the GPU; a new table is checked and made after moves
        "senses/inventory": "move build_sense_table _renew_checksum checksum_of",
        "senses/statistics": "pending",
        "output_layers/base": "senses_per_word",
        # policies count on the CPU; Algorithm 1 is a loop over words, with a heap
        "reallocation/algorithm1": "__init__ propose",
        "reallocation/authors_code": "propose",
        "reallocation/moves": "apply_moves reset_moments",
        "reallocation/clusters": "_copied of propose describe",  # discriminants are of the CPU
        "reallocation/placement": "place_senses",
        "reallocation/kmeans": "cluster _k_means",
    }.items()
    for function in functions.split()
}
"""When senses move, once in hundreds of updates, and in the first update."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: Patch) -> None:
    with_memory(monkeypatch, 80 << 30)
    monkeypatch.setattr(context_sample, "LEAST_CONTEXTS", 2)
    monkeypatch.setattr(kmeans, "CONTEXTS_A_SENSE", 1)


def ours() -> set[str]:
    """Where functions of ours have waited, without fairseq's own."""
    return {place for place in waits if not place.startswith(("fairseq/", "elsewhere"))}


def test_a_gpu_refuses_what_a_gpu_refuses_and_counts_what_it_is_asked() -> None:
    with RehearsedGpu():
        x = torch.ones(3, device=GPU)
        numbers = torch.arange(3)
        for wrong in (lambda: x + torch.zeros(3), lambda: nn.Linear(3, 2)(x), x.numpy):
            with pytest.raises((RuntimeError, TypeError)):
                wrong()
        asking = (
            x.tolist,
            x.cpu,
            lambda: x[0].item(),
            lambda: bool(x.any()),
            lambda: x[numbers],
            lambda: x[x > 0],
            lambda: numbers.to(GPU),
            lambda: torch.tensor(1, device=GPU),
            lambda: x.nonzero(),
            lambda: x.new_tensor(1),
            lambda: x[[1]],
        )
        right = (
            lambda: x.clone().masked_fill_(x > 0, 2.0),
            lambda: x * torch.tensor(2.0),
            lambda: torch.zeros(3, device=x.device).add_(x),
        )
        for count, functions in ((1, asking), (0, right)):
            for function in functions:
                waits.clear()
                function()
                assert sum(waits.values()) == count


RELEASED = {"reallocation": "released", "max_moves": 0.5}
CLUSTERS = {"reallocation": "clusters", "reallocation_at": [4], "sense_bias": True}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("transformer", {}),
    ("transformer", RELEASED),
    ("transformer", CLUSTERS),
    ("transformer", {"composition": "prior", "reallocation": "none"}),
    ("transformer", {"input_embedding": "separate"}),
    ("gru_lm", {"composition": "prior"}),
    ("transformer", {"output_layer": "mos", "kernel": "lin"}),
    ("lstm", CLUSTERS),
    ("gru", RELEASED),
    ("transformer_lm", RELEASED),
    *((name, {}) for name in ("lstm_luong", "lstm_lm", "bilstm_lm")),
    ("gru", {"output_layer": "softmax", "kernel": "lin"}),
    ("fairseq_lstm", {"kernel": "kerbs_released"}),
]


def updates(name: str, flags: dict[str, Any], on: bool) -> tuple[dict[str, Tensor], list[set[str]]]:
    """What six updates make of a model, and where each waited; senses move before 2 and 4."""
    task, model, criterion, optimizer = training(name, **{"reallocation_interval": 2, **flags})
    results = {}
    asked = []
    with RehearsedGpu() if on else nullcontext():
        if on:
            model = model.to(GPU)
            optimizer = PlainOptimizer(model)
        for update in range(6):
            sample = (make_text if name.endswith("_lm") else make_batch)((5 + update % 3, 5, 4))
            waits.clear()
            optimizer.optimizer.zero_grad()
            results[f"loss {update}"], *_ = task.train_step(
                tree_map(on_gpu, sample) if on else sample, model, criterion, optimizer, update
            )
            task.optimizer_step(optimizer, model=model, update_num=update)
            asked.append(ours())
        state = model.state_dict()
    return tree_map(values_of, {**state, **results}), asked


@pytest.mark.parametrize(("name", "flags"), CASES)
def test_trainings_are_those_on_the_cpu_and_wait_seldom(name: str, flags: dict[str, Any]) -> None:
    found, asked = updates(name, flags, on=True)
    expected, _ = updates(name, flags, on=False)
    for key, value in expected.items():
        # fairseq leaves the first uninitialized. Attention does not depend on the second, whose
        # gradients are rounding errors that Adam scales up
        if not key.endswith(("._float_tensor", "attn.k_proj.bias")):
            torch.testing.assert_close(found[key], value)
    always = EVERY_UPDATE if name in ("lstm", "gru", "lstm_luong") else set()
    for update in (1, 3, 5):
        sampling = SAMPLING if flags == CLUSTERS and update == 3 else set()
        assert asked[update] == always | sampling, update
    assert set().union(*asked) <= EVERY_UPDATE | SAMPLING | SELDOM


def test_a_checkpoint_is_loaded_onto_the_gpu() -> None:
    """A fresh model goes on as the saved one, with its sample of contexts."""
    parts = [training("transformer", **CLUSTERS), training("transformer", **CLUSTERS)]
    for update in range(3):
        parts[0][0].train_step(make_batch(), *parts[0][1:], update)
    state = parts[0][1].state_dict()
    assert state["decoder.output.sample_seen"].any()
    state = {name: value.clone() for name, value in state.items()}
    with RehearsedGpu():
        task, model, criterion, _ = parts[1]
        model = model.to(GPU)
        model.load_state_dict(tree_map(on_gpu, state))
        layer = model.decoder.output
        assert {v.device for v in (layer.table.senses, layer.inventory.pending)} == {GPU}
        waits.clear()
        batch = tree_map(on_gpu, make_batch(seed=2))
        loss, *_ = task.train_step(batch, model, criterion, PlainOptimizer(model), 3)
    assert ours() <= SAMPLING | SELDOM
    expected, *_ = parts[0][0].train_step(make_batch(seed=2), *parts[0][1:], 3)
    torch.testing.assert_close(values_of(loss), expected)
    samples = [each[1].decoder.output.sample for each in parts]
    torch.testing.assert_close(samples[0].state(), samples[1].state(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["transformer", "lstm", "fairseq_lstm"])
def test_a_beam_search_finds_the_same_and_waits_once(name: str) -> None:
    def beams(on: bool) -> list[Any]:
        task = make_task()
        batch = make_batch((7, 6, 4))
        model = make_model(name, task)
        found = []
        with RehearsedGpu() if on else nullcontext():
            if on:
                model = model.to(GPU)
                batch = tree_map(on_gpu, batch)
            search = SequenceGenerator([model], task.target_dictionary, beam_size=3, max_len_b=9)
            for round_ in range(2):
                waits.clear()
                hypotheses = search.generate([model], batch)
                found.append([(h["tokens"], h["score"]) for beam in hypotheses for h in beam])
                assert ours() <= EVERY_UPDATE | (set() if round_ else DECODING)
        return tree_map(values_of, found)

    torch.testing.assert_close(beams(True), beams(False))


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_contexts_for_clusters_are_sampled_on_the_gpu(name: str, monkeypatch: Patch) -> None:
    """As ``convert`` and ``senses`` do; sample, text and model are on the CPU at the end."""
    batch = {**make_batch((7, 6, 4)), "id": torch.arange(3)}
    monkeypatch.setattr(contexts, "batches", lambda *_, **__: [batch])

    def results(on: bool) -> list[Any]:
        task = make_task()
        model = make_model(name, task)
        dim = model.decoder.output.embed_dim
        counts = torch.full((len(task.target_dictionary),), 9)
        sample = context_sample.ContextSample(counts, dim, 9, 9999, special=4)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: on)
        with RehearsedGpu() if on else nullcontext():
            loss = contexts.loss_in_bits(model, task, "valid")
            steps = contexts.teacher_forced(model, task, "train")
            contexts.add_contexts(sample, steps, task.target_dictionary.pad())
            text = read_text(model, task, "train", extras=Extras(words=[5, 6, 7], guesses=True))
            of_words = contexts.contexts_of(model, task, "train", [5, 6, 7], 4)
            (step,) = contexts.teacher_forced(model, task, "train")
            assert step.contexts.is_cuda == on
            assert {value.device.type for value in model.state_dict().values()} == {"cpu"}
        read = torch.tensor(text.tokens.to_numpy()).float(), text.contexts, *of_words.values()
        return [torch.tensor(loss), *read, *sample.state().values()]

    torch.testing.assert_close(results(True), results(False))


LAYERS: dict[str, Any] = {
    **{name: lambda name=name: KerbsOutputLayer(8, 20, 50, kernel=name) for name in KERNELS},
    "biased": lambda: KerbsOutputLayer(8, 20, 50, biased=True),
    "softmax": lambda: SoftmaxOutputLayer(8, 20),
    "mixture": lambda: MixtureOutputLayer(8, 20, ["lin", "kerbs", "log"]),
    "mos": lambda: MixtureOutputLayer(8, 20, ["lin"] * 3, biases=True),
}


KINDS_AND_DTYPES = [
    *((kind, torch.float32) for kind in LAYERS),
    # every layer multiplies and widens numbers of these by the same code
    *itertools.product(("kerbs", "biased", "mos"), (torch.float16, torch.bfloat16)),
]


@pytest.mark.parametrize(("kind", "dtype"), KINDS_AND_DTYPES)
def test_a_layer_computes_the_same(kind: str, dtype: torch.dtype) -> None:
    def results(on: bool) -> list[Tensor]:
        torch.manual_seed(1)
        layer = LAYERS[kind]().to(dtype)
        h = torch.randn(30, 8).to(dtype).requires_grad_()
        target = torch.randint(20, (30,))
        with RehearsedGpu() if on else nullcontext():
            if on:
                layer = layer.to(GPU)
                target = on_gpu(target)
                h = on_gpu(h.detach()).requires_grad_()
            waits.clear()
            found = []
            for reduction in ("sum", "mean", "none"):
                for smoothing in (0.0, 0.1):
                    options = {"label_smoothing": smoothing, "ignore_index": 3}
                    found.append(layer.nll(h, target, reduction=reduction, **options))
                    found[-1].sum().backward()
            found += [*layer(h, target), layer.log_probs(h)]
            (found[-3].sum() + found[-2] + found[-1].sum()).backward()
            if hasattr(layer, "inventory"):
                found.append(layer.update_statistics(0.1))
            assert ours() <= {"senses/statistics.py:pending"}
            layer.eval()
            with torch.no_grad():
                found += [layer.log_probs(h), layer.predict(h), h.grad]
            found += [parameter.grad for parameter in layer.parameters()]
        return tree_map(lambda value: values_of(value).detach(), found)

    # seven gradients are added up in the dtype, and rounded each time
    rtol, atol = (5e-3, 1e-5) if dtype == torch.float16 else (None, None)
    found = results(True)
    torch.testing.assert_close(found, results(False), rtol=rtol, atol=atol, equal_nan=True)


def with_memory(monkeypatch: Patch, memory: int) -> None:
    properties = SimpleNamespace(total_memory=memory)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


def test_a_chunk_has_its_share_of_the_memory(monkeypatch: Patch) -> None:
    w = on_gpu(torch.empty(300, 8))
    for compiled, share in ((True, 16), (False, 96)):
        with_memory(monkeypatch, share * 4 * 300 * 640)
        assert [chunk_size(tokens, w, compiled) for tokens in (100, 640, 10_000)] == [128, 640, 640]
    h = on_gpu(torch.empty(25, 3, 8))
    p = on_gpu(torch.empty(25, 3))
    with_memory(monkeypatch, 96 * 4 * 3 * 20 * 10)
    with RehearsedGpu():
        parts = _chunks(Mixture(h, on_gpu(torch.empty(20, 8)), p, [], []))
    assert [len(part.contexts) for part in parts] == [10, 10, 5]


def test_the_self_check_computes_on_the_gpu(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    small = {**self_check.SIZES["small"], "dtype": "float32", "device": "cuda", "seed": 1}
    with RehearsedGpu():
        assert self_check._likelihood(small, compiled=False).right
        outcome = self_check._time(small)
    assert "times three products" in outcome.value


def test_the_benchmark_of_a_step_computes_on_the_gpu(monkeypatch: Patch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    model = {"dim": 32, "vocab": 1000, "senses_per_word": 2.0, "ffn": 64, "layers": 2, "heads": 2}
    inputs = {**model, "tokens": 500, "length": 23, "dtype": "float32", "device": "cuda", "seed": 1}
    names = ("kerbs", "softmax")
    with RehearsedGpu():
        how: Any = {"repetitions": 2, "device": "cuda", "memory": False}
        result = compare(entries("step", names, inputs), [names], **how)
    assert result["ratios"][0]["median"] > 0


def command(data: Path, folder: Path, flags: str, updates: int = 6) -> Command:
    """A training of fairseq's, on the GPU unless the flags say ``--cpu``."""
    arguments = [
        data,
        *USER_DIR,
        "--arch",
        "transformer_kerbs",
        *TINY["transformer_kerbs"],
        "--criterion",
        "kerbs_cross_entropy",
        "--optimizer",
        "adam",
        "--lr",
        3e-3,
        "--clip-norm",
        5.0,
        "--max-tokens",
        100,
        "--num-workers",
        0,
        "--no-epoch-checkpoints",
        "--reallocation",
        "paper",
        "--reallocation-interval",
        2,
        "--log-prob-threshold",
        -0.1,
        "--max-update",
        updates,
        "--log-interval",
        1,
        "--save-dir",
        folder,
        *flags.split(),
    ]
    prepare = {"tests.helpers.rehearsed_gpu:insert": f"{folder}.waits"}
    return Command("fairseq-train", arguments, prepare={} if "--cpu" in flags else prepare)


def trained(folder: Path) -> dict[str, Tensor]:
    model = torch.load(folder / "checkpoint_last.pt", weights_only=False)["model"]
    return {name: value for name, value in model.items() if not name.endswith("._float_tensor")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "same"),
    [
        ("", "--cpu"),
        ("--amp", "resumed"),
        ("--memory-efficient-fp16", "resumed"),
        ("--fp16", "--fp16 --fp16-no-flatten-grads"),  # moved rows in one flat copy, and by name
        ("--bf16", "--bf16 --fp16-no-flatten-grads"),
    ],
)
def test_fairseq_trains_on_the_gpu(flags: str, same: str, data: Path, tmp_path: Path) -> None:
    """Two trainings with moves of senses end with the same parameters."""
    folders = [tmp_path / "first", tmp_path / "second"]
    second = (flags, 3) if same == "resumed" else (same,)
    outputs = run_together(command(data, folders[0], flags), command(data, folders[1], *second))
    if same == "resumed":
        outputs += run_together(command(data, folders[1], flags))
    for status, output in outputs:
        assert status == 0, output
    log = outputs[0][1]
    assert len(re.findall(r"reallocation after \d+ updates: [1-9]\d* senses moved", log)) == 2
    assert bool(re.search(r" loss_scale=\d", log)) == ("fp16" in flags or "amp" in flags)
    # Adam makes whole steps of gradients that are 0 but for rounding
    limit = 1e-3 if same == "--cpu" else 0.0
    torch.testing.assert_close(*map(trained, folders), rtol=limit, atol=limit)
    lines = [json.loads(line) for line in Path(f"{folders[0]}.waits").read_text().splitlines()]
    for update, line in enumerate(lines):
        places = {place for place in line if not place.startswith("fairseq/")}
        assert places <= (SELDOM if update in (0, 2, 4) else set()), update
