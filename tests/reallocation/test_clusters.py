"""The policy ``clusters``: where senses go, what a split leaves as it was, what it ends in."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import propose_moves, reset_moments
from fairseq_kerbs.reallocation.clusters import GAP
from fairseq_kerbs.senses import SenseInventory

DIM = 16


def layer_of(owners: list[int], words: int, kernel: str = "lin") -> KerbsOutputLayer:
    layer = KerbsOutputLayer(DIM, words, len(owners), kernel=kernel, follow_clusters=True)
    layer.inventory.word_of_sense.copy_(torch.tensor(owners))
    layer.inventory._table = None
    return layer


def ready(layer: KerbsOutputLayer, count: list[float], spread: list[float], use: Tensor) -> None:
    """Statistics as after an interval: contexts of leading senses lie ±√spread along axis 0 about
    axis 1, and those of all other senses far away from these and from each other."""
    inventory, clusters = layer.inventory, layer.inventory.clusters
    assert clusters is not None
    n, dim = torch.tensor(count, dtype=torch.float32), layer.embed_dim
    axis, center = torch.eye(dim)[0].expand(len(n), dim), 3 * torch.eye(dim)[1]
    inventory.interval_count.copy_(n)
    inventory.interval_usage.copy_(use)
    clusters.sense_count.copy_(use)
    clusters.sense_sum.copy_(
        use[:, None] * 100 * torch.eye(dim)[2 + torch.arange(len(use)) % (dim - 2)]
    )
    clusters.sense_count[clusters.leader] = n
    clusters.sense_sum[clusters.leader] = n[:, None] * center
    clusters.lead_along.copy_((n * torch.tensor(spread))[:, None] * axis)
    clusters.direction.copy_(axis)
    clusters.rounds.fill_(2)


def as_tuples(inventory: SenseInventory) -> list[tuple[int, int, int]]:
    moves = propose_moves(inventory, "clusters")
    parts = moves.senses, moves.sources, moves.words
    return list(zip(*(part.tolist() for part in parts), strict=True))


def test_by_hand() -> None:
    """Words A … E with senses A 0 5, B 1 6, C 2 7, D 3 8, E 4; all contexts are the first sense's,
    but a half of B's. n λ: A 200, B 400, C 20 · 4 = 80, D too rare, E 300.

    By gain B, E, A, C. B has no idle sense of its own and takes the least
    used idle one of all, 8 of D; E the next, 7 of C; A its own, 5. C's own is gone, and there is no
    other: it takes none. The leading sense of each word that splits turns, too.
    """
    layer = layer_of([0, 1, 2, 3, 4, 0, 1, 2, 3], 5)
    use = torch.tensor([100.0, 50.0, 20.0, 10.0, 100.0, 0.0, 50.0, 0.0, 0.0])
    ready(layer, [100, 100, 20, 10, 100], [2, 4, 4, 9, 3], use)
    layer.inventory.usage.copy_(torch.tensor([9, 8, 7, 6, 5, 0.4, 4, 0.3, 0.2]))
    turned = [(1, 1, 1), (4, 4, 4), (0, 0, 0)]
    assert as_tuples(layer.inventory) == [*turned, (8, 3, 1), (7, 2, 4), (5, 0, 0)]
    moves = propose_moves(layer.inventory, "clusters")
    assert moves.moved == 3
    assert moves.usage.tolist() == [4.0, 2.5, 4.5] * 2


def test_senses_are_merged_where_that_costs_less_than_half_of_what_the_split_gains() -> None:
    """Of B's two senses with 100 and 50 occurrences one has contexts of length 5 at a cosine of 0.8
    to the other's of length 3: to merge them costs 100 · 50 / 150 · 2 · (15 − 12) = 200; of C's,
    of 20 each at a cosine of 0.6, 20 · 20 / 40 · 2 · (15 − 9) = 120. A's split gains 241, D's 239:
    A takes the second of C's, and D goes without.
    """
    layer = layer_of([0, 1, 2, 3, 1, 2], 4)
    inventory, clusters = layer.inventory, layer.inventory.clusters
    assert clusters is not None
    use, one, other = torch.tensor([100.0, 100, 20, 100, 50, 20]), *torch.eye(DIM)[[1, 3]]
    for spread, expected in (([2.41, 0, 0, 2.39], [(0, 0, 0), (5, 2, 0)]), ([2.39, 0, 0, 0], [])):
        ready(layer, [100, 100, 20, 100], spread, use)
        clusters.sense_sum[4], clusters.sense_sum[5] = (
            50 * (4 * one + 3 * other),
            20 * (3 * one + 4 * other),
        )
        costs, inf = clusters.merge_costs(*inventory.table[:2]), torch.inf
        torch.testing.assert_close(costs, torch.tensor([inf, inf, 120, inf, 200, 120]))
        assert as_tuples(inventory) == expected


def test_a_word_that_gives_a_sense_in_use_receives_none() -> None:
    """B gives a sense to A, and would split, too, by its own gain; its idle one it may give."""
    layer = layer_of([0, 1, 2, 1, 1], 3)
    clusters = layer.inventory.clusters
    assert clusters is not None
    use = torch.tensor([100.0, 100.0, 100.0, 50.0, 50.0])
    for idle, expected in ((False, [(3, 1, 0)]), (True, [(4, 1, 0), (3, 1, 2)])):
        use[4] = 0.0 if idle else 50.0
        ready(layer, [100, 100, 100], [9.0, 5.0, 8.0], use)
        clusters.sense_sum[3] = 50 * (3 * torch.eye(DIM)[1] + 0.1 * torch.eye(DIM)[3])
        moved = [move for move in as_tuples(layer.inventory) if move[0] > 2]
        assert moved == expected


def test_full_words_and_unsettled_directions_take_none() -> None:
    layer = layer_of([0, 1, 0, 0, 0, 1], 2)
    use = torch.tensor([25.0, 100.0, 25.0, 25.0, 25.0, 0.0])
    ready(layer, [100, 100], [9, 1], use)
    assert as_tuples(layer.inventory) == [(1, 1, 1), (5, 1, 1)]
    assert layer.inventory.clusters is not None
    layer.inventory.clusters.rounds.fill_(1)
    assert as_tuples(layer.inventory) == []


@pytest.mark.parametrize(
    ("kernel", "theta"), [("lin", 0.0), ("kerbs", 0.0), ("kerbs", -2.0), ("kerbs", 0.7)]
)
def test_a_split_leaves_both_sides_as_probable_and_parts_them_by_the_gap(
    kernel: str, theta: float
) -> None:
    layer = layer_of([0, 1, 0], 2, kernel=kernel).double()
    sides = torch.zeros(2, DIM, dtype=torch.float64)
    sides[:, 1], sides[0, 0], sides[1, 0] = 3.0, 2.0**0.5, -(2.0**0.5)
    with torch.no_grad():
        layer.weight[0] += 8 * torch.eye(DIM)[1]  # a turn by half of it is enough
        layer.weight[2] = 0.0
        layer.theta.fill_(theta)
    ready(layer, [100, 100], [2.0, 0.0], torch.tensor([100.0, 100.0, 0.0]))
    before = layer.sense_logits(sides.float(), torch.tensor([0]))[:, 0]
    moves = layer.reallocate("clusters")
    assert moves.senses.tolist() == [0, 2]
    after = layer.sense_logits(sides.float(), torch.tensor([0, 2]))
    torch.testing.assert_close(after.diagonal(), before, rtol=1e-4, atol=1e-4)
    falls = before - after.fliplr().diagonal()
    torch.testing.assert_close(falls, torch.full_like(falls, GAP), rtol=1e-3, atol=1e-3)
    assert moves.vectors is not None
    torch.testing.assert_close(moves.vectors, layer.weight[[0, 2]].detach())


def test_turns_are_no_longer_than_half_of_the_vector() -> None:
    layer = layer_of([0, 1, 0], 2)
    before = layer.weight.detach().clone()
    ready(layer, [100, 100], [0.1, 0.0], torch.tensor([100.0, 100.0, 0.0]))
    layer.reallocate("clusters")
    for sense in (0, 2):
        turn = (layer.weight[sense].detach() - before[0]).norm() / before[0].norm()
        assert 0.4 < float(turn) < 0.51


def test_contexts_that_are_all_alike_are_not_split() -> None:
    layer = layer_of([0, 1, 0], 2)
    ready(layer, [100, 100], [0.08, 0.0], torch.tensor([100.0, 100.0, 0.0]))
    assert not as_tuples(layer.inventory)


def test_contexts_of_one_direction_are_not_split() -> None:
    layer = layer_of([0, 1, 0], 2)
    ready(layer, [100, 100], [2.0, 0.0], torch.tensor([100.0, 100.0, 0.0]))
    clusters = layer.inventory.clusters
    assert clusters is not None
    clusters.sense_sum[:2] = 100 * 3 * torch.eye(DIM)[0]
    clusters.lead_along.copy_((2.0 + 9.0) * 100 * torch.eye(DIM)[0].expand(2, DIM))
    assert not as_tuples(layer.inventory)


def test_a_word_whose_leading_sense_has_lost_waits() -> None:
    layer = layer_of([0, 1, 0, 1], 2)
    ready(layer, [100, 100], [2.0, 0.0], torch.tensor([1.0, 100.0, 99.0, 0.0]))
    assert not as_tuples(layer.inventory)


def test_after_another_policy_no_word_loses_its_last_sense() -> None:
    """The leading senses of before may belong to other words."""
    torch.manual_seed(0)
    layer = KerbsOutputLayer(4, 60, 90, follow_clusters=True)
    start = KerbsOutputLayer(4, 60, 90)
    for _ in range(5):
        start.inventory.log_prob.uniform_(-200, 0)
        start.inventory.usage.uniform_()
        start.reallocate("paper")
    layer.load_state_dict(start.state_dict(), strict=False)
    owners = layer.word_of_sense[layer.inventory.clusters.leader]  # type: ignore[union-attr]
    assert torch.equal(owners, torch.arange(60))
    for number in range(8):
        if number == 4:
            layer.inventory.log_prob.uniform_(-200, 0)
            layer.reallocate("paper")
        count = torch.zeros(60)
        count[:10] = 100.0
        ready(layer, count.tolist(), [2.0] * 60, torch.rand(90))
        layer.reallocate("clusters")
        assert int(layer.senses_per_word().min()) == 1


def test_theta_goes_with_the_split() -> None:
    layer = KerbsOutputLayer(DIM, 2, 4, follow_clusters=True)
    layer.inventory.word_of_sense.copy_(torch.tensor([0, 1, 0, 1]))
    layer.inventory._table = None
    with torch.no_grad():
        layer.theta.copy_(torch.tensor([0.7, -0.2, 3.0, 4.0]))
    ready(layer, [100, 0], [2.0, 0.0], torch.tensor([100.0, 0.0, 0.0, 0.0]))
    layer.reallocate("clusters")
    assert layer.theta.tolist() == pytest.approx([0.7, -0.2, 0.7, 4.0])


def moves_from_any_statistics(words: int, extra: int, seed: int, zeros: float) -> int:
    """Let senses move by random statistics, check what must hold, and return how many moved."""
    draw = torch.Generator().manual_seed(seed)
    senses = words + min(extra, 3 * words)
    layer = KerbsOutputLayer(4, words, senses, follow_clusters=True)
    inventory, clusters = layer.inventory, layer.inventory.clusters
    assert clusters is not None
    clusters.sense_count.random_(0, 150, generator=draw)
    clusters.sense_count[torch.rand(senses, generator=draw) < zeros] = 0.0
    soft = torch.rand(senses, generator=draw)  # the most probable sense need not be the most used
    inventory.interval_usage.copy_(clusters.sense_count * soft)
    inventory.interval_count.index_add_(0, layer.word_of_sense, inventory.interval_usage)
    clusters.sense_sum.normal_(generator=draw).mul_(clusters.sense_count.unsqueeze(1))
    clusters.lead_along.normal_(generator=draw).mul_(300.0)
    clusters.rounds.random_(0, 4, generator=draw)
    leading = inventory.leading_senses()
    moves = layer.reallocate("clusters")
    assert torch.equal(layer.word_of_sense[leading], torch.arange(words))
    counts = layer.senses_per_word()
    assert int(counts.min()) >= 1
    assert int(counts.max()) <= 4
    assert moves.senses.unique().numel() == len(moves)
    assert layer.weight.isfinite().all()
    assert inventory.interval_count.sum() == clusters.sense_count.sum() == 0
    return moves.moved


@settings(max_examples=20)
@given(
    words=st.integers(1, 8),
    extra=st.integers(0, 24),
    seed=st.integers(0, 10_000),
    zeros=st.floats(0, 1),
)
def test_any_statistics_give_moves_that_can_be_made(
    words: int, extra: int, seed: int, zeros: float
) -> None:
    moves_from_any_statistics(words, extra, seed, zeros)


def test_senses_in_use_and_idle_ones_move_by_random_statistics() -> None:
    assert moves_from_any_statistics(8, 16, seed=0, zeros=0.0) > 0
    assert sum(moves_from_any_statistics(8, 16, seed, zeros=0.3) for seed in range(5)) > 5


def test_it_needs_a_layer_that_was_built_for_it() -> None:
    with pytest.raises(ValueError, match="`policy` clusters"):
        KerbsOutputLayer(4, 3, 6).reallocate("clusters")


@pytest.mark.parametrize(
    ("policy", "least", "most"), [("clusters", 0.9, 1.0), ("paper", 0.49, 0.8)]
)
def test_senses_come_to_stand_for_clusters(policy: str, least: float, most: float) -> None:
    """Six words, each in two sorts of contexts that predict it equally well."""
    torch.manual_seed(0)
    words, draw = 6, torch.Generator().manual_seed(3)
    layer = KerbsOutputLayer(DIM, words, 14, follow_clusters=True)
    optimizer = torch.optim.Adam(layer.parameters(), 3e-3)
    center, offset = torch.randn(2, words, DIM, generator=draw)
    center, offset = (
        size * torch.nn.functional.normalize(part, dim=1)
        for size, part in ((4, center), (2, offset))
    )

    def contexts(word: Tensor, sort: Tensor) -> Tensor:
        noise = 0.3 * torch.randn(len(word), DIM, generator=draw)
        return center[word] + (2 * sort - 1)[:, None] * offset[word] + noise

    for step in range(1, 501):
        word, sort = torch.randint(0, words, (200,), generator=draw), torch.arange(200) % 2
        loss = layer.nll(contexts(word, sort), word, reduction="mean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        layer.update_statistics(1e-5)
        if step % 50 == 0:
            moves = layer.reallocate(policy)
            reset_moments(optimizer, layer.sense_parameters(), moves.senses)
    word, sort = torch.arange(words).repeat_interleave(200), torch.arange(200 * words) % 2
    posterior = layer.posterior(layer.look_up(word), contexts(word, sort))
    together = torch.zeros(words, 4, 2).index_put_(
        (word, posterior.argmax(1), sort), torch.ones(len(word)), accumulate=True
    )
    purity = float(together.amax(2).sum(1).mean()) / 200
    assert least < purity <= most
