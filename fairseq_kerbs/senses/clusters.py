"""Where the contexts of each sense lie, and how those of each word's leading sense spread: what the
policy ``clusters`` reads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

logger = logging.getLogger(__name__)

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
            principal component, across their mean, of the leading sense's contexts.
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

    def spread(self, words: Tensor) -> Tensor:
        """P Σ (h − c)((h − c)·v) of the leading senses of words [K], [K, d], P x = x − (x·c) c/|c|²
        what of x is across c (all of it where c is 0); its length is n λ with λ the variance along
        v, as far as c has not turned since v was found."""
        leaders = self.leader[words]
        c = self.centers(leaders)
        mean_along = (c * self.direction[words]).sum(1, keepdim=True)
        whole = self.lead_along[words] - self.sense_sum[leaders] * mean_along
        c = normalize(c, dim=1)
        return whole - (whole * c).sum(1, keepdim=True) * c

    def add(self, sums: dict[str, Tensor], word_of_sense: Tensor) -> None:
        """Take up what was recorded, and forget it there: only rows that occurred are looked at."""
        rows = sums["sense_count"].nonzero().squeeze(1)
        words = word_of_sense[rows].unique()
        for name, chosen in (("sense_sum", rows), ("lead_along", words), ("sense_count", rows)):
            total = self.get_buffer(name)
            added = sums[name].view_as(total)
            total[chosen] += added[chosen]
            added[chosen] = 0.0

    def merge_costs(self, senses: Tensor, mask: Tensor) -> Tensor:
        """By how much the distortion rises where a sense joins another of its word, with as many
        contexts or more, for which that is least: n n' / (n + n') · 2 (|c||c'| − c·c'), [M]; ∞
        where there is none.

        Args:
            senses, mask: [V, K] as in :class:`~fairseq_kerbs.senses.SenseTable`.
        """
        costs = torch.full_like(self.sense_count, torch.inf)
        alone = torch.eye(senses.shape[1], dtype=torch.bool, device=senses.device)
        for rows, real in zip(senses.split(BLOCK), mask.split(BLOCK), strict=True):
            n, c = self.sense_count[rows].unsqueeze(2), self.centers(rows)
            length, other = c.norm(dim=2, keepdim=True), n.mT
            apart = 2.0 * (length * length.mT - c @ c.mT).clamp_min(0.0)  # [B, K, K]
            rise = n * other / (n + other).clamp_min(1.0) * apart
            never = alone | ~real.unsqueeze(1) | (other < n)
            costs[rows[real]] = rise.masked_fill(never, torch.inf).amin(2)[real]
        return costs

    @torch.no_grad()
    def start_interval(self, leader: Tensor) -> None:
        """Take a step of the power iteration, note the leading senses [V], forget the sums."""
        stays = leader == self.leader
        words = (stays & (self.sense_count[leader] > 0)).nonzero().squeeze(1)
        spread = self.spread(words)
        grows = spread.norm(dim=1) > 0
        self.direction[words[grows]] = normalize(spread[grows], dim=1)
        self.rounds[words[grows]] += 1
        self.leader.copy_(leader)
        self.restart((~stays).nonzero().squeeze(1))
        for name in self.sizes:
            self.get_buffer(name).zero_()

    def restart(self, words: Tensor) -> None:
        """Begin the power iterations of words [K] anew."""
        self.rounds[words] = 0
        self.direction[words] = _noise(words, self.direction.shape[1]).to(self.direction)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # a model that was trained with another policy begins as a new one does, and one of the
        # version that summed up leading senses alone waits until its sums are whole again
        if prefix + "sense_count" not in state_dict:
            logger.warning(
                "the checkpoint has no statistics of contexts: it went by another reallocation "
                "policy than clusters, or was converted, and clusters begins anew."
            )
        for name in ("lead_count", "lead_sum"):
            if state_dict.pop(prefix + name, None) is not None:
                for outdated in ("lead_along", "rounds"):
                    state_dict.pop(prefix + outdated, None)
        for name, buffer in self.named_buffers():
            begins = name in ("leader", "direction")
            state_dict.setdefault(prefix + name, buffer if begins else torch.zeros_like(buffer))
        super()._load_from_state_dict(state_dict, prefix, *args)
