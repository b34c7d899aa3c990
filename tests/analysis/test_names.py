"""Names of senses: alignment, associations, source words, the order of words, dialog."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.analysis.alignment import NULL, align
from fairseq_kerbs.analysis.names import LEAST_OCCURRENCES, SenseNames, log_odds
from fairseq_kerbs.analysis.teacher_forcing import Text
from tests.analysis import conftest

Lines = list[list[str]]


def plain_posteriors(text: Lines, other: Lines, iterations: int) -> list[list[float]]:
    """P(f_i causes e) of every word, NULL first: Brown et al. (1993) in loops."""
    pairs = [(words, ["NULL", *causes]) for words, causes in zip(text, other, strict=True)]
    translation: defaultdict[tuple[str, str], float] = defaultdict(lambda: 1.0)

    def posteriors(words: list[str], causes: list[str]) -> list[list[float]]:
        rows = [[translation[word, cause] for cause in causes] for word in words]
        return [[value / sum(row) for value in row] for row in rows]

    for _ in range(iterations):
        counts: defaultdict[tuple[str, str], float] = defaultdict(float)
        totals: defaultdict[str, float] = defaultdict(float)
        for words, causes in pairs:
            for word, row in zip(words, posteriors(words, causes), strict=True):
                for cause, share in zip(causes, row, strict=True):
                    counts[word, cause] += share
                    totals[cause] += share
        translation.update({key: value / totals[key[1]] for key, value in counts.items()})
    return [row for words, causes in pairs for row in posteriors(words, causes)]


@pytest.mark.parametrize("iterations", [0, 1, 5])
def test_causes_are_the_most_probable_ones_of_plain_loops(iterations: int) -> None:
    draw = Random(0)
    text = [[draw.choice("abcd") for _ in range(draw.randint(0, 5))] for _ in range(60)]
    other = [[draw.choice("uvwxyz") for _ in range(draw.randint(0, 5))] for _ in range(60)]
    starts = np.cumsum([0, *map(len, other)])
    start = [starts[line] for line, words in enumerate(text) for _ in words]
    rows = plain_posteriors(text, other, iterations)
    best = align(text, other, iterations)
    found = [0 if cause == NULL else cause - begin + 1 for cause, begin in zip(best, start)]
    chosen = [row[at] for row, at in zip(rows, found, strict=True)]
    assert chosen == pytest.approx([*map(max, rows)])
    assert len({*found}) > 2 or iterations == 0


def test_words_find_their_translations() -> None:
    # by hand after one iteration: t(the | das) = t(the | NULL) = 5/7 > t(the | Haus) = 1/2, but
    # t(house | Haus) = 1/2 > 2/7; NULL stands first where two are equal
    best = align([["the", "house"], ["the"]], [["das", "Haus"], ["das"]], 1)
    assert best.tolist() == [NULL, 1, NULL]
    # words that always occur together are parted by their places
    together = align([["the", "trunk"], ["the"]], [["ihr", "Elefant", "Rüssel"], ["ihr"]])
    assert together.tolist()[1] == 2
    assert align([["trunk", "up"], ["up"]], [["Rüssel", "Elefant", "auf"], ["auf"]])[0] == 0
    assert align([["x"], [], ["y"]], [[], ["q"], []]).tolist() == [NULL, NULL]
    assert align([], []).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=60))
def test_scores_are_z_scores_of_log_odds(pairs: list[tuple[int, int]]) -> None:
    rows, columns = np.array(pairs).T
    table = np.zeros((4, 5), np.int64)
    np.add.at(table, (rows, columns), 1)
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
    lines, source, tokens = [], [], []
    for number in range(4 * LEAST_OCCURRENCES):
        river = number % 2
        lines.append(["the", "river" if river else "money", "bank", ".", "dog"])
        shore = "Ufer" if number != 7 else "Flussufer"  # once is chance
        foreign = ["das", shore if river else "Geldhaus", "Hund"]
        asked = ["the", "dog", "river", "money", "bank", "."]
        asked += ["swim", "wet"] if river else ["pay"]
        source.append(asked if same else foreign)
        tokens += [(number, 2, 4, 40 + river), (number, 4, 8, 50 + int(draw.integers(2)))]
        tokens += [(number, 0, 5, 60 + river), (number, 3, 9, 70 + river)]
    tokens += [(len(lines) + n, 1, 8, 50 + int(draw.integers(2))) for n in range(len(lines))]
    lines += [["the", "dog", "."]] * len(lines)  # without bank, for the alignment
    source += [["das", "Hund"]] * len(source)
    text = conftest.text_of(lines, tokens, None if sides == "one" else source)
    text.tokens["posterior"] = draw.uniform(0.5, 1.0, len(tokens))
    return text


def test_a_sense_is_named_by_what_it_translates_and_its_neighbours() -> None:
    text = text_of("two")
    names = SenseNames(text, SYMBOLS)
    money, river = names.names(4)[40], names.names(4)[41]
    assert (money.sources, river.sources) == ([("Geldhaus", 80)], [("Ufer", 79)])
    assert (money.neighbours, river.neighbours) == (["money bank"], ["river bank"])
    assert (money.share, money.turn) == (0.5, [])
    assert (river.translates, river.short) == ("Ufer 79", "Ufer")
    assert names.clarity(4) == pytest.approx(np.log(2), rel=0.02)
    assert (names.count(4), names.count(6)) == (4 * LEAST_OCCURRENCES, 0)
    unknown = [["<unk>" if word == "river" else word for word in line] for line in text.words]
    nothing = SenseNames(text._replace(words=unknown), SYMBOLS).names(4)[41]
    assert (nothing.neighbours, nothing.share) == ([], 0.5)
    assert (names.names(6), names.examples(40, 6, 9), names.clarity(6)) == ({}, [], 0.0)
    assert names.clarity(8) < 0.02
    assert [name.neighbours for name in names.names(8).values()] == [[], []]  # they are at random
    posteriors = sorted(text.tokens["posterior"][text.tokens["sense"] == 40], reverse=True)
    for example, posterior in zip(names.examples(40, 4, 3), posteriors[:3], strict=True):
        assert example == (posterior, ["the", "money", "bank", ".", "dog"], 2)


def test_the_clearest_words_come_first_and_those_without_content_last() -> None:
    names = SenseNames(text_of("one"), SYMBOLS)
    assert names.clarity(5) == pytest.approx(names.clarity(4), rel=0.05)  # of "the", by "river"
    words = names.clearest(0, special=4)
    assert (words[0], words[-1]) == ("bank", "the")
    assert names.clearest(1, special=4) == ["bank"]


@pytest.mark.parametrize("sides", ["one", "same", "empty"])
def test_without_another_language_neighbours_and_the_turn_before_name_senses(sides: str) -> None:
    text = text_of(sides, same=True)
    if sides == "empty":
        text = text._replace(source=[[]] * len(text.words))
    names = SenseNames(text, SYMBOLS)
    river = names.names(4)[41]
    assert (river.sources, river.neighbours) == ([], ["river bank"])
    assert sorted(river.turn) == (["swim", "wet"] if sides == "same" else [])
    assert river.short.startswith("river bank")
    assert names.clarity(4) == pytest.approx(np.log(2), rel=0.02)
