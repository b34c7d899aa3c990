"""The training hook: once per update, moments of moved rows, statistics."""

import logging
import re
from collections import Counter
from typing import Any

import pytest
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from torch import Tensor

from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import (
    POLICIES,
    AuthorsCode,
    Policy,
    context_sample,
    kmeans,
)
from fairseq_kerbs.reallocation.clusters import spare_senses
from fairseq_kerbs.senses import checksum_of
from fairseq_kerbs.training import sense_updates
from tests.helpers.cli import Log, Patch
from tests.helpers.fairseq_fixtures import make_batch, make_model, make_task
from tests.helpers.hook_updates import Parts, move, one_update, training
from tests.helpers.policies import TurnedAuthorsCode


@pytest.mark.parametrize("name", ["transformer", "lstm"])
@pytest.mark.parametrize(("batches", "policy"), [(1, "paper"), (3, "paper"), (1, "none")])
def test_senses_move_once_an_interval(name: str, batches: int, policy: str, caplog: Log) -> None:
    """But for --reallocation none, and with statistics in any case."""
    parts = training(name, reallocation=policy)
    moments = (2, 4) if policy == "paper" else ()
    inventory = parts[1].decoder.output.inventory
    with caplog.at_level(logging.INFO):
        for update in range(6):
            before = inventory.word_of_sense.clone()
            one_update(parts, update, batches)
            assert torch.equal(inventory.word_of_sense, before) == (update not in moments), update
            counts = parts[1].decoder.output.senses_per_word()
            assert 1 <= int(counts.min()) <= int(counts.max()) <= 4
    assert re.findall(r"after (\d+) updates", caplog.text) == [*map(str, moments)]
    assert float(inventory.log_prob.min()) < -1.0


def moments_of(parts: Parts) -> list[torch.Tensor]:
    """Adam's moments of sense embeddings and of θ."""
    state = parts[3].optimizer.state
    layer = parts[1].decoder.output
    names = ("exp_avg", "exp_avg_sq")
    return [state[value][name].clone() for value in layer.sense_parameters() for name in names]


@pytest.mark.parametrize("policy", [AuthorsCode, TurnedAuthorsCode])
def test_the_released_policy_keeps_moments_and_restarts_its_sums(
    policy: type[Policy], monkeypatch: Patch
) -> None:
    """As the released code does. Moments of an embedding that a policy replaces restart."""
    monkeypatch.setitem(POLICIES, policy.name, policy)
    parts = training(reallocation=policy.name, max_moves=0.5)
    layer = parts[1].decoder.output
    for update in range(2):
        one_update(parts, update)
    before = moments_of(parts)
    theta = layer.theta.detach().clone()
    owners = layer.inventory.word_of_sense.clone()
    assert layer.inventory.interval_joint.any()
    move(parts, 2)
    moved = owners != layer.inventory.word_of_sense
    assert moved.any()
    assert not layer.inventory.interval_joint.any()
    assert torch.equal(layer.theta, theta)
    for number, (old, new) in enumerate(zip(before, moments_of(parts), strict=True)):
        restarted = policy is TurnedAuthorsCode and number < 2
        assert torch.equal(new[~moved], old[~moved])
        assert new[moved].any() != restarted
        assert restarted or torch.equal(new, old)


def test_the_sums_of_the_interval_restart_if_no_sense_can_move() -> None:
    parts = training(reallocation="released", total_senses=1.0)
    for update in range(2):
        one_update(parts, update)
    inventory = parts[1].decoder.output.inventory
    assert inventory.interval_count.any()
    move(parts, 2)
    assert not inventory.interval_count.any()


def test_checkpoints_of_another_policy_are_taken() -> None:
    flags: dict[str, Any] = {"sense_bias": True, "reallocation": "paper"}
    saved = make_model("lstm", **flags)
    model = make_model("lstm", reallocation="clusters")
    inventory = saved.decoder.output.inventory
    owners = inventory.word_of_sense.roll(3)
    inventory.move(torch.arange(len(owners)), owners)
    saved.decoder.output.start_sampling()
    model.load_state_dict(saved.state_dict())  # by way of check_output_layer
    assert torch.equal(model.decoder.output.inventory.word_of_sense, owners)
    assert model.decoder.output.sample is not None


def test_an_allocation_in_real_numbers_is_taken() -> None:
    """As a program that averages checkpoints writes it."""
    model = make_model("lstm")
    state = model.state_dict()
    name = "decoder.output.inventory.word_of_sense"
    owners = state[name].clone()
    model.load_state_dict(state | {name: owners.double()})
    assert torch.equal(model.decoder.output.inventory.word_of_sense, owners)


