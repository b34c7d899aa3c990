"""Dynamic sense reallocation: which senses move to which words (Algorithm 1).

A policy reads an inventory and proposes moves; it changes nothing and knows no randomness, so every
process of a parallel training finds the same moves. ``clusters``, which reads vectors and contexts,
is in `.clusters`: :meth:`fairseq_kerbs.output_layers.KerbsOutputLayer.reallocate` calls it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_kerbs.senses import SenseInventory
from fairseq_kerbs.senses.moves import Moves, Policy, ReallocationSettings, check_choice


class _LeastUsed:
    """The globally least used sense of a word that can spare one, while senses move.

    Args:
        inventory: the allocation to begin with.
        usage: usage of every sense, [M].

    Attributes:
        counts: number of senses of every word.
        moves: senses, words that lose them, and words that receive them, in order.
    """

    def __init__(self, inventory: SenseInventory, usage: Tensor) -> None:
        self.counts: list[int] = inventory.senses_per_word().tolist()
        self.moves: tuple[list[int], list[int], list[int]] = ([], [], [])
        self._word: list[int] = inventory.word_of_sense.tolist()
        self._heap = list(zip(usage.double().tolist(), range(len(usage))))
        heapq.heapify(self._heap)
        self._only: dict[int, list[tuple[float, int]]] = {}  # last senses, by word

    def give(self, receiver: int, usage: float) -> float | None:
        """Move that sense to a word, never one of its own; ``usage`` is its usage there.

        Returns:
            the usage that it had; None where there is no such sense.
        """
        own: list[tuple[float, int]] = []
        found = None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            word = self._word[entry[1]]
            if self.counts[word] <= 1:
                self._only.setdefault(word, []).append(entry)
            elif word == receiver:
                own.append(entry)
            else:
                found = entry
        if found is not None:
            used, sense = found
            for values, value in zip(self.moves, (sense, self._word[sense], receiver)):
                values.append(value)
            self.counts[self._word[sense]] -= 1
            self.counts[receiver] += 1
            self._word[sense] = receiver
            # the receiver's other senses may be spared from now on
            own += [(usage, sense), *self._only.pop(receiver, [])]
        for entry in own:
            heapq.heappush(self._heap, entry)
        return None if found is None else used


def paper_policy(inventory: SenseInventory, settings: ReallocationSettings) -> Moves:
    """Algorithm 1: every badly predicted word takes the globally least used sense.

    Words are visited in dictionary order. Word i with log P_i < ε and fewer than ``max_senses``
    senses takes the least used sense of another word that has more than one (ties: the lowest
    sense number); the sense begins with θ = 1e-8 and the mean usage of that moment.
    """
    pool = _LeastUsed(inventory, inventory.usage)
    needy = (inventory.log_prob < settings.log_prob_threshold).nonzero().flatten().tolist()
    total, new_usage = sum(inventory.usage.double().tolist()), []
    for word in needy:
        mean = total / inventory.total_senses
        if pool.counts[word] < inventory.max_senses:
            used = pool.give(word, mean)
            if used is not None:
                total += mean - used
                new_usage.append(mean)
    return Moves.from_lists(*pool.moves, new_usage)


def released_policy(inventory: SenseInventory, settings: ReallocationSettings) -> Moves:
    """The reallocation of the authors' released TensorFlow code.

    Since the last reallocation, word i occurred n_i times as target, with probabilities that sum
    to p_i. Of the words in the more frequent half that have fewer than ``max_senses`` senses, those
    with the lowest (n_i/p_i)/√n_i receive one sense each, at most ``max_moves``·V words (but one
    at least); each gets the sense least used in the interval among words with more than one.
    Vectors, θ and usage stay.
    """
    count, prob = inventory.interval_count.double(), inventory.interval_prob.double()
    half = torch.sort(count, descending=True, stable=True).indices[: inventory.vocab_size // 2]
    may_receive = torch.zeros_like(count, dtype=torch.bool)
    may_receive[half] = True
    may_receive &= (count > 0) & (inventory.senses_per_word() < inventory.max_senses)
    rank = (count / prob.clamp_min(1e-300)) / count.clamp_min(1.0).sqrt()
    rank = torch.where(may_receive, rank, torch.inf)
    most = max(1, int(settings.max_moves * inventory.vocab_size))
    needy = torch.sort(rank, stable=True).indices[: min(most, int(may_receive.sum()))].tolist()
    pool = _LeastUsed(inventory, inventory.interval_usage)
    for word in needy:
        # its usage in the new place is unknown until the next interval: it does not move twice
        if pool.give(word, float("inf")) is None:
            break
    kept_usage = inventory.usage.double().cpu()[torch.tensor(pool.moves[0], dtype=torch.long)]
    return Moves.from_lists(*pool.moves, kept_usage.tolist(), reset_theta=False)


POLICIES: dict[str, Policy] = {"paper": paper_policy, "released": released_policy}
"""Policies that read an inventory alone, by the name that ``--reallocation`` takes."""


@torch.no_grad()
def propose_moves(
    inventory: SenseInventory, policy: str, settings: ReallocationSettings | None = None
) -> Moves:
    """Let a policy propose moves; nothing changes.

    Raises:
        ValueError: no policy has that name; the message lists those there are.
    """
    check_choice("policy", policy, POLICIES)
    return POLICIES[policy](inventory, settings or ReallocationSettings())


@torch.no_grad()
def apply_moves(inventory: SenseInventory, moves: Moves) -> None:
    """Make moves in the inventory: words of senses and usage; a new interval begins."""
    inventory.start_interval()  # while its sums are of the words that senses had
    inventory.move(moves.senses, moves.words)
    last = dict(zip(moves.senses.tolist(), moves.usage.tolist()))
    inventory.usage[list(last)] = inventory.usage.new_tensor(list(last.values()))


def reallocate(
    inventory: SenseInventory, policy: str, settings: ReallocationSettings | None = None
) -> Moves:
    """Let a policy propose moves and make them in the inventory.

    θ and vectors of the moved rows belong to the output layer
    (:meth:`fairseq_kerbs.output_layers.KerbsOutputLayer.reallocate`).

    Raises:
        ValueError: no policy has that name; the message lists those there are.
    """
    moves = propose_moves(inventory, policy, settings)
    apply_moves(inventory, moves)
    return moves


@torch.no_grad()
def reset_moments(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], rows: Tensor
) -> None:
    """Zero an optimizer's per-element state (Adam's moments, momentum) in some rows.

    Args:
        optimizer: any torch optimizer; state of another shape than its parameter's is kept.
        parameters: parameters whose first dimension is senses.
        rows: [K] sense numbers.
    """
    for parameter in parameters:
        for value in optimizer.state.get(parameter, {}).values():
            if torch.is_tensor(value) and value.shape == parameter.shape:
                value[rows.to(value.device)] = 0.0
