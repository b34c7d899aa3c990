"""B-cubed F and paired F of two partitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.senses.partitions import Integers, bcubed, paired
from tests.helpers.reference import bcubed_by_occurrence, paired_by_pair

PARTITIONS = st.integers(1, 12).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n)] * 2)
)


def numbers(labels: list[int]) -> Integers:
    return np.array(labels, np.int64)


def test_bcubed_by_hand() -> None:
    """Gold {1 2 3} {4}, induced {1 2} {3 4}.

    Precision of the occurrences: 1, 1, ½, ½. Recall: ⅔, ⅔, ⅓, 1.
    """
    found = bcubed(numbers([0, 0, 0, 1]), numbers([0, 0, 1, 1]))
    assert found.precision == pytest.approx(3 / 4)
    assert found.recall == pytest.approx(2 / 3)
    assert found.f == pytest.approx(12 / 17)


def test_paired_by_hand() -> None:
    """The pairs of gold are 12, 13, 23, the induced ones 12, 34: one is in both."""
    found = paired(numbers([0, 0, 0, 1]), numbers([0, 0, 1, 1]))
    assert (found.precision, found.recall) == pytest.approx((1 / 2, 1 / 3))
    assert found.f == pytest.approx(2 / 5)


@given(PARTITIONS)
def test_the_scores_are_those_of_plain_loops(partitions: tuple[list[int], list[int]]) -> None:
    gold, induced = partitions
    for score, reference in ((bcubed, bcubed_by_occurrence), (paired, paired_by_pair)):
        assert score(numbers(gold), numbers(induced)) == pytest.approx(reference(gold, induced))


@given(PARTITIONS, st.permutations(range(5)))
def test_names_of_senses_do_not_matter(
    partitions: tuple[list[int], list[int]], renamed: list[int]
) -> None:
    gold, induced = map(numbers, partitions)
    for score in (bcubed, paired):
        other = score(numbers(renamed)[gold], numbers(renamed)[induced])
        assert other == pytest.approx(score(gold, induced))
        assert score(gold, numbers(renamed)[gold]).f == pytest.approx(1.0)
        exchanged = score(induced, gold)
        assert (exchanged.recall, exchanged.precision) == pytest.approx(score(gold, induced)[:2])


@given(PARTITIONS)
def test_one_sense_finds_everything_and_needless_senses_cost(
    partitions: tuple[list[int], list[int]],
) -> None:
    gold, induced = map(numbers, partitions)
    shares = np.bincount(gold) / len(gold)
    one = bcubed(gold, np.zeros_like(gold))
    assert one.recall == pytest.approx(1.0)
    assert one.precision == pytest.approx(float((shares**2).sum()))
    single = np.zeros_like(gold)
    several = len(set(induced.tolist())) > 1
    assert (bcubed(single, induced).f < 1 - 1e-9) == several


def test_occurrences_must_be_the_same() -> None:
    for gold, induced in ([0, 1], [0]), ([], []):
        with pytest.raises(ValueError, match=r"`gold` has . occurrences and `induced` .: give"):
            bcubed(numbers(gold), numbers(induced))
