"""What holds for every size, policy and statistic: properties, checked on drawn cases."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import POLICIES, ReallocationSettings


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("new_sense", ["keep", "split"])
@settings(max_examples=3)
@given(st.integers(1, 25), st.integers(1, 5), st.floats(0, 1), st.integers(0, 2**31))
def test_hundreds_of_reallocations_keep_every_number(
    policy: str, new_sense: str, words: int, most: int, share: float, seed: int
) -> None:
    """Each word keeps 1 to `most` senses, and all of them together stay M."""
    senses, moved = words + round(share * words * (most - 1)), 0
    torch.manual_seed(seed)
    layer = KerbsOutputLayer(3, words, senses, max_senses=most, new_sense=new_sense)
    inventory, rule = layer.inventory, ReallocationSettings(log_prob_threshold=-1.0, max_moves=0.5)
    for number in range(80):
        draw_statistics(layer, number)
        moved += len(layer.reallocate(policy, rule))
        counts = torch.bincount(inventory.word_of_sense, minlength=words)
        assert len(inventory.word_of_sense) == senses == int(counts.sum())
        assert 1 <= int(counts.min()) <= int(counts.max()) <= most
    assert (inventory.table.mask.sum(1) == counts).all()
    assert all(value.isfinite().all() for value in layer.state_dict().values())
    assert moved > 0 or policy != "paper" or not (5 < words < senses < most * words)


def draw_statistics(layer: KerbsOutputLayer, number: int) -> None:
    """Random sums as an interval may leave them; nothing at all every tenth time."""
    inventory, some = layer.inventory, float(number % 10 > 0)
    count = torch.randint(0, 50, (layer.vocab_size,)).float() * some
    inventory.usage.copy_(torch.rand(layer.total_senses) ** 4)
    inventory.log_prob.copy_(-3.0 * torch.rand(layer.vocab_size) * some)
    inventory.interval_count.copy_(count)
    inventory.interval_prob.copy_(count * torch.rand(layer.vocab_size))
    inventory.interval_usage.copy_(torch.rand(layer.total_senses) * some)
