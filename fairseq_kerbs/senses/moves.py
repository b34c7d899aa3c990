"""Moves of senses between words, and settings of the policies that propose them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_kerbs.senses.inventory import SenseInventory

MOVED_THETA = 1e-8
"""θ of a sense after a move, except by ``released``. Algorithm 1 prints 1e-8 instead of 0."""


@dataclass(frozen=True)
class ReallocationSettings:
    """Hyper-parameters of the policies.

    Attributes:
        log_prob_threshold: for ``paper``, ε of Algorithm 1 in nats. A word with a lower log P
            receives a sense.
        max_moves: for ``released``, maximum number of moves, as a fraction of the vocabulary.
        gap: for ``clusters``, maximum preference of a sense for its cluster in nats, see
            :func:`fairseq_kerbs.clusters.place_word`.
    """

    log_prob_threshold: float = -100.0
    max_moves: float = 0.005
    gap: float = 1.0


@dataclass(frozen=True)
class Moves:
    """Moves in order of execution. All tensors are on the CPU.

    Attributes:
        senses: [K] moved senses, including senses that restart at the same word.
        sources: [K] words that lose them.
        words: [K] words that receive them.
        usage: [K] their usage after the move.
        reset_theta: set their θ to :data:`MOVED_THETA`.
        vectors: [K, d] their embeddings after the move. None leaves them to the layer's
            ``new_sense``.
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
        """Number of moves to another word."""
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
        """Build moves from lists of equal length."""
        numbers = [torch.tensor(values, dtype=torch.long) for values in (senses, sources, words)]
        begin = torch.tensor(usage, dtype=torch.float64)
        return cls(numbers[0], numbers[1], numbers[2], begin, reset_theta)


Policy = Callable[[SenseInventory, ReallocationSettings], Moves]


def check_choice(name: str, value: str, known: Collection[str]) -> None:
    """Raise a ValueError that names the parameter if its value is not in ``known``."""
    if value not in known:
        raise ValueError(f"`{name}`: there is no '{value}'; choose one of {', '.join(known)}.")
