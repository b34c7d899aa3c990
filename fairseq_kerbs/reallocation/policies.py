"""Policies of sense reallocation: ``paper`` (Algorithm 1) and ``released``.

A policy reads an inventory and returns moves, without changing anything. Policies are
deterministic, so all processes of a parallel training compute the same moves from the same
statistics. The policy ``clusters`` also reads embeddings and contexts, see :mod:`.clusters`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_kerbs.reallocation.moves import Moves, Policy, ReallocationSettings, check_choice
from fairseq_kerbs.senses import SenseInventory


class _LeastUsed:
    """Priority queue of senses by usage [M], for successive moves of the least used sense."""

    def __init__(self, inventory: SenseInventory, usage: Tensor) -> None:
        self.counts: list[int] = inventory.table.mask.sum(1).tolist()  # of every word, at present
        # moved senses, their sources and their receivers, in order
        self.moves: tuple[list[int], list[int], list[int]] = ([], [], [])
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
            used, sense = least
            for values, value in zip(self.moves, (sense, self._word[sense], receiver)):
                values.append(value)
            self.counts[self._word[sense]] -= 1
            self.counts[receiver] += 1
            self._word[sense] = receiver
            # the receiver now has several senses, so its other one may move
            back += [(new_usage, sense), *self._only.pop(receiver, [])]
        for entry in back:
            heapq.heappush(self._heap, entry)
        return None if least is None else used


def paper_policy(inventory: SenseInventory, settings: ReallocationSettings) -> Moves:
    """Algorithm 1: every badly predicted word receives the least used sense.

    Words are visited in dictionary order. A word i with log P_i < ε (``log_prob_threshold``) and
    fewer than ``max_senses`` senses receives the least used among the senses of other words that
    have several. Of equally used senses the lowest number moves. The sense gets θ = 1e-8, and the
    mean usage of all senses at that moment. log P_i is not reset, so a word may receive another
    sense the next time.
    """
    pool = _LeastUsed(inventory, inventory.usage)
    badly_predicted = inventory.log_prob < settings.log_prob_threshold
    total, new_usage = sum(inventory.usage.double().tolist()), []
    for word in badly_predicted.nonzero().flatten().tolist():
        mean = total / inventory.total_senses
        if pool.counts[word] < inventory.max_senses:
            used = pool.give(word, mean)
            if used is not None:
                total += mean - used
                new_usage.append(mean)
    senses, sources, words = torch.tensor(pool.moves, dtype=torch.long)
    return Moves(senses, sources, words, torch.tensor(new_usage, dtype=torch.float64))


def released_policy(inventory: SenseInventory, settings: ReallocationSettings) -> Moves:
    """The reallocation of the authors' released TensorFlow code.

    Since the last reallocation, word i was the target n_i times, with probabilities that sum to
    p_i. The ``max_moves`` · V words, at least 1, with the lowest score (n_i/p_i)/√n_i receive one
    sense each. As in the released code, these are frequent and well predicted words. They must be
    in the more frequent half and have fewer than ``max_senses`` senses. Each receives the sense
    with the least use since the last reallocation, of words with several senses. Embeddings, θ and
    usage stay.
    """
    count, prob = inventory.interval_count.double(), inventory.interval_prob.double()
    half = torch.sort(count, descending=True, stable=True).indices[: inventory.vocab_size // 2]
    may_receive = torch.zeros_like(count, dtype=torch.bool)
    may_receive[half] = True
    may_receive &= (count > 0) & (inventory.table.mask.sum(1) < inventory.max_senses)
    score = (count / prob.clamp_min(1e-300)) / count.clamp_min(1.0).sqrt()
    score = torch.where(may_receive, score, torch.inf)
    most = max(1, int(settings.max_moves * inventory.vocab_size))
    receivers = torch.sort(score, stable=True).indices[: min(most, int(may_receive.sum()))].tolist()
    pool = _LeastUsed(inventory, inventory.interval_usage)
    for word in receivers:
        # infinite usage, so that no sense moves twice
        if pool.give(word, float("inf")) is None:
            break
    senses, sources, words = torch.tensor(pool.moves, dtype=torch.long)
    usage = inventory.usage.double().cpu()[senses]
    return Moves(senses, sources, words, usage, reset_theta=False)


POLICIES: dict[str, Policy] = {"paper": paper_policy, "released": released_policy}
"""Policies that read only an inventory, by their name for ``--reallocation``."""


@torch.no_grad()
def propose_moves(
    inventory: SenseInventory, policy: str, settings: ReallocationSettings | None = None
) -> Moves:
    """The moves that a policy proposes. Nothing changes.

    Raises:
        ValueError: no policy has that name.
    """
    check_choice("policy", policy, POLICIES)
    return POLICIES[policy](inventory, settings or ReallocationSettings())


@torch.no_grad()
def apply_moves(inventory: SenseInventory, moves: Moves) -> None:
    """Apply moves to allocation and usage of an inventory, and start a new interval."""
    inventory.start_interval()
    inventory.move(moves.senses, moves.words)
    last = dict(zip(moves.senses.tolist(), moves.usage.tolist()))
    inventory.usage[list(last)] = inventory.usage.new_tensor(list(last.values()))


def reallocate(
    inventory: SenseInventory, policy: str, settings: ReallocationSettings | None = None
) -> Moves:
    """Apply the moves of a policy to an inventory, and return them.

    θ and embeddings belong to the output layer, see
    :meth:`fairseq_kerbs.output_layers.KerbsOutputLayer.reallocate`.

    Raises:
        ValueError: no policy has that name.
    """
    moves = propose_moves(inventory, policy, settings)
    apply_moves(inventory, moves)
    return moves


@torch.no_grad()
def reset_moments(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], rows: Tensor
) -> None:
    """Set an optimizer's moments to zero in some rows of parameters.

    Args:
        optimizer: any torch optimizer. Only state with the shape of its parameter is reset.
        parameters: parameters of shape [M, ...].
        rows: [K] sense numbers.
    """
    for parameter in parameters:
        for value in optimizer.state.get(parameter, {}).values():
            if torch.is_tensor(value) and value.shape == parameter.shape:
                value[rows.to(value.device)] = 0.0
