"""The training hook: once per update, moments of moved rows, statistics; and the criterion."""

import logging
import math
import re
from typing import Any

import pytest
import torch
from fairseq import metrics
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

from fairseq_kerbs import clusters
from fairseq_kerbs.criterions import KerbsCrossEntropyCriterion, output_layer_of
from fairseq_kerbs.reallocation.clusters import spare_senses
from tests.helpers.cli import Log, Patch
from tests.helpers.fairseq_fixtures import MODELS, make_batch, make_model, make_task

FLAGS = {"reallocation_interval": 2, "log_prob_threshold": -0.01, "sense_decay": 0.01}


Parts = tuple[Any, Any, Any, Any]  # task, model in training mode, criterion and optimizer


class PlainOptimizer:
    """As much of fairseq's optimizer wrapper as the hook and the task ask for."""

    def __init__(self, model: Any, lr: float = 1e-3) -> None:
        self.optimizer = torch.optim.Adam(model.parameters(), lr)

    def step(self) -> None:
        self.optimizer.step()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


def training(name: str = "transformer", task: Any = None, **flags: Any) -> Parts:
    task = task or make_task(model=name)
    common = dict(FLAGS)
    if flags.get("reallocation", "paper") != "paper":
        del common["log_prob_threshold"]  # Algorithm 1 alone reads it
    model = make_model(name, task, **(common | flags)).train()
    return task, model, KerbsCrossEntropyCriterion(task, False, 0.0), PlainOptimizer(model)


def one_update(parts: Parts, update: int, batches: int = 1) -> None:
    """One parameter update on ``batches`` micro-batches, as fairseq's trainer makes it."""
    task, model, criterion, optimizer = parts
    optimizer.optimizer.zero_grad()
    for number in range(batches):
        task.train_step(make_batch(seed=10 * update + number), model, criterion, optimizer, update)
    task.optimizer_step(optimizer, model=model, update_num=update)


def move(parts: Parts, updates: int) -> None:
    """What the hook does when the next update begins."""
    task, model, _, optimizer = parts
    task._kerbs_updates.before_update(optimizer, model, updates)


@pytest.mark.parametrize("name", ["transformer", "lstm"])
@pytest.mark.parametrize(("batches", "policy"), [(1, "paper"), (3, "paper"), (1, "none")])
def test_senses_move_once_an_interval(name: str, batches: int, policy: str, caplog: Log) -> None:
    """But for --reallocation none, and with statistics in any case."""
    parts, moments = training(name, reallocation=policy), (2, 4) if policy == "paper" else ()
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
    state, layer = parts[3].optimizer.state, parts[1].decoder.output
    names = ("exp_avg", "exp_avg_sq")
    return [state[value][name].clone() for value in layer.sense_parameters() for name in names]


@pytest.mark.parametrize("new_sense", ["keep", "split"])
def test_the_released_policy_keeps_moments_and_restarts_its_sums(new_sense: str) -> None:
    """As the released code does. With split, which is ours, embeddings are new."""
    parts = training(reallocation="released", max_moves=0.5, new_sense=new_sense)
    layer = parts[1].decoder.output
    for update in range(2):
        one_update(parts, update)
    before, theta = moments_of(parts), layer.theta.detach().clone()
    owners = layer.inventory.word_of_sense.clone()
    assert layer.inventory.interval_joint.any()
    move(parts, 2)
    moved = owners != layer.inventory.word_of_sense
    assert moved.any()
    assert not layer.inventory.interval_joint.any()
    assert torch.equal(layer.theta, theta)
    for number, (old, new) in enumerate(zip(before, moments_of(parts), strict=True)):
        restarted = new_sense == "split" and number < 2
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
    layer, batch = model.decoder.output, make_batch()
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
    step, parts = task.optimizer_step, training(task=task)
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
    assert ("places no sense before update 2" in caplog.text) == (case == ("clusters", 2))
    caplog.clear()
    task._kerbs_updates.check(make_model("lstm", output_layer="softmax"), length)
    assert not caplog.text


def test_contexts_are_sampled_in_the_interval_before_a_placement(monkeypatch: Patch) -> None:
    monkeypatch.setattr(clusters, "LEAST_CONTEXTS", 6)
    monkeypatch.setattr(clusters, "CONTEXTS_A_SENSE", 3)
    parts = training(reallocation="clusters", reallocation_at=[0.5, 0.8], max_update=10)
    layer, optimizer, sampled = parts[1].decoder.output, parts[3].optimizer, []
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
    one_update(parts, 0, batches=2)
    counted = float(inventory.interval_count.sum())
    assert counted == sum(make_batch(seed=seed)["ntokens"] for seed in range(2))
    one_update(parts, 1)
    assert float(inventory.interval_count.sum()) > counted


