"""Output layers as a user of plain PyTorch meets them."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fairseq_kerbs.output_layers import KerbsOutputLayer, OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.reallocation import POLICIES
from fairseq_kerbs.reallocation.moves import Moves


def make(name: str, dim: int = 8, vocab_size: int = 30, total: int = 75) -> OutputLayer:
    if name == "softmax":
        return SoftmaxOutputLayer(dim, vocab_size)
    return KerbsOutputLayer(dim, vocab_size, total, kernel=name)


LAYERS = ["softmax", "kerbs", "kerbs_released", "lin"]


@pytest.mark.parametrize("name", LAYERS)
def test_log_probs_nll_and_predict_agree(name: str) -> None:
    layer = make(name).eval()
    h, target = torch.randn(4, 5, 8), torch.randint(30, (4, 5))
    target[1, 2] = 7
    log_probs = layer.log_probs(h)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(4, 5), rtol=0.0, atol=1e-5)
    if name == "softmax":
        assert [key for key, _ in layer.named_parameters()] == ["weight"]
        torch.testing.assert_close(log_probs, (h @ layer.weight.t()).log_softmax(-1))
    expected = -log_probs.gather(2, target.unsqueeze(2)).squeeze(2) * target.ne(7)
    each = layer.nll(h, target, reduction="none", ignore_index=7)
    torch.testing.assert_close(each, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.nll(h, target, ignore_index=7), expected.sum())
    assert torch.equal(layer.predict(h), log_probs.argmax(-1))
    assert layer.predict(h[0, 0]).shape == ()


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
