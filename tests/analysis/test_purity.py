"""Purity against values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_kerbs.analysis.purity import Purity, measure, overall, purity_of, read_gold_senses
from fairseq_kerbs.errors import UserError


def test_purity_by_hand() -> None:
    learned = [7, 7, 7, 9, 9, 9, 9, 4]
    true = ["a", "a", "b", "b", "b", "b", "a", "a"]
    # sense 7: 2 of 3 are a; sense 9: 3 of 4 are b; sense 4: 1 of 1 is a
    assert purity_of(learned, true) == pytest.approx(6 / 8)


def test_one_sense_reaches_the_most_frequent_true_sense() -> None:
    result = measure([1] * 10, ["a"] * 7 + ["b"] * 3)
    assert (result.occurrences, result.purity, result.single) == (10, 0.7, 0.7)
    assert result.chance == pytest.approx(0.7)


def test_perfect_senses_are_pure_whatever_their_names() -> None:
    result = measure([5, 3] * 50, ["river", "money"] * 50)
    assert result.purity == 1.0
    assert result.single == 0.5
    # two groups of 50 drawn at random: the larger share of one is 0.5 + E|X − 25|/50 ≈ 0.54
    assert 0.52 < result.chance < 0.56


def test_more_senses_than_needed_raise_chance_too() -> None:
    true = ["a", "b"] * 20
    assert measure(list(range(40)), true).chance == 1.0


def test_overall_weighs_by_occurrences() -> None:
    total = overall([Purity(10, 1.0, 0.5, 0.6), Purity(30, 0.6, 0.5, 0.5)])
    assert total.occurrences == 40
    assert total.purity == pytest.approx(0.7)
    assert total.chance == pytest.approx(0.525)


@pytest.mark.parametrize(("learned", "true"), [([], []), ([1], ["a", "b"])])
def test_unequal_or_empty_groupings_are_refused(learned: list[int], true: list[str]) -> None:
    with pytest.raises(ValueError, match="as many"):
        purity_of(learned, true)


@pytest.mark.parametrize(
    ("text", "named"),
    [("", "empty"), ("0\t0\tbank\n", "line 1"), ("0\t0\tbank\tBank\nx\t0\tbank\tUfer\n", "line 2")],
)
def test_a_wrong_gold_file_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "gold.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=named):
        read_gold_senses(path)
