"""What is prepared for decoding is prepared anew after every kind of change."""

import copy
import weakref

import pytest
import torch
from torch import Tensor, nn

from fairseq_kerbs.output_layers.base import OutputLayer
from fairseq_kerbs.output_layers.prepared_cache import PreparedCache
from tests.helpers.output_layers import LAYERS, make


def test_a_cache_holds_until_a_value_or_a_dtype_changes() -> None:
    layer = nn.Linear(3, 2)
    cache = PreparedCache()
    assert cache.get(layer, torch.float32) is None
    cache.put(layer, torch.float32, "prepared")
    assert cache.get(layer, torch.float32) == "prepared"
    assert cache.get(layer, torch.float64) is None
    with torch.autocast("cpu", torch.bfloat16):
        assert cache.get(layer, torch.float32) is None
    with torch.no_grad():
        layer.bias.add_(1.0)
    assert cache.get(layer, torch.float32) is None
    cache.put(layer, torch.float32, "prepared again")
    cache.clear()
    assert cache.get(layer, torch.float32) is None


def test_copies_of_a_layer_share_nothing() -> None:
    layer = make("kerbs").eval()
    h = torch.randn(3, 8)
    with torch.no_grad():
        layer.log_probs(h)
        assert layer._cache.get(layer, h.dtype) is not None
        replica = layer._replicate_for_data_parallel()
        for other in (copy.copy(layer), copy.deepcopy(layer), replica):
            assert other._cache.get(layer, h.dtype) is None


@pytest.mark.parametrize("name", LAYERS)
def test_scores_of_other_weights_of_the_same_module(name: str) -> None:
    """Memory that is given back goes to the next weights, with the same address."""
    layer = make(name, 60).eval()
    given = {name: value.detach() for name, value in layer.named_parameters()}
    h = torch.randn(2, 8)
    found = []
    expected = []
    with torch.no_grad():
        for factor in (0.1, 0.5, 1.0, 2.0, 3.0):
            weights = {f"layer.{name}": factor * value for name, value in given.items()}
            found.append(torch.func.functional_call(Scored(layer), weights, (h,)))
            del weights
        for factor in (0.1, 0.5, 1.0, 2.0, 3.0):
            other = copy.deepcopy(layer)
            for parameter in other.parameters():
                parameter.mul_(factor)
            expected.append(other.log_probs(h))
    torch.testing.assert_close(found, expected)


class Scored(nn.Module):
    """A model whose output are log-probabilities."""

    def __init__(self, layer: OutputLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, h: Tensor) -> Tensor:
        return self.layer.log_probs(h)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("loss", ["nll", "log_probs"])
def test_scores_between_the_steps_of_an_optimizer_that_writes_data(name: str, loss: str) -> None:
    """In evaluation mode, as a model without dropout may be trained."""
    layer = make(name).eval()
    h, target = torch.randn(6, 8), torch.randint(30, (6,))
    for _ in range(3):
        layer.zero_grad()
        if loss == "nll":
            layer.nll(h, target).backward()
        else:
            layer.log_probs(h).gather(1, target.unsqueeze(1)).sum().neg().backward()
        for parameter in layer.parameters():
            if parameter.grad is not None:  # the version of .data is not that of the parameter
                parameter.data.sub_(parameter.grad, alpha=0.1)
        with torch.no_grad():
            scores = layer.log_probs(h)
            torch.testing.assert_close(layer.log_probs(h), scores)
        torch.testing.assert_close(scores, layer.log_probs(h).detach())


@pytest.mark.parametrize("name", LAYERS)
def test_kept_scores_keep_no_graph_and_no_parameters_alive(name: str) -> None:
    layer = make(name).eval()
    weights = {f"layer.{key}": 2.0 * value for key, value in layer.named_parameters()}
    memory = [weakref.ref(value) for value in weights.values()]
    with torch.no_grad():
        torch.func.functional_call(Scored(layer), weights, (torch.randn(2, 8),))
    del weights
    assert not any(reference() is not None for reference in memory)
