"""Moves of senses between words, settings of the policies that propose them, and embeddings of the
moved senses (``new_sense``).

``keep``
    The embedding does not change, as in Algorithm 1 and the released code. It was trained on the
    contexts of another word, so the sense may stay unused.
``split``
    The embedding w of the receiving word's leading sense, rotated by a small angle:
    |w|(√(1−η²) ŵ + η u) with η = :data:`SPLIT_SINE`. The direction u ⟂ w is random, with the number
    of the sense as seed. All processes and repeated runs draw the same direction.

The leading sense has the largest posterior mass since the last reallocation. Ties are broken by the
usage U, then by the lowest number. All values are from before the moves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairseq_kerbs.senses import SenseInventory

NEW_SENSES = ("keep", "split")
SPLIT_SINE = 0.1


@dataclass(frozen=True)
class ReallocationSettings:
    """Hyper-parameters of the policies ``paper``, ``released`` and ``clusters``, in this order."""

    log_prob_threshold: float = -100.0  # ε in nats: a word with a lower log P receives a sense
    max_moves: float = 0.005  # maximum number of moves, as a fraction of V, rounded up
    gap: float = 1.0  # maximum preference of a sense for its cluster in nats (clusters.place_word)


@dataclass(frozen=True)
class Moves:
    """Moves in order of execution. All tensors are on the CPU."""

    senses: Tensor  # [K] moved senses, including senses that restart at the same word
    sources: Tensor  # [K] words that lose them
    words: Tensor  # [K] words that receive them
    usage: Tensor  # [K] their usage after the move
    reset_theta: bool = True  # set their θ to Kernel.moved_theta
    reset_moments: bool = True  # restart the optimizer's moments of their embeddings and θ
    vectors: Tensor | None = None  # [K, d] their embeddings after the move [by ``new_sense``]

    def __len__(self) -> int:
        return self.senses.numel()

    @property
    def moved(self) -> int:
        """Number of moves to another word."""
        return int((self.sources != self.words).sum())


Policy = Callable[[SenseInventory, ReallocationSettings], Moves]


def check_choice(name: str, value: str, known: Collection[str]) -> None:
    """Raise a ValueError that names the parameter if its value is not in ``known``."""
    if value not in known:
        raise ValueError(f"`{name}`: there is no '{value}'; choose one of {', '.join(known)}.")


@torch.no_grad()
def new_vectors(inventory: SenseInventory, weight: Tensor, moves: Moves, how: str) -> Tensor | None:
    """Embeddings of moved senses.

    Args:
        inventory: allocation and statistics before the moves.
        weight: [M, d] sense embeddings before the moves.
        moves: K moves. If a sense moves twice, its last move counts.
        how: one of :data:`NEW_SENSES`.

    Returns:
        [K, d] in float32, or float64 like ``weight``, or None if embeddings do not change.
    """
    if how == "keep" or not len(moves):
        return None
    last = dict(zip(moves.senses.tolist(), moves.words.tolist()))
    words = torch.tensor([last[sense] for sense in moves.senses.tolist()], device=weight.device)
    base = weight[leading_senses(inventory, words)]  # [K, d]
    base = base if base.dtype == torch.float64 else base.float()
    noise = torch.empty(base.shape, dtype=base.dtype)
    for row, sense in zip(noise, moves.senses.tolist()):
        row.normal_(generator=torch.Generator().manual_seed(sense))
    noise = nn.functional.normalize(noise.to(base.device), dim=1)
    unit = nn.functional.normalize(base, dim=1)
    across = noise - (noise * unit).sum(1, keepdim=True) * unit
    length = across.norm(dim=1, keepdim=True)
    # in one dimension nothing is left but rounding: the vector then only gets shorter
    across = torch.where(length > 1e-3, across / length.clamp_min(1e-30), 0.0)
    turned = (1.0 - SPLIT_SINE**2) ** 0.5 * unit + SPLIT_SINE * across
    return base.norm(dim=1, keepdim=True) * turned


def leading_senses(inventory: SenseInventory, words: Tensor) -> Tensor:
    """Leading sense of each word, [K] -> [K]."""
    table = inventory.table
    senses, mask = table.senses[words], table.mask[words]  # [K, max_senses]
    mass = inventory.interval_posterior[senses].masked_fill(~mask, -1.0)
    usage = inventory.usage[senses].masked_fill(mass < mass.amax(1, keepdim=True), -1.0)
    # stable: argmax may return any of several equal ones
    first = usage.sort(dim=1, descending=True, stable=True).indices[:, :1]
    return senses.gather(1, first).squeeze(1)
