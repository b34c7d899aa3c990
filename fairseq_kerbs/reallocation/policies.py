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

_TAU = 1e-7
"""What the released code adds to counts and probabilities before it divides."""


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
    count = inventory.interval_count.double().cpu()
    prob = inventory.interval_prob.double().cpu()
    vocab_size = inventory.vocab_size
    frequent = torch.zeros(vocab_size, dtype=torch.bool)
    if vocab_size > 1:
        frequent = count > count.sort().values[vocab_size - vocab_size // 2]
    score = (count + _TAU) / (prob + _TAU) / (count.sqrt() + _TAU)
    ranked = score.sort(stable=True).indices
    by_usage = inventory.interval_joint.cpu().sort(stable=True).indices

    owners = inventory.word_of_sense.tolist()
    senses_of_word = inventory.table.mask.sum(1).tolist()
    donors = iter(by_usage.tolist())
    most = settings.max_moves * vocab_size
    visited = 0  # moves, with those of a word to itself
    senses: list[int] = []
    words: list[int] = []
    for receiver in ranked[frequent[ranked]].tolist():
        if visited >= most:
            break
        if senses_of_word[receiver] >= inventory.max_senses:
            continue
        sense = next((sense for sense in donors if senses_of_word[owners[sense]] > 1), None)
        if sense is None:
            break
        visited += 1
        if owners[sense] != receiver:
            senses_of_word[owners[sense]] -= 1
            senses_of_word[receiver] += 1
            senses.append(sense)
            words.append(receiver)
    moved = torch.tensor(senses, dtype=torch.long)
    sources = inventory.word_of_sense.cpu()[moved]
    usage = inventory.usage.double().cpu()[moved]
    receivers = torch.tensor(words, dtype=torch.long)
    return Moves(moved, sources, receivers, usage, reset_theta=False, reset_moments=False)


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

    After moves of the policy ``released`` the moments stay (``Moves.reset_moments`` is False).

    Args:
        optimizer: any torch optimizer. Only state with the shape of its parameter is reset.
        parameters: parameters of shape [M, ...].
        rows: [K] sense numbers.
    """
    for parameter in parameters:
        for value in optimizer.state.get(parameter, {}).values():
            if torch.is_tensor(value) and value.shape == parameter.shape:
                value[rows.to(value.device)] = 0.0
