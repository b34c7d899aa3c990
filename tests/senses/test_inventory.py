"""The sense inventory: the table of senses, moves, numbers, copies and checkpoints."""

import copy
import math
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fairseq_kerbs.senses import (
    SenseInventory,
    build_sense_table,
    checksum_of,
    number_senses,
    random_allocation,
)
from tests.helpers.inventories import inventory_of, probabilities_of, sizes
from tests.helpers.reference import make_problem


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
        (
            lambda: SenseInventory(10, cast(int, 1.5 * 10)),
            "`total_senses` is 15.0; it must",
        ),
        (lambda: SenseInventory(2, 3, 4, "fair"), "`sense_allocation`.*'fair'.*random, equal"),
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_conversion_leaves_the_statistics_exact(dtype: torch.dtype) -> None:
    p = make_problem()
    inventory = inventory_of(p.word_of_sense, p.vocab_size)
    inventory.record(*probabilities_of(p, [0, 1]))
    inventory.update(1e-3)
    inventory.record(*probabilities_of(p, [2, 3]))
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
    source.record(*probabilities_of(p, list(range(23))))
    source.update(1e-2)
    copy_of = SenseInventory(11, 29, 4)
    _ = copy_of.table  # a table of the old allocation must not survive, nor what was recorded
    copy_of.record(*probabilities_of(p, list(range(23))))
    copy_of.load_state_dict(source.state_dict())
    assert not copy_of.pending.any()
    assert torch.equal(copy_of.table.senses, source.table.senses)
    torch.testing.assert_close(copy_of.state_dict(), source.state_dict(), rtol=0, atol=0)


def test_the_checksum_is_that_of_the_allocation() -> None:
    """Whatever its dtype; also after moves, and after states without one."""
    inventory = SenseInventory(3, 6, 4)
    first = inventory.checksum.clone()
    assert torch.equal(checksum_of(inventory.word_of_sense.int()), first)
    assert 0 <= int(first.min()) <= int(first.max()) < 2**16
    words = inventory.word_of_sense.roll(1)
    inventory.move(torch.arange(6), words)
    assert not torch.equal(inventory.checksum, first)
    assert torch.equal(inventory.checksum, checksum_of(words))
    state = inventory.state_dict()
    del state["checksum"]
    fresh = SenseInventory(3, 6, 4)
    fresh.load_state_dict(state, strict=False)
    assert torch.equal(fresh.checksum, inventory.checksum)


def allocation(words: list[int]) -> dict[str, Tensor]:
    """The word of each sense, as a part of a state."""
    word_of_sense = torch.tensor(words)
    return {"word_of_sense": word_of_sense, "checksum": checksum_of(word_of_sense)}


@pytest.mark.parametrize("strict", [True, False])
def test_a_state_between_two_allocations_is_refused(strict: bool) -> None:
    """Sense 1 belongs to word 0 here, to word 2 there, and in the mean of the states to word 1."""
    states = [inventory_of([0, 0, 1, 2], 3), inventory_of([0, 2, 1, 2], 3)]
    both = [inventory.state_dict() for inventory in states]
    mean = {name: (one + both[1][name]) / 2 for name, one in both[0].items()}
    loaded = SenseInventory(3, 4)
    with pytest.raises(RuntimeError, match=r"word_of_sense does not fit checksum: .* average"):
        loaded.load_state_dict(mean, strict=strict)
    before = loaded.word_of_sense.clone()
    with pytest.raises(RuntimeError, match="size mismatch") as refusal:
        loaded.load_state_dict(inventory_of([0, 1, 2, 2, 2], 3).state_dict(), strict=strict)
    assert "average" not in str(refusal.value)
    assert torch.equal(loaded.table.words, before)  # it can still be used
    nothing_moved = {name: (one + one) / 2 for name, one in both[0].items()}
    loaded.load_state_dict(nothing_moved, strict=strict)
    assert loaded.table.words.tolist() == [0, 0, 1, 2]


