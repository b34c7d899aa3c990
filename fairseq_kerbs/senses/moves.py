"""Moves of senses between words, and what the policies that propose them have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_kerbs.senses.inventory import SenseInventory

MOVED_THETA = 1e-8
"""θ of a sense that Algorithm 1 has just moved."""


@dataclass(frozen=True)
class ReallocationSettings:
    """Hyper-parameters of the policies.

    Attributes:
        log_prob_threshold: ``paper``: ε of Algorithm 1, a word with log P below it is badly
            predicted.
        max_moves: ``released``: most moves at a time, as a fraction of the vocabulary.
        gap: ``clusters``: see :func:`fairseq_kerbs.clusters.place_word`, in nats.
    """

    log_prob_threshold: float = -100.0
    max_moves: float = 0.005
    gap: float = 1.0


@dataclass(frozen=True)
class Moves:
    """Moves in the order in which they happen; all tensors on the CPU.

    Attributes:
        senses: [K] the senses that move, or begin anew at their own word.
        sources: [K] the words that lose them.
        words: [K] the words that receive them.
        usage: [K] the usage that each begins with in its new place.
        reset_theta: whether they begin with θ = :data:`MOVED_THETA`.
        vectors: [K, d] the vectors that they begin with; None where the layer's ``new_sense`` says
            what these are.
    """

    senses: Tensor
    sources: Tensor
    words: Tensor
    usage: Tensor
    reset_theta: bool = True
    vectors: Tensor | None = None

    def __len__(self) -> int:
        return self.senses.numel()

    @property
    def moved(self) -> int:
        """How many senses came to another word."""
        return int((self.sources != self.words).sum())

    @classmethod
    def from_lists(
        cls,
        senses: Sequence[int],
        sources: Sequence[int],
        words: Sequence[int],
        usage: Sequence[float],
        reset_theta: bool = True,
    ) -> Moves:
        """Moves from lists of equal length."""
        numbers = [torch.tensor(values, dtype=torch.long) for values in (senses, sources, words)]
        begin = torch.tensor(usage, dtype=torch.float64)
        return cls(numbers[0], numbers[1], numbers[2], begin, reset_theta)


Policy = Callable[[SenseInventory, ReallocationSettings], Moves]


def check_choice(name: str, value: str, known: Collection[str]) -> None:
    """Raise a ValueError that names the parameter unless its value is one of those known."""
    if value not in known:
        raise ValueError(f"`{name}`: there is no '{value}'; choose one of {', '.join(known)}.")
