"""Names of senses: associations, source words, the order of words, dialog and language models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.analysis.names import (
    LEAST_OCCURRENCES,
    SenseNames,
    Text,
    contingency,
    log_odds,
)

LABELS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=60)


@given(LABELS)
def test_scores_are_z_scores_of_log_odds(pairs: list[tuple[int, int]]) -> None:
    rows, columns = np.array(pairs).T
    table = contingency(rows, columns, 4)
    assert table.sum() == len(pairs)
    scores = log_odds(table)
    for row, column in set(pairs):
        a = table[row, column]
        b, c = table[row].sum() - a, table[:, column].sum() - a
        d = table.sum() - a - b - c
        odds = np.log((a + 0.5) / (b + 0.5)) - np.log((c + 0.5) / (d + 0.5))
        right = odds / np.sqrt(1 / (a + 0.5) + 1 / (c + 0.5)) if a >= 2 else 0.0
        assert scores[row, column] == pytest.approx(right)


SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "bank", "the", "river", "money", "dog", "."]


def text_of(sides: str, same: bool = False) -> Text:
    """ "the river bank ." and "the money bank ." in turn; rows 40 and 41 are senses of bank, 50 and
    51 senses of dog and of "the", which occur at random."""
    draw = np.random.default_rng(1)
    lines, source, found = [], [], []
    for number in range(4 * LEAST_OCCURRENCES):
        river = number % 2
        lines.append(["the", "river" if river else "money", "bank", ".", "dog"])
        foreign = ["das", "Ufer" if river else "Geldhaus", "Hund"]
        if number == 7:  # once is chance
            foreign[1] = "Flussufer"
        asked = ["the", "dog", "river", "money", "bank", "."]
        asked += ["swim", "wet"] if river else ["pay"]
        source.append(asked if same else foreign)
        found += [(number, 2, 4, 40 + river), (number, 4, 8, 50 + int(draw.integers(2)))]
        found += [(number, 0, 5, 60 + river), (number, 3, 9, 70 + river)]
    found += [(len(lines) + n, 1, 8, 50 + int(draw.integers(2))) for n in range(len(lines))]
    lines += [["the", "dog", "."]] * len(lines)  # without bank, for the alignment
    source += [["das", "Hund"]] * len(source)
    line, place, entry, sense = np.array(found).T
    posterior = draw.uniform(0.5, 1.0, len(sense))
    return Text(lines, None if sides == "one" else source, line, place, entry, sense, posterior)


def test_a_sense_is_named_by_what_it_translates_and_its_neighbours() -> None:
    text = text_of("two")
    names = SenseNames(text, SYMBOLS)
    money, river = names.names(4)[40], names.names(4)[41]
    assert (money.sources, river.sources) == ([("Geldhaus", 80)], [("Ufer", 79)])
    assert (money.neighbours, river.neighbours) == (["money bank"], ["river bank"])
    assert (money.share, money.turn) == (0.5, [])
    assert (river.translates, river.short) == ("Ufer 79", "Ufer")
    assert names.clarity(4) == pytest.approx(np.log(2), rel=0.02)
    assert names.names(6) == {}
    assert names.examples(40, 6, 9) == []
    found = names.examples(40, 4, 3)
    assert [words[place - 1 : place + 1] for _, words, place in found] == [["money", "bank"]] * 3
    posteriors = sorted(text.posterior[text.sense == 40], reverse=True)
    assert [posterior for posterior, *_ in found] == posteriors[:3]
    assert names.clarity(6) == 0.0
    assert names.clarity(8) < 0.02


def test_the_clearest_words_come_first_and_those_without_content_last() -> None:
    names = SenseNames(text_of("one"), SYMBOLS)
    assert names.clarity(5) == pytest.approx(names.clarity(4), rel=0.05)  # of "the", by "river"
    words = names.clearest(0, special=4)
    assert words[0] == "bank"
    assert words[-1] == "the"
    assert names.clearest(1, special=4) == ["bank"]


@pytest.mark.parametrize("sides", ["one", "same"])
def test_without_another_language_neighbours_and_the_turn_before_name_senses(sides: str) -> None:
    names = SenseNames(text_of(sides, same=True), SYMBOLS)
    river: Any = names.names(4)[41]
    assert river.sources == []
    assert river.neighbours == ["river bank"]
    assert sorted(river.turn) == ([] if sides == "one" else ["swim", "wet"])
    assert river.short.startswith("river bank")
    assert names.clarity(4) == pytest.approx(np.log(2), rel=0.02)


def test_odd_texts_have_names_too() -> None:
    """No source words at all; a word that looks like a form; a token that is very long."""
    text = text_of("two")
    empty = text._replace(source=[[]] * len(text.words))
    assert SenseNames(empty, SYMBOLS).names(4)[41].short == "river bank"
    odd = [["{}" if word == "bank" else word for word in words] for words in text.words]
    symbols = ["{}" if word == "bank" else word for word in SYMBOLS]
    odd[-1] = ["x" * 100_000]
    names = SenseNames(text._replace(words=odd, source=None), symbols)
    assert names.names(4)[41].neighbours == ["river {}"]
