"""How the contexts of each word's leading sense spread: what the policy ``clusters`` reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize


def _noise(words: Tensor, dim: int) -> Tensor:
    """Unit vectors [K, d] that depend on the numbers of words [K] alone, in every process."""
    drawn = torch.empty(len(words), dim)
    for row, word in enumerate(words.tolist()):
        torch.randn(dim, generator=torch.Generator().manual_seed(word), out=drawn[row])
    return normalize(drawn, dim=1)


class ExactBuffers(nn.Module):
    """A module whose buffers ``.half()`` and ``.bfloat16()`` move, but do not round."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ExactBuffers:
        exact = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)
        for name, buffer in exact.items():
            moved = self._buffers[name]
            if moved is not None and moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        return self


class ContextClusters(ExactBuffers):
    """Sums over the contexts h of the occurrences that a word's leading sense explains best.

    Args:
        vocab_size: number of words V.
        dim: size d of context vectors.

    Attributes:
        leader: [V] the word's leading sense: the most used one of the interval before.
        rounds: [V] intervals that it has been so, since it was last split.
        direction: [V, d] v, of length 1: a power iteration, one step an interval, for the first
            principal component of these contexts.
        lead_count: [V] number n of occurrences in this interval.
        lead_sum, lead_along: [V, d] Σ h and Σ h (h·v).
    """

    leader: Tensor
    rounds: Tensor
    direction: Tensor
    lead_count: Tensor
    lead_sum: Tensor
    lead_along: Tensor

    def __init__(self, vocab_size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("leader", torch.arange(vocab_size))
        self.register_buffer("rounds", torch.zeros(vocab_size, dtype=torch.long))
        self.register_buffer("direction", _noise(torch.arange(vocab_size), dim))
        self.register_buffer("lead_count", torch.zeros(vocab_size))
        self.register_buffer("lead_sum", torch.zeros(vocab_size, dim))
        self.register_buffer("lead_along", torch.zeros(vocab_size, dim))
        self.sizes = {"lead_count": vocab_size}
        self.sizes |= dict.fromkeys(("lead_sum", "lead_along"), vocab_size * dim)

    def record(self, sums: dict[str, Tensor], words: Tensor, leads: Tensor, h: Tensor) -> None:
        """Add occurrences to flat sums by name (see :attr:`sizes`).

        Args:
            sums: what is added to.
            words: [N] words.
            leads: [N] whether the leading sense explains the occurrence best.
            h: [N, d] their contexts.
        """
        h = torch.where(leads.unsqueeze(1), h.to(self.direction.dtype), 0.0)
        along = (h * self.direction[words]).sum(1, keepdim=True) * h
        sums["lead_count"].index_add_(0, words, leads.to(h.dtype))
        for name, values in (("lead_sum", h), ("lead_along", along)):
            sums[name].view_as(self.direction).index_add_(0, words, values)

    def centers(self) -> Tensor:
        """Mean contexts c, [V, d]; 0 where there are none."""
        return self.lead_sum / self.lead_count.clamp_min(1.0).unsqueeze(1)

    def spread(self) -> Tensor:
        """Σ (h − c)((h − c)·v), [V, d]; its length is n λ with λ the variance along v."""
        mean_along = (self.centers() * self.direction).sum(1, keepdim=True)
        return self.lead_along - self.lead_sum * mean_along

    @torch.no_grad()
    def start_interval(self, leader: Tensor) -> None:
        """Take a step of the power iteration, note the leading senses [V], forget the sums."""
        spread, stays = self.spread(), leader == self.leader
        grows = stays & (spread.norm(dim=1) > 0)
        self.direction[grows] = normalize(spread[grows], dim=1)
        self.rounds.add_(grows.long())
        self.leader.copy_(leader)
        self.restart((~stays).nonzero().squeeze(1))
        for total in (self.lead_count, self.lead_sum, self.lead_along):
            total.zero_()

    def restart(self, words: Tensor) -> None:
        """Begin the power iterations of words [K] anew."""
        self.rounds[words] = 0
        self.direction[words] = _noise(words, self.direction.shape[1]).to(self.direction)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # a model that was trained with another policy begins as a new one does
        for name, buffer in self._buffers.items():
            state_dict.setdefault(prefix + name, buffer)
        super()._load_from_state_dict(state_dict, prefix, *args)
