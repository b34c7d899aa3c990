"""How many senses a word has, by evidence outside of its contexts.

K-means always finds clusters, and most words of a text have one meaning. A word therefore keeps one
sense unless two kinds of evidence agree (:func:`number_of_senses`):

1. *Source words.* In translation each occurrence has an aligned source word. The number of senses
   is the k whose clusters agree best with source words, by B-cubed F
   (:mod:`fairseq_kerbs.senses.partitions`). Often that is 1.
2. *Neighbours.* Source words also differ where a translator chose between synonyms. But then the
   words beside the occurrence do not tell which. So neighbours must predict both the clusters and
   the source words, by :data:`LEAST_INFORMATION` of the entropy at least.

Source words decide how many senses a word has, but not which sense an occurrence has: that is by
the clusters of contexts alone.

Neighbours predict by naive Bayes on held-out occurrences. As it takes neighbours for independent,
it is too sure of itself, so that weak evidence has negative information. This makes the criterion
strict.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fairseq_kerbs.reallocation.kmeans import Clustering
from fairseq_kerbs.senses.partitions import Integers, bcubed

LEAST_INFORMATION = 0.2
"""Minimum share of the entropy of clusters, and of source words, that neighbours explain."""

LEAST_LABELLED = 20
"""Minimum number of occurrences of a word with a source word."""

FOLDS = 5
"""Parts of the occurrences, each of which is held out once."""

PRIOR = 2.0
"""Weight of the frequency of a neighbour beside all occurrences, in occurrences of a class."""

ADDED_TO_CLASSES = 0.5
"""Occurrences that are added to each class, so that none has the probability 0."""

ADDED_TO_NEIGHBOURS = 0.1
"""Occurrences with, and as many without, that are added to each neighbour."""


def number_of_senses(
    clusterings: Sequence[Clustering],
    sources: Integers,
    neighbours: NDArray[np.bool_],
    least_information: float = LEAST_INFORMATION,
) -> int:
    """Number of senses of a word, from 1 to the number of clusterings.

    Args:
        clusterings: clusterings of its n contexts into 1, 2, … clusters.
        sources: number of the source word of each context, from 0, or −1 for none, [n].
        neighbours: which words are beside each context, [n, words].
        least_information: minimum :func:`information` of neighbours about clusters, and about
            source words.
    """
    known = sources >= 0
    if len(clusterings) < 2 or known.sum() < LEAST_LABELLED:
        return 1
    labels = [found.labels.numpy() for found in clusterings]
    scores = [bcubed(sources[known], of_k[known]).f for of_k in labels]
    best = int(np.argmax(scores))  # of equal scores the first
    if best == 0:
        return 1
    explained = min(
        information(neighbours, labels[best]), information(neighbours[known], sources[known])
    )
    return best + 1 if explained >= least_information else 1


def information(neighbours: NDArray[np.bool_], classes: Integers) -> float:
    """Share of the entropy of classes [n] that neighbours [n, words] explain, at most 1.

        1 − H(class | neighbours) / H(class)

    Both are cross-entropies on held-out occurrences, so that the share is negative if the
    prediction is worse than the frequencies of classes. The prediction is naive Bayes over the
    words j beside the occurrence:

        P(class | neighbours) ∝ P(class) Π_j P(j | class) / P(j)

    Words that are not beside it are left out. P(j | class) is shrunk to P(j) by :data:`PRIOR`.
    """
    kinds = int(classes.max()) + 1
    if kinds < 2:
        return 0.0
    fold = np.random.default_rng(0).permutation(len(classes)) % FOLDS
    conditional = 0.0
    entropy = 0.0
    for held_out in range(FOLDS):
        test = fold == held_out
        known = ~test
        prior = _log_prior(classes[known], kinds)
        evidence = _log_evidence(neighbours[known], classes[known], kinds)
        scores = prior + neighbours[test].astype(float) @ evidence.T  # [n_test, kinds]
        scores -= np.logaddexp.reduce(scores, axis=1, keepdims=True)
        conditional -= scores[np.arange(len(scores)), classes[test]].sum()
        entropy -= prior[classes[test]].sum()
    return 1.0 - float(conditional / entropy)


def _log_prior(classes: Integers, kinds: int) -> NDArray[np.float64]:
    """Log P(class), [kinds], by the classes of known occurrences, [m]."""
    sizes = np.bincount(classes, minlength=kinds)
    prior: NDArray[np.float64] = np.log(
        (sizes + ADDED_TO_CLASSES) / (len(classes) + ADDED_TO_CLASSES * kinds)
    )
    return prior


def _log_evidence(
    neighbours: NDArray[np.bool_], classes: Integers, kinds: int
) -> NDArray[np.float64]:
    """Log P(j | class) / P(j), [kinds, words], by the neighbours and classes of known occurrences.

    These are [m, words] and [m].
    """
    members = np.eye(kinds)[classes]  # [m, kinds]
    sizes = members.sum(0)
    frequency = (neighbours.sum(0) + ADDED_TO_NEIGHBOURS) / (
        len(neighbours) + 2 * ADDED_TO_NEIGHBOURS
    )  # P(j), [words]
    share = (members.T @ neighbours + PRIOR * frequency) / (sizes[:, None] + PRIOR)
    evidence: NDArray[np.float64] = np.log(share / frequency)
    return evidence
