"""The policy ``balanced``: by hand, against its literal form, and what it promises."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairseq_kerbs.reallocation import POLICIES, reallocate
from fairseq_kerbs.reallocation.balanced import expected_loss, judge
from fairseq_kerbs.senses import SenseInventory
from fairseq_kerbs.senses.moves import ReallocationSettings


def inventory_of(
    owners: list[int],
    count: list[float],
    loss: list[float],
    cost: list[float],
    *,
    overlap: list[float] | None = None,
    usage: list[float] | None = None,
    most: int = 4,
) -> SenseInventory:
    """An inventory after an interval; ``loss`` and ``overlap`` are means over occurrences."""
    inventory = SenseInventory(len(count), len(owners), most)
    n, y = torch.tensor(count), torch.tensor(loss)
    state = inventory.state_dict() | {
        "word_of_sense": torch.tensor(owners),
        "interval_count": n,
        "interval_log_prob": -n * y,
        "interval_best": -n * (y + torch.tensor(overlap or [0.0] * len(count))),
        "interval_loss": torch.tensor(cost),
    }
    if usage is not None:
        state["usage"] = torch.tensor(usage)
    inventory.load_state_dict(state)
    return inventory


def as_tuples(moves: Any) -> list[tuple[int, int, int]]:
    parts = moves.senses, moves.sources, moves.words
    return list(zip(*(part.tolist() for part in parts), strict=True))


def test_balanced_policy_by_hand() -> None:
    """Words A … E, each 100 times, mean losses 5 4 3 2 1: too few for bins, so f is their median 3.

    With n_0 = 25 the factor is 0.8. A: e = 2 · 0.8 = 1.6, G = min(160, 161) = 160. B: e = 0.8 · ½
    (its two senses share every occurrence: g = log 2) = 0.4, G = min(40, 50, 60) = 40. C, D, E:
    e = 0. Spare senses by cost: 6 of C (3), 8 of D (10), 7 of C (45), then 5 and 1 of B; 4 is the
    only one of E. A takes 6. C gives no second one: B takes 8, as 40 > 10 + 1.
    """
    owners = [0, 1, 2, 3, 4, 1, 2, 2, 3]
    cost = [161.0, 60.0, 500.0, 400.0, 0.0, 50.0, 3.0, 45.0, 10.0]
    usage = [0.5, 0.2, 0.9, 0.9, 0.9, 0.6, 0.1, 0.1, 0.1]
    values: Any = owners, [100.0] * 5, [5.0, 4.0, 3.0, 2.0, 1.0], cost
    extra: Any = {"overlap": [0.0, math.log(2.0), 0.0, 0.0, 0.0], "usage": usage}
    inventory = inventory_of(*values, **extra)
    excess, gain, _ = judge(inventory, ReallocationSettings(prior_count=25.0))
    assert excess.tolist() == pytest.approx([1.6, 0.4, 0, 0, 0], abs=1e-6)
    assert gain.tolist() == pytest.approx([160, 40, 0, 0, 0], abs=1e-4)
    options = {"prior_count": 25.0, "max_moves": 1.0}
    for more, expected in (
        ({}, [(6, 2, 0), (8, 3, 1)]),
        ({"max_moves": 0.2}, [(6, 2, 0)]),
        ({"least_gain": 35.0}, [(6, 2, 0)]),  # 40 is not more than 10 + 35
        ({"least_gain": 200.0}, []),
    ):
        moves = POLICIES["balanced"](inventory, ReallocationSettings(**(options | more)))
        assert as_tuples(moves) == expected
    moves = reallocate(inventory, "balanced", ReallocationSettings(**options))
    assert moves.usage.tolist() == pytest.approx([0.5, 0.4])
    assert moves.reset_theta
    assert inventory.word_of_sense.tolist() == [0, 1, 2, 3, 4, 1, 0, 2, 1]
    assert not inventory.interval_log_prob.any()


# ------------------------------------------------------------------------- literal form


def literal_curve(count: list[float], loss: list[float]) -> list[float]:
    seen = [i for i, n in enumerate(count) if n > 0]
    bins = max(1, min(32, len(seen) // 25))
    members: dict[int, list[int]] = {}
    for i in seen:
        rarer = sum(count[j] < count[i] for j in seen)
        members.setdefault(rarer * bins // len(seen), []).append(i)
    xs = [statistics.median(math.log(count[i]) for i in members[b]) for b in sorted(members)]
    ys = [statistics.median(loss[i] for i in members[b]) for b in sorted(members)]
    return [float(np.interp(math.log(n), xs, ys)) if n > 0 else 0.0 for n in count]


def literal_moves(
    inventory: SenseInventory, options: ReallocationSettings
) -> list[tuple[int, int, int]]:
    owners = inventory.word_of_sense.tolist()
    count, cost = inventory.interval_count.tolist(), inventory.interval_loss.tolist()
    log_prob, best = inventory.interval_log_prob.tolist(), inventory.interval_best.tolist()
    words = range(len(count))
    loss = [-log_prob[i] / count[i] if count[i] else 0.0 for i in words]
    curve = literal_curve(count, loss)
    excess, gain, least = [], [], options.least_gain
    for i in words:
        n, own = count[i], [cost[m] for m, owner in enumerate(owners) if owner == i]
        overlap = max(0.0, (log_prob[i] - best[i]) / n) if n else 0.0
        shrunk = max(0.0, loss[i] - curve[i]) * n / (n + options.prior_count)
        excess.append(shrunk * math.exp(-overlap) if n else 0.0)
        gain.append(min([n * excess[i], *own]))
    moves: list[tuple[int, int, int]] = []
    busy: set[int] = set()
    for i in sorted(words, key=lambda i: (-excess[i], i)):
        if len(moves) == max(1, int(options.max_moves * len(count))):
            break
        small = gain[i] <= least or excess[i] <= 0
        if i in busy or small or owners.count(i) >= inventory.max_senses:
            continue
        spare = []
        for m, owner in enumerate(owners):
            idle = [k for k, other in enumerate(owners) if other == owner and cost[k] <= least]
            given = excess[owner] < excess[i] or (m in idle and len(idle) > 1)
            if owners.count(owner) > 1 and owner not in busy and owner != i and given:
                spare.append((cost[m], float(inventory.usage[m]), m))
        if spare and gain[i] > min(spare)[0] + least:
            sense = min(spare)[2]
            moves.append((sense, owners[sense], i))
            busy |= {owners[sense], i}
    return moves


def random_inventory(g: torch.Generator, words: int, ties: bool = False) -> SenseInventory:
    total = int(torch.randint(words, 4 * words + 1, (1,), generator=g))
    base = SenseInventory(words, total, 4, g)
    count = torch.rand(words, generator=g).mul(7).exp().floor() - 1
    loss = 9 - 0.6 * (count + 1).log() + torch.randn(words, generator=g).abs()
    cost = torch.rand(total, generator=g).pow(6) * 300
    overlap = torch.rand(words, generator=g)
    if ties:
        loss, cost, overlap = loss.round(), cost.round(), overlap.round()
    return inventory_of(
        base.word_of_sense[torch.randperm(total, generator=g)].tolist(),
        count.tolist(),
        loss.tolist(),
        cost.tolist(),
        overlap=overlap.tolist(),
        usage=torch.rand(total, generator=g).tolist(),
    )


@pytest.mark.parametrize("words", [1, 2, 9, 60, 130])
def test_balanced_policy_is_its_literal_form(words: int) -> None:
    g = torch.Generator().manual_seed(words)
    made = 0
    for trial in range(12):
        inventory = random_inventory(g, words, ties=trial % 4 == 3)
        options = ReallocationSettings(max_moves=(0.05, 0.4, 1.0)[trial % 3], prior_count=5.0)
        before = {name: value.clone() for name, value in inventory.state_dict().items()}
        moves = POLICIES["balanced"](inventory, options)
        assert as_tuples(moves) == literal_moves(inventory, options)
        assert len(moves) <= max(1, int(options.max_moves * words))
        assert not (moves.sources == moves.words).any()  # never its own sense
        for name, value in inventory.state_dict().items():
            assert torch.equal(value, before[name]), name
        reallocate(inventory, "balanced", options)
        numbers = inventory.senses_per_word()
        assert 1 <= numbers.min() <= numbers.max() <= 4
        made += len(moves)
    assert made > 0 or words < 9


def test_the_numbering_of_words_and_senses_does_not_matter() -> None:
    g = torch.Generator().manual_seed(7)
    inventory = random_inventory(g, 60)
    word, sense = torch.randperm(60, generator=g), torch.randperm(inventory.total_senses)
    renumbered = SenseInventory(60, inventory.total_senses, 4)
    state = dict(renumbered.state_dict())
    for name, value in inventory.state_dict().items():
        if len(value) == 60:
            state[name] = torch.empty_like(value).index_copy_(0, word, value)
        else:
            value = word[value] if name == "word_of_sense" else value
            state[name] = torch.empty_like(value).index_copy_(0, sense, value)
    renumbered.load_state_dict(state)
    options = ReallocationSettings(max_moves=1.0)
    first, second = (POLICIES["balanced"](one, options) for one in (inventory, renumbered))
    assert len(first) > 3
    assert torch.equal(second.senses, sense[first.senses])
    assert torch.equal(second.words, word[first.words])
    torch.testing.assert_close(second.usage, first.usage)


# ------------------------------------------------------------------------- promises


def zipf_loss(words: int) -> tuple[Tensor, Tensor]:
    """Counts from 2 to 100,000 and losses that fall with log n, spread by 0.3 about a line."""
    count = torch.linspace(math.log(2), math.log(1e5), words).exp().round()
    spread = 0.3 * torch.randn(words, generator=torch.Generator().manual_seed(2))
    return count, 12.0 - 0.8 * count.log() + spread


def test_the_curve_is_what_frequency_leads_one_to_expect() -> None:
    count, loss = zipf_loss(400)
    loss[::20] += 8.0  # outliers do not bend it
    line = 12.0 - 0.8 * count.log()
    curve = expected_loss(count.double(), loss.double())
    inner = slice(20, 380)  # it is constant beyond the centres of the outer bins
    assert (curve - line)[inner].abs().max() < 0.3
    assert expected_loss(torch.zeros(3).double(), torch.ones(3).double()).tolist() == [0, 0, 0]


@pytest.mark.parametrize("behind", [0, 1])
def test_frequency_alone_favours_no_word(behind: int) -> None:
    """One word occurs 100 times as often as another; both lie 1.5 nats above their curves."""
    count, loss = zipf_loss(400)
    pair = [int((count - n).abs().argmin()) for n in (300.0, 30_000.0)]
    assert count[pair[1]] / count[pair[0]] == pytest.approx(100, rel=0.1)
    for word in pair:
        loss[word] = 12.0 - 0.8 * count[word].log() + 1.5
    owners = [*range(400), *(word for word in range(400) if word not in pair)]
    cost = [*(6.0 * count).tolist(), *[1.0] * 398]

    def inventory() -> SenseInventory:
        return inventory_of(owners, count.tolist(), loss.tolist(), cost)

    def order() -> list[int]:
        words = POLICIES["balanced"](inventory(), ReallocationSettings(max_moves=2 / 400)).words
        return [int(word) for word in words]

    excess = judge(inventory(), ReallocationSettings())[0]
    assert excess[pair].tolist() == pytest.approx([1.5, 1.5], rel=0.15)
    assert set(order()) == set(pair)
    loss[pair[behind]] -= 0.2
    assert order() == [pair[1 - behind], pair[behind]]  # whichever is worse off comes first


def test_moves_end_while_words_stay_as_hard_as_they_are() -> None:
    """Excesses and costs that do not react: surplus idle senses run out, or excess adds up."""
    g = torch.Generator().manual_seed(3)
    inventory = random_inventory(g, 60)
    options = ReallocationSettings(max_moves=0.01)  # one at a time
    kept = {name: value.clone() for name, value in inventory.state_dict().items()}
    excess, last, rounds = judge(inventory, options)[0], (math.inf, 0.0), 0
    while True:
        owners = inventory.word_of_sense
        idle = torch.bincount(owners[inventory.interval_loss <= 1.0], minlength=60)
        now = float((idle - 1).clamp_min(0).sum()), -float(excess[owners].sum())
        assert now < last
        if not len(reallocate(inventory, "balanced", options)):
            break
        inventory.load_state_dict(kept | {"word_of_sense": inventory.word_of_sense})
        last, rounds = now, rounds + 1
    assert rounds > 5


def test_moves_end_where_words_react_and_several_clusters_get_several_senses() -> None:
    """A small world: a cluster without a sense costs its word 1.5 nats, an idle sense is worth 0.

    Some words are hard by nature, with losses that no sense mends. Words with several clusters are
    served, hard words keep one idle sense at most, and the world comes to rest.
    """
    g = torch.Generator().manual_seed(5)
    words = 120
    count = torch.rand(words, generator=g).mul(6).exp().mul(20).round()
    clusters = torch.randint(1, 5, (words,), generator=g)
    clusters[torch.rand(words, generator=g) < 0.5] = 1
    hard = torch.where(torch.rand(words, generator=g) < 0.15, 1.0, 0.0)
    inventory = SenseInventory(words, 3 * words, 4, g)
    options = ReallocationSettings(max_moves=0.05)
    start = _missing(inventory, clusters)
    for _ in range(150):
        numbers = inventory.senses_per_word()
        missing = (clusters - numbers).clamp_min(0)
        loss = 10 - 0.7 * count.log() + hard + 1.5 * missing / clusters
        slot = inventory.table.mask.cumsum(1) - 1  # the first k senses of a word serve its clusters
        rank = torch.zeros(3 * words, dtype=torch.long)
        rank[inventory.table.senses[inventory.table.mask]] = slot[inventory.table.mask]
        owners = inventory.word_of_sense
        serves = rank < clusters[owners]
        cost = torch.where(serves, 2.0 * (count / clusters)[owners], 0.0)
        values = (owners.tolist(), count.tolist(), loss.tolist(), cost.tolist())
        inventory.load_state_dict(inventory_of(*values).state_dict())
        moves = reallocate(inventory, "balanced", options)
        if not len(moves):
            break
    assert not len(moves)
    assert _missing(inventory, clusters) <= 0.1 * start
    unmended = (hard > 0) & (clusters == 1)
    assert inventory.senses_per_word()[unmended].float().mean() < 3.0


def _missing(inventory: SenseInventory, clusters: Tensor) -> int:
    return int((clusters - inventory.senses_per_word()).clamp_min(0).sum())