def test_the_table_follows_allocations_that_others_write() -> None:
    """As torch.optim.swa_utils.AveragedModel and DistributedDataParallel copy buffers."""
    model = nn.ModuleList([inventory_of([0, 0, 1, 2], 3), nn.Linear(1, 1)])
    average = AveragedModel(model)
    source, copied = (cast(SenseInventory, next(one.children())) for one in (model, average.module))
    for owners in ([0, 2, 1, 2], [0, 2, 1, 2], [1, 2, 0, 0]):
        source.move(torch.arange(4), torch.tensor(owners))
        average.update_parameters(model)
        table = copied.table
        assert table.words.tolist() == owners
        assert torch.equal(table.senses, source.table.senses)
        assert copied.table is table  # it is not built for every call
        copied.word_of_sense.copy_(source.word_of_sense)
        assert copied.table is table  # nor for a copy of the same words
    # copies of which nobody asks for the table, as many as there were moves before
    for moves in (1, 2, 3):
        model = nn.ModuleList([inventory_of([0, 0, 1, 2], 3), nn.Linear(1, 1)])
        source = cast(SenseInventory, next(model.children()))
        for number in range(moves):
            source.move(torch.tensor([1]), torch.tensor([number % 3]))
        average = AveragedModel(model)
        source.move(torch.tensor([0, 1]), torch.tensor([2, 0]))
        for _ in range(moves):
            average.update_parameters(model)
        copied = cast(SenseInventory, next(average.module.children()))
        assert torch.equal(copied.table.senses, source.table.senses)
    source.move(torch.arange(4), torch.tensor([1, 2, 0, 0]))
    source.word_of_sense[3] = 1
    with pytest.raises(ValueError, match="`word_of_sense` does not fit `checksum`: it is an aver"):
        _ = source.table
    source.checksum.copy_(checksum_of(source.word_of_sense))
    assert source.table.words.tolist() == [1, 2, 0, 1]


def test_an_inventory_begins_anew() -> None:
    """Also where memory was not set, as torch makes models without memory first."""
    inventory = inventory_of([0, 0, 1, 2, 2, 2, 2, 1], 3, usage=torch.rand(8))
    inventory.log_prob.fill_(math.nan)
    inventory.interval_count.fill_(3.0)
    inventory.pending.fill_(3.0)
    empty = SenseInventory(3, 8).to("meta").to_empty(device="cpu")
    empty.word_of_sense.fill_(-7)
    for one in (inventory, empty):
        one.begin_anew()
        assert one.usage.tolist() == [0.125] * 8
        assert not any(sums.any() for sums in (one.log_prob, one.interval_count, one.pending))
        assert torch.equal(one.table.words, one.word_of_sense)
        assert one.word_of_sense.bincount(minlength=3).min() >= 1
        assert torch.equal(one.checksum, checksum_of(one.word_of_sense))
    equal = SenseInventory(4, 8, sense_allocation="equal")
    equal.begin_anew()
    assert equal.word_of_sense.bincount().tolist() == [2] * 4


def test_senses_are_numbered_by_usage_within_their_words() -> None:
    words = torch.tensor([2, 0, 1, 2, 2, 0])
    usage = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.1, 0.2])  # equals by row
    assert number_senses(words, usage).tolist() == [2, 1, 1, 1, 3, 2]


def test_the_table_is_made_before_it_is_asked_for() -> None:
    """As torch.compile could not make it. A damaged allocation is refused where it is used."""
    inventory = SenseInventory(3, 6, 4)
    assert inventory._table is not None
    assert inventory.table.senses.shape == (3, 4)
    inventory.load_state_dict(inventory.state_dict() | allocation([0, 1, 2, 2, 2, 2]))
    assert inventory._table is not None
    assert inventory.table.senses[2].tolist() == [2, 3, 4, 5]
    inventory.load_state_dict(inventory.state_dict() | allocation([0, 2, 2, 2, 2, 2]))
    with pytest.raises(ValueError, match="Word 1 has no sense"):
        _ = inventory.table
    five = SenseInventory(2, 6, 4)
    five.load_state_dict(five.state_dict() | allocation([0, 1, 1, 1, 1, 1]))
    with pytest.raises(ValueError, match="Word 1 has 5 senses; at most 4"):
        _ = five.table
    assert SenseInventory(3, 6, 4).to("meta")._table is None
