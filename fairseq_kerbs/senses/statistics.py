"""Statistics of words and senses: log P of Eq. 12, U of Eq. 13, and sums of an interval.

Reallocation reads them. A training records the targets of each batch, by
:meth:`SenseStatistics.record`, and adds them to the statistics once per update, by
:meth:`SenseStatistics.update`. An interval begins after each reallocation.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

LEAST_USAGE = 1e-30
"""Least usage of a word that tells how it is shared by its senses. Usage that has decayed far below
float32's range is rounded, and its quotients carry no information."""


class TargetProbabilities(NamedTuple):
    """Probabilities of the target words of a batch and of their senses, without gradient."""

    log_prob: Tensor  # [N] log P(ŷ_t) of each target word ŷ_t, 0 at ignored positions
    senses: Tensor  # [N, K] senses of the target word, padded as in SenseTable
    sense_prob: Tensor  # [N, K] P(s_t = m) of these (Eq. 5), 0 at padding and ignored positions
    counted: Tensor  # [N] False at ignored positions

    @property
    def usable(self) -> Tensor:
        """[N] True at targets that statistics count: no ignored ones, no overflow of log P."""
        return self.counted & self.log_prob.isfinite()


class SenseStatistics(nn.Module):
    """Statistics of V words and M senses, as buffers of the checkpoint.

    They are float32, which ``.half()``, ``.bfloat16()`` and torch's default dtype do not change.

    Args:
        vocab_size: number of words V.
        total_senses: number of senses M.
    """

    usage: Tensor  # [M] U of Eq. 13, a moving average, initially 1/M
    log_prob: Tensor  # [V] log P of Eq. 12, a decayed sum, initially 0
    # Sums since the last reallocation, which the policy ``released`` reads.
    interval_count: Tensor  # [V] number of target occurrences
    interval_prob: Tensor  # [V] sum of P(ŷ_t) over these
    interval_joint: Tensor  # [M] sum of P(s_t = m) (Eq. 5) over those of the sense's word

    def __init__(self, vocab_size: int, total_senses: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.total_senses = total_senses
        # float32 whatever torch's default dtype is
        usage = torch.full((total_senses,), 1.0 / total_senses, dtype=torch.float32)
        self.register_buffer("usage", usage)
        self.register_buffer("log_prob", torch.zeros(vocab_size, dtype=torch.float32))
        interval_sizes = {"count": vocab_size, "prob": vocab_size, "joint": total_senses}
        for name, size in interval_sizes.items():
            self.register_buffer(f"interval_{name}", torch.zeros(size, dtype=torch.float32))
        self._interval_names = tuple(interval_sizes)
        # "log_prob_sum" and "joint" update log P and U, all but "log_prob_sum" the sums over the
        # interval.
        self._pending_sizes = {"log_prob_sum": vocab_size, **interval_sizes}
        # Sums since the last update. Not a buffer, because DDP broadcasts buffers and would
        # overwrite the sums of each process.
        self._pending: Tensor | None = None
        self.pending.zero_()  # allocated before torch.compile traces the layer
        self.recording = True  # False turns record() off

    @property
    def pending(self) -> Tensor:
        """Recorded sums since the last update, a flat tensor [M + 3 V]. Sum it over processes."""
        if self._pending is None or self._pending.device != self.usage.device:
            fresh = self.usage.new_zeros(sum(self._pending_sizes.values()))
            if self._pending is not None and not self._pending.is_meta:
                fresh.copy_(self._pending)
            self._pending = fresh
        return self._pending

    def _pending_sums(self) -> dict[str, Tensor]:
        """Views of :attr:`pending` by name."""
        parts = self.pending.split(list(self._pending_sizes.values()))
        return dict(zip(self._pending_sizes, parts))

    @torch.no_grad()
    def record(self, target: Tensor, probabilities: TargetProbabilities) -> None:
        """Add targets [N] and their probabilities to :attr:`pending`, for :meth:`update`.

        Targets whose log-probability is not finite are left out. Otherwise a single overflow in
        mixed precision would stay in the statistics.
        """
        if not self.recording:
            return
        sums = self._pending_sums()
        valid = probabilities.usable
        counted = valid.to(self.usage.dtype)
        words = torch.where(valid, target, 0)
        log_prob = torch.where(valid, probabilities.log_prob, 0.0).to(counted.dtype)
        joint = torch.where(valid.unsqueeze(1), probabilities.sense_prob, 0.0).to(counted.dtype)
        sums["log_prob_sum"].index_add_(0, words, log_prob)
        sums["prob"].index_add_(0, words, log_prob.exp() * counted)
        sums["count"].index_add_(0, words, counted)
        sums["joint"].index_add_(0, probabilities.senses.flatten(), joint.flatten())

    @torch.no_grad()
    def update(self, decay: float) -> Tensor:
        """Update log P and U by Eq. 12 and 13 with the recorded targets, and clear these.

        The paper's recursion takes one target at a time. The n targets of an update have no order,
        so this is the mean of the recursion over all orders. With γ = (1 − (1 − β)^n)/(nβ),

            log P_i ← (1 − β)^n log P_i + γ Σ_{t: ŷ_t = i} log P(ŷ_t)
            U_m     ← (1 − β)^n U_m + γβ Σ_t P(s_t = m)

        For n = 1 it is the paper's recursion. U is a moving average. log P is a decayed sum, since
        Eq. 12 has no β before its second term. With stationary targets the statistics do not depend
        on the batch size. β is ``decay``; a ValueError is raised if it is outside [0, 1).

        Returns n, a scalar tensor.
        """
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"`decay` is {decay}, but it must be within [0, 1).")
        sums = self._pending_sums()
        targets = sums["count"].sum()
        # in float64: float32 would round 1 − β itself
        exponent = targets.double() * math.log1p(-decay)
        keep = exponent.exp()
        fresh = torch.where(
            exponent < 0, -exponent.expm1() / (targets.double() * decay).clamp_min(1e-300), 1.0
        )
        self.log_prob.mul_(keep).add_(sums["log_prob_sum"] * fresh)
        self.usage.mul_(keep).add_(sums["joint"] * (fresh * decay))
        for name in self._interval_names:
            self.get_buffer(f"interval_{name}").add_(sums[name])
        self.pending.zero_()
        return targets

    @torch.no_grad()
    def begin_anew(self) -> None:
        """Set all statistics to their initial values."""
        self.usage.fill_(1.0 / self.total_senses)
        self.log_prob.zero_()
        self.start_interval()
        self.pending.zero_()

    @torch.no_grad()
    def start_interval(self) -> None:
        """Clear the sums since the last reallocation."""
        for name in self._interval_names:
            self.get_buffer(f"interval_{name}").zero_()

    def _apply(self, *args: Any, **options: Any) -> SenseStatistics:
        exact = dict(self.named_buffers())
        super()._apply(*args, **options)
        for name, buffer in exact.items():
            moved = self.get_buffer(name)
            if moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.pending.zero_()
