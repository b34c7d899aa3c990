"""What every output layer has in common: forward, refused shapes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import fairseq_kerbs
from fairseq_kerbs.output_layers import (
    KerbsOutputLayer,
    MixtureOutputLayer,
    OutputLayer,
    SoftmaxOutputLayer,
    base,
)

LAYERS: dict[str, Callable[[], OutputLayer]] = {
    "softmax": lambda: SoftmaxOutputLayer(8, 30),
    "kerbs": lambda: KerbsOutputLayer(8, 30, 75),
    "mixture": lambda: MixtureOutputLayer(8, 30, ["lin", "kerbs"]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_forward_is_that_of_torchs_adaptive_softmax(name: str) -> None:
    layer = LAYERS[name]()
    stock = nn.AdaptiveLogSoftmaxWithLoss(8, 30, [10])
    h, target = torch.randn(20, 8, requires_grad=True), torch.randint(30, (20,))
    found, theirs = layer(h, target), stock(h, target)
    assert found._fields == theirs._fields
    assert [part.shape for part in found] == [part.shape for part in theirs]
    output, loss = found
    expected = layer.log_probs(h).gather(1, target.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(loss, layer.nll(h, target, reduction="mean"))
    weight = torch.randn(20)  # both parts have gradients
    for ours, right in ((loss, -expected.mean()), (output @ weight, expected @ weight)):
        gradients = (torch.autograd.grad(part, h, retain_graph=True)[0] for part in (ours, right))
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    few = target.clone()
    few[4:] = -100
    output, loss = layer(h.view(4, 5, 8), few.view(4, 5))
    assert not output.flatten()[4:].any()
    torch.testing.assert_close(loss, -expected[:4].mean())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", [(10, 4), (2, 5, 16), ()])
def test_vectors_of_another_size_are_refused(name: str, shape: tuple[int, ...]) -> None:
    layer, h = LAYERS[name](), torch.randn(shape)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: layer(h, torch.tensor([3])), lambda: layer.log_probs(h), lambda: layer.predict(h)
    )  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError, match=r"`h` has shape .* last dimension must be 8"):
            call()


def test_words_are_predicted_a_few_positions_at_a_time() -> None:
    layer, h = LAYERS["kerbs"](), torch.randn(4, 5, 8)
    expected, few = layer.log_probs(h).argmax(-1), mock.patch.object(base, "PREDICTED_SCORES", 150)
    with few, mock.patch.object(layer, "log_probs", wraps=layer.log_probs) as scored:
        assert torch.equal(layer.predict(h), expected)
    assert [len(call.args[0]) for call in scored.call_args_list] == [5] * 4


def test_layers_of_one_vector_a_word_have_one_sense_of_each() -> None:
    for name in ("softmax", "mixture"):
        layer = LAYERS[name]()
        words = torch.tensor([[3, 7]])
        found = layer.look_up(words)
        assert torch.equal(found.rows.squeeze(2), layer.weight[words])
        assert found.prior.tolist() == [[[1.0], [1.0]]]
        assert layer.posterior(found, torch.randn(1, 2, 8)).tolist() == [[[1.0], [1.0]]]
        assert layer.senses_per_word().tolist() == [1] * 30
        assert float(layer.usage.sum()) == pytest.approx(1.0)
        assert not layer.log_prob.any()
        assert not hasattr(layer, "inventory")


def example(number: int) -> dict[str, Any]:
    """The names that an example of fairseq_kerbs/README.md has made; the first one imports."""
    text = (Path(fairseq_kerbs.__file__).parent / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    torch.manual_seed(1)
    exec(blocks[0].split("\n\n")[0], names)
    exec(blocks[number], names)
    return names


def test_the_training_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = example(0)
    assert 2.1 < names["perplexity"] < 2.6  # 100 by chance, 2.18 by the noise alone
    assert 0.88 < names["accuracy"] < 0.92  # 0.9 are no noise
    layer = names["layer"]
    assert not layer.inventory.interval_count.any()  # reallocation began a new interval
    printed = capsys.readouterr().out
    moved = [int(number) for number in re.findall(r"(\d+) senses moved", printed)]
    assert len(moved) == 5
    assert moved[0] > moved[-1]


def test_the_trainer_of_hugging_face_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    monkeypatch.chdir(tmp_path)
    names = example(1)
    model, ids = names["model"], names["ids"]
    printed = capsys.readouterr().out
    assert "tensor([[ 5,  8, 11, 14, 17, 20, 23]])" in printed
    moved = [int(number) for number in re.findall(r"(\d+) senses moved", printed)]
    assert len(moved) == 4
    assert sum(moved) > 0
    layer = model.lm_head
    assert layer.usage.std() > 0  # statistics were updated
    with torch.no_grad():
        assert model(ids[:64], labels=ids[:64])["loss"] < 0.2  # log 50 = 3.9 by chance
        torch.testing.assert_close(
            model(ids[:4]).logits, layer.log_probs(model.base_model(ids[:4]).last_hidden_state)
        )


@pytest.mark.parametrize("name", LAYERS)
def test_all_of_a_layer_is_made_on_the_default_device(name: str) -> None:
    with torch.device("meta"):
        layer = LAYERS[name]()
    assert {parameter.device.type for parameter in layer.parameters()} == {"meta"}
