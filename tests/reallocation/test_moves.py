"""Moves of an output layer: optimizer's moments of moved senses, embeddings, and a resume."""

import copy
import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import (
    Moves,
    Policy,
    ReallocationSettings,
    SenseState,
    apply_moves,
    reset_moments,
)
from tests.helpers.policies import TurnedAlgorithm1

OPTIMIZERS: dict[str, Any] = {
    "adam": torch.optim.Adam,
    "amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "plain": torch.optim.SGD,
    "rprop": torch.optim.Rprop,
    "asgd": partial(torch.optim.ASGD, t0=0.0),
}
STATES = {"adam": 4, "amsgrad": 6, "momentum": 2, "plain": 0, "rprop": 4, "asgd": 2}
"""Number of states of W and θ with a row for each sense."""


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("policy", ["paper", "released"])
def test_moved_rows_begin_afresh_and_no_other(kind: str, policy: str) -> None:
    layer = KerbsOutputLayer(6, 20, 60)
    other = nn.Linear(6, 6)
    parameters = [*layer.parameters(), *other.parameters()]
    optimizer: torch.optim.Optimizer = OPTIMIZERS[kind](parameters, lr=1e-2)
    for _ in range(3):
        h = other(torch.randn(50, 6))
        optimizer.zero_grad()
        layer.nll(h, torch.randint(20, (50,)), reduction="mean").backward()
        optimizer.step()
        layer.update_statistics(1e-3)
    weight = layer.weight.detach().clone()
    theta = layer.theta.detach().clone()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    moves = layer.reallocate(policy, ReallocationSettings(log_prob_threshold=-25.0, max_moves=0.2))
    reset_moments(optimizer, layer.sense_parameters(), moves.senses)
    assert 0 < len(moves) < 60
    moved = torch.zeros(60, dtype=torch.bool)
    moved[moves.senses] = True
    assert torch.equal(layer.weight, weight)  # vectors stay
    assert torch.equal(layer.theta[~moved], theta[~moved])
    if policy == "paper":
        assert (layer.theta[moved] == 1e-8).all()  # of the kernel kerbs
    else:
        assert torch.equal(layer.theta, theta)
    after = optimizer.state_dict()["state"]
    seen = 0
    for number, parameter in enumerate(parameters):
        for name, old in before.get(number, {}).items():
            new = after[number][name]
            if number < 2 and torch.is_tensor(old) and old.shape == parameter.shape:
                begin = {"step_size": 1e-2, "ax": parameter.detach()[moved]}.get(name, 0.0)
                assert (new[moved] == torch.as_tensor(begin)).all()
                assert torch.equal(new[~moved], old[~moved])
                assert (old[moved] != torch.as_tensor(begin)).any()
                seen += 1
            elif torch.is_tensor(old):
                assert torch.equal(new, old)
    assert seen == STATES[kind]


def test_of_several_moves_of_a_sense_the_last_one_counts() -> None:
    layer = KerbsOutputLayer(4, 3, 6, sense_allocation="equal")
    senses = torch.tensor([5, 1, 5])
    vectors = torch.arange(12.0).view(3, 4)
    usage = torch.tensor([0.1, 0.2, 0.3])
    moves = Moves(senses, torch.tensor([2, 0, 0]), torch.tensor([0, 1, 1]), usage, vectors=vectors)
    written = apply_moves(layer.sense_state(), moves)
    assert layer.inventory.word_of_sense[[1, 5]].tolist() == [1, 1]
    assert layer.inventory.usage[[1, 5]].tolist() == pytest.approx([0.2, 0.3])
    assert torch.equal(layer.weight[[1, 5]], vectors[[1, 2]])
    # also for a copy of the parameter, into which all rows are written
    parameter, values = written[0]
    assert parameter is layer.weight
    assert values is not None
    assert torch.equal(values, vectors[[2, 1, 2]])


def test_a_move_that_cannot_be_made_changes_nothing() -> None:
    layer = KerbsOutputLayer(4, 3, 6)
    layer.inventory.interval_count.fill_(7.0)
    before = copy.deepcopy(layer.state_dict())
    senses = torch.arange(6)
    nowhere = Moves(senses, layer.inventory.word_of_sense.clone(), 0 * senses, torch.ones(6))
    with pytest.raises(ValueError, match="sense"):
        apply_moves(layer.sense_state(), nowhere)
    one = torch.tensor([int(layer.table.senses[layer.table.mask[:, 1]][0, 1])])
    good = Moves(one, layer.word_of_sense[one], layer.word_of_sense[one], torch.ones(1))
    changes: dict[str, Any] = {
        "usage": torch.ones(2),
        "words": torch.zeros(0, dtype=torch.long),
        "sources": torch.zeros(2, dtype=torch.long),
        "vectors": torch.zeros(1, 3),
    }
    for name, value in changes.items():
        with pytest.raises(ValueError, match=rf"`Moves.{name}` has shape .* it must be \(1,"):
            apply_moves(layer.sense_state(), dataclasses.replace(good, **{name: value}))
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


def step(layer: KerbsOutputLayer, optimizer: torch.optim.Optimizer, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    h = torch.randn(80, 6, generator=g)
    target = torch.randint(20, (80,), generator=g)
    layer.nll(h, target, reduction="mean").backward()
    optimizer.step()
    layer.update_statistics(1e-3)


@pytest.mark.parametrize("policy", ["paper", "released", TurnedAlgorithm1()])
def test_layers_write_the_new_vectors_and_go_on_after_a_resume(policy: str | Policy) -> None:
    settings = ReallocationSettings(log_prob_threshold=-25.0, max_moves=0.2)
    layer = KerbsOutputLayer(6, 20, 60)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for seed in range(4):
        step(layer, optimizer, seed)
    resumed = KerbsOutputLayer(6, 20, 60)
    other = torch.optim.Adam(resumed.parameters(), lr=0.05)
    resumed.load_state_dict(copy.deepcopy(layer.state_dict()))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    before = layer.weight.detach().clone()
    for one, adam in ((layer, optimizer), (resumed, other)):
        step(one, adam, 5)
        moves = one.reallocate(policy, settings)
    assert len(moves) > 0
    if isinstance(policy, str):
        assert moves.vectors is None
    else:
        torch.testing.assert_close(layer.weight[moves.senses], moves.vectors)
        assert (layer.weight - before)[moves.senses].abs().amax(1).min() > 0.01
    torch.testing.assert_close(layer.state_dict(), resumed.state_dict(), rtol=0, atol=0)


def test_senses_without_a_layer_have_the_inner_product_of_nothing() -> None:
    layer = KerbsOutputLayer(6, 5, 12)
    senses = SenseState.of_inventory(layer.inventory)
    assert senses.kernel.name == "lin"
    assert senses.weight.shape == (12, 0)
    assert senses.theta.tolist() == [0.0] * 12
