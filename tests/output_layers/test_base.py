"""What every output layer has in common."""

import copy
import pickle
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from fairseq_kerbs.likelihood.compilation import SWITCH
from fairseq_kerbs.output_layers import KerbsOutputLayer, base
from tests.helpers.cli import Patch
from tests.helpers.output_layers import LAYERS, make
from tests.helpers.synchronization import no_synchronization


@pytest.mark.parametrize("name", LAYERS)
def test_log_probs_nll_predict_and_forward_agree(name: str) -> None:
    """Forward has the results of torch's adaptive softmax."""
    layer, stock = make(name).eval(), nn.AdaptiveLogSoftmaxWithLoss(8, 30, [10])
    h, target = torch.randn(4, 5, 8, requires_grad=True), torch.randint(30, (4, 5))
    target[1, 2] = 7
    log_probs = layer.log_probs(h)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(4, 5), rtol=0.0, atol=1e-5)
    if name == "softmax":
        assert [key for key, _ in layer.named_parameters()] == ["weight"]
        torch.testing.assert_close(log_probs, (h @ layer.weight.t()).log_softmax(-1))
    expected = log_probs.gather(2, target.unsqueeze(2)).squeeze(2)
    counted, each = expected * target.ne(7), layer.nll(h, target, reduction="none", ignore_index=7)
    torch.testing.assert_close(each, -counted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.nll(h, target, ignore_index=7), -counted.sum())
    assert torch.equal(layer.predict(h), log_probs.argmax(-1))
    assert layer.predict(h[0, 0]).shape == ()
    found, theirs = (one(h.view(20, 8), target.view(20)) for one in (layer, stock))
    assert found._fields == theirs._fields
    assert [part.shape for part in found] == [part.shape for part in theirs]
    output, loss = layer(h, target)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(loss, layer.nll(h, target, reduction="mean"))
    weight = torch.randn(4, 5)  # both parts have gradients
    for ours, right in ((loss, -expected.mean()), ((output * weight).sum(), expected * weight)):
        gradients = (torch.autograd.grad(v.sum(), h, retain_graph=True)[0] for v in (ours, right))
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    target[1:] = -100
    output, loss = layer(h, target)
    assert not output[1:].any()
    torch.testing.assert_close(loss, -expected[0].mean())


@pytest.mark.parametrize("name", LAYERS)
def test_copies_and_checkpoints_give_the_same_numbers(name: str) -> None:
    """Also of a layer that has scored: what is prepared stays behind."""
    layer, loaded = make(name), make(name).eval()
    h, target = torch.randn(12, 8), torch.randint(30, (12,))
    layer.nll(h, target).backward()
    if isinstance(layer, KerbsOutputLayer):
        layer.update_statistics(0.1)
    loaded.load_state_dict(layer.eval().state_dict())
    fresh = len(pickle.dumps(layer))
    with torch.no_grad():
        expected = layer.log_probs(h)
        assert len(pickle.dumps(layer)) == fresh
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
            assert torch.equal(twin.log_probs(h), expected)
            assert torch.equal(twin.nll(h, target), layer.nll(h, target))
            assert torch.equal(twin.usage, layer.usage)
            twin.weight.zero_()
            assert not torch.equal(twin.log_probs(h), expected)
            assert torch.equal(layer.log_probs(h), expected)
    with pytest.raises(RuntimeError, match="size mismatch"):
        make(name, 31).load_state_dict(layer.state_dict())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", [(10, 4), (2, 5, 16), ()])
def test_vectors_of_another_size_are_refused(name: str, shape: tuple[int, ...]) -> None:
    layer = make(name)
    for call in (lambda h: layer(h, torch.tensor([3])), layer.log_probs, layer.predict):
        with pytest.raises(ValueError, match=r"`h` has shape .* last dimension must be 8"):
            call(torch.randn(shape))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_is_made_in_inference_mode_scores(name: str) -> None:
    """Its tensors have no version counters."""
    h = torch.randn(3, 8)
    with torch.inference_mode():
        layer = make(name).eval()
        scores = layer.log_probs(h)
        assert torch.equal(layer.predict(h), scores.argmax(-1))
    with torch.no_grad():
        torch.testing.assert_close(layer.log_probs(h), scores)


