"""Vectors that moved senses begin with: keep, split."""

import copy
from functools import partial
from typing import Any

import pytest
import torch

from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import ReallocationSettings, reallocate
from fairseq_kerbs.reallocation.moves import SPLIT_SINE, Moves, leading_senses, new_vectors
from tests.reallocation import test_policies as policies

OWNERS = [0, 1, 2, 0, 1, 0]
inventory_of = partial(policies.inventory_of, OWNERS, 3, 3)


def moves_of(*pairs: tuple[int, int]) -> Moves:
    senses, words = [sense for sense, _ in pairs], [word for _, word in pairs]
    return Moves.from_lists(senses, [OWNERS[sense] for sense in senses], words, [0.0] * len(pairs))


def test_the_most_used_sense_is_that_of_the_interval_then_of_usage_then_the_first() -> None:
    words, usage = torch.tensor([0, 1, 2, 0]), [0.1, 0.2, 0.3, 0.9, 0.4, 0.5]
    interval = [2.0, 0.0, 0.0, 1.0, 0.0, 2.0]
    used = leading_senses(inventory_of(interval_usage=interval, usage=usage), words)
    assert used.tolist() == [5, 4, 2, 5]
    used = leading_senses(inventory_of(usage=[0.0] * 6), words)
    assert used.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_split_lies_beside_the_most_used_sense_and_never_changes(dtype: torch.dtype) -> None:
    inventory = inventory_of(interval_usage=[0.0, 1.0, 3.0, 5.0, 7.0, 2.0])
    weight = torch.randn(6, 50).to(dtype)
    weight[2] = 0.0  # a zero vector stays one
    moves = moves_of((5, 1), (0, 1), (4, 2))
    vectors: Any = new_vectors(inventory, weight, moves, "split")
    assert vectors.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    base = weight[4].to(vectors)
    for row in (0, 1):
        torch.testing.assert_close(vectors[row].norm(), base.norm())
        sine = (vectors[row] - (vectors[row] @ base) / (base @ base) * base).norm() / base.norm()
        assert sine.item() == pytest.approx(SPLIT_SINE, rel=1e-4)
    assert not vectors[0].allclose(vectors[1])  # two senses of one word go different ways
    assert not vectors[2].any()
    torch.manual_seed(99)  # no generator but the sense's own has a part in it
    again: Any = new_vectors(inventory, weight, moves, "split")
    assert torch.equal(vectors, again)
    one: Any = new_vectors(inventory, torch.full((6, 1), -2.0), moves, "split")
    assert one.flatten().tolist() == pytest.approx([-2.0 * (1 - SPLIT_SINE**2) ** 0.5] * 3)


def test_keep_and_errors() -> None:
    inventory, weight, moves = inventory_of(), torch.randn(6, 4), moves_of((5, 1))
    assert new_vectors(inventory, weight, moves, "keep") is None
    assert new_vectors(inventory, weight, moves_of(), "split") is None
    for build in (
        lambda: new_vectors(inventory, weight, moves, "fresh"),
        lambda: KerbsOutputLayer(4, 3, 6, new_sense="fresh"),
    ):
        with pytest.raises(ValueError, match=r"`new_sense`.*'fresh'.*keep, split"):
            build()
    with pytest.raises(ValueError, match=r"`policy`.*'often'.*paper, released"):
        reallocate(inventory, "often")
    with pytest.raises(ValueError, match="`sense_init`"):
        KerbsOutputLayer(8, 4, 8, sense_init="near")


def step(layer: KerbsOutputLayer, optimizer: torch.optim.Optimizer, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    h, target = torch.randn(80, 6, generator=g), torch.randint(20, (80,), generator=g)
    layer.nll(h, target, reduction="mean").backward()
    optimizer.step()
    layer.update_statistics(1e-3)


@pytest.mark.parametrize("how", ["keep", "split"])
@pytest.mark.parametrize("policy", ["paper", "released"])
def test_layers_write_the_new_vectors_and_go_on_after_a_resume(policy: str, how: str) -> None:
    settings = ReallocationSettings(log_prob_threshold=-25.0, max_moves=0.2)
    layer = KerbsOutputLayer(6, 20, 60, new_sense=how)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for seed in range(4):
        step(layer, optimizer, seed)
    resumed = KerbsOutputLayer(6, 20, 60, new_sense=how)
    other = torch.optim.Adam(resumed.parameters(), lr=0.05)
    resumed.load_state_dict(copy.deepcopy(layer.state_dict()))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    before = layer.weight.detach().clone()
    for one, adam in ((layer, optimizer), (resumed, other)):
        step(one, adam, 5)
        moves = one.reallocate(policy, settings)
    assert len(moves) > 0
    if how == "keep":
        assert moves.vectors is None
    else:
        torch.testing.assert_close(layer.weight[moves.senses], moves.vectors)
        assert (layer.weight - before)[moves.senses].abs().amax(1).min() > 0.01
    torch.testing.assert_close(layer.state_dict(), resumed.state_dict(), rtol=0, atol=0)
