"""Where the contexts of each sense lie, and how those of each word's leading sense spread: what the
policy ``clusters`` reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

BLOCK = 4096  # words whose senses are compared at a time


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
    """Sums over the contexts h of an interval's occurrences, each with the sense that explains it
    best.

    Args:
        vocab_size: number of words V.
        total_senses: number of senses M.
        dim: size d of context vectors.

    Attributes:
        leader: [V] the word's leading sense: the most used one of the interval before.
        rounds: [V] intervals that it has been so, since it was last split.
        direction: [V, d] v, of length 1: a power iteration, one step an interval, for the first
            principal component of the leading sense's contexts.
        sense_count: [M] number n of occurrences.
        sense_sum: [M, d] Σ h.
        lead_along: [V, d] Σ h (h·v) of the leading sense.
    """

    leader: Tensor
    rounds: Tensor
    direction: Tensor
    sense_count: Tensor
    sense_sum: Tensor
    lead_along: Tensor

    def __init__(self, vocab_size: int, total_senses: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("leader", torch.arange(vocab_size))
        self.register_buffer("rounds", torch.zeros(vocab_size, dtype=torch.long))
        self.register_buffer("direction", _noise(torch.arange(vocab_size), dim))
        self.register_buffer("sense_count", torch.zeros(total_senses))
        self.register_buffer("sense_sum", torch.zeros(total_senses, dim))
        self.register_buffer("lead_along", torch.zeros(vocab_size, dim))
        self.sizes = {"sense_count": total_senses, "sense_sum": total_senses * dim}
        self.sizes |= {"lead_along": vocab_size * dim}

    def record(
        self, sums: dict[str, Tensor], words: Tensor, best: Tensor, counted: Tensor, h: Tensor
    ) -> None:
        """Add occurrences to flat sums by name (see :attr:`sizes`).

        Args:
            sums: what is added to.
            words: [N] words.
            best: [N] the sense that explains the occurrence best.
            counted: [N] which occurrences count.
            h: [N, d] their contexts.
        """
        h = torch.where(counted.unsqueeze(1), h.to(self.direction.dtype), 0.0)
        leads = (best == self.leader[words]).unsqueeze(1)
        along = torch.where(leads, (h * self.direction[words]).sum(1, keepdim=True) * h, 0.0)
        sums["sense_count"].index_add_(0, best, counted.to(h.dtype))
        sums["sense_sum"].view_as(self.sense_sum).index_add_(0, best, h)
        sums["lead_along"].view_as(self.direction).index_add_(0, words, along)

    def centers(self, senses: Tensor) -> Tensor:
        """Mean contexts c of senses [...], [..., d]; 0 where there are none."""
        return self.sense_sum[senses] / self.sense_count[senses].clamp_min(1.0).unsqueeze(-1)

    def spread(self) -> Tensor:
        """Σ (h − c)((h − c)·v) of leading senses, [V, d]; its length is n λ with λ the variance
        along v."""
        mean_along = (self.centers(self.leader) * self.direction).sum(1, keepdim=True)
        return self.lead_along - self.sense_sum[self.leader] * mean_along

    def merge_costs(self, senses: Tensor, mask: Tensor) -> Tensor:
        """By how much the distortion Σ |h − c|² rises where a sense joins another of its word, with
        as many contexts or more, for which that is least: n n' / (n + n') · |c − c'|², [M]; ∞ where
        there is none.

        Args:
            senses, mask: [V, K] as in :class:`~fairseq_kerbs.senses.SenseTable`.
        """
        costs = torch.full_like(self.sense_count, torch.inf)
        alone = torch.eye(senses.shape[1], dtype=torch.bool, device=senses.device)
        for rows, real in zip(senses.split(BLOCK), mask.split(BLOCK), strict=True):
            n, c = self.sense_count[rows], self.centers(rows)
            apart = (c.unsqueeze(1) - c.unsqueeze(2)).square().sum(3)  # [B, K, K]
            n, other = n.unsqueeze(2), n.unsqueeze(1)
            rise = n * other / (n + other).clamp_min(1.0) * apart
            never = alone | ~real.unsqueeze(1) | (other < n)
            least = rise.masked_fill(never, torch.inf).amin(2)
            costs[rows[real]] = least[real]
        return costs

    @torch.no_grad()
    def start_interval(self, leader: Tensor) -> None:
        """Take a step of the power iteration, note the leading senses [V], forget the sums."""
        spread, stays = self.spread(), leader == self.leader
        grows = stays & (spread.norm(dim=1) > 0)
        self.direction[grows] = normalize(spread[grows], dim=1)
        self.rounds.add_(grows.long())
        self.leader.copy_(leader)
        self.restart((~stays).nonzero().squeeze(1))
        for name in self.sizes:
            self.get_buffer(name).zero_()

    def restart(self, words: Tensor) -> None:
        """Begin the power iterations of words [K] anew."""
        self.rounds[words] = 0
        self.direction[words] = _noise(words, self.direction.shape[1]).to(self.direction)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # a model that was trained with another policy begins as a new one does, and an interval
        # of the version that summed up leading senses alone begins anew
        for name in ("lead_count", "lead_sum"):
            if state_dict.pop(prefix + name, None) is not None:
                state_dict.pop(prefix + "lead_along", None)
        for name, buffer in self._buffers.items():
            state_dict.setdefault(prefix + name, buffer)
        super()._load_from_state_dict(state_dict, prefix, *args)
