"""Small clusters of words by how alike pairs of them are."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

MOST_WORDS = 8
"""Words of a cluster, at most: Gao et al. show five."""


def usual_nearness(graph: Any) -> float:
    """The likeness to the nearest word that half of the words with any neighbour reach.

    Args:
        graph: [V, V] sparse and symmetric, likeness of pairs above 0; what is not there is 0.
    """
    nearest = graph.max(axis=1).toarray().ravel()  # [V]
    linked = nearest[nearest > 0]
    return float(np.median(linked)) if len(linked) else 0.0


def cluster_words(graph: Any, least: float, most: int = MOST_WORDS) -> list[list[int]]:
    """Join words, the most alike first, by the mean likeness of all pairs (average linkage).

    Args:
        graph: as in :func:`usual_nearness`.
        least: mean likeness of all pairs between two groups that are joined.
        most: words of a cluster.

    Returns:
        clusters of two words or more.
    """
    sums: dict[int, dict[int, float]] = {}  # likeness between groups, summed over pairs
    pairs = graph.tocoo()
    for one, other, value in zip(pairs.row, pairs.col, pairs.data, strict=True):
        if one != other:
            sums.setdefault(int(one), {})[int(other)] = float(value)
    members = {word: [word] for word in sorted(sums)}
    queue = [
        (-value, one, other)
        for one, others in sums.items()
        for other, value in others.items()
        if one < other and value >= least
    ]
    heapq.heapify(queue)
    number = graph.shape[0]  # a group that is made gets a number of its own
    while queue:
        _, one, other = heapq.heappop(queue)
        if one not in members or other not in members:
            continue
        if len(members[one]) + len(members[other]) > most:
            continue
        members[number] = members.pop(one) + members.pop(other)
        _join(sums, one, other, number)
        for near, value in sums[number].items():
            mean = value / (len(members[number]) * len(members[near]))
            if mean >= least:
                heapq.heappush(queue, (-mean, near, number))
        number += 1
    return [words for words in members.values() if len(words) > 1]


def _join(sums: dict[int, dict[int, float]], one: int, other: int, number: int) -> None:
    """Give two groups' sums to the group made of them."""
    own, added = sums.pop(one), sums.pop(other)
    own.pop(other)
    added.pop(one)
    for near, value in added.items():
        own[near] = own.get(near, 0.0) + value
    for near, value in own.items():
        sums[near].pop(one, None)
        sums[near].pop(other, None)
        sums[near][number] = value
    sums[number] = own
