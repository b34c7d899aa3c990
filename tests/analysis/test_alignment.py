"""The word alignment by IBM Model 1, against plain loops."""

from collections import defaultdict
from random import Random

import numpy as np
import pytest

from fairseq_kerbs.analysis.alignment import NULL, align
from fairseq_kerbs.utils import progress
from tests.analysis.conftest import Lines
from tests.helpers.cli import Capsys, Patch


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
    # all candidates of each word are equally probable, but not to the last bit
    assert align([["c", "e", "a", "a", "a", "a"]], [["y", "v", "v", "z"]]).tolist() == [NULL] * 6
    assert align([["x"], [], ["y"]], [[], ["q"], []]).tolist() == [NULL, NULL]
    assert align([], []).tolist() == []


def test_a_long_alignment_says_how_far_it_is(monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    align([["a", "b"]], [["c"]], iterations=3)
    assert "word alignment: 2 of 3 iterations, 0 s" in capsys.readouterr().err
