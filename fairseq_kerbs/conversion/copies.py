"""Senses of a converted model: copies of words' vectors that leave probabilities as they were.

At θ = 0 the kernel is the inner product (Eq. 9), so a word with one sense has the logit it had.
A word with several equal senses keeps its probability (Eq. 4) where each has a share of it, added
to its logit as log(share): the bias of ``--sense-bias``. Shares of a word sum to 1. Two ways:

``spare``
    An extra sense takes a share of :data:`SPARE_SHARE` of a word that is rarely used, and has usage
    0: it does next to nothing where it is, and reallocation takes it first. Frequent words host
    none, because they are the first to be found badly predicted (Eq. 12) and could not take as many
    senses if some of theirs were idle. Policies break ties by the lower number: the last sense of a
    host is the one that carries it.
``split``
    The extra senses go to the most frequent words, whose senses then have equal shares.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_kerbs.senses import build_sense_table

EXTRA_SENSES = ("spare", "split")
SPARE_SHARE = 2.0**-20
"""Share of a spare sense: small beside rounding in float32, and a logarithm of −14 only."""


@dataclass(frozen=True)
class SensePlan:
    """Which senses a converted model has.

    Attributes:
        word_of_sense: [M] owner; senses 0 … V−1 are those of words 0 … V−1.
        share: [M] of the word's probability; float64.
        usage: [M] U of Eq. 13 to begin with.
        words: words that have extra senses, in the order in which they got them.
    """

    word_of_sense: Tensor
    share: Tensor
    usage: Tensor
    words: list[int]


def by_frequency(vocab_size: int, counts: Tensor | None, special: int) -> list[int]:
    """Words from the most to the least frequent one; fairseq's own entries are left out.

    Args:
        vocab_size: number of words V.
        counts: [V] occurrences; None takes the order of the words, which fairseq-preprocess sorts
            by frequency.
        special: entries at the beginning of the dictionary that are no words.
    """
    if counts is None:
        return list(range(special, vocab_size))
    order = torch.argsort(counts, descending=True, stable=True).tolist()
    return [word for word in order if word >= special]


def plan_senses(
    vocab_size: int,
    total_senses: int,
    how: str,
    counts: Tensor | None = None,
    special: int = 4,
) -> SensePlan:
    """Give words extra senses, one each in turn.

    Args:
        vocab_size: number of words V.
        total_senses: number of senses M ≥ V.
        how: one of :data:`EXTRA_SENSES`.
        counts: [V] occurrences of each word in the training data, where known.
        special: entries at the beginning of the dictionary that are no words; they come last.

    Raises:
        ValueError: ``how`` is none of them, or there are fewer senses than words.
    """
    if how not in EXTRA_SENSES:
        raise ValueError(f"--extra-senses: there is no '{how}'; choose spare or split.")
    extra = total_senses - vocab_size
    if extra < 0:
        raise ValueError(f"{total_senses} senses are too few for {vocab_size} words.")
    order = by_frequency(vocab_size, counts, special)
    if how == "spare":
        order.reverse()
    order += range(min(special, vocab_size))
    hosts = [order[number % vocab_size] for number in range(extra)]
    word_of_sense = torch.cat([torch.arange(vocab_size), torch.tensor(hosts, dtype=torch.long)])
    senses = torch.bincount(word_of_sense, minlength=vocab_size)  # [V]
    if how == "split":
        share = 1.0 / senses[word_of_sense].double()
    else:
        last = torch.zeros(vocab_size, dtype=torch.long)
        last.scatter_reduce_(0, word_of_sense, torch.arange(total_senses), "amax")
        share = torch.full((total_senses,), SPARE_SHARE, dtype=torch.float64)
        share[last] = 1.0 - SPARE_SHARE * (senses - 1).double()
    spare = share == SPARE_SHARE
    if counts is None:  # as in a fresh model
        usage = torch.full((total_senses,), 1.0 / total_senses, dtype=torch.float64)
    else:
        # a word that never occurred counts as one occurrence, or its spares would be no less used
        seen = counts.double().clamp_min(1.0)
        usage = (seen / seen.sum())[word_of_sense] * share
    usage[spare] = 0.0
    return SensePlan(word_of_sense, share, usage.float(), list(dict.fromkeys(hosts)))


def sense_rows(
    weight: Tensor, bias: Tensor | None, plan: SensePlan, noise: float = 0.0, seed: int = 1
) -> Tensor:
    """Sense vectors with the probabilities of a softmax.

    With ``noise`` the senses of a word part in pairs, w ± noise·|w|·u with a random direction u of
    each pair: what that does to probabilities is of second order in ``noise``.

    Args:
        weight: [V, d] word vectors.
        bias: [V] biases of the words' logits; None if there are none.
        plan: the senses.
        noise: relative size of the difference.
        seed: of the directions.

    Returns:
        [M, d], or [M, d + 1] with the biases in the last column where some are not 0; float32.
    """
    owners = plan.word_of_sense
    rows = weight.float()[owners]
    if noise:
        rows = rows + noise * rows.norm(dim=1, keepdim=True) * _opposite(plan, rows.shape[1], seed)
    if bias is None and len(owners) == len(weight):
        return rows
    column = plan.share.log()
    if bias is not None:
        column = column + bias.double()[owners]
    return torch.cat([rows, column.float().unsqueeze(1)], dim=1)


def _opposite(plan: SensePlan, size: int, seed: int) -> Tensor:
    """Unit vectors [M, size], opposite for the two senses of a pair; 0 for a sense without one."""
    owners = plan.word_of_sense
    table, mask = build_sense_table(owners, int(owners.max()) + 1)
    directions = torch.randn(len(owners), size, generator=torch.Generator().manual_seed(seed))
    directions = nn.functional.normalize(directions, dim=1)
    result = torch.zeros_like(directions)
    for slot in range(0, table.shape[1] - 1, 2):
        paired = mask[:, slot + 1]
        first, second = table[paired, slot], table[paired, slot + 1]
        result[first], result[second] = directions[first], -directions[first]
    return result
