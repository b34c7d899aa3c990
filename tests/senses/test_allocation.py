"""Initial allocations of senses to words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.senses import equal_allocation, random_allocation
from tests.helpers.inventories import sizes


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
    g = torch.Generator().manual_seed(0)
    counts = torch.zeros(20)
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
    g = torch.Generator().manual_seed(0)
    counts = torch.zeros(20)
    for _ in range(2000):
        counts += torch.bincount(equal_allocation(20, 45, 4, g), minlength=20) - 2
    # 2000 · 5 extra senses over 20 words: 500 each, deviation about 19
    assert (counts - 500).abs().max() < 5 * 19


def test_errors_name_the_parameter() -> None:
    with pytest.raises(ValueError, match=r"`total_senses`.*41 senses for 10 words"):
        equal_allocation(10, 41, 4)