@pytest.mark.parametrize("owner", [10**9, -5, 2.5])
def test_senses_without_a_word_are_refused(owner: float) -> None:
    """A billion must not become the length of a count."""
    model = make_model("lstm")
    state = model.state_dict()
    name = "decoder.output.inventory.word_of_sense"
    owners = state[name].clone().to(torch.tensor(owner).dtype)
    owners[0] = owner
    with pytest.raises(SystemExit, match="is damaged"):
        model.load_state_dict(state | {name: owners})
    checksum = {"decoder.output.inventory.checksum": checksum_of(owners)}
    said = "an average of checkpoints" if owner == 2.5 else "senses do not fit"
    with pytest.raises(SystemExit, match=said):
        model.load_state_dict(state | {name: owners} | checksum)


def averaged(*states: dict[str, Tensor]) -> dict[str, Tensor]:
    """As fairseq's scripts/average_checkpoints.py does: whole numbers are divided as such."""
    average = {}
    for key, first in states[0].items():
        total = sum((state[key] for state in states[1:]), first.clone())
        whole = not first.is_floating_point()
        average[key] = total // len(states) if whole else total / len(states)
    return average


@pytest.mark.parametrize("count", [2, 3, 10])
def test_averages_between_which_a_sense_moved_are_refused(count: int) -> None:
    """Also where the averaged allocation is a valid one, with at most --max-senses a word."""
    models = [make_model("lstm", seed=seed) for seed in range(count)]
    inventories = [model.decoder.output.inventory for model in models]
    owners = inventories[0].word_of_sense
    for inventory in inventories:
        inventory.move(torch.arange(len(owners)), owners)
    model = make_model("lstm")
    mean = averaged(*(model.state_dict() for model in models))
    model.load_state_dict(mean)
    weight = model.decoder.output.weight
    torch.testing.assert_close(weight, mean["decoder.output.weight"], rtol=0, atol=0)
    in_float = averaged(*({k: v.float() for k, v in m.state_dict().items()} for m in models))
    model.load_state_dict({k: v.to(mean[k].dtype) for k, v in in_float.items()})
    assert torch.equal(model.decoder.output.word_of_sense, owners)

    # in every second one a sense has moved to the word two further on
    counts = owners.bincount()
    giver = int((counts[:-2] > 1).logical_and(counts[2:] < 4).nonzero()[0])
    sense = (owners == giver).nonzero()[0]
    for inventory in inventories[1::2]:
        inventory.move(sense, torch.tensor([giver + 2]))
    mean = averaged(*(model.state_dict() for model in models))
    with pytest.raises(SystemExit, match="an average of checkpoints between which senses moved"):
        model.load_state_dict(mean)


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


@pytest.mark.parametrize("case", [("clusters", 2), ("clusters", 3), ("clusters", 0), ("paper", 2)])
def test_a_training_too_short_for_clusters_is_told(case: tuple[str, int], caplog: Log) -> None:
    policy, length = case
    task, model, *_ = training(reallocation=policy)
    task._kerbs_updates.check(model, length)
    assert ("moves no sense before update 2" in caplog.text) == (case == ("clusters", 2))
    caplog.clear()
    task._kerbs_updates.check(make_model("lstm", output_layer="softmax"), length)
    assert not caplog.text


def test_contexts_are_sampled_in_the_interval_before_a_placement(monkeypatch: Patch) -> None:
    monkeypatch.setattr(context_sample, "LEAST_CONTEXTS", 6)
    monkeypatch.setattr(kmeans, "CONTEXTS_A_SENSE", 3)
    parts = training(reallocation="clusters", reallocation_at=[0.5, 0.8], max_update=10)
    layer = parts[1].decoder.output
    special = parts[0].target_dictionary.nspecial
    optimizer = parts[3].optimizer
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
        if layer.sample is not None:
            assert not layer.sample.size[:special].any()
            assert layer.sample.size[special:].all()
    # after updates 3, 4 and 6, 7: two updates before the senses are placed after 5 and 8
    assert sampled == [False, False, False, True, True, False, True, True, False, False]
    spare = spare_senses(layer.weight.detach(), layer.usage, layer.word_of_sense, layer.vocab_size)
    assert placed.any()
    assert not spare.all()
    assert (~spare).sum() > layer.vocab_size


def test_contexts_of_rare_words_are_not_sampled() -> None:
    task = make_task()
    task.target_dictionary.count[4:] = [3, *[100] * 18]
    parts = training(task=task, reallocation="clusters")
    one_update(parts, 0)
    assert parts[1].decoder.output.sample.size.tolist() == [0, 0, 0, 0, 0, *[100] * 18]


def test_another_process_than_the_first_samples_nothing(monkeypatch: Patch) -> None:
    parts = training(reallocation="clusters")
    monkeypatch.setattr(distributed_utils, "get_global_rank", lambda: 1)
    one_update(parts, 0)
    assert parts[1].decoder.output.sample is None


def test_no_sense_to_place_is_said(caplog: Log) -> None:
    """Of two updates, in which no word has 40 contexts."""
    parts = training(reallocation="clusters")
    for update in range(3):
        one_update(parts, update)
    assert "reallocation after 2 updates: no word receives a second sense" in caplog.text


