"""Everything is made where the layer lies. On torch's device "meta", which has no values, most
operations refuse a tensor of the CPU among the others, and a question that would have to wait for a
GPU is an error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fairseq_kerbs.criterions import KerbsCrossEntropyCriterion
from fairseq_kerbs.kernels.prepared import PreparedSenses
from fairseq_kerbs.likelihood import chunks, mixture
from fairseq_kerbs.output_layers import KerbsOutputLayer, MixtureOutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.output_layers.composition import ComposedEmbedding
from fairseq_kerbs.output_layers.ranked_senses import RankedSenses
from fairseq_kerbs.senses import SenseTable
from fairseq_kerbs.training.sense_updates import OptimizerRows
from tests.helpers.fairseq_fixtures import dictionary

META = torch.device("meta")
LAYERS: dict[str, Callable[[], Any]] = {
    "kerbs": lambda: KerbsOutputLayer(8, 20, 50, biased=True),
    "released": lambda: KerbsOutputLayer(8, 20, 50, kernel="kerbs_released"),
    "rbf": lambda: KerbsOutputLayer(8, 20, 50, kernel="rbf"),
    "softmax": lambda: SoftmaxOutputLayer(8, 20),
    "mixture": lambda: MixtureOutputLayer(8, 20, ["lin", "kerbs", "log"]),
}


@pytest.fixture(autouse=True)
def _no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast knows no device "meta"; targets are looked at, on a GPU without waiting."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    for module in (chunks, mixture):
        monkeypatch.setattr(module, "check_words", lambda *_: None)


def on_meta(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    layer = LAYERS[kind]()
    table = layer.table
    layer = layer.to(META, dtype)
    if hasattr(layer, "inventory"):  # of which values are needed to build one
        layer.inventory._table = SenseTable(*(value.to(META) for value in table))
    return layer


def ranked_on_meta(layer: Any) -> RankedSenses:
    """What is prepared for decoding of a layer on the CPU, without its values."""
    ranked = RankedSenses.of(layer.weight, layer.senses)
    kernel, *values = ranked.senses
    senses = PreparedSenses(kernel, *(value.to(META) for value in values))
    return RankedSenses(senses, ranked.counts, ranked.rows.to(META), ranked.places.to(META))


@pytest.mark.parametrize("kind", list(LAYERS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_layer_trains_and_scores_on_its_device(kind: str, dtype: torch.dtype) -> None:
    layer = on_meta(kind, dtype)
    h = torch.randn(30, 8, device=META, dtype=dtype, requires_grad=True)
    target = torch.randint(20, (30,), device=META)
    for reduction in ("sum", "mean", "none"):
        layer.nll(h, target, label_smoothing=0.1, reduction=reduction).sum().backward()
    assert h.grad is not None
    assert all(p.grad is not None and p.grad.device == META for p in layer.parameters())
    layer(h, target).loss.backward()
    layer.log_probs(h).sum().backward()
    with torch.no_grad():
        layer.eval()
        if kind != "mixture":  # whose order of senses is of their values, once
            key, _ = layer._known(dtype)
            layer._prepared = key, ranked_on_meta(LAYERS[kind]().to(dtype))
        assert layer.log_probs(h).device == META
        assert layer.predict(h).device == META
    if hasattr(layer, "inventory"):
        assert layer.update_statistics(0.1).device == META


@pytest.mark.parametrize("kind", ["kerbs", "softmax"])
def test_words_are_composed_on_the_device_of_their_senses(kind: str) -> None:
    layer = on_meta(kind)
    embed = ComposedEmbedding(layer, 1, sense_bias=layer.biased)
    words = torch.zeros(4, 6, dtype=torch.long, device=META)
    features = torch.randn(4, 6, 8, device=META)
    for value in (embed(words), embed(words, features), embed.embed_sequence(words, features)):
        assert value.shape == (4, 6, embed.embedding_dim)
        assert value.device == META


@pytest.mark.parametrize("kind", ["kerbs", "mixture"])
def test_the_criterion_computes_where_its_features_are(kind: str) -> None:
    layer = on_meta(kind)
    features = torch.randn(4, 6, 8, device=META, requires_grad=True)
    target = torch.zeros(4, 6, dtype=torch.long, device=META)
    model = torch.nn.Module()
    model.decoder = torch.nn.Module()
    model.decoder.output = layer
    model.get_targets = lambda *_: target  # type: ignore[assignment]
    task = SimpleNamespace(target_dictionary=dictionary(20))
    rho = 0.1 if kind == "mixture" else 0.0
    criterion = KerbsCrossEntropyCriterion(task, False, 0.1, mixture_regularization=rho)
    for reduce in (True, False):
        loss, nll = criterion.compute_loss(model, (features,), {}, reduce)
        loss.sum().backward()
        assert loss.device == nll.device == META
    assert features.grad is not None


@pytest.mark.parametrize("new_vectors", [True, False])
def test_rows_of_an_optimizer_are_written_without_a_question(new_vectors: bool) -> None:
    """Rows of moments and master copies, by numbers and values that are on the CPU."""
    layer = on_meta("kerbs")
    masters = [torch.nn.Parameter(p.detach().clone()) for p in layer.parameters()]
    adam = torch.optim.Adam(masters, foreach=False)
    for master in masters:
        adam.state[master] = {"step": torch.tensor(1.0), "exp_avg": torch.empty_like(master)}
    fp16 = SimpleNamespace(
        optimizer=adam, fp16_params=list(layer.parameters()), fp32_params=masters
    )
    senses, values = torch.tensor([3, 25]), torch.randn(2, 8)
    for rows in (OptimizerRows(fp16), OptimizerRows(SimpleNamespace(optimizer=adam))):
        for parameter in layer.sense_parameters():
            rows.zero_moments(parameter, senses)
        if new_vectors:
            rows.set_master_rows(layer.weight, senses, values)
        rows.set_master_rows(layer.theta, senses, torch.full((2,), 1e-8))
