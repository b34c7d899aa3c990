"""The policy of the released code by hand, and whole intervals against its literal loop."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import ReallocationSettings, reallocate
from fairseq_kerbs.senses import SenseInventory
from tests.helpers.inventories import inventory_of
from tests.helpers.reference import naive_logits, released_reallocation, released_statistics


def test_released_policy_by_hand() -> None:
    """Eight words. The four most frequent are 0 … 3 with n = 100, 64, 36, 25. The smallest of these
    counts is 25, and only words above it receive senses: word 3 does not.

    (n/p)/√n: word 0: (100/50)/10 = 0.2; word 1: (64/2)/8 = 4; word 2: (36/9)/6 = 2/3, but it has
    four senses when it is visited. Senses by usage: 4, 5 and 6 are the only ones of their words.
    Word 0 takes 10 of word 2 (0.1), which has three left. Word 2 comes next, and takes 7 of word 7
    (0.2). The next is 11 (0.3), by now the only one of word 7. Word 1 takes 9 of word 2 (0.4).
    """
    owners = [0, 1, 2, 3, 4, 5, 6, 7, 2, 2, 2, 7]
    joint = [9.0, 9.0, 5.0, 9.0, 0.0, 0.0, 0.0, 0.2, 0.5, 0.4, 0.1, 0.3]
    sums: dict[str, Any] = {"interval_count": [100, 64, 36, 25, 16, 9, 4, 1]}
    sums["interval_joint"] = joint
    sums["interval_prob"] = [50, 2, 9, 10, 16, 9, 4, 1]
    # 0.2 · 8 = 1.6: two moves
    for most, words in ((0.2, [0, 2]), (1.0, [0, 2, 1])):
        usage = [float(m) for m in range(12)]
        inventory = inventory_of(owners, 8, **sums, usage=usage)
        moves = reallocate(inventory, "released", ReallocationSettings(max_moves=most))
        assert moves.words.tolist() == words
        assert moves.senses.tolist() == [10, 7, 9][: len(words)]
        assert moves.sources.tolist() == [2, 7, 2][: len(words)]
        assert (moves.reset_theta, moves.reset_moments) == (False, False)
        assert inventory.usage.tolist() == usage
        assert not inventory.interval_joint.any()
        assert not inventory.interval_count.any()


def test_a_word_may_be_given_its_own_sense_which_counts_as_a_move() -> None:
    """Word 0 comes first and has the least used sense of a word with several, sense 6."""
    sums: dict[str, Any] = {"interval_count": [9, 4, 2, 1, 1, 1]}
    sums["interval_prob"] = [8.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    sums["interval_joint"] = [5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1, 0.2]
    # 0.15 · 6 = 0.9: one move; 0.3 · 6 = 1.8: two
    for most, expected in ((0.15, []), (0.3, [(7, 2, 1)])):
        inventory = inventory_of([0, 1, 2, 3, 4, 5, 0, 2], 6, **sums)
        moves = reallocate(inventory, "released", ReallocationSettings(max_moves=most))
        columns = (moves.senses.tolist(), moves.sources.tolist(), moves.words.tolist())
        assert list(zip(*columns, strict=True)) == expected


def test_the_maximum_is_rounded_up_from_the_exact_product() -> None:
    """0.07 · 100 is 7, and in floating point a little more."""
    words = torch.arange(100)
    inventory = inventory_of(
        words.repeat_interleave(3),
        100,
        4,
        interval_count=(words + 1.0).tolist(),
        interval_prob=(words + 1.0).tolist(),
        interval_joint=torch.arange(300.0).tolist(),
    )
    assert 0.07 * 100 > 7
    assert len(reallocate(inventory, "released", ReallocationSettings(max_moves=0.07))) == 7


def test_a_frequent_word_whose_probability_underflows_still_receives() -> None:
    """Words 2 and 3 are above the smallest count of the frequent half, 2. Word 3 ranks last."""
    sums: dict[str, Any] = {"interval_count": [1, 1, 9, 8, 2, 2]}
    sums["interval_prob"] = [1, 1, 3, 0, 1, 1]
    inventory = inventory_of([0, 1, 2, 3, 4, 5, 0, 0], 6, **sums)
    moves = reallocate(inventory, "released", ReallocationSettings(max_moves=1.0))
    assert moves.words.tolist() == [2, 3]


@pytest.mark.parametrize("vocab_size", [1, 2, 3])
def test_few_words_have_no_frequent_half_above_its_smallest_count(vocab_size: int) -> None:
    counts = list(range(5, 5 + vocab_size))
    inventory = inventory_of([*range(vocab_size), 0], vocab_size, interval_count=counts)
    assert not len(reallocate(inventory, "released", ReallocationSettings(max_moves=1.0)))
    assert not inventory.interval_count.any()


def in_float64(inventory: SenseInventory) -> None:
    """Let an inventory add up in float64, so that a loop over Python's floats ranks as it does."""
    for name, value in list(inventory.named_buffers()):
        if value.is_floating_point():
            inventory._buffers[name] = value.double()
    inventory._pending = None


