"""The training hook: once per update, moments of moved rows, master copies, statistics."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch

from fairseq_kerbs import clusters
from fairseq_kerbs.criterions import KerbsCrossEntropyCriterion
from fairseq_kerbs.reallocation.clusters import spare_senses
from tests.helpers.fairseq_fixtures import make_batch, make_model, make_task

FLAGS: dict[str, Any] = {
    "reallocation_interval": 2,
    "log_prob_threshold": -0.01,
    "sense_decay": 0.01,
}


class PlainOptimizer:
    """As much of fairseq's optimizer wrapper as the hook and the task ask for."""

    def __init__(self, model: Any, lr: float = 1e-3) -> None:
        self.optimizer = torch.optim.Adam(model.parameters(), lr)

    def step(self) -> None:
        self.optimizer.step()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


def training(
    name: str = "transformer", task: Any = None, **flags: Any
) -> tuple[Any, Any, Any, Any]:
    """Task, model in training mode, criterion and optimizer."""
    task = task or make_task(model=name)
    model = make_model(name, task, **(FLAGS | flags)).train()
    criterion = KerbsCrossEntropyCriterion(task, False, 0.0)
    return task, model, criterion, PlainOptimizer(model)


def one_update(parts: tuple[Any, Any, Any, Any], update: int, batches: int = 1) -> None:
    """One parameter update on ``batches`` micro-batches, as fairseq's trainer makes it."""
    task, model, criterion, optimizer = parts
    optimizer.optimizer.zero_grad()
    for number in range(batches):
        sample = make_batch(seed=10 * update + number)
        task.train_step(sample, model, criterion, optimizer, update)
    task.optimizer_step(optimizer, model=model, update_num=update)


def move(parts: tuple[Any, Any, Any, Any], updates: int) -> None:
    """What the hook does when the next update begins."""
    task, model, _, optimizer = parts
    task._kerbs_updates.before_update(optimizer, model, updates)


