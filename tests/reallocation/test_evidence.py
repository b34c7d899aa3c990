"""The number of senses of a word, by source words and neighbours."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.reallocation.evidence import information, number_of_senses
from fairseq_kerbs.reallocation.kmeans import Clustering

N = 120
MEANING = np.arange(N) % 2


def clusterings(*labels: np.ndarray) -> list[Clustering]:
    single = torch.zeros(N, dtype=torch.long)
    found = [Clustering(single, 3.0)]
    found += [Clustering(torch.from_numpy(of_k), 2.0) for of_k in labels]
    return found


def beside(classes: np.ndarray, noise: float = 0.0) -> np.ndarray:
    """A neighbour for each class, and one beside everything. A share of them is at random."""
    draw = np.random.default_rng(1)
    shown = np.where(draw.random(N) < noise, draw.permutation(classes), classes)
    kinds = int(classes.max()) + 1
    return np.concatenate([np.eye(kinds, dtype=bool)[shown], np.ones((N, 1), bool)], 1)


FOUR = np.arange(N) % 4
SYNONYMS = np.random.default_rng(2).permutation(MEANING)


def test_a_word_with_two_meanings_has_two_senses() -> None:
    found = clusterings(MEANING, np.where(np.arange(N) < 9, 2, MEANING), FOUR)
    assert number_of_senses(found, MEANING, beside(MEANING)) == 2
    assert number_of_senses(found[:1], MEANING, beside(MEANING)) == 1


def test_clusters_without_source_words_of_their_own_are_no_senses() -> None:
    assert number_of_senses(clusterings(MEANING), np.zeros(N, np.int64), beside(MEANING)) == 1


def test_synonyms_of_the_source_are_no_senses() -> None:
    """Clusters follow source words, which neighbours do not tell."""
    found = clusterings(SYNONYMS)
    assert number_of_senses(found, SYNONYMS, beside(SYNONYMS)) == 2
    assert number_of_senses(found, SYNONYMS, beside(MEANING)) == 1


def test_neighbours_must_tell_clusters_and_source_words() -> None:
    """Both are similar, but a neighbour tells only one of them, or only weakly."""
    off = MEANING.copy()
    off[:15] = 1 - off[:15]
    found = clusterings(off)
    both = number_of_senses(found, MEANING, beside(MEANING))
    explained = min(information(beside(MEANING), off), information(beside(MEANING), MEANING))
    assert both == 2
    assert 0.05 < explained < 0.5
    assert number_of_senses(found, MEANING, beside(MEANING), explained) == 2
    assert number_of_senses(found, MEANING, beside(MEANING), explained + 1e-6) == 1


def test_few_aligned_occurrences_tell_nothing() -> None:
    for aligned, senses in ((20, 2), (19, 1)):
        sources = np.where(np.arange(N) < aligned, MEANING, -1)
        assert number_of_senses(clusterings(MEANING), sources, beside(MEANING)) == senses


@given(st.permutations(range(4)))
def test_names_of_classes_do_not_matter(renamed: list[int]) -> None:
    known = information(beside(FOUR, 0.3), FOUR)
    assert information(beside(FOUR, 0.3), np.array(renamed)[FOUR]) == pytest.approx(known)
    assert information(beside(FOUR, 0.3)[:, ::-1], FOUR) == pytest.approx(known)


def test_information_is_a_share_of_the_entropy() -> None:
    assert 0.9 < information(beside(FOUR), FOUR) < 1.0
    assert information(beside(FOUR, 0.3), FOUR) < information(beside(FOUR, 0.1), FOUR)
    assert information(beside(MEANING), SYNONYMS) < 0.0
    assert information(np.zeros((N, 0), bool), FOUR) == pytest.approx(0.0)
    assert information(beside(FOUR), np.zeros(N, np.int64)) == 0.0


def test_information_by_hand() -> None:
    """The formula, occurrence by occurrence."""
    table = beside(MEANING, 0.4)
    fold = np.random.default_rng(0).permutation(N) % 5
    surprise = 0.0
    plain = 0.0
    for i in range(N):
        others = [j for j in range(N) if fold[j] != fold[i]]
        logits = []
        for kind in (0, 1):
            members = [j for j in others if MEANING[j] == kind]
            logit = np.log((len(members) + 0.5) / (len(others) + 1.0))
            if kind == MEANING[i]:
                plain -= logit
            for column in np.flatnonzero(table[i]):
                frequency = (table[others, column].sum() + 0.1) / (len(others) + 0.2)
                share = (table[members, column].sum() + 2 * frequency) / (len(members) + 2)
                logit += np.log(share / frequency)
            logits.append(logit)
        surprise += np.log(np.exp(logits).sum()) - logits[MEANING[i]]
    assert information(table, MEANING) == pytest.approx(1 - surprise / plain)
