"""Policies against their literal forms, the registry, and a policy that is added as one class."""

import copy
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_kerbs.reallocation import (
    POLICIES,
    Algorithm1,
    AuthorsCode,
    Moves,
    Policy,
    ReallocationSettings,
    SenseState,
    build_policy,
    policy,
    propose_moves,
    reallocate,
    register,
)
from fairseq_kerbs.reallocation.context_sample import LEAST_CONTEXTS
from fairseq_kerbs.reallocation.policy import readers_of, setting
from fairseq_kerbs.senses import SenseInventory, random_allocation
from tests.helpers.inventories import inventory_of
from tests.helpers.reference import algorithm1, released_reallocation

Case = tuple[SenseInventory, ReallocationSettings]
CASES = 8  # inventories of one drawn kind: drawing costs more than the check


@st.composite
def inventories(draw: st.DrawFn) -> list[Case]:
    """Any allocation; usages with many ties or none, some words never predicted."""
    vocab_size = draw(st.integers(1, 12))
    most = draw(st.integers(1, 4))
    total = draw(st.integers(vocab_size, vocab_size * most))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    power = draw(st.sampled_from([0.0, 1.0, 8.0]))
    ties = draw(st.booleans())
    occurrences = draw(st.sampled_from([1, 3, 50]))
    threshold = draw(st.sampled_from([-8.0, -5.0, -1.0, 0.0]))
    max_moves = draw(st.sampled_from([0.005, 0.3, 1.0]))
    settings = ReallocationSettings(log_prob_threshold=threshold, max_moves=max_moves)
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


@pytest.mark.parametrize("name", ["paper", "released"])
@settings(max_examples=40)
@given(inventories())
def test_policies_are_their_literal_forms(name: str, cases: list[Case]) -> None:
    for inventory, options in cases:
        check_policy(name, inventory, options)


def check_policy(name: str, inventory: SenseInventory, options: ReallocationSettings) -> None:
    before = copy.deepcopy(inventory.state_dict())
    state = {name: value.tolist() for name, value in before.items()}
    owners = state["word_of_sense"]
    usage = state["usage"]
    most = inventory.max_senses
    count, prob, used = (state[f"interval_{name}"] for name in ("count", "prob", "joint"))
    if name == "paper":
        threshold = options.values["log_prob_threshold"]
        expected, after, usage = algorithm1(owners, usage, state["log_prob"], threshold, most)
    else:
        max_moves = options.values["max_moves"]
        expected, own = released_reallocation(owners, count, prob, used, max_moves, most)
        after = list(owners)
        for sense, _, word in expected:
            after[sense] = word
        assert len({sense for sense, *_ in expected}) == len(expected)  # no sense moves twice
        assert len(expected) + own <= math.ceil(max_moves * inventory.vocab_size)
    moves = propose_moves(inventory, name, options)
    columns = (moves.senses, moves.sources, moves.words)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    # a policy changes nothing
    torch.testing.assert_close(inventory.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(reallocate(inventory, name, options).senses, moves.senses)
    assert inventory.word_of_sense.tolist() == after
    assert inventory.usage.tolist() == pytest.approx(usage, rel=1e-6)
    counts = torch.bincount(inventory.word_of_sense, minlength=inventory.vocab_size)
    assert counts.sum() == inventory.total_senses
    assert 1 <= counts.min() <= counts.max() <= inventory.max_senses
    assert (inventory.table.mask.sum(1) == counts).all()


def test_an_unknown_policy_or_setting_is_refused() -> None:
    inventory = SenseInventory(3, 6)
    with pytest.raises(ValueError, match=r"`policy`.*'often'.*paper, released"):
        reallocate(inventory, "often")
    with pytest.raises(ValueError, match=r"no policy has a setting 'gap'.*cluster_gap"):
        ReallocationSettings(gap=1.0)


def test_a_policy_takes_its_own_settings() -> None:
    values = ReallocationSettings(log_prob_threshold=-3.0, max_moves=0.5)
    assert build_policy("paper", values) == Algorithm1(log_prob_threshold=-3.0)
    assert build_policy("released", values) == AuthorsCode(max_moves=0.5)
    assert build_policy(Algorithm1(-7.0)) == Algorithm1(log_prob_threshold=-7.0)
    assert build_policy(Algorithm1(-7.0), values) == Algorithm1(log_prob_threshold=-3.0)
    assert repr(values) == "ReallocationSettings(log_prob_threshold=-3.0, max_moves=0.5)"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"log_prob_threshold": 5.0},
            "`log_prob_threshold` is 5.0, but must be within",
        ),
        ({"max_moves": 0.0}, "`max_moves` is 0.0, but must be within"),
        ({"cluster_gap": -1.0}, "`cluster_gap` is -1.0, but must be within"),
        ({"cluster_gap": math.nan}, "`cluster_gap` is nan, but must be within"),
    ],
)
def test_a_setting_outside_its_interval_is_refused(values: dict[str, float], message: str) -> None:
    [name] = values
    [reader] = readers_of(name)
    with pytest.raises(ValueError, match=message):
        build_policy(reader, ReallocationSettings(**values))
    with pytest.raises(ValueError, match=message):
        POLICIES[reader](**values)


def test_an_inventory_alone_has_no_contexts() -> None:
    with pytest.raises(ValueError, match=r"`policy` clusters reads contexts"):
        reallocate(SenseInventory(3, 6), "clusters")


@dataclass(frozen=True)
class Named(Algorithm1):
    name = "named"


@dataclass(frozen=True)
class Differing(Policy):
    """With a setting that the flag of another policy could not be."""

    name = "differing"
    max_moves: float = setting(0.5, "another default")

    def propose(self, senses: SenseState) -> Moves:
        raise NotImplementedError


def test_names_and_flags_of_policies_are_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("paper", "none"):
        monkeypatch.setattr(Named, "name", name)
        with pytest.raises(ValueError, match=f"a policy '{name}' already"):
            register(Named)
    with pytest.raises(ValueError, match=r"'differing' has a setting 'max_moves' that differs"):
        register(Differing)
    monkeypatch.setattr(Named, "name", "named")
    monkeypatch.setattr(policy, "POLICIES", dict(policy.POLICIES))
    register(Named)
    assert readers_of("log_prob_threshold") == ("paper", "named")


def test_each_policy_says_itself_why_no_sense_moved() -> None:
    assert f"need {LEAST_CONTEXTS} sampled contexts" in POLICIES["clusters"]().describe_none()
    assert "no sense moved" in POLICIES["paper"]().describe_none()
    assert str(LEAST_CONTEXTS) not in POLICIES["paper"]().describe_none()
