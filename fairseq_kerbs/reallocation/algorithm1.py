"""The policy ``paper``: Algorithm 1."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_kerbs.reallocation.moves import Moves, SenseState
from fairseq_kerbs.reallocation.policy import Policy, setting
from fairseq_kerbs.senses import SenseInventory


@dataclass(frozen=True)
class Algorithm1(Policy):
    """Algorithm 1: every badly predicted word receives the least used sense.

    Words are visited in dictionary order. A word i with log P_i < ε (``log_prob_threshold``) and
    fewer than ``max_senses`` senses receives the least used among the senses of other words that
    have several. Of equally used senses the lowest number moves. The sense gets θ = 1e-8, and the
    mean usage of all senses at that moment. Its embedding stays. log P_i is not reset, so a word
    may receive another sense the next time.
    """

    name = "paper"
    summary = "Algorithm 1"

    log_prob_threshold: float = setting(
        -100.0,
        "a word with log P (Eq. 12) below this value in nats receives a sense (epsilon, at most 0)",
        "(-inf, 0]",
    )

    def propose(self, senses: SenseState) -> Moves:
        inventory = senses.inventory
        pool = _LeastUsed(inventory, inventory.usage)
        badly_predicted = inventory.log_prob < self.log_prob_threshold
        total = sum(inventory.usage.double().tolist())
        new_usage: list[float] = []
        for word in badly_predicted.nonzero().flatten().tolist():
            mean = total / inventory.total_senses
            if pool.counts[word] < inventory.max_senses:
                used = pool.give(word, mean)
                if used is not None:
                    total += mean - used
                    new_usage.append(mean)
        return Moves(
            torch.tensor(pool.senses, dtype=torch.long),
            torch.tensor(pool.sources, dtype=torch.long),
            torch.tensor(pool.receivers, dtype=torch.long),
            torch.tensor(new_usage, dtype=torch.float64),
        )


class _LeastUsed:
    """Priority queue of senses by usage [M], for successive moves of the least used sense."""

    def __init__(self, inventory: SenseInventory, usage: Tensor) -> None:
        self.counts: list[int] = inventory.table.mask.sum(1).tolist()  # of every word, at present
        # of all moves, in order
        self.senses: list[int] = []
        self.sources: list[int] = []
        self.receivers: list[int] = []
        self._word: list[int] = inventory.word_of_sense.tolist()
        self._heap = list(zip(usage.double().tolist(), range(len(usage))))
        heapq.heapify(self._heap)
        self._only: dict[int, list[tuple[float, int]]] = {}  # last sense of a word

    def give(self, receiver: int, new_usage: float) -> float | None:
        """Move the least used sense of another word with several senses to ``receiver``.

        The usage of the sense becomes ``new_usage``. Returns its old usage, or None if no sense can
        move.
        """
        back: list[tuple[float, int]] = []
        least = None
        while self._heap and least is None:
            entry = heapq.heappop(self._heap)
            word = self._word[entry[1]]
            if self.counts[word] <= 1:
                self._only.setdefault(word, []).append(entry)
            elif word == receiver:
                back.append(entry)
            else:
                least = entry
        if least is not None:
            _, sense = least
            source = self._word[sense]
            self.senses.append(sense)
            self.sources.append(source)
            self.receivers.append(receiver)
            self.counts[source] -= 1
            self.counts[receiver] += 1
            self._word[sense] = receiver
            # the receiver now has several senses, so its other one may move
            back += [(new_usage, sense), *self._only.pop(receiver, [])]
        for entry in back:
            heapq.heappush(self._heap, entry)
        return None if least is None else least[0]
