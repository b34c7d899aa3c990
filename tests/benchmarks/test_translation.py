"""The models and batches that steps and decoding are measured on."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fairseq_kerbs.benchmarks.translation import (
    MODELS,
    decode_workload,
    make_batch,
    set_up,
    step_workload,
)
from scripts.benchmark import BENCHMARKS

SIZES: dict[str, Any] = {"dim": 16, "vocab": 60, "senses_per_word": 2.0}
SIZES |= {"ffn": 24, "layers": 1, "heads": 2}
HERE: dict[str, Any] = {"dtype": "float32", "device": "cpu", "seed": 1}


def parameters(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


def test_models_differ_in_the_output_layer_alone() -> None:
    models = {name: set_up(name, SIZES, "cpu", 1)[2] for name in MODELS if "smooth" not in name}
    assert parameters(models["softmax"]) == parameters(models["stock"])
    extra = 60 * SIZES["dim"] + 2 * 60  # further rows of W, and θ
    assert parameters(models["kerbs"]) == parameters(models["softmax"]) + extra
    assert parameters(models["kerbs-lstm"]) == parameters(models["softmax-lstm"]) + extra
    decoder = models["stock"].decoder
    assert decoder.output_projection.weight is decoder.embed_tokens.weight
    assert models["kerbs-lstm"].decoder.embed_tokens.posterior


def test_batches_have_sentences_of_words() -> None:
    _, task, _ = set_up("stock", SIZES, "cpu", 1)
    batch = make_batch(task, 1, 43)
    target = batch["target"]
    assert batch["ntokens"] == int(target.ne(1).sum())
    assert 20 < batch["ntokens"] / 43 < 26
    assert int(target[target.ne(1) & target.ne(2)].min()) >= 4  # words, no other specials
    assert int(target.eq(2).sum()) == len(target) == 43
    assert int(target.max()) < SIZES["vocab"]


@pytest.mark.parametrize("name", BENCHMARKS["step"][1])
def test_a_step_trains(name: str) -> None:
    workload = step_workload(name, tokens=100, **HERE, **SIZES)
    losses = [float(workload.run() or 0.0) for _ in range(3)]
    assert workload.amount == pytest.approx(100, abs=20)
    # bits by token of an untrained model, then lower: the update was made
    assert losses[0] == pytest.approx(math.log2(SIZES["vocab"]), rel=0.5)
    assert losses[2] != losses[0]


@pytest.mark.parametrize("name", BENCHMARKS["decode"][1])
def test_decoding_takes_the_steps_asked_for(name: str) -> None:
    workload = decode_workload(name, batch=3, beam=2, steps=6, **HERE, **SIZES)
    workload.run()  # raises where a hypothesis has another length
    assert (workload.amount, workload.unit) == (3, "sentence")
