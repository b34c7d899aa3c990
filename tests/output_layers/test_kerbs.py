"""The KerBS layer: first values, dtypes, and what is prepared for decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import POLICIES
from fairseq_kerbs.reallocation.moves import Moves


def test_first_values_are_random_with_the_documented_spread() -> None:
    layer = KerbsOutputLayer(256, 1000, 3000)
    assert layer.weight.std().item() == pytest.approx(256**-0.5, rel=0.02)
    assert layer.theta.std().item() == pytest.approx(0.1, rel=0.1)
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
    moves = Moves.from_lists([4], [giver], [(giver + 1) % 3], [0.1])
    moves = replace(moves, vectors=torch.full((1, 4), 7.0))
    monkeypatch.setitem(POLICIES, "own", lambda *_: moves)
    layer.reallocate("own")
    assert layer.weight[4].tolist() == [7.0] * 4
