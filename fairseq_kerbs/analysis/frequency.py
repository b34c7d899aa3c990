"""Senses of words by how frequent the words are in the training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FrequencyGroup:
    """A tenth of the words.

    Attributes:
        words: how many words it has.
        most, fewest: occurrences of its most and its least frequent word.
        senses: mean number of senses of a word.
    """

    words: int
    most: int
    fewest: int
    senses: float


def senses_by_frequency(
    senses: Sequence[int], counts: Sequence[int], groups: int = 10
) -> list[FrequencyGroup]:
    """Mean number of senses of a word, by deciles of frequency.

    Args:
        senses: [V] number of senses of each word.
        counts: [V] occurrences in the training data; words with 0 (such as fairseq's special
            symbols) belong to no group.
        groups: number of groups; each has equally many words, give or take one.

    Returns:
        groups from the most frequent words to the rarest; empty ones are left out. Words of equal
        counts are in dictionary order.
    """
    order = sorted((i for i, n in enumerate(counts) if n > 0), key=lambda i: (-counts[i], i))
    result = []
    for number in range(groups):
        part = order[number * len(order) // groups : (number + 1) * len(order) // groups]
        if part:
            mean = sum(senses[i] for i in part) / len(part)
            result.append(FrequencyGroup(len(part), counts[part[0]], counts[part[-1]], mean))
    return result


def frequency_lines(groups: Sequence[FrequencyGroup]) -> list[str]:
    """A table for a terminal, one line a group."""
    lines = [f"{'decile':<8}{'words':>8}{'occurrences':>20}{'senses a word':>15}"]
    for number, group in enumerate(groups, 1):
        span = f"{group.most}–{group.fewest}"
        lines.append(f"{number:<8}{group.words:>8}{span:>20}{group.senses:>15.3f}")
    return lines
