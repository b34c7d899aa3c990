"""The sense inventory: allocation, moves, and the statistics of Eq. 12–13."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairseq_kerbs.likelihood.nll import NllOptions, nll_with_posteriors
from fairseq_kerbs.senses import (
    SenseInventory,
    build_sense_table,
    equal_allocation,
    number_senses,
    random_allocation,
)
from tests.helpers.likelihood import senses_of
from tests.helpers.reference import Problem, make_problem, naive_logits, printed_statistics
from tests.reallocation.test_policies import inventory_of


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    vocab_size, max_senses = draw(st.integers(1, 60)), draw(st.integers(1, 5))
    return vocab_size, draw(st.integers(vocab_size, vocab_size * max_senses)), max_senses


@given(sizes(), st.integers(0, 2**31))
def test_random_allocation_keeps_to_the_numbers(size: tuple[int, int, int], seed: int) -> None:
    vocab_size, total, most = size
    first = random_allocation(*size, generator=torch.Generator().manual_seed(seed))
    counts = torch.bincount(first, minlength=vocab_size)
    assert first.shape == (total,)
    assert counts.shape == (vocab_size,)
    assert counts.sum() == total
    assert 1 <= counts.min() <= counts.max() <= most
    assert first[:vocab_size].tolist() == list(range(vocab_size))
    again = random_allocation(*size, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(first, again)


def test_extra_senses_fall_anywhere_with_equal_chance() -> None:
    g, counts = torch.Generator().manual_seed(0), torch.zeros(20)
    for _ in range(2000):
        counts += torch.bincount(random_allocation(20, 40, 4, g), minlength=20) - 1
    # 2000 · 20 extra senses over 20 words: 2000 each, deviation about 38
    assert (counts - 2000).abs().max() < 5 * 38
    assert not torch.equal(random_allocation(20, 40, 4, g), random_allocation(20, 40, 4, g))


@given(sizes(), st.integers(0, 2**31))
def test_equal_allocation_differs_by_one_sense_at_most(
    size: tuple[int, int, int], seed: int
) -> None:
    vocab_size, total, _ = size
    owners = equal_allocation(*size, generator=torch.Generator().manual_seed(seed))
    whole = total // vocab_size * vocab_size
    assert owners[:whole].tolist() == [m % vocab_size for m in range(whole)]
    counts = torch.bincount(owners, minlength=vocab_size)
    assert counts.sum() == len(owners) == total
    assert counts.max() - counts.min() == (1 if total % vocab_size else 0)


def test_the_rest_of_an_equal_allocation_falls_on_any_word() -> None:
    g, counts = torch.Generator().manual_seed(0), torch.zeros(20)
    for _ in range(2000):
        counts += torch.bincount(equal_allocation(20, 45, 4, g), minlength=20) - 2
    # 2000 · 5 extra senses over 20 words: 500 each, deviation about 19
    assert (counts - 500).abs().max() < 5 * 19


@given(sizes(), st.integers(0, 2**31), st.booleans())
def test_table_inverts_the_allocation(size: tuple[int, int, int], seed: int, padded: bool) -> None:
    vocab_size, total, most = size
    g = torch.Generator().manual_seed(seed)
    owners = random_allocation(*size, generator=g)[torch.randperm(total, generator=g)]
    table = build_sense_table(owners, vocab_size, most if padded else None)
    assert table.senses.shape == table.mask.shape
    if padded:
        assert table.senses.shape == (vocab_size, most)
    for word in range(vocab_size):
        own = [m for m, owner in enumerate(owners.tolist()) if owner == word]
        assert table.senses[word][table.mask[word]].tolist() == own
        assert set(table.senses[word][~table.mask[word]].tolist()) <= {own[0]}


def test_errors_name_the_parameter() -> None:
    for call, message in (
        (lambda: SenseInventory(10, 9, 4), "`total_senses`.*9 senses for 10 words"),
        (lambda: SenseInventory(10, 10, 0), "`max_senses` is 0"),
        (lambda: equal_allocation(10, 41, 4), "`total_senses`.*41 senses for 10 words"),
        (lambda: SenseInventory(2, 3, 4, "fair"), "`sense_allocation`.*'fair'.*random, equal"),
        (lambda: SenseInventory(2, 3).update(1.0), "`decay` is 1"),
        (lambda: build_sense_table(torch.tensor([0, 3]), 3), "outside the vocabulary of 3"),
        (lambda: build_sense_table(torch.tensor([-1, 0]), 1), "outside the vocabulary"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_move_checks_the_result_before_anything_changes() -> None:
    inventory = inventory_of([0, 1, 2, 0, 0, 1], 3, 3)
    before = inventory.word_of_sense.clone()
    for senses, words, message in (
        ([2], [0], "Word 2 has no sense"),
        ([0, 3, 4], [1, 2, 2], "Word 0 has no sense"),
        ([1], [0], "Word 0 has 4 senses; at most 3"),
    ):
        with pytest.raises(ValueError, match=message):
            inventory.move(torch.tensor(senses), torch.tensor(words))
        assert torch.equal(inventory.word_of_sense, before)
        assert inventory.table.senses[2, 0] == 2
    inventory.move(torch.tensor([3, 4, 3]), torch.tensor([1, 2, 2]))  # the last word counts
    assert inventory.word_of_sense.tolist() == [0, 1, 2, 2, 2, 1]
    assert inventory.table.senses.tolist() == [[0, 0, 0], [1, 5, 1], [2, 3, 4]]
    empty = torch.zeros(0, dtype=torch.long)
    inventory.move(empty, empty)
    assert inventory.word_of_sense.tolist() == [0, 1, 2, 2, 2, 1]


def posteriors_of(p: Problem, rows: list[int]) -> tuple[Tensor, Any]:
    part = p.target[rows]
    return part, nll_with_posteriors(p.h[rows], senses_of(p), part, NllOptions(ignore_index=-1))[2]


def stream_of(p: Problem) -> list[tuple[int, list[float]]]:
    return list(zip(p.target.tolist(), naive_logits(*p.leaves).softmax(1).tolist(), strict=True))


@pytest.mark.parametrize("decay", [0.0, 1e-3, 0.2])
def test_one_token_at_a_time_is_the_printed_recursion(decay: float) -> None:
    p = make_problem(60, theta_scale=0.5)
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    for t in range(60):
        inventory.record(*posteriors_of(p, [t]))
        assert inventory.update(decay).item() == 1
    start = [0.0] * p.vocab_size, [1.0 / 29] * 29
    log_prob, usage = printed_statistics(*start, p.word_of_sense.tolist(), stream_of(p), decay)
    torch.testing.assert_close(inventory.log_prob, torch.tensor(log_prob), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(inventory.usage, torch.tensor(usage), rtol=1e-4, atol=1e-9)


def test_targets_of_one_update_enter_as_the_mean_over_their_orders() -> None:
    p = make_problem(4, theta_scale=0.5)
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    inventory.log_prob.copy_(-torch.arange(11.0))
    inventory.record(*posteriors_of(p, [0, 1]))
    inventory.record(*posteriors_of(p, [2, 3]))  # two batches, one update
    assert inventory.update(0.3).item() == 4
    start = [-float(i) for i in range(11)], [1.0 / 29] * 29
    owners, orders = p.word_of_sense.tolist(), itertools.permutations(stream_of(p))
    results = [printed_statistics(*start, owners, [*order], 0.3) for order in orders]
    log_prob = torch.tensor([r[0] for r in results]).mean(0)
    usage = torch.tensor([r[1] for r in results]).mean(0)
    torch.testing.assert_close(inventory.log_prob, log_prob, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(inventory.usage, usage, rtol=1e-5, atol=1e-8)


def test_tiny_decay_over_many_tokens_keeps_its_digits() -> None:
    inventory, n, decay = SenseInventory(2, 3), 100_000, 1e-7
    inventory.log_prob.fill_(-1.0)
    inventory._sums()["count"][0] = n  # occurrences of word 0, each predicted with P = 1
    inventory.update(decay)
    assert -1 - inventory.log_prob[1].item() == pytest.approx(math.expm1(-n * decay), rel=1e-5)


def test_ignored_tokens_and_silence_change_nothing() -> None:
    p = make_problem(6)
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    before = copy.deepcopy(inventory.state_dict())
    p.target[:] = -1
    inventory.record(*posteriors_of(p, [0, 1, 2]))
    assert inventory.update(0.5).item() == 0
    assert inventory.update(0.5).item() == 0
    p.target[:] = 3
    inventory.recording = False
    inventory.record(*posteriors_of(p, [0, 1, 2]))
    assert inventory.update(0.5).item() == 0
    torch.testing.assert_close(inventory.state_dict(), before, rtol=0, atol=0)


def test_interval_sums_count_words_probabilities_and_senses() -> None:
    p = make_problem(40, theta_scale=0.5)
    p.target[5] = -1
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    for rows in (range(20), range(20, 40)):
        inventory.record(*posteriors_of(p, list(rows)))
        inventory.update(0.01)
    joint = naive_logits(*p.leaves).softmax(1).detach() * (p.word_of_sense == p.target[:, None])
    prob = joint.sum(1, keepdim=True)  # 0 at the position that is ignored
    of_word = (p.target[:, None] == torch.arange(11)).double()  # [40, 11]
    expected = {"count": of_word.sum(0), "prob": (of_word * prob).sum(0)}
    expected["joint"] = joint.sum(0)
    expected["posterior"] = (joint / prob.clamp_min(1e-300)).sum(0)
    for name, value in expected.items():
        found = getattr(inventory, f"interval_{name}").double()
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5, msg=name)
    inventory.start_interval()
    for name, value in inventory.named_buffers():
        assert bool(value.any()) == (not name.startswith("interval_")), name


def test_a_word_whose_probability_underflows_has_finite_sums() -> None:
    p = make_problem(4)
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    target, posteriors = posteriors_of(p, [0, 1, 2, 3])
    none = torch.zeros_like(posteriors.sense_prob)
    inventory.record(target, posteriors._replace(log_prob=none[:, 0] - 300.0, sense_prob=none))
    inventory.update(0.0)
    assert all(value.isfinite().all() for value in inventory.buffers())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_conversion_leaves_the_statistics_exact(dtype: torch.dtype) -> None:
    p = make_problem()
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    inventory.record(*posteriors_of(p, [0, 1]))
    inventory.update(1e-3)
    inventory.record(*posteriors_of(p, [2, 3]))
    expected = copy.deepcopy(inventory)
    moved = torch.nn.Sequential(torch.nn.Linear(2, 2), inventory).to(dtype)
    assert next(moved.parameters()).dtype == dtype
    for module in (inventory, expected):
        module.update(1e-3)
    for name, value in expected.state_dict().items():
        assert value.dtype in (torch.float32, torch.int64)
        assert torch.equal(inventory.state_dict()[name], value), name


def test_state_dict_carries_everything_that_lasts() -> None:
    p = make_problem()
    source = inventory_of(p.word_of_sense, p.vocab_size)
    source.record(*posteriors_of(p, list(range(23))))
    source.update(1e-2)
    copy_of = SenseInventory(11, 29, 4)
    _ = copy_of.table  # a table of the old allocation must not survive, nor what was recorded
    copy_of.record(*posteriors_of(p, list(range(23))))
    copy_of.load_state_dict(source.state_dict())
    assert not copy_of.pending.any()
    assert torch.equal(copy_of.table.senses, source.table.senses)
    torch.testing.assert_close(copy_of.state_dict(), source.state_dict(), rtol=0, atol=0)


def test_senses_are_numbered_by_usage_within_their_words() -> None:
    words = torch.tensor([2, 0, 1, 2, 2, 0])
    usage = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.1, 0.2])  # equals by row
    assert number_senses(words, usage).tolist() == [2, 1, 1, 1, 3, 2]