@pytest.mark.parametrize("name", ["transformer", "lstm"])
@pytest.mark.parametrize(("batches", "policy"), [(1, "paper"), (3, "paper"), (1, "none")])
def test_senses_move_once_every_interval(
    name: str, batches: int, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """But for --reallocation none, and with statistics in any case."""
    parts, moments = training(name, reallocation=policy), (2, 4) if policy == "paper" else ()
    inventory = parts[1].decoder.output.inventory
    with caplog.at_level(logging.INFO):
        for update in range(6):
            before = inventory.word_of_sense.clone()
            one_update(parts, update, batches)
            assert torch.equal(inventory.word_of_sense, before) == (update not in moments), update
            assert int(inventory.senses_per_word().min()) >= 1
            assert int(inventory.senses_per_word().max()) <= 4
    assert re.findall(r"after (\d+) updates", caplog.text) == [*map(str, moments)]
    assert float(inventory.log_prob.min()) < -1.0


def test_checkpoints_of_another_policy_are_taken() -> None:
    flags: dict[str, Any] = {"sense_bias": True, "reallocation": "paper"}
    saved, model = make_model("lstm", **flags), make_model("lstm", reallocation="clusters")
    owners = saved.decoder.output.inventory.word_of_sense
    owners.copy_(owners.roll(3))
    saved.decoder.output.start_sampling()
    model.load_state_dict(saved.state_dict())  # by way of check_checkpoint
    assert torch.equal(model.decoder.output.inventory.word_of_sense, owners)
    assert model.decoder.output.sample is not None


@pytest.mark.parametrize("owner", [10**9, -5, 2.5])
def test_senses_without_a_word_are_refused(owner: float) -> None:
    """A billion must not become the length of a count."""
    model = make_model("lstm")
    state, name = model.state_dict(), "decoder.output.inventory.word_of_sense"
    owners = state[name].clone().to(torch.tensor(owner).dtype)
    owners[0] = owner
    with pytest.raises(SystemExit, match="senses do not fit"):
        model.load_state_dict(state | {name: owners})


def test_a_dummy_batch_and_a_repeated_update_do_not_count() -> None:
    parts = training(reallocation="clusters")
    task, model, criterion, optimizer = parts
    inventory = model.decoder.output.inventory
    task.train_step(make_batch(), model, criterion, optimizer, 0, ignore_grad=True)
    sample = model.decoder.output.sample
    assert inventory.pending.abs().sum() == sample.seen.sum() == 0
    one_update(parts, 0)
    counted = float(inventory.interval_count.sum())
    assert sample.seen.sum() == counted > 0
    one_update(parts, 0)  # mixed precision repeats an update that overflowed
    assert float(inventory.interval_count.sum()) == sample.seen.sum() == counted
    assert inventory.pending.abs().sum() == 0


def test_an_overflow_leaves_nothing_in_the_statistics() -> None:
    task, model, _, optimizer = training()
    layer = model.decoder.output
    batch = make_batch()
    features, _ = model(**batch["net_input"])
    broken = features.detach().clone()
    broken[1, 2] = torch.inf  # float16's range is passed in one position
    layer.nll(broken, batch["target"], ignore_index=1)
    task.optimizer_step(optimizer, model=model, update_num=0)
    for name, value in layer.inventory.state_dict().items():
        assert value.isfinite().all(), name
    assert float(layer.inventory.interval_count.sum()) == batch["ntokens"] - 1


def test_a_second_model_of_the_task_does_not_stack_hooks_and_brings_its_own_schedule() -> None:
    task = make_task()
    make_model("transformer", task, reallocation="none")
    step = task.optimizer_step
    parts = training(task=task)
    model = parts[1]
    assert task.optimizer_step is step
    before = model.decoder.output.inventory.word_of_sense.clone()
    for update in range(3):
        one_update(parts, update)
    assert (model.decoder.output.inventory.word_of_sense != before).any()


@pytest.mark.parametrize(
    ("policy", "length", "said"),
    [("clusters", 2, True), ("clusters", 3, False), ("clusters", 0, False), ("paper", 2, False)],
)
def test_a_training_too_short_for_clusters_is_told(
    policy: str, length: int, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    task, model, *_ = training(reallocation=policy)
    task._kerbs_updates.check(model, length)
    assert ("places no sense before update 2" in caplog.text) == said
    caplog.clear()
    task._kerbs_updates.check(make_model("lstm", output_layer="softmax"), length)
    assert not caplog.text


def test_contexts_are_sampled_in_the_interval_before_senses_are_placed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clusters, "LEAST_CONTEXTS", 6)
    monkeypatch.setattr(clusters, "CONTEXTS_A_SENSE", 3)
    parts = training(reallocation="clusters", reallocation_at=[0.5, 0.8], max_update=10)
    layer, optimizer = parts[1].decoder.output, parts[3].optimizer
    sampled = []
    for update in range(10):
        if update == 5:
            before = layer.weight.detach().clone()
            move(parts, update)
            placed = (layer.weight.detach() - before).any(1)
            for moment in ("exp_avg", "exp_avg_sq"):
                state = optimizer.state[layer.weight][moment]
                assert not state[placed].any()
                assert state[~placed].any()
        one_update(parts, update, batches=8)
        sampled.append(layer.sample is not None)
    # after updates 3, 4 and 6, 7: two updates before the senses are placed after 5 and 8
    assert sampled == [False, False, False, True, True, False, True, True, False, False]
    spare = spare_senses(layer.weight.detach(), layer.word_of_sense, layer.vocab_size)
    assert placed.any()
    assert not spare.all()
    assert (~spare).sum() > layer.vocab_size


def test_nothing_is_placed_where_every_word_has_one_sense() -> None:
    parts = training(reallocation="clusters", reallocation_at=[2], total_senses=1.0)
    for update in range(4):
        one_update(parts, update)
        assert parts[1].decoder.output.sample is None


@pytest.mark.parametrize(("flags", "moments"), [
    ({"reallocation": "clusters", "max_update": 1000}, {200}),
    ({"reallocation": "clusters"}, {2}),  # after the first interval
    ({"reallocation": "clusters", "reallocation_at": [7.0, 0.5], "max_update": 40}, {7, 20}),
    ({"reallocation": "paper", "max_update": 1000}, set()),  # every interval
])  # fmt: skip
def test_when_senses_move(flags: dict[str, Any], moments: set[int]) -> None:
    task = training(**flags)[0]
    assert task._kerbs_updates.schedule.at == moments


def test_a_new_training_forgets_the_interval_of_the_model_that_it_begins_from() -> None:
    parts = training()
    inventory = parts[1].decoder.output.inventory
    inventory.interval_count.fill_(7.0)
    one_update(parts, 0, batches=2)
    counted = float(inventory.interval_count.sum())
    assert counted == sum(make_batch(seed=seed)["ntokens"] for seed in range(2))
    one_update(parts, 1)
    assert float(inventory.interval_count.sum()) > counted


def test_no_memory_for_moves_is_no_batch_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = training()
    for update in range(2):
        one_update(parts, update)

    def reallocate(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(parts[1].decoder.output, "propose_moves", reallocate)
    with pytest.raises(MemoryError, match="no memory left to move senses"):
        move(parts, 2)


def test_missing_statistics_are_said(caplog: pytest.LogCaptureFixture) -> None:
    parts = task, model, _, optimizer = training()
    for update in range(2):
        task.optimizer_step(optimizer, model=model, update_num=update)
    move(parts, 2)
    assert "--criterion kerbs_cross_entropy" in caplog.text