def test_words_are_predicted_a_few_positions_at_a_time() -> None:
    layer, h = make("kerbs"), torch.randn(4, 5, 8)
    expected, few = layer.log_probs(h).argmax(-1), mock.patch.object(base, "PREDICTED_SCORES", 150)
    with few, mock.patch.object(layer, "log_probs", wraps=layer.log_probs) as scored:
        assert torch.equal(layer.predict(h), expected)
    assert [len(call.args[0]) for call in scored.call_args_list] == [5] * 4


def test_layers_of_one_vector_a_word_have_one_sense_of_each() -> None:
    for name in ("softmax", "mixture"):
        layer, words = make(name), torch.tensor([[3, 7]])
        found = layer.look_up(words)
        assert torch.equal(found.rows.squeeze(2), layer.weight[words])
        assert found.prior.tolist() == [[[1.0], [1.0]]]
        assert layer.posterior(found, torch.randn(1, 2, 8)).tolist() == [[[1.0], [1.0]]]
        assert layer.senses_per_word().tolist() == [1] * 30
        assert float(layer.usage.sum()) == pytest.approx(1.0)
        assert not layer.log_prob.any()
        assert not hasattr(layer, "inventory")


@pytest.mark.parametrize("name", LAYERS)
def test_all_of_a_layer_is_made_on_the_default_device(name: str) -> None:
    with torch.device("meta"):
        layer = make(name)
    assert {parameter.device.type for parameter in layer.parameters()} == {"meta"}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_was_made_without_memory(name: str) -> None:
    """As libraries make models that they load, and FSDP2 models that it divides."""
    source = make(name)
    h, target = torch.randn(5, 8), torch.tensor([0, 3, 29, 1, 1])
    for assign in (False, True):
        with torch.device("meta"):
            layer = make(name)
        if not assign:
            layer.to_empty(device="cpu")
        layer.load_state_dict(source.state_dict(), assign=assign)
        loss = layer.nll(h, target)
        torch.testing.assert_close(loss, source.nll(h, target))
        loss.backward()
        torch.testing.assert_close(layer.log_probs(h), source.log_probs(h))
    with torch.device("meta"):
        layer = make(name)
    layer.to_empty(device="cpu")
    for module in layer.modules():
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
    assert layer.nll(h, target).isfinite()
    assert layer.theta.isfinite().all()
    assert layer.senses_per_word().min() >= 1


@pytest.mark.parametrize("name", LAYERS)
def test_torch_jit_is_refused_in_one_sentence_and_compile_works(name: str) -> None:
    """Also in a model of which the layer is a part; torch.compile is what the sentence advises."""
    layer = make(name).eval()
    model = nn.ModuleDict({"body": nn.Linear(8, 8), "head": layer})
    refusal = f"a model with {type(layer).__name__}, .*: use torch.compile"
    with pytest.raises(TypeError, match=refusal):
        torch.jit.script(layer)
    with pytest.raises(TypeError, match=refusal):
        torch.jit.script(model)
    h = torch.randn(5, 8)
    with pytest.raises(TypeError, match=refusal):
        torch.jit.trace_module(layer, {"log_probs": (h,)})
    compiled = torch.compile(layer.log_probs, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(h), layer.log_probs(h))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", ["0", "1"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_step_on_a_gpu_does_not_synchronize(name: str, compiled: str, monkeypatch: Patch) -> None:
    """But for the first one, which compiles, and brings the statistics to the GPU."""
    monkeypatch.setenv(SWITCH, compiled)
    layer = make(name).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    h = torch.randn(40, 8, device="cuda", requires_grad=True)
    target = torch.randint(30, (40,), device="cuda")

    def train() -> None:
        for reduction in ("sum", "none"):
            optimizer.zero_grad()
            settings: Any = {"reduction": reduction, "label_smoothing": 0.1, "ignore_index": 3}
            layer.nll(h, target, **settings).sum().backward()
            optimizer.step()
            if isinstance(layer, KerbsOutputLayer):
                layer.update_statistics(1e-4)

    train()
    with no_synchronization():
        train()
    layer.eval()
    with torch.no_grad():
        layer.log_probs(h)  # senses are sorted once a model
        with no_synchronization():
            layer.log_probs(h)
            layer.predict(h)
    with pytest.raises(RuntimeError, match="synchroniz"), no_synchronization():
        h.sum().item()
