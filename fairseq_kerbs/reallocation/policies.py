"""Dynamic sense reallocation: which senses move to which words (Algorithm 1).

A policy reads an inventory and names moves; it changes nothing and knows no randomness, so every
process of a parallel training finds the same moves. :data:`POLICIES` maps the names that
``--reallocation`` takes to policies; ``balanced`` has a module of its own.
"""

from __future__ import annotations

import heapq

import torch
from torch import Tensor

from fairseq_kerbs.reallocation.balanced import balanced_policy
from fairseq_kerbs.senses import SenseInventory
from fairseq_kerbs.senses.moves import MOVED_THETA, Moves, Policy, ReallocationSettings, as_moves

__all__ = [
    "MOVED_THETA",
    "POLICIES",
    "Moves",
    "Policy",
    "ReallocationSettings",
    "carry_out",
    "find_moves",
    "paper_policy",
    "reallocate",
    "released_policy",
    "reset_moments",
]


class _LeastUsed:
    """The globally least used sense of a word that can spare one, under changing ownership."""

    def __init__(self, owner: list[int], usage: list[float], counts: list[int]) -> None:
        self.owner, self.usage, self.counts = owner, usage, counts
        self._heap = [(used, sense) for sense, used in enumerate(usage)]
        heapq.heapify(self._heap)
        self._only: dict[int, list[tuple[float, int]]] = {}  # last senses, by word

    def take(self, receiver: int) -> int | None:
        """Remove and return that sense; never one of ``receiver``'s own. None if there is none."""
        own: list[tuple[float, int]] = []
        found = None
        while self._heap:
            entry = heapq.heappop(self._heap)
            sense = entry[1]
            word = self.owner[sense]
            if self.counts[word] <= 1:
                self._only.setdefault(word, []).append(entry)
            elif word == receiver:
                own.append(entry)
            else:
                found = sense
                break
        for entry in own:
            heapq.heappush(self._heap, entry)
        return found

    def place(self, sense: int, word: int, usage: float) -> None:
        """Give ``sense`` to ``word``, whose other senses may be spared from now on."""
        self.counts[self.owner[sense]] -= 1
        self.counts[word] += 1
        self.owner[sense], self.usage[sense] = word, usage
        heapq.heappush(self._heap, (usage, sense))
        for entry in self._only.pop(word, []):
            heapq.heappush(self._heap, entry)


def paper_policy(inventory: SenseInventory, settings: ReallocationSettings) -> Moves:
    """Algorithm 1: every badly predicted word takes the globally least used sense.

    Words are visited in dictionary order. Word i with log P_i < ε and fewer than ``max_senses``
    senses takes the least used sense of another word that owns more than one (ties: the lowest
    sense number); the sense begins with θ = 1e-8 and the mean usage of that moment.
    """
    usage = inventory.usage.double().tolist()
    owner = inventory.word_of_sense.tolist()
    counts = inventory.senses_per_word().tolist()
    needy = (inventory.log_prob < settings.log_prob_threshold).nonzero().flatten().tolist()
    pool = _LeastUsed(owner, usage, counts)
    total = sum(usage)
    senses, sources, words, new_usage = [], [], [], []
    for word in needy:
        if counts[word] >= inventory.max_senses:
            continue
        sense = pool.take(word)
        if sense is None:
            continue
        mean = total / len(usage)
        total += mean - usage[sense]
        senses.append(sense)
        sources.append(owner[sense])
        words.append(word)
        new_usage.append(mean)
        pool.place(sense, word, mean)
    return as_moves(senses, sources, words, new_usage)


def released_policy(inventory: SenseInventory, settings: ReallocationSettings) -> Moves:
    """The reallocation of the authors' released TensorFlow code.

    Since the last reallocation, word i occurred n_i times as target, with probabilities that sum
    to p_i. Of the words in the more frequent half that own fewer than ``max_senses`` senses, those
    with the lowest (n_i/p_i)/√n_i receive one sense each, at most ``max_moves``·V words (but one
    at least); each gets the sense least used in the interval among words with more than one.
    Vectors, θ and usage stay.
    """
    count, prob = inventory.interval_count.double(), inventory.interval_prob.double()
    half = torch.argsort(count, descending=True, stable=True)[: inventory.vocab_size // 2]
    may_receive = torch.zeros(inventory.vocab_size, dtype=torch.bool, device=count.device)
    may_receive[half] = True
    may_receive &= (count > 0) & (inventory.senses_per_word() < inventory.max_senses)
    rank = (count / prob.clamp_min(1e-300)) / count.clamp_min(1.0).sqrt()
    rank = torch.where(may_receive, rank, torch.inf)
    most = max(1, int(settings.max_moves * inventory.vocab_size))
    needy = torch.argsort(rank, stable=True)[: min(most, int(may_receive.sum()))].tolist()
    owner = inventory.word_of_sense.tolist()
    used = inventory.interval_usage.double().tolist()
    pool = _LeastUsed(owner, used, inventory.senses_per_word().tolist())
    senses, sources, words = [], [], []
    for word in needy:
        sense = pool.take(word)
        if sense is None:
            break
        senses.append(sense)
        sources.append(owner[sense])
        words.append(word)
        # its usage in the new place is unknown until the next interval: it does not move twice
        pool.place(sense, word, float("inf"))
    kept_usage = inventory.usage.double().cpu()[torch.tensor(senses, dtype=torch.long)].tolist()
    return as_moves(senses, sources, words, kept_usage, reset_theta=False)


POLICIES: dict[str, Policy] = {
    "paper": paper_policy,
    "released": released_policy,
    "balanced": balanced_policy,
}
"""Policies by the name that ``--reallocation`` takes (``none`` switches reallocation off)."""


@torch.no_grad()
def find_moves(
    inventory: SenseInventory, policy: str, settings: ReallocationSettings | None = None
) -> Moves:
    """Let a policy find moves; nothing changes.

    Raises:
        ValueError: no policy has that name; the message lists those there are.
    """
    if policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise ValueError(f"--reallocation: there is no policy named '{policy}'; choose {known}.")
    return POLICIES[policy](inventory, settings or ReallocationSettings())


@torch.no_grad()
def carry_out(inventory: SenseInventory, moves: Moves) -> None:
    """Make moves in the inventory: owners and usage; a new interval begins."""
    if len(moves):
        inventory.move(moves.senses, moves.words)
        last = dict(zip(moves.senses.tolist(), moves.usage.tolist(), strict=True))
        moved = torch.tensor(list(last), device=inventory.usage.device)
        inventory.usage[moved] = inventory.usage.new_tensor(list(last.values()))
    inventory.start_interval()


def reallocate(
    inventory: SenseInventory, policy: str, settings: ReallocationSettings | None = None
) -> Moves:
    """Let a policy find moves and carry them out in the inventory: owners, usage, a new interval.

    θ and vectors of the moved rows belong to the output layer
    (:meth:`fairseq_kerbs.output_layers.KerbsOutputLayer.reallocate`).

    Raises:
        ValueError: no policy has that name; the message lists those there are.
    """
    moves = find_moves(inventory, policy, settings)
    carry_out(inventory, moves)
    return moves


@torch.no_grad()
def reset_moments(
    optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], rows: Tensor
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
