"""What every output layer has in common, and the KerBS layer: first values, what is prepared."""

import copy
import pickle
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import fairseq_kerbs
from fairseq_kerbs.output_layers import KerbsOutputLayer, MixtureOutputLayer, base
from fairseq_kerbs.output_layers.base import OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.reallocation import POLICIES
from fairseq_kerbs.reallocation.moves import Moves
from tests.helpers.cli import Capsys, Patch

LAYERS = ["softmax", "mixture", "mos", "kerbs", "kerbs_released", "lin"]


def make(name: str, words: int = 30) -> OutputLayer:
    if name == "softmax":
        return SoftmaxOutputLayer(8, words)
    if name == "mixture":
        return MixtureOutputLayer(8, words, ["lin", "kerbs"])
    if name == "mos":
        layer: Any = MixtureOutputLayer(8, words, ["lin"] * 3, biases=True)
        nn.init.normal_(layer.bias)
        return layer
    return KerbsOutputLayer(8, words, 75, kernel=name)


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


def example(number: int, capsys: Capsys) -> tuple[dict[str, Any], str, list[int]]:
    """What an example of fairseq_kerbs/README.md made and printed, and how many senses it moved."""
    text = (Path(fairseq_kerbs.__file__).parent / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    torch.manual_seed(1)
    exec(blocks[0].split("\n\n")[0], names)
    exec(blocks[number], names)
    printed = capsys.readouterr().out
    return names, printed, [int(number) for number in re.findall(r"(\d+) senses moved", printed)]


def test_the_training_of_the_readme_runs(capsys: Capsys) -> None:
    names, _, moved = example(0, capsys)
    assert 2.1 < names["perplexity"] < 2.6  # 100 by chance, 2.18 by the noise alone
    assert 0.88 < names["accuracy"] < 0.92  # 0.9 are no noise
    # reallocation began a new interval
    assert not names["layer"].inventory.interval_count.any()
    assert len(moved) == 5
    assert moved[0] > moved[-1]


def test_the_hugging_face_trainer_runs(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    monkeypatch.chdir(tmp_path)
    names, printed, moved = example(1, capsys)
    model, ids = names["model"], names["ids"]
    assert "tensor([[ 5,  8, 11, 14, 17, 20, 23]])" in printed
    assert len(moved) == 4
    assert sum(moved) > 0
    layer = model.lm_head
    assert layer.usage.std() > 0  # statistics were updated
    with torch.no_grad():
        assert model(ids[:64], labels=ids[:64])["loss"] < 0.2  # log 50 = 3.9 by chance
        contexts = model.base_model(ids[:4]).last_hidden_state
        torch.testing.assert_close(model(ids[:4]).logits, layer.log_probs(contexts))


@pytest.mark.parametrize("name", LAYERS)
def test_all_of_a_layer_is_made_on_the_default_device(name: str) -> None:
    with torch.device("meta"):
        layer = make(name)
    assert {parameter.device.type for parameter in layer.parameters()} == {"meta"}


def test_first_values_are_random_with_the_documented_spread() -> None:
    layer = KerbsOutputLayer(256, 1000, 3000)
    assert layer.weight.std().item() == pytest.approx(256**-0.5, rel=0.02)
    assert layer.theta.std().item() == pytest.approx(0.1, rel=0.1)
    assert layer.sense_parameters() == [layer.weight, layer.theta]
    released = KerbsOutputLayer(16, 1000, 3000, kernel="kerbs_released")
    assert not released.theta.any()  # θ = e^0 = 1
    assert (released.kernel.theta_of(released.theta) == 1.0).all()
    inner = KerbsOutputLayer(8, 30, 75, kernel="lin")
    assert inner.sense_parameters() == [inner.weight]
    assert not inner.theta.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_modules(dtype: torch.dtype) -> None:
    layer, wide = KerbsOutputLayer(8, 30, 75).to(dtype), KerbsOutputLayer(8, 30, 75).eval()
    h, target = torch.randn(20, 8, dtype=dtype), torch.randint(30, (20,))
    layer.nll(h, target)
    assert layer.update_statistics(1e-3) == 20
    wide.load_state_dict(layer.eval().state_dict())
    with torch.no_grad():
        scores, right = layer.log_probs(h), wide.log_probs(h.float())
    assert scores.dtype == layer.usage.dtype == torch.float32
    assert (scores.exp().sum(-1) - 1).abs().max() <= 1e-5
    torch.testing.assert_close(scores, right, rtol=0.02, atol=0.05)


def test_shared_senses_begin_near_each_other_and_random_ones_do_not() -> None:
    cosines = {}
    for sense_init in ("random", "shared"):
        layer = KerbsOutputLayer(256, 40, 120, sense_init=sense_init)
        senses, mask = layer.table[:2]
        first = layer.weight[senses[:, 0]].unsqueeze(1)  # [V, 1, d]
        others = torch.cosine_similarity(layer.weight[senses], first, dim=-1)[:, 1:][mask[:, 1:]]
        cosines[sense_init] = others
        lengths = layer.weight.detach().norm(dim=1)
        longer = 0.95 + (1 - 0.95**2) ** 0.5 if sense_init == "shared" else 1.0
        assert float(lengths[:40].mean()) == pytest.approx(longer, rel=0.05)
        assert float(lengths[40:].mean()) == pytest.approx(1.0, rel=0.05)
    assert float(cosines["random"].abs().max()) < 0.4
    assert float(cosines["shared"].min()) > 0.8
    assert float(cosines["shared"].max()) < 0.999


def test_scores_follow_every_change_of_the_senses() -> None:
    """What is prepared for decoding must not outlive the weights it was prepared from."""
    layer, h = KerbsOutputLayer(6, 12, 30).eval(), torch.randn(3, 2, 6)

    def posterior() -> Tensor:
        found = layer.look_up(torch.arange(6).view(3, 2))
        with torch.no_grad():
            fast = layer.posterior(found, h)
        torch.testing.assert_close(fast, layer.posterior(found, h).detach(), rtol=1e-4, atol=1e-5)
        return fast

    def scores() -> Tensor:
        posterior()  # from what is left of earlier scores, if it still holds
        with torch.no_grad():
            fast = layer.log_probs(h)
        posterior()
        torch.testing.assert_close(fast, layer.log_probs(h).detach(), rtol=1e-5, atol=1e-5)
        return fast

    before = scores()
    assert torch.equal(scores(), before)  # from what was prepared
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.equal(layer.log_probs(h), before)
    assert torch.equal(scores(), before)  # what is prepared is of the dtype of products
    with torch.no_grad():
        layer.weight.mul_(1.5)
    assert not torch.allclose(scores(), before)
    with torch.no_grad():
        layer.theta.add_(1.0)
    scores()
    layer.inventory.move(torch.tensor([29]), torch.tensor([0]))
    scores()
    layer.load_state_dict({k: v * 2 if "weight" in k else v for k, v in layer.state_dict().items()})
    scores()
    for scored_while_training in (False, True):
        layer.train()
        layer.weight.data.mul_(0.5)  # as optimizers do, unseen by version counters
        if scored_while_training:
            scores()
        layer.eval()
        scores()
    h = h.double()
    scores()
    layer.double()
    scores()


def test_embeddings_that_a_policy_computes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = KerbsOutputLayer(4, 3, 5, max_senses=3, new_sense="split")
    giver = int(layer.word_of_sense[4])
    sense, source, word = torch.tensor([[4], [giver], [(giver + 1) % 3]])
    moves = Moves(sense, source, word, torch.tensor([0.1]), vectors=torch.full((1, 4), 7.0))
    monkeypatch.setitem(POLICIES, "own", lambda *_: moves)
    layer.reallocate("own")
    assert layer.weight[4].tolist() == [7.0] * 4
