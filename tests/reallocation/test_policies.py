"""Reallocation: Algorithm 1 and the released policy against their literal forms, and the vectors
that moved senses begin with."""

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import POLICIES, ReallocationSettings, reallocate
from fairseq_kerbs.reallocation.moves import SPLIT_SINE, Moves, leading_senses, new_vectors
from fairseq_kerbs.reallocation.policies import reset_moments
from fairseq_kerbs.senses import SenseInventory, random_allocation
from tests.helpers.reference import (
    algorithm1,
    naive_logits,
    released_reallocation,
    released_statistics,
)


def inventory_of(owners: Any, vocab_size: int, most: int = 4, **values: Any) -> SenseInventory:
    """An inventory of senses with these words, and with these values of other buffers."""
    inventory = SenseInventory(vocab_size, len(owners), most)
    state = inventory.state_dict()
    for name, value in {"word_of_sense": owners, **values}.items():
        state[name] = torch.as_tensor(value, dtype=state[name].dtype)
    inventory.load_state_dict(state)
    return inventory


def test_algorithm_1_by_hand() -> None:
    """Words A B C D, seven senses, at most three a word; ε = −5, so A, B and C are in need. D has
    exactly ε, and is not.

    Mean usage is 0.98/7 = 0.14. A comes first: the least used sense is D's (0.01), but it is D's
    only one; next is sense 5 of B (0.02), which A gets with usage 0.14. B has senses 2 and 4 left:
    of A's 0 (0.30), 1 (0.10) and 5 (0.14) it takes sense 1, with the new mean
    (0.98 − 0.02 + 0.14)/7 = 1.10/7. C takes B's sense 4 (0.03), with (1.10 − 0.10 + 1.10/7)/7.
    """
    owners, usage = [0, 0, 1, 2, 1, 1, 3], [0.30, 0.10, 0.40, 0.12, 0.03, 0.02, 0.01]
    inventory = inventory_of(owners, 4, 3, usage=usage, log_prob=[-9.0, -7.0, -6.0, -5.0])
    moves = reallocate(inventory, "paper", ReallocationSettings(log_prob_threshold=-5.0))
    assert moves.senses.tolist() == [5, 1, 4]
    assert moves.sources.tolist() == [1, 0, 1]
    assert moves.words.tolist() == [0, 1, 2]
    assert moves.usage.tolist() == pytest.approx([0.14, 1.10 / 7, (1.00 + 1.10 / 7) / 7], rel=1e-6)
    assert inventory.word_of_sense.tolist() == [0, 1, 1, 2, 2, 0, 3]
    expected = [0.30, 1.10 / 7, 0.40, 0.12, (1.00 + 1.10 / 7) / 7, 0.14, 0.01]
    assert inventory.usage.tolist() == pytest.approx(expected, rel=1e-6)


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
        vocab_size, each = 2 + int(59 * torch.rand((), generator=g)), 1 + seed % 4
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
                    w, theta = layer.weight.detach().double(), layer.theta.detach().double()
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
                elif not name.endswith("word_of_sense"):
                    assert torch.equal(value, before[name]), name
            moved, given = moved + len(moves), given + own
        unequal += len(set(layer.senses_per_word().tolist())) > 1
    # the cases are of all kinds
    assert moved > cases
    assert given > 0 or cases < 100
    assert unequal > cases // 4


Case = tuple[SenseInventory, ReallocationSettings]
CASES = 8  # inventories of one drawn kind: drawing costs more than the check


@st.composite
def inventories(draw: st.DrawFn) -> list[Case]:
    """Any allocation; usages with many ties or none, some words never predicted."""
    vocab_size, most = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    total = draw(st.integers(vocab_size, vocab_size * most))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    power, ties = draw(st.sampled_from([0.0, 1.0, 8.0])), draw(st.booleans())
    occurrences = draw(st.sampled_from([1, 3, 50]))
    threshold = draw(st.sampled_from([-8.0, -5.0, -1.0, 1.0]))
    settings = ReallocationSettings(threshold, draw(st.sampled_from([0.005, 0.3, 1.0])))
    cases = list[Case]()
    for _ in range(CASES):
        owners = random_allocation(vocab_size, total, most, g)[torch.randperm(total, generator=g)]
        usage = torch.rand(total, generator=g).pow(power)
        usage = (usage * 4).round() / 4 if ties else usage
        count = torch.randint(occurrences, (vocab_size,), generator=g)
        prob, log_prob = (torch.rand(vocab_size, generator=g) for _ in range(2))
        prob = (prob * 4).round() / 4 if ties else prob
        values = {"usage": usage, "interval_joint": usage.flip(0), "log_prob": -10 * log_prob}
        values |= {"interval_count": count, "interval_prob": count * prob}
        cases.append((inventory_of(owners, vocab_size, most, **values), settings))
    return cases


