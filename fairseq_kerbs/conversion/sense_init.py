"""Senses of a converted model: copies of words' vectors that leave probabilities as they were.

At θ = 0 the kernel is the inner product (Eq. 9), so a word with one sense has the logit it had.
A word with several equal senses keeps its probability (Eq. 4) where each has a share of it, added
to its logit as log(share): the bias of ``--sense-bias``. Shares of a word sum to 1. An extra sense
takes a share of :data:`SPARE_SHARE` of a word that is rarely used, and has usage 0: it does next to
nothing where it is, and reallocation takes it first. Frequent words, the first to be found badly
predicted (Eq. 12), keep room for other senses. Policies break ties by the lower number: the last
sense of a word is the one that carries it.

Senses on clusters change probabilities a little: see :mod:`fairseq_kerbs.clusters`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_kerbs.clusters import Placement
from fairseq_kerbs.reallocation.clusters import SPARE_NATS

SPARE_SHARE = math.exp(-SPARE_NATS)
"""Share of a spare sense, the one that they have in training, too."""


@dataclass(frozen=True)
class SensePlan:
    """Which senses a converted model has."""

    word_of_sense: Tensor  # [M]; senses 0 … V−1 are those of words 0 … V−1
    share: Tensor  # [M] of the word's probability; float64
    usage: Tensor  # [M] U of Eq. 13 to begin with
    words: list[int]  # that have extra senses, in the order in which they got them


def plan_senses(
    vocab_size: int, total_senses: int, counts: Tensor | None = None, special: int = 4
) -> SensePlan:
    """Give V words M senses: one each, and spare ones to the rarest words, one after the other.

    ``counts`` [V] are occurrences in the training data; None takes the order of the words, in which
    fairseq-preprocess ranks them. The ``special`` first entries, which are no words, come last.
    """
    ranked = counts if counts is not None else torch.arange(vocab_size, 0, -1)
    order = torch.sort(ranked, descending=True, stable=True).indices
    words = [*order[order >= special].tolist()[::-1], *range(min(special, vocab_size))]
    extra = [words[number % vocab_size] for number in range(total_senses - vocab_size)]
    allocation = [*range(vocab_size), *extra]
    word_of_sense = torch.tensor(allocation)
    senses = torch.bincount(word_of_sense, minlength=vocab_size)  # [V]
    last = {word: sense for sense, word in enumerate(allocation)}
    share = torch.full((total_senses,), SPARE_SHARE, dtype=torch.float64)
    share[list(last.values())] = 1.0 - SPARE_SHARE * (senses - 1).double()
    usage = _usage(counts, word_of_sense, share)
    usage[share == SPARE_SHARE] = 0.0
    return SensePlan(word_of_sense, share, usage.float(), list(dict.fromkeys(extra)))


def _usage(counts: Tensor | None, word_of_sense: Tensor, share: Tensor) -> Tensor:
    """U of Eq. 13, [M]: each sense has its share of what its word occurs."""
    if counts is None:  # as in a fresh model
        return torch.full((len(share),), 1.0 / len(share), dtype=torch.float64)
    # a word that never occurred counts as one occurrence, or its spares would be no less used
    seen = counts.double().clamp_min(1.0)
    return (seen / seen.sum())[word_of_sense] * share


def placed_plan(placement: Placement, vocab_size: int, counts: Tensor | None) -> SensePlan:
    """The plan of senses that are placed on clusters."""
    owners, share = placement.word_of_sense, placement.share.double()
    extra = owners[vocab_size:].unique().tolist()
    return SensePlan(owners, share, _usage(counts, owners, share).float(), extra)


def placed_rows(weight: Tensor, bias: Tensor | None, placement: Placement) -> Tensor:
    """Rows as of :func:`sense_rows` of senses that are placed on clusters."""
    owners = placement.word_of_sense
    rows = weight.float()[owners] + placement.rows
    if bias is None and len(owners) == len(weight):
        return rows
    column = placement.bias + (0.0 if bias is None else bias.float()[owners])
    return torch.cat([rows, column.unsqueeze(1)], dim=1)


def sense_rows(weight: Tensor, bias: Tensor | None, plan: SensePlan) -> Tensor:
    """Sense vectors with the probabilities of a softmax, float32.

    Vectors of words are [V, d], biases of their logits [V].

    Returns [M, d], or [M, d + 1] with the biases in the last column where some are not 0.
    """
    owners = plan.word_of_sense
    rows = weight.float()[owners]
    if bias is None and len(owners) == len(weight):
        return rows
    column = plan.share.log() + (0.0 if bias is None else bias.double()[owners])
    return torch.cat([rows, column.float().unsqueeze(1)], dim=1)
