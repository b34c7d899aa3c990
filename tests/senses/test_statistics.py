"""Statistics of words and senses: Eq. 12 and 13, and the sums of an interval."""

import copy
import itertools
import math

import pytest
import torch

from fairseq_kerbs.senses import SenseInventory
from tests.helpers.inventories import inventory_of, probabilities_of
from tests.helpers.reference import Problem, make_problem, naive_logits, printed_statistics
from tests.helpers.rehearsed_gpu import RehearsedGpu


def stream_of(p: Problem) -> list[tuple[int, list[float]]]:
    return list(zip(p.target.tolist(), naive_logits(*p.leaves).softmax(1).tolist(), strict=True))


@pytest.mark.parametrize("decay", [0.0, 1e-3, 0.2])
def test_one_token_at_a_time_is_the_printed_recursion(decay: float) -> None:
    p = make_problem(60, theta_scale=0.5)
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    for t in range(60):
        inventory.record(*probabilities_of(p, [t]))
        assert inventory.update(decay).item() == 1
    log_prob, usage = printed_statistics(
        [0.0] * p.vocab_size, [1.0 / 29] * 29, p.word_of_sense.tolist(), stream_of(p), decay
    )
    torch.testing.assert_close(inventory.log_prob, torch.tensor(log_prob), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(inventory.usage, torch.tensor(usage), rtol=1e-4, atol=1e-9)


def test_targets_of_one_update_enter_as_the_mean_over_their_orders() -> None:
    p = make_problem(4, theta_scale=0.5)
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    inventory.log_prob.copy_(-torch.arange(11.0))
    inventory.record(*probabilities_of(p, [0, 1]))
    inventory.record(*probabilities_of(p, [2, 3]))  # two batches, one update
    assert inventory.update(0.3).item() == 4
    log_prob_before = [-float(i) for i in range(11)]
    usage_before = [1.0 / 29] * 29
    owners = p.word_of_sense.tolist()
    orders = itertools.permutations(stream_of(p))
    results = [
        printed_statistics(log_prob_before, usage_before, owners, [*order], 0.3) for order in orders
    ]
    log_prob = torch.tensor([r[0] for r in results]).mean(0)
    usage = torch.tensor([r[1] for r in results]).mean(0)
    torch.testing.assert_close(inventory.log_prob, log_prob, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(inventory.usage, usage, rtol=1e-5, atol=1e-8)


def test_tiny_decay_over_many_tokens_keeps_its_digits() -> None:
    inventory = SenseInventory(2, 3)
    n = 100_000
    decay = 1e-7
    inventory.log_prob.fill_(-1.0)
    inventory._pending_sums()["count"][0] = n  # occurrences of word 0, each predicted with P = 1
    inventory.update(decay)
    assert -1 - inventory.log_prob[1].item() == pytest.approx(math.expm1(-n * decay), rel=1e-5)


def test_ignored_tokens_and_silence_change_nothing() -> None:
    p = make_problem(6)
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    before = copy.deepcopy(inventory.state_dict())
    p.target[:] = -1
    inventory.record(*probabilities_of(p, [0, 1, 2]))
    assert inventory.update(0.5).item() == 0
    assert inventory.update(0.5).item() == 0
    p.target[:] = 3
    inventory.recording = False
    inventory.record(*probabilities_of(p, [0, 1, 2]))
    assert inventory.update(0.5).item() == 0
    torch.testing.assert_close(inventory.state_dict(), before, rtol=0, atol=0)


def test_interval_sums_count_words_probabilities_and_senses() -> None:
    p = make_problem(40, theta_scale=0.5)
    p.target[5] = -1
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    for rows in (range(20), range(20, 40)):
        inventory.record(*probabilities_of(p, list(rows)))
        inventory.update(0.01)
    joint = naive_logits(*p.leaves).softmax(1).detach() * (p.word_of_sense == p.target[:, None])
    prob = joint.sum(1, keepdim=True)  # 0 at the position that is ignored
    of_word = (p.target[:, None] == torch.arange(11)).double()  # [40, 11]
    expected = {"count": of_word.sum(0), "prob": (of_word * prob).sum(0)}
    expected["joint"] = joint.sum(0)
    for name, value in expected.items():
        found = getattr(inventory, f"interval_{name}").double()
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5, msg=name)
    inventory.start_interval()
    for name, value in inventory.named_buffers():
        assert bool(value.any()) == (not name.startswith("interval_")), name


def test_a_word_whose_probability_underflows_has_finite_sums() -> None:
    p = make_problem(4)
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    target, probabilities = probabilities_of(p, [0, 1, 2, 3])
    none = torch.zeros_like(probabilities.sense_prob)
    inventory.record(target, probabilities._replace(log_prob=none[:, 0] - 300.0, sense_prob=none))
    inventory.update(0.0)
    assert all(value.isfinite().all() for value in inventory.buffers())


def test_recorded_sums_follow_the_inventory_to_another_device() -> None:
    p = make_problem(40, theta_scale=0.5)
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    inventory.record(*probabilities_of(p, list(range(40))))
    twin = copy.deepcopy(inventory)
    twin.update(0.1)
    with RehearsedGpu():
        inventory.to("cuda")
        inventory.update(0.1)
        inventory.to("cpu")
    torch.testing.assert_close(inventory.state_dict(), twin.state_dict(), rtol=0, atol=0)
    assert inventory.interval_count.sum() == 40


def test_errors_name_the_parameter() -> None:
    with pytest.raises(ValueError, match="`decay` is 1"):
        SenseInventory(2, 3).update(1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_statistics_are_float32_whatever_the_default_dtype(dtype: torch.dtype) -> None:
    """In bfloat16 a count would stop at 256."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        inventory = SenseInventory(2, 3)
    finally:
        torch.set_default_dtype(before)
    floating = {value.dtype for value in inventory.buffers() if value.is_floating_point()}
    assert floating == {torch.float32}
    assert inventory.pending.dtype == torch.float32