def random_targets(vocab_size: int, tokens: int, g: torch.Generator) -> Tensor:
    """Words by falling frequency, but for the special symbol 1, padding, at a fifth of places."""
    weights = 1.0 / torch.arange(1, vocab_size + 1).double()
    weights[1] = 0.25 * (weights.sum() - weights[1])
    return torch.multinomial(weights, tokens, replacement=True, generator=g)


@pytest.mark.parametrize(("dtype", "cases"), [(torch.float64, 100), (torch.float32, 40)])
def test_an_interval_of_the_released_code_is_its_loop(dtype: torch.dtype, cases: int) -> None:
    """Layers with 2 to 60 words and 1 to 4 senses per word, in two intervals each: the first makes
    numbers of senses unequal."""
    moved = given = unequal = 0
    for seed in range(cases):
        g = torch.Generator().manual_seed(seed)
        vocab_size = 2 + int(59 * torch.rand((), generator=g))
        each = 1 + seed % 4
        options: dict[str, Any] = {"kernel": "kerbs_released", "sense_allocation": "equal"}
        layer = KerbsOutputLayer(5, vocab_size, each * vocab_size, **options).to(dtype)
        inventory = layer.inventory
        assert inventory.word_of_sense.tolist() == [*range(vocab_size)] * each
        layer.weight.data = 2.0 * torch.randn(layer.weight.shape, generator=g, dtype=dtype)
        layer.theta.data = 3.0 * torch.randn(layer.theta.shape, generator=g, dtype=dtype)
        if dtype == torch.float64:
            in_float64(inventory)
        fraction = [0.005, 0.03, 0.25, 1.0][seed // 4 % 4]
        for _ in range(2):
            owners = inventory.word_of_sense.tolist()
            stream: list[tuple[int, list[float]]] = []
            for _ in range(2):
                for _ in range(2):  # batches of an update
                    target = random_targets(vocab_size, 3 + vocab_size, g)
                    h = torch.randn(len(target), 5, generator=g, dtype=dtype)
                    layer.nll(h, target, ignore_index=1)
                    w = layer.weight.detach().double()
                    theta = layer.theta.detach().double()
                    senses = naive_logits(h.double(), w, theta, "kerbs_released").softmax(1)
                    stream += zip(target.tolist(), senses.tolist(), strict=True)
                layer.update_statistics(1e-3)
            sums = released_statistics(owners, stream, vocab_size, padding=1)
            found = [getattr(inventory, f"interval_{name}") for name in ("count", "prob", "joint")]
            rtol, atol = (1e-10, 1e-13) if dtype == torch.float64 else (1e-3, 1e-6)
            for values, expected in zip(found, sums, strict=True):
                right = torch.tensor(expected, dtype=dtype)
                torch.testing.assert_close(values, right.to(values), rtol=rtol, atol=atol)
            if dtype == torch.float32:  # rounding may change the rank of nearly equal values
                sums = tuple(value.tolist() for value in found)
            expected_moves, own = released_reallocation(owners, *sums, fraction, most=4)
            before = copy.deepcopy(dict(layer.state_dict()))
            moves = layer.reallocate("released", ReallocationSettings(max_moves=fraction))
            columns = (moves.senses.tolist(), moves.sources.tolist(), moves.words.tolist())
            assert list(zip(*columns, strict=True)) == expected_moves, seed
            for sense, _, word in expected_moves:
                owners[sense] = word
            assert inventory.word_of_sense.tolist() == owners
            for name, value in layer.state_dict().items():
                if "interval" in name:
                    assert not value.any()
                elif not name.endswith(("word_of_sense", "checksum")):
                    assert torch.equal(value, before[name]), name
            moved = moved + len(moves)
            given = given + own
        unequal += len(set(layer.senses_per_word().tolist())) > 1
    # the cases are of all kinds
    assert moved > cases
    assert given > 0 or cases < 100
    assert unequal > cases // 4
