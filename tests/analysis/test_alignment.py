"""IBM Model 1 against a plain reference, and on an example by hand."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np
import pytest

from fairseq_kerbs.analysis.alignment import NULL, align

Lines = list[list[str]]


def plain_posteriors(text: Lines, other: Lines, iterations: int) -> list[list[list[float]]]:
    """P(f_i causes e) of every line and word, NULL first: Brown et al. (1993) in loops."""
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
    return [posteriors(words, causes) for words, causes in pairs]


@pytest.mark.parametrize("iterations", [0, 1, 5])
def test_posteriors_are_those_of_plain_loops(iterations: int) -> None:
    draw = Random(0)
    text = [[draw.choice("abcd") for _ in range(draw.randint(0, 5))] for _ in range(30)]
    other = [[draw.choice("uvwxyz") for _ in range(draw.randint(0, 5))] for _ in range(30)]
    alignment = align(text, other, iterations)
    posterior = alignment.posterior.toarray()
    word = start = 0
    for words, causes, rows in zip(
        text, other, plain_posteriors(text, other, iterations), strict=True
    ):
        for row in rows:
            here = posterior[word, start : start + len(causes)]
            np.testing.assert_allclose(here, row[1:], rtol=1e-12)
            assert posterior[word].sum() == pytest.approx(here.sum())
            best = 0 if alignment.best[word] == NULL else alignment.best[word] - start + 1
            assert row[best] == pytest.approx(max(row))
            word += 1
        start += len(causes)
        assert len(rows) == len(words)
    assert posterior.shape == (word, start)


def test_an_iteration_by_hand() -> None:
    """Two lines, "the house" – "das Haus" and "the" – "das", after one iteration.

    Expected counts: (the, das) 1/3 + 1/2, (the, NULL) as much, (the, Haus) 1/3; (house, ·) 1/3
    each. So t(the | das) = t(the | NULL) = 5/7, t(the | Haus) = 1/2; t(house | das) = 2/7,
    t(house | Haus) = 1/2.
    """
    found = align([["the", "house"], ["the"]], [["das", "Haus"], ["das"]], 1)
    the, house = 5 / 7 + 5 / 7 + 1 / 2, 2 / 7 + 2 / 7 + 1 / 2
    expected = [[5 / 7 / the, 1 / 2 / the, 0], [2 / 7 / house, 1 / 2 / house, 0], [0, 0, 1 / 2]]
    np.testing.assert_allclose(found.posterior.toarray(), expected)
    assert found.best.tolist() == [NULL, 1, NULL]  # NULL stands first where two are equal


def test_words_find_their_translations() -> None:
    text = [["a", "small", "house"], ["the", "house"], ["a", "small", "book"], ["the", "book"]]
    other = [
        ["ein", "kleines", "Haus"],
        ["das", "Haus"],
        ["ein", "kleines", "Buch"],
        ["das", "Buch"],
    ]
    best = align(text, other, 20).best.tolist()
    assert [best[place] for place in (2, 4, 7, 9)] == [2, 4, 7, 9]


def test_lines_without_words() -> None:
    assert align([], []).posterior.shape == (0, 0)
    found = align([["x"], [], ["y"]], [[], ["q"], []])
    assert found.best.tolist() == [NULL, NULL]
    assert found.posterior.shape == (2, 1)
    assert found.posterior.nnz == 0


def test_texts_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 lines cannot be aligned with 1"):
        align([["a"], ["b"]], [["a"]])
