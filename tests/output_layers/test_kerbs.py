"""Output layers as a user of plain PyTorch meets them."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_kerbs.kernels import kernel_logits
from fairseq_kerbs.output_layers import KerbsOutputLayer, OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.reallocation import POLICIES
from fairseq_kerbs.reallocation.moves import Moves


def make(name: str, dim: int = 8, vocab_size: int = 30, total: int = 75) -> OutputLayer:
    if name == "softmax":
        return SoftmaxOutputLayer(dim, vocab_size)
    return KerbsOutputLayer(dim, vocab_size, total, kernel=name)


LAYERS = ["softmax", "kerbs", "kerbs_released", "lin"]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0), (2, 3)])
def test_scores_of_any_number_of_contexts(shape: tuple[int, ...]) -> None:
    """One context without a batch, none at all; with gradient and without the same."""
    layer = KerbsOutputLayer(5, 7, 14)
    h = torch.randn(*shape, 5, requires_grad=True)
    scores = layer.log_probs(h)
    assert scores.shape == (*shape, 7)
    with torch.no_grad():
        torch.testing.assert_close(layer.log_probs(h), scores)
    scores.sum().backward()
    assert h.grad is not None


@pytest.mark.parametrize("name", LAYERS)
def test_log_probs_nll_and_predict_agree(name: str) -> None:
    layer = make(name).eval()
    h, target = torch.randn(4, 5, 8), torch.randint(30, (4, 5))
    target[1, 2] = 7
    log_probs = layer.log_probs(h)
    assert log_probs.shape == (4, 5, 30)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(4, 5), rtol=0.0, atol=1e-5)
    each = layer.nll(h, target, reduction="none", ignore_index=7)
    expected = F.nll_loss(
        log_probs.view(20, 30), target.view(20), reduction="none", ignore_index=7
    ).view(4, 5)
    torch.testing.assert_close(each, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.nll(h, target, ignore_index=7), expected.sum())
    counted = (target != 7).sum()
    torch.testing.assert_close(
        layer.nll(h, target, reduction="mean", ignore_index=7), expected.sum() / counted
    )
    assert torch.equal(layer.predict(h), log_probs.argmax(-1))
    assert layer.predict(h[0, 0]).shape == ()
    # gradients of both ways to the same loss
    ours = torch.autograd.grad(layer.nll(h, target), layer.weight)[0]
    slow = torch.autograd.grad(
        F.nll_loss(layer.log_probs(h).view(20, 30), target.view(20), reduction="sum"), layer.weight
    )[0]
    torch.testing.assert_close(ours, slow, rtol=1e-4, atol=1e-4 * slow.abs().max().item())


def test_softmax_layer_is_plain_softmax() -> None:
    layer = SoftmaxOutputLayer(8, 30)
    h, target = torch.randn(6, 8), torch.randint(30, (6,))
    logits = h @ layer.weight.t()
    torch.testing.assert_close(layer.log_probs(h), logits.log_softmax(-1))
    torch.testing.assert_close(
        layer.nll(h, target), F.cross_entropy(logits, target, reduction="sum")
    )
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert layer.weight.shape == (30, 8)


def test_temperature_on_the_context_vector_is_temperature_on_the_logits() -> None:
    layer = make("kerbs")
    h = torch.randn(5, 8)
    own = layer.word_of_sense
    senses = (kernel_logits(h, layer.weight, layer.theta) / 0.4).softmax(-1)
    words = torch.zeros(5, 30).index_add_(1, own, senses.detach())
    torch.testing.assert_close(layer.log_probs(h / 0.4).exp(), words, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_copies_and_checkpoints_give_the_same_numbers(name: str) -> None:
    layer = make(name)
    h, target = torch.randn(12, 8), torch.randint(30, (12,))
    layer.nll(h, target).backward()
    if isinstance(layer, KerbsOutputLayer):
        layer.update_statistics(0.1)
    loaded = make(name)
    loaded.load_state_dict(layer.state_dict())
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded):
        assert torch.equal(twin.log_probs(h), layer.log_probs(h))
        assert torch.equal(twin.nll(h, target), layer.nll(h, target))
        assert torch.equal(twin.usage, layer.usage)
        with torch.no_grad():
            twin.weight.zero_()
        assert layer.weight.any()
    with pytest.raises(RuntimeError, match="size mismatch"):
        make(name, vocab_size=31, total=80).load_state_dict(layer.state_dict())


def test_first_values_are_random_with_the_documented_spread() -> None:
    layer = KerbsOutputLayer(256, 1000, 3000)
    assert layer.weight.std().item() == pytest.approx(256**-0.5, rel=0.02)
    assert layer.theta.std().item() == pytest.approx(0.1, rel=0.1)
    assert isinstance(layer.theta, nn.Parameter)
    assert layer.sense_parameters() == [layer.weight, layer.theta]
    released = KerbsOutputLayer(16, 1000, 3000, kernel="kerbs_released")
    assert released.theta.mean().item() == pytest.approx(-1.0, abs=0.02)
    inner = KerbsOutputLayer(8, 30, 75, kernel="lin")
    assert inner.sense_parameters() == [inner.weight]
    assert not inner.theta.any()


def test_statistics_are_recorded_while_training_only() -> None:
    layer = KerbsOutputLayer(8, 30, 75)
    h, target = torch.randn(9, 8), torch.randint(30, (9,))
    layer.eval()
    layer.nll(h, target)
    assert layer.update_statistics(0.1).item() == 0
    layer.train()
    target[:4] = 3
    layer.nll(h, target, ignore_index=3)
    expected = int((target != 3).sum())
    assert layer.update_statistics(0.1).item() == expected
    assert layer.inventory.log_prob[3] == 0
    assert (layer.inventory.log_prob < 0).sum() == len(set(target.tolist()) - {3})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_modules(dtype: torch.dtype) -> None:
    layer = KerbsOutputLayer(8, 30, 75).to(dtype)
    h, target = torch.randn(20, 8, dtype=dtype, requires_grad=True), torch.randint(30, (20,))
    log_probs = layer.log_probs(h)
    assert log_probs.dtype == torch.float32
    assert (log_probs.exp().sum(-1) - 1).abs().max() <= 1e-5
    loss = layer.nll(h, target, label_smoothing=0.1)
    assert loss.dtype == torch.float32
    loss.backward()
    for value in (h, layer.weight, layer.theta):
        assert value.grad is not None
        assert value.grad.dtype == dtype
        assert torch.isfinite(value.grad).all()
    assert layer.usage.dtype == torch.float32
    assert layer.update_statistics(1e-3) == 20
    wide = KerbsOutputLayer(8, 30, 75).eval()
    wide.load_state_dict(layer.eval().state_dict())
    with torch.no_grad():
        scores = layer.log_probs(h)
    assert scores.dtype == torch.float32
    assert (scores.exp().sum(-1) - 1).abs().max() <= 1e-5
    torch.testing.assert_close(scores, wide.log_probs(h.float()).detach(), rtol=0.02, atol=0.05)


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
    layer = KerbsOutputLayer(6, 12, 30).eval()
    h = torch.randn(3, 2, 6)

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


def test_a_layer_that_has_scored_can_be_copied_and_pickled() -> None:
    layer = KerbsOutputLayer(6, 12, 30).eval()
    h, _ = torch.randn(4, 6), layer.table
    fresh = len(pickle.dumps(layer))
    with torch.no_grad():
        expected = layer.log_probs(h)
        assert len(pickle.dumps(layer)) == fresh  # what is prepared stays behind
        twin = copy.deepcopy(layer)
        again = pickle.loads(pickle.dumps(layer))
        twin.weight.mul_(2.0)
        assert torch.equal(layer.log_probs(h), expected)
        assert torch.equal(again.log_probs(h), expected)
        assert not torch.allclose(twin.log_probs(h), expected)


def test_what_is_prepared_for_decoding_is_of_the_products_dtype() -> None:
    layer, h = KerbsOutputLayer(8, 20, 50).eval(), torch.randn(30, 8)
    with torch.no_grad():
        plain = layer.log_probs(h)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not torch.equal(layer.log_probs(h), plain)
        assert torch.equal(layer.log_probs(h), plain)


def test_embeddings_that_a_policy_computes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = KerbsOutputLayer(4, 3, 5, max_senses=3, new_sense="split")
    giver = int(layer.word_of_sense[4])
    moves = Moves.from_lists([4], [giver], [(giver + 1) % 3], [0.1])
    moves = replace(moves, vectors=torch.full((1, 4), 7.0))
    monkeypatch.setitem(POLICIES, "own", lambda *_: moves)
    layer.reallocate("own")
    assert layer.weight[4].tolist() == [7.0] * 4