def test_nothing_is_placed_where_every_word_has_one_sense() -> None:
    parts = training(reallocation="clusters", reallocation_at=[2], total_senses=1.0)
    for update in range(4):
        one_update(parts, update)
        assert parts[1].decoder.output.sample is None


@pytest.mark.parametrize(
    ("flags", "moments"),
    [
        ({"reallocation": "clusters", "max_update": 1000}, {200}),
        ({"reallocation": "clusters"}, {2}),  # after the first interval
        ({"reallocation": "clusters", "reallocation_at": [7.0, 0.5], "max_update": 40}, {7, 20}),
        ({"reallocation": "paper", "max_update": 1000}, set()),  # every interval
    ],
)
def test_when_senses_move(flags: dict[str, Any], moments: set[int]) -> None:
    assert training(**flags)[0]._kerbs_updates.schedule.at == moments


def test_a_new_training_forgets_the_interval_of_the_model_that_it_begins_from() -> None:
    parts = training()
    inventory = parts[1].decoder.output.inventory
    inventory.interval_count.fill_(7.0)
    inventory.log_prob.fill_(-1e6)
    usage = inventory.usage.clone()
    parts[0]._kerbs_updates.before_update(parts[3], parts[1], 0)
    assert not inventory.log_prob.any()
    assert torch.equal(inventory.usage, usage)  # the prior of the composition
    one_update(parts, 0, batches=2)
    counted = float(inventory.interval_count.sum())
    assert counted == sum(make_batch(seed=seed)["ntokens"] for seed in range(2))
    one_update(parts, 1)
    assert float(inventory.interval_count.sum()) > counted


def test_the_logged_theta_is_at_most_an_interval_old() -> None:
    """Also where senses move once, or never."""
    parts = training(reallocation="none", reallocation_interval=3)
    layer = parts[1].decoder.output
    logged = []
    for update in range(8):
        with torch.no_grad():
            layer.theta.fill_(0.1 * update)
        with metrics.aggregate(new_root=True) as values:
            parts[0]._kerbs_updates.after_update(parts[1], update)
        logged.append(values["theta_q50"].avg)
    expected = layer.kernel.theta_of(torch.tensor([0.0, 0.3, 0.6])).repeat_interleave(3)[:8]
    assert logged == pytest.approx(expected.tolist(), abs=1e-3)


def test_logged_numbers_of_senses_are_those_after_a_move() -> None:
    """Also where the next interval is not over."""
    parts = training(reallocation_at=[3], reallocation_interval=4)
    found = []
    for update in range(4):
        with metrics.aggregate(new_root=True) as values:
            one_update(parts, update)
        found.append([values[f"words_with_{n}"].avg for n in (1, 2, 3, 4)])
    owners = parts[1].decoder.output.word_of_sense
    of_word = Counter(owners.tolist())
    words = Counter(of_word.values())
    assert found[3] == [words[n] for n in (1, 2, 3, 4)]
    assert found[0] == found[1] == found[2] != found[3]


def test_words_are_counted_by_their_number_of_senses() -> None:
    layer = KerbsOutputLayer(5, 6, 11)
    layer.inventory.move(torch.arange(11), torch.tensor([0, 1, 2, 3, 3, 4, 4, 5, 5, 5, 5]))
    found = sense_updates.summarize(layer)
    assert [found[f"words_with_{n}"] for n in (1, 2, 3, 4)] == [3, 2, 0, 1]


def test_quantiles_of_theta() -> None:
    layer = KerbsOutputLayer(5, 10, 21)
    with torch.no_grad():
        layer.theta.copy_(torch.linspace(0, 2, 21)[torch.randperm(21)])
    found = sense_updates.summarize(layer)
    quantiles = [found[f"theta_q{name}"] for name in ("05", "50", "95")]
    assert quantiles == pytest.approx([0.1, 1.0, 1.9])


def test_a_new_training_forgets_the_contexts_of_the_model_that_it_begins_from() -> None:
    parts = training(reallocation="clusters")
    layer = parts[1].decoder.output
    layer.start_sampling()
    layer.sample.add(torch.tensor([5]), torch.ones(1, layer.sample.dim))
    one_update(parts, 0)
    assert layer.sample.seen.sum() == make_batch(seed=0)["ntokens"]


def test_no_memory_for_moves_is_no_batch_to_skip(monkeypatch: Patch) -> None:
    parts = training()
    for update in range(2):
        one_update(parts, update)

    def without_memory(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(sense_updates, "propose_moves", without_memory)
    with pytest.raises(MemoryError, match="no memory left to move senses"):
        move(parts, 2)


def test_missing_statistics_are_said(caplog: Log) -> None:
    parts = task, model, _, optimizer = training()
    for update in range(2):
        task.optimizer_step(optimizer, model=model, update_num=update)
    move(parts, 2)
    assert "--criterion kerbs_cross_entropy" in caplog.text
