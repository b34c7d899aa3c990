"""Where contexts lie and how they spread: against sums written out, over copies and precisions."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.senses import SenseInventory
from fairseq_kerbs.senses.inventory import Evidence

WORDS, DIM = 3, 5


def inventory() -> SenseInventory:
    """Word 0 has senses 0 and 3, word 1 has 1 and 4, word 2 has 2."""
    found = SenseInventory(WORDS, 5, 2, cluster_dim=DIM)
    found.load_state_dict(found.state_dict() | {"word_of_sense": torch.tensor([0, 1, 2, 0, 1])})
    return found


def evidence(found: SenseInventory, words: Tensor, best: Tensor) -> Evidence:
    """All of each occurrence's probability is one sense's, the first or second of its word."""
    senses = found.table.senses[words]
    probability = torch.nn.functional.one_hot(best, 2).float() * found.table.mask[words]
    return Evidence(torch.full((len(words),), -0.1), senses, probability, words >= 0)


def batch(seed: int, size: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(0, WORDS, (size,), generator=draw)
    best = (torch.rand(size, generator=draw) < 0.3).long() * (words < 2)
    return words, best, 2.0 + torch.randn(size, DIM, generator=draw)


def record(found: SenseInventory, *parts: tuple[Tensor, Tensor, Tensor]) -> None:
    for words, best, contexts in parts:
        found.record(words, evidence(found, words, best), contexts)


def across(center: Tensor) -> Tensor:
    """The projection P onto what is orthogonal to a center, [d, d]."""
    unit = center / center.norm()
    return torch.eye(DIM).to(center) - torch.outer(unit, unit)


def test_sums_are_those_written_out() -> None:
    found = inventory()
    words, best, contexts = batch(0)
    record(found, (words, best, contexts))
    found.update(0.1)
    assert found.clusters is not None
    other = contexts[(words == 1) & (best == 1)].mean(0)
    torch.testing.assert_close(found.clusters.centers(torch.tensor([4])), other[None])
    for word in range(WORDS):
        own = contexts[(words == word) & (best == 0)].double()
        offsets, v = own - own.mean(0), found.clusters.direction[word].double()
        expected = across(own.mean(0)) @ sum((h @ v) * h for h in offsets)
        leader = found.clusters.leader[word]
        assert found.clusters.sense_count[leader] == len(own)
        torch.testing.assert_close(found.clusters.centers(leader).double(), own.mean(0))
        (spread,) = found.clusters.spread(torch.tensor([word])).double()
        torch.testing.assert_close(spread, expected, atol=1e-4, rtol=1e-4)


def test_merging_raises_the_distortion_by_its_cost() -> None:
    """Word 0 has three senses: each would join the one, of those with as many contexts or more,
    with which the rise is least, differences of length apart."""
    found = SenseInventory(WORDS, 6, 3, cluster_dim=DIM)
    owners = torch.tensor([0, 1, 2, 0, 1, 0])
    found.load_state_dict(found.state_dict() | {"word_of_sense": owners})
    best = torch.randint(0, 6, (90,), generator=torch.Generator().manual_seed(0))
    contexts = batch(1, 90)[2]
    place = (found.table.senses[owners[best]] == best[:, None]).int().argmax(1)
    share = torch.nn.functional.one_hot(place, 3).float()
    senses = found.table.senses[owners[best]]
    log_prob = torch.full((90,), -0.1)
    found.record(owners[best], Evidence(log_prob, senses, share, log_prob < 0), contexts)
    found.update(0.1)
    assert found.clusters is not None

    def distortion(*senses: int) -> float:
        own = contexts[torch.isin(best, torch.tensor(senses))].double()
        return float((own - own.mean(0)).square().sum())

    def longer(one: int, other: int) -> float:
        """What of it is a difference of length alone."""
        n, k = counts[[one, other]].tolist()
        lengths = [float(contexts[best == sense].mean(0).norm()) for sense in (one, other)]
        return n * k / (n + k) * (lengths[0] - lengths[1]) ** 2

    costs, counts = found.clusters.merge_costs(*found.table[:2]), best.bincount()
    for sense, owner in enumerate(owners.tolist()):
        rises = [
            distortion(sense, other) - distortion(sense) - distortion(other) - longer(sense, other)
            for other in range(6)
            if owners[other] == owner and other != sense and counts[other] >= counts[sense]
        ]
        assert float(costs[sense]) == pytest.approx(min(rises, default=float("inf")), rel=1e-4)


def test_directions_settle_on_the_first_principal_component_across_the_mean() -> None:
    """Contexts differ most in length, which no kernel tells apart."""
    found = inventory()
    words, best, contexts = batch(1, 400)
    contexts = 6.0 + (contexts - 2.0) * torch.tensor([1.0, 1.0, 4.0, 1.0, 1.0])
    draw = torch.Generator().manual_seed(2)
    contexts = contexts * torch.linspace(0.2, 2.0, 400)[torch.randperm(400, generator=draw), None]
    for _ in range(12):
        record(found, (words, best, contexts))
        found.update(0.1)
        found.start_interval()
    assert found.clusters is not None
    assert found.clusters.rounds.tolist() == [12, 12, 12]
    for word in range(WORDS):
        own = contexts[(words == word) & (best == 0)]
        project = across(own.mean(0))
        largest = torch.linalg.eigh(project @ own.T.cov() @ project)[1][:, -1]
        assert abs(float(found.clusters.direction[word] @ largest)) > 0.999


def test_taking_up_what_was_recorded_leaves_nothing_pending() -> None:
    found = inventory()
    assert found.clusters is not None
    for seed in (0, 1):
        record(found, batch(seed, 7))
        before = found.clusters.sense_sum.clone()
        added = found._sums()["sense_sum"].clone().view_as(before)
        found.update(0.1)
        assert not found.pending.any()
        assert torch.equal(found.clusters.sense_sum, before + added)


def test_another_leader_begins_anew() -> None:
    found = inventory()
    assert found.clusters is not None
    start = found.clusters.direction.clone()
    words, _, contexts = batch(2)
    for best in (torch.zeros_like(words), (words == 0).long()):
        record(found, (words, best, contexts))
        found.update(0.1)
        found.start_interval()
    assert found.clusters.leader.tolist() == [3, 1, 2]
    assert found.clusters.rounds.tolist() == [0, 2, 2]
    assert torch.equal(found.clusters.direction[0], start[0])
    assert not torch.equal(found.clusters.direction[1], start[1])


def test_what_ignored_and_overflown_targets_would_add_is_left_out() -> None:
    found, without = inventory(), inventory()
    words, best, contexts = batch(3)
    part = evidence(found, words, best)
    part.log_prob[:5] = -torch.inf
    part.counted[5:9] = False
    contexts[:9] = torch.nan
    found.record(words, part, contexts)
    record(without, (words[9:], best[9:], contexts[9:]))
    assert torch.equal(found.pending, without.pending)


def test_sums_of_two_processes_are_those_of_one() -> None:
    parts = batch(4), batch(5)
    together, apart = inventory(), (inventory(), inventory())
    record(together, *parts)
    for one, part in zip(apart, parts, strict=True):
        record(one, part)
    torch.testing.assert_close(apart[0].pending + apart[1].pending, together.pending)


def test_a_copy_made_in_mid_interval_goes_on_with_the_same_bits() -> None:
    found, file = inventory(), io.BytesIO()
    for seed in (6, 7, 8):
        record(found, batch(seed))
        found.update(0.1)
        if seed == 6:
            found.start_interval()
        if seed == 7:
            torch.save(found.state_dict(), file)
    copy = inventory()
    file.seek(0)
    copy.load_state_dict(torch.load(file, weights_only=True))
    record(copy, batch(8))
    copy.update(0.1)
    for one in (found, copy):
        one.start_interval()
    for name, value in found.state_dict().items():
        assert torch.equal(copy.state_dict()[name], value), name


def test_checkpoints_of_other_policies_load_and_the_other_way_round() -> None:
    followed, plain = inventory(), SenseInventory(WORDS, 5, 2)
    assert followed.clusters is not None
    plain.load_state_dict(followed.state_dict())
    before = followed.clusters.direction.clone()
    followed.load_state_dict(SenseInventory(WORDS, 5, 2).state_dict())
    assert torch.equal(followed.clusters.direction, before)


def test_a_checkpoint_with_sums_of_leading_senses_alone_begins_the_interval_anew() -> None:
    found, state = inventory(), inventory().state_dict()
    for name in ("sense_count", "sense_sum"):
        del state[f"clusters.{name}"]
    state |= {"clusters.lead_count": torch.ones(WORDS), "clusters.rounds": torch.arange(WORDS)}
    state |= {"clusters.lead_sum": torch.ones(WORDS, DIM)}
    state |= {"clusters.lead_along": torch.ones(WORDS, DIM)}
    found.load_state_dict(state)
    assert found.clusters is not None
    assert not found.clusters.rounds.any()
    assert not found.clusters.lead_along.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_does_not_round_them(dtype: torch.dtype) -> None:
    found = inventory().to(dtype)
    assert found.clusters is not None
    assert found.clusters.direction.dtype == found.clusters.sense_sum.dtype == torch.float32


def test_contexts_must_be_given() -> None:
    found = inventory()
    words, best, _ = batch(9)
    with pytest.raises(ValueError, match="`contexts`"):
        found.record(words, evidence(found, words, best))
