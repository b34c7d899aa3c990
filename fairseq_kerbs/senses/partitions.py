"""How well two partitions of the occurrences of a word agree: B-cubed F and paired F.

A partition groups n occurrences, for example by their gold sense, or by the sense that a model
gives them. B-cubed (Bagga and Baldwin 1998) looks at each occurrence i. With C(i) the occurrences
that share its induced sense, and G(i) those that share its gold sense, i itself included,

    precision = mean over i of |C(i) ∩ G(i)| / |C(i)|,    recall = mean of |C(i) ∩ G(i)| / |G(i)|

Paired F (Artiles et al. 2009) counts pairs of different occurrences: precision is the share of the
pairs in one induced sense that have one gold sense, recall the share of the pairs of one gold sense
that are in one induced sense. In both F is the harmonic mean.

Both hold for words with one gold sense, too: there one induced sense has F = 1, and each further
sense lowers it. The V-measure says nothing of such words, and it rewards needless senses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class PartitionScore(NamedTuple):
    """Precision, recall, and their harmonic mean."""

    precision: float
    recall: float
    f: float


def bcubed(gold: Integers, induced: Integers) -> PartitionScore:
    """B-cubed scores of induced senses [n] by gold senses [n], both numbered from 0."""
    table = _contingency(gold, induced)
    same = table * table
    occurrences = table.sum()
    precision = (same / np.maximum(table.sum(0), 1)).sum() / occurrences
    recall = (same / np.maximum(table.sum(1, keepdims=True), 1)).sum() / occurrences
    return _score(float(precision), float(recall))


def paired(gold: Integers, induced: Integers) -> PartitionScore:
    """Paired scores of induced senses [n] by gold senses [n], both numbered from 0.

    Precision is 1 if no two occurrences share an induced sense, as no pair is wrong. In the same
    way recall is 1 if no two share a gold sense.
    """
    table = _contingency(gold, induced)
    both = _pairs(table)
    of_induced = _pairs(table.sum(0))
    of_gold = _pairs(table.sum(1))
    precision = both / of_induced if of_induced else 1.0
    recall = both / of_gold if of_gold else 1.0
    return _score(precision, recall)


def _contingency(gold: Integers, induced: Integers) -> NDArray[np.float64]:
    """Number of occurrences of each gold sense in each induced sense, [gold, induced]."""
    if len(gold) != len(induced) or not len(gold):
        raise ValueError(
            f"`gold` has {len(gold)} occurrences and `induced` {len(induced)}: give the same "
            "occurrences for both, at least one."
        )
    table = np.zeros((int(gold.max()) + 1, int(induced.max()) + 1))
    np.add.at(table, (gold, induced), 1.0)
    return table


def _pairs(counts: NDArray[np.float64]) -> float:
    """Number of pairs within groups of these sizes."""
    return float((counts * (counts - 1) / 2).sum())


def _score(precision: float, recall: float) -> PartitionScore:
    total = precision + recall
    return PartitionScore(precision, recall, 2 * precision * recall / total if total else 0.0)
