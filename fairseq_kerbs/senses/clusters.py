"""Where the contexts of each sense lie, and how those of each word's leading sense spread: what the
policy ``clusters`` reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

BLOCK = 4096  # words whose senses are compared at a time
PERIOD = 10  # occurrences of a word's leading sense


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
    """Sums over the contexts h of occurrences, each with the sense that explains it best.

    The sums of a word reach over a period: as many intervals as it takes until its leading sense,
    the one that explains most, has :data:`PERIOD` occurrences. A frequent word's is one interval.

    Args:
        vocab_size: number of words V.
        total_senses: number of senses M.
        dim: size d of context vectors.

    Attributes:
        leader: [V] the word's leading sense of the period before.
        rounds: [V] periods that it has been so, since it was last split; −1 before the first.
        intervals: [V] intervals that have ended since the word's period began.
        direction: [V, d] v, of length 1: a power iteration, one step a period, for the first
            principal component of the leading sense's contexts.
        sense_count: [M] number n of occurrences.
        sense_sum: [M, d] Σ h.
        lead_along: [V, d] Σ h (h·v) of the leading sense.
    """

    leader: Tensor
    rounds: Tensor
    intervals: Tensor
    direction: Tensor
    sense_count: Tensor
    sense_sum: Tensor
    lead_along: Tensor

    def __init__(self, vocab_size: int, total_senses: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("leader", torch.arange(vocab_size))
        self.register_buffer("rounds", torch.full((vocab_size,), -1))
        self.register_buffer("intervals", torch.zeros(vocab_size, dtype=torch.long))
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
        """Σ (h − c)((h − c)·v) of the leading senses of words [K], [K, d]; its length is n λ with
        λ the variance along v."""
        leaders = self.leader[words]
        mean_along = (self.centers(leaders) * self.direction[words]).sum(1, keepdim=True)
        return self.lead_along[words] - self.sense_sum[leaders] * mean_along

    def add(self, sums: dict[str, Tensor], word_of_sense: Tensor) -> None:
        """Take up what was recorded, and forget it there: only rows that occurred are looked at."""
        rows = sums["sense_count"].nonzero().squeeze(1)
        words = word_of_sense[rows].unique()
        for name, chosen in (("sense_sum", rows), ("lead_along", words), ("sense_count", rows)):
            total = self.get_buffer(name)
            added = sums.pop(name).view_as(total)
            total[chosen] += added[chosen]
            added[chosen] = 0.0

    def leading(self, senses: Tensor, mask: Tensor) -> Tensor:
        """The sense of every word that explains most in its period, [V]; where none does, that of
        the period before, or the word's first sense if that has gone.

        Args:
            senses, mask: [V, K] as in :class:`~fairseq_kerbs.senses.SenseTable`.
        """
        most, place = self.sense_count[senses].masked_fill(~mask, -1.0).max(1, keepdim=True)
        own = (senses == self.leader.unsqueeze(1)).any(1)
        before = torch.where(own, self.leader, senses[:, 0])
        return torch.where(most.squeeze(1) > 0, senses.gather(1, place).squeeze(1), before)

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
    def start_interval(self, leading: Tensor, word_of_sense: Tensor) -> None:
        """End the periods that are complete: take a step of the power iteration where the leading
        sense [V] of before still leads, note the others, forget the sums.

        Args:
            leading: [V] what :meth:`leading` finds.
            word_of_sense: [M] word of each sense.
        """
        self.intervals += 1
        complete, stays = self.sense_count[leading] >= PERIOD, leading == self.leader
        words = (complete & stays).nonzero().squeeze(1)
        spread = self.spread(words)
        grows = spread.norm(dim=1) > 0
        self.direction[words[grows]] = normalize(spread[grows], dim=1)
        self.rounds[words] = self.rounds[words].clamp_min(0) + 1
        # one that explains nothing, or has gone, need not lead until the period is complete
        own = word_of_sense[self.leader] == torch.arange(len(leading), device=leading.device)
        lost = ~stays & ~(own & (self.sense_count[self.leader] > 0))
        self.leader[:] = torch.where(complete | lost, leading, self.leader)
        self.restart((complete & ~stays).nonzero().squeeze(1), word_of_sense)
        self._forget(complete, word_of_sense)

    def restart(self, words: Tensor, word_of_sense: Tensor) -> None:
        """Begin the periods and power iterations of words [K] anew; word_of_sense: [M]."""
        self.rounds[words] = 0
        self.direction[words] = _noise(words, self.direction.shape[1]).to(self.direction)
        chosen = torch.zeros_like(self.leader, dtype=torch.bool)
        chosen[words] = True
        self._forget(chosen, word_of_sense)

    def _forget(self, chosen: Tensor, word_of_sense: Tensor) -> None:
        """Begin the sums of chosen words (bool, [V]) anew."""
        senses = chosen[word_of_sense]
        self.sense_count[senses] = 0.0
        self.sense_sum[senses] = 0.0
        self.lead_along[chosen] = 0.0
        self.intervals[chosen] = 0

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # a model that was trained with another policy begins as a new one does; one of a version
        # whose sums reached over an interval knows its leading senses and directions alone
        if prefix + "intervals" not in state_dict:
            known = {prefix + name for name in ("leader", "direction")}
            for name in [name for name in state_dict if name.startswith(prefix)]:
                if name not in known:
                    del state_dict[name]
        for name, buffer in self.named_buffers():
            begins = buffer if name in ("leader", "direction") else torch.zeros_like(buffer)
            state_dict.setdefault(prefix + name, begins - 1 if name == "rounds" else begins)
        super()._load_from_state_dict(state_dict, prefix, *args)
