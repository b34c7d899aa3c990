"""Algorithm 1 by hand, and with the released kernel."""

import math

import pytest
import torch

from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import ReallocationSettings, reallocate
from tests.helpers.inventories import inventory_of


def test_algorithm_1_by_hand() -> None:
    """Words A B C D, seven senses, at most three a word; ε = −5, so A, B and C are in need. D has
    exactly ε, and is not.

    Mean usage is 0.98/7 = 0.14. A comes first: the least used sense is D's (0.01), but it is D's
    only one; next is sense 5 of B (0.02), which A gets with usage 0.14. B has senses 2 and 4 left:
    of A's 0 (0.30), 1 (0.10) and 5 (0.14) it takes sense 1, with the new mean
    (0.98 − 0.02 + 0.14)/7 = 1.10/7. C takes B's sense 4 (0.03), with (1.10 − 0.10 + 1.10/7)/7.
    """
    owners = [0, 0, 1, 2, 1, 1, 3]
    usage = [0.30, 0.10, 0.40, 0.12, 0.03, 0.02, 0.01]
    inventory = inventory_of(owners, 4, 3, usage=usage, log_prob=[-9.0, -7.0, -6.0, -5.0])
    moves = reallocate(inventory, "paper", ReallocationSettings(log_prob_threshold=-5.0))
    assert moves.senses.tolist() == [5, 1, 4]
    assert moves.sources.tolist() == [1, 0, 1]
    assert moves.words.tolist() == [0, 1, 2]
    assert moves.usage.tolist() == pytest.approx([0.14, 1.10 / 7, (1.00 + 1.10 / 7) / 7], rel=1e-6)
    assert inventory.word_of_sense.tolist() == [0, 1, 1, 2, 2, 0, 3]
    expected = [0.30, 1.10 / 7, 0.40, 0.12, (1.00 + 1.10 / 7) / 7, 0.14, 0.01]
    assert inventory.usage.tolist() == pytest.approx(expected, rel=1e-6)


def test_algorithm_1_gives_the_released_kernel_its_smallest_theta() -> None:
    """The learned parameter of that kernel is log θ, so 1e-8 would be θ = 1."""
    torch.manual_seed(1)
    layer = KerbsOutputLayer(6, 20, 60, kernel="kerbs_released")
    layer.nll(torch.randn(50, 6), torch.randint(20, (50,)))
    layer.update_statistics(1e-3)
    moves = layer.reallocate("paper", ReallocationSettings(log_prob_threshold=-1.0))
    assert len(moves) > 0
    moved = layer.kernel.theta_of(layer.theta.detach()[moves.senses])
    torch.testing.assert_close(moved, torch.full((len(moves),), math.exp(-4.0)))