@pytest.mark.parametrize("policy", ["paper", "released"])
@settings(max_examples=40)
@given(inventories())
def test_policies_are_their_literal_forms(policy: str, cases: list[Case]) -> None:
    for inventory, options in cases:
        check_policy(policy, inventory, options)


def check_policy(policy: str, inventory: SenseInventory, options: ReallocationSettings) -> None:
    before = copy.deepcopy(inventory.state_dict())
    state = {name: value.tolist() for name, value in before.items()}
    owners, usage, most = state["word_of_sense"], state["usage"], inventory.max_senses
    count, prob, used = (state[f"interval_{name}"] for name in ("count", "prob", "joint"))
    if policy == "paper":
        threshold = options.log_prob_threshold
        expected, after, usage = algorithm1(owners, usage, state["log_prob"], threshold, most)
    else:
        expected, own = released_reallocation(owners, count, prob, used, options.max_moves, most)
        after = list(owners)
        for sense, _, word in expected:
            after[sense] = word
        assert len({sense for sense, *_ in expected}) == len(expected)  # no sense moves twice
        assert len(expected) + own <= math.ceil(options.max_moves * inventory.vocab_size)
    moves = POLICIES[policy](inventory, options)
    columns = (moves.senses, moves.sources, moves.words)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    # a policy changes nothing
    torch.testing.assert_close(inventory.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(reallocate(inventory, policy, options).senses, moves.senses)
    assert inventory.word_of_sense.tolist() == after
    assert inventory.usage.tolist() == pytest.approx(usage, rel=1e-6)
    counts = torch.bincount(inventory.word_of_sense, minlength=inventory.vocab_size)
    assert counts.sum() == inventory.total_senses
    assert 1 <= counts.min() <= counts.max() <= inventory.max_senses
    assert (inventory.table.mask.sum(1) == counts).all()


@pytest.mark.parametrize("kind", ["adam", "amsgrad", "momentum", "plain"])
@pytest.mark.parametrize("policy", ["paper", "released"])
def test_moved_rows_begin_afresh_and_no_other(kind: str, policy: str) -> None:
    layer, other = KerbsOutputLayer(6, 20, 60), nn.Linear(6, 6)
    parameters = [*layer.parameters(), *other.parameters()]
    optimizer: torch.optim.Optimizer
    if kind in ("adam", "amsgrad"):
        optimizer = torch.optim.Adam(parameters, lr=1e-2, amsgrad=kind == "amsgrad")
    else:
        optimizer = torch.optim.SGD(parameters, lr=1e-2, momentum=0.9 * (kind == "momentum"))
    for _ in range(3):
        h = other(torch.randn(50, 6))
        optimizer.zero_grad()
        layer.nll(h, torch.randint(20, (50,)), reduction="mean").backward()
        optimizer.step()
        layer.update_statistics(1e-3)
    weight, theta = layer.weight.detach().clone(), layer.theta.detach().clone()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    moves = layer.reallocate(policy, ReallocationSettings(log_prob_threshold=-25.0, max_moves=0.2))
    reset_moments(optimizer, layer.sense_parameters(), moves.senses)
    assert 0 < len(moves) < 60
    moved = torch.zeros(60, dtype=torch.bool)
    moved[moves.senses] = True
    assert torch.equal(layer.weight, weight)  # vectors stay
    assert torch.equal(layer.theta[~moved], theta[~moved])
    if policy == "paper":
        assert (layer.theta[moved] == 1e-8).all()  # of the kernel kerbs
    else:
        assert torch.equal(layer.theta, theta)
    after, seen = optimizer.state_dict()["state"], 0
    for number, parameter in enumerate(parameters):
        for name, old in before.get(number, {}).items():
            new = after[number][name]
            if number < 2 and torch.is_tensor(old) and old.shape == parameter.shape:
                assert (new[moved] == 0).all()
                assert torch.equal(new[~moved], old[~moved])
                assert (old[moved] != 0).any()
                seen += 1
            elif torch.is_tensor(old):
                assert torch.equal(new, old)
    assert seen == {"adam": 4, "amsgrad": 6, "momentum": 2, "plain": 0}[kind]


OWNERS = [0, 1, 2, 0, 1, 0]
small_inventory = partial(inventory_of, OWNERS, 3, 3)


def moves_of(*pairs: tuple[int, int]) -> Moves:
    senses, words = torch.tensor(pairs, dtype=torch.long).view(-1, 2).t()
    return Moves(senses, torch.tensor(OWNERS)[senses], words, torch.zeros(len(pairs)))


def test_the_most_used_sense_is_that_of_the_interval_then_of_usage_then_the_first() -> None:
    words, usage = torch.tensor([0, 1, 2, 0]), [0.1, 0.2, 0.3, 0.9, 0.4, 0.5]
    interval = [2.0, 0.0, 0.0, 1.0, 0.0, 2.0]
    used = leading_senses(small_inventory(interval_posterior=interval, usage=usage), words)
    assert used.tolist() == [5, 4, 2, 5]
    used = leading_senses(small_inventory(usage=[0.0] * 6), words)
    assert used.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_split_lies_beside_the_most_used_sense_and_never_changes(dtype: torch.dtype) -> None:
    inventory = small_inventory(interval_posterior=[0.0, 1.0, 3.0, 5.0, 7.0, 2.0])
    weight = torch.randn(6, 50).to(dtype)
    weight[2] = 0.0  # a zero vector stays one
    moves = moves_of((5, 1), (0, 1), (4, 2))
    vectors: Any = new_vectors(inventory, weight, moves, "split")
    assert vectors.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    base = weight[4].to(vectors)
    for row in (0, 1):
        torch.testing.assert_close(vectors[row].norm(), base.norm())
        sine = (vectors[row] - (vectors[row] @ base) / (base @ base) * base).norm() / base.norm()
        assert sine.item() == pytest.approx(SPLIT_SINE, rel=1e-4)
    assert not vectors[0].allclose(vectors[1])  # two senses of one word go different ways
    assert not vectors[2].any()
    torch.manual_seed(99)  # no generator but the sense's own has a part in it
    again: Any = new_vectors(inventory, weight, moves, "split")
    assert torch.equal(vectors, again)
    one: Any = new_vectors(inventory, torch.full((6, 1), -2.0), moves, "split")
    assert one.flatten().tolist() == pytest.approx([-2.0 * (1 - SPLIT_SINE**2) ** 0.5] * 3)


def test_keep_and_errors() -> None:
    inventory, weight, moves = small_inventory(), torch.randn(6, 4), moves_of((5, 1))
    assert new_vectors(inventory, weight, moves, "keep") is None
    assert new_vectors(inventory, weight, moves_of(), "split") is None
    with pytest.raises(ValueError, match=r"`new_sense`.*'fresh'.*keep, split"):
        KerbsOutputLayer(4, 3, 6, new_sense="fresh")
    with pytest.raises(ValueError, match=r"`policy`.*'often'.*paper, released"):
        reallocate(inventory, "often")
    with pytest.raises(ValueError, match="`sense_init`"):
        KerbsOutputLayer(8, 4, 8, sense_init="near")


def step(layer: KerbsOutputLayer, optimizer: torch.optim.Optimizer, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    h, target = torch.randn(80, 6, generator=g), torch.randint(20, (80,), generator=g)
    layer.nll(h, target, reduction="mean").backward()
    optimizer.step()
    layer.update_statistics(1e-3)


@pytest.mark.parametrize("how", ["keep", "split"])
@pytest.mark.parametrize("policy", ["paper", "released"])
def test_layers_write_the_new_vectors_and_go_on_after_a_resume(policy: str, how: str) -> None:
    settings = ReallocationSettings(log_prob_threshold=-25.0, max_moves=0.2)
    layer = KerbsOutputLayer(6, 20, 60, new_sense=how)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for seed in range(4):
        step(layer, optimizer, seed)
    resumed = KerbsOutputLayer(6, 20, 60, new_sense=how)
    other = torch.optim.Adam(resumed.parameters(), lr=0.05)
    resumed.load_state_dict(copy.deepcopy(layer.state_dict()))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    before = layer.weight.detach().clone()
    for one, adam in ((layer, optimizer), (resumed, other)):
        step(one, adam, 5)
        moves = one.reallocate(policy, settings)
    assert len(moves) > 0
    if how == "keep":
        assert moves.vectors is None
    else:
        torch.testing.assert_close(layer.weight[moves.senses], moves.vectors)
        assert (layer.weight - before)[moves.senses].abs().amax(1).min() > 0.01
    torch.testing.assert_close(layer.state_dict(), resumed.state_dict(), rtol=0, atol=0)


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
