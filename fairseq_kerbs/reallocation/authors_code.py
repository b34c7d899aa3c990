"""The policy ``released``: the reallocation of the authors' released TensorFlow code."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fairseq_kerbs.reallocation.moves import Moves, SenseState
from fairseq_kerbs.reallocation.policy import DefaultSchedule, Policy, setting

_TAU = 1e-7
"""What the released code adds to counts and probabilities before it divides."""


@dataclass(frozen=True)
class AuthorsCode(Policy):
    """The reallocation of the authors' released TensorFlow code.

    Its statistics are sums since the last reallocation. Word i was the target n_i times, with
    probabilities P(i) that sum to p_i. The usage of a sense is the sum of its P(s_t = m) (Eq. 5)
    over the targets of its word.

    Words are visited by ascending score ((n_i + τ)/(p_i + τ))/(√n_i + τ) with τ = 1e-7. The first
    words are therefore frequent and well predicted. A word receives a sense if it has fewer than
    ``max_senses`` senses at that moment, and if n_i is above the smallest count of the ⌊V/2⌋ most
    frequent words. Words with exactly this count receive none.

    Senses are visited by ascending usage. The word receives the next one whose word has several
    senses at that moment, and each sense is visited once. If that word is the receiver itself,
    nothing changes, but it counts as a move. The policy stops after ⌈``max_moves`` · V⌉ moves.

    Embeddings, θ, the optimizer's moments and U stay. Ties are in no defined order in the released
    code. Here the lower number comes first.
    """

    name = "released"
    summary = "the authors' code, with an interval of 100 and equal numbers of senses at the start"
    sense_allocation = "equal"
    default_schedule = DefaultSchedule(interval=100)

    max_moves: float = setting(
        0.005,
        "maximum moves at a time, as a fraction of the vocabulary size, rounded up",
        "(0, 1]",
    )

    def propose(self, senses: SenseState) -> Moves:
        inventory = senses.inventory
        count = inventory.interval_count.double().cpu()
        prob = inventory.interval_prob.double().cpu()
        vocab_size = inventory.vocab_size
        frequent = torch.zeros(vocab_size, dtype=torch.bool)
        if vocab_size > 1:
            frequent = count > count.sort().values[vocab_size - vocab_size // 2]
        score = (count + _TAU) / (prob + _TAU) / (count.sqrt() + _TAU)
        ranked = score.sort(stable=True).indices
        by_usage = inventory.interval_joint.cpu().sort(stable=True).indices

        word_of_sense = inventory.word_of_sense.tolist()
        senses_per_word = inventory.table.mask.sum(1).tolist()
        donors = iter(by_usage.tolist())
        most = math.ceil(round(self.max_moves * vocab_size, 6))  # 0.07 · 100 is above 7
        visited = 0  # moves, with those of a word to itself
        moved: list[int] = []
        receivers: list[int] = []
        for receiver in ranked[frequent[ranked]].tolist():
            if visited >= most:
                break
            if senses_per_word[receiver] >= inventory.max_senses:
                continue
            sense = next((m for m in donors if senses_per_word[word_of_sense[m]] > 1), None)
            if sense is None:
                break
            visited += 1
            giver = word_of_sense[sense]
            if giver != receiver:
                senses_per_word[giver] -= 1
                senses_per_word[receiver] += 1
                moved.append(sense)
                receivers.append(receiver)
        rows = torch.tensor(moved, dtype=torch.long)
        return Moves(
            rows,
            inventory.word_of_sense.cpu()[rows],
            torch.tensor(receivers, dtype=torch.long),
            inventory.usage.double().cpu()[rows],
            reset_theta=False,
            reset_moments=False,
        )