def test_no_memory_for_moves_is_no_batch_to_skip(monkeypatch: Patch) -> None:
    parts = training()
    for update in range(2):
        one_update(parts, update)

    def reallocate(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(parts[1].decoder.output, "propose_moves", reallocate)
    with pytest.raises(MemoryError, match="no memory left to move senses"):
        move(parts, 2)


def test_missing_statistics_are_said(caplog: Log) -> None:
    parts = task, model, _, optimizer = training()
    for update in range(2):
        task.optimizer_step(optimizer, model=model, update_num=update)
    move(parts, 2)
    assert "--criterion kerbs_cross_entropy" in caplog.text


def criterion_of(kind: Any, **settings: Any) -> Any:
    return kind(make_task(), sentence_avg=False, **({"label_smoothing": 0.1} | settings))


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {key: value.grad.clone() for key, value in model.named_parameters()}


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("layer", ["kerbs", "softmax", "mos", "mixture"])
@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.0}, {"ignore_prefix_size": 2}])
def test_losses_and_logs_are_fairseqs_own(name: str, layer: str, settings: dict[str, Any]) -> None:
    kernels: dict[str, Any] = {"mixture_kernels": "lin, log"} if layer == "mixture" else {}
    model, batch = make_model(name, output_layer=layer, spread=1.0, **kernels), make_batch()
    stock = criterion_of(LabelSmoothedCrossEntropyCriterion, report_accuracy=True, **settings)
    ours = criterion_of(KerbsCrossEntropyCriterion, report_accuracy=True, **settings)
    expected, size, expected_log = stock(model, batch)
    found, found_size, found_log = ours(model, batch)
    assert found_size == size
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    for key in ("loss", "nll_loss", "n_correct", "total", "ntokens", "nsentences"):
        assert float(found_log[key]) == pytest.approx(float(expected_log[key]), rel=1e-5), key
    wanted = gradients(model, expected)
    torch.testing.assert_close(gradients(model, found), wanted, rtol=2e-4, atol=2e-4)


def test_training_records_every_target_once_and_validation_none() -> None:
    model, batch = make_model("transformer"), make_batch()
    ours, inventory = criterion_of(KerbsCrossEntropyCriterion), model.decoder.output.inventory
    ours(model.eval(), batch)
    assert inventory.pending.abs().sum() == 0
    _, _, log = ours(model.train(), batch)
    assert float(inventory.update(0.0)) == batch["ntokens"]
    assert float(inventory.log_prob.sum()) == pytest.approx(-float(log["nll_loss"]), rel=1e-5)


def test_the_regularizer_adds_the_variance_of_the_weights_while_training() -> None:
    model, batch = make_model("transformer", output_layer="mos").train(), make_batch()
    model.decoder.output.mixing.weight.data.mul_(5.0)
    plain = criterion_of(KerbsCrossEntropyCriterion)
    ours = criterion_of(KerbsCrossEntropyCriterion, mixture_regularization=0.5)
    features, _ = model(**batch["net_input"])
    weights = (features[batch["target"].ne(1)] @ model.decoder.output.mixing.weight.t()).softmax(1)
    variance = ((weights - weights.mean(1, keepdim=True)) ** 2).sum(1) / 3
    assert variance.mean() > 0.01
    without, _, _ = plain(model, batch)
    loss, _, log = ours(model, batch)
    torch.testing.assert_close(loss, without + 0.5 * variance.sum())
    wanted = gradients(model, without + 0.5 * variance.sum())
    torch.testing.assert_close(gradients(model, loss), wanted, rtol=1e-4, atol=1e-5)
    each, _, _ = ours(model, batch, reduce=False)
    assert each.shape == (batch["target"].numel(),)
    assert not each[batch["target"].flatten() == 1].any()
    torch.testing.assert_close(each.sum(), loss)
    assert float(log["nll_loss"]) == pytest.approx(float(plain(model, batch)[2]["nll_loss"]))
    model.eval()
    torch.testing.assert_close(ours(model, batch)[0], plain(model, batch)[0])


def test_weights_and_variance_are_logged_and_can_be_summed() -> None:
    model, batches = make_model("lstm", output_layer="mos"), [make_batch(), make_batch((3, 5))]
    ours = criterion_of(KerbsCrossEntropyCriterion, ignore_prefix_size=1)
    logs = [ours(model, batch)[2] for batch in batches]
    assert ours.logging_outputs_can_be_summed()
    summed = [{key: sum(log[key] for log in logs) for key in logs[0]}]
    kept = [model(**b["net_input"])[0][:, 1:][b["target"][:, 1:].ne(1)] for b in batches]
    expected = model.decoder.output.log_weights(torch.cat(kept)).exp()
    for outputs in (logs, summed):
        with metrics.aggregate(new_root=True) as found:
            KerbsCrossEntropyCriterion.reduce_metrics(outputs)
        values = found.get_smoothed_values()
        mean = [values[f"mixture_weight_{k}"] for k in range(3)]
        assert mean == pytest.approx(expected.mean(0).tolist(), abs=1e-4)
        variance = expected.var(1, unbiased=False).mean().item()
        assert values["mixture_variance"] == pytest.approx(variance, abs=1e-6)
        assert "mixture_tokens" not in values


def test_wrong_architectures_and_regularizers_end_with_one_sentence() -> None:
    with pytest.raises(SystemExit, match="--criterion kerbs_cross_entropy needs one of"):
        output_layer_of(torch.nn.Linear(2, 2))
    for rho in (-0.1, math.nan, math.inf):
        with pytest.raises(SystemExit, match=r"--mixture-regularization .* 0 or more"):
            criterion_of(KerbsCrossEntropyCriterion, mixture_regularization=rho)
    ours = criterion_of(KerbsCrossEntropyCriterion, mixture_regularization=0.1)
    with pytest.raises(SystemExit, match=r"--output-layer mos"):
        ours(make_model("lstm"), make_batch())
