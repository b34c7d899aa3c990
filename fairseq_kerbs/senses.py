"""The sense inventory: allocation of senses to words, and statistics of their use (Section 4.2).

Sense m is row m of the output layer's weight and belongs to word ``word_of_sense[m]``. Every word
always has 1 to ``max_senses`` senses. Reallocation reads the statistics: the decayed sum log P_i of
each word i (Eq. 12), the moving average U of each sense (Eq. 13), and sums since the last
reallocation.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class SenseTable(NamedTuple):
    """Senses of every word as a padded table. K is the largest number of senses of a word."""

    senses: Tensor  # [V, K] sense numbers, ascending. Padding repeats the word's first sense
    mask: Tensor  # [V, K] False at padding
    words: Tensor  # [M] the word of each sense


class TargetPosteriors(NamedTuple):
    """Probabilities of the target words of a batch and of their senses, without gradient."""

    log_prob: Tensor  # [N] log P(ŷ_t) of each target word ŷ_t, 0 at ignored positions
    senses: Tensor  # [N, K] senses of the target word, padded as in SenseTable
    sense_prob: Tensor  # [N, K] P(s_t = m) of these (Eq. 5), 0 at padding and ignored positions
    counted: Tensor  # [N] False at ignored positions


def build_sense_table(
    word_of_sense: Tensor, vocab_size: int, width: int | None = None
) -> SenseTable:
    """Build the table of senses by word from the word of each sense, [M].

    Its ``width`` K is by default the largest number of senses of a word. Raises a ValueError if a
    word has no sense, or more than ``width``, or a word number is outside [0, V).
    """
    if bool(((word_of_sense < 0) | (word_of_sense >= vocab_size)).any()):
        raise ValueError(
            f"`word_of_sense` names a word outside the vocabulary of {vocab_size} words."
        )
    counts = torch.bincount(word_of_sense, minlength=vocab_size)
    if int(counts.min()) < 1:
        raise ValueError(
            f"Word {int(counts.argmin())} has no sense; every word needs at least one."
        )
    most = int(counts.max())
    width = most if width is None else width
    if most > width:
        raise ValueError(
            f"Word {int(counts.argmax())} has {most} senses; at most {width} are allowed."
        )
    by_word = torch.sort(word_of_sense, stable=True).indices  # [M] senses grouped by word
    first = counts.cumsum(0) - counts  # [V] where each word's group begins
    slot = torch.arange(width, device=word_of_sense.device)
    mask = slot < counts.unsqueeze(1)  # [V, K]
    position = first.unsqueeze(1) + torch.where(mask, slot, 0)
    return SenseTable(by_word[position], mask, word_of_sense.clone())


def number_senses(word_of_sense: Tensor, usage: Tensor) -> Tensor:
    """Number the senses of each word from 1, in order of falling usage, and then of their rows.

    All commands use these numbers: ``seal#2`` is the second most used sense of *seal*. The word of
    each sense, U of Eq. 13 and the numbers are [M].
    """
    rows = usage.sort(descending=True, stable=True).indices
    rows = rows[word_of_sense[rows].sort(stable=True).indices]  # word by word, the most used first
    words = word_of_sense[rows]
    numbers = torch.empty_like(rows)
    places = torch.arange(len(rows), device=rows.device)
    numbers[rows] = 1 + places - torch.searchsorted(words, words)
    return numbers


def _check_sizes(vocab_size: int, total_senses: int, max_senses: int) -> None:
    """Raise a ValueError unless every word can have one to ``max_senses`` senses."""
    if max_senses < 1:
        raise ValueError(f"`max_senses` is {max_senses}, but every word needs at least one sense.")
    if total_senses < vocab_size:
        raise ValueError(
            f"`total_senses` gives {total_senses} senses for {vocab_size} words, but every word "
            "needs at least one: ask for as many senses as words, or more."
        )
    if total_senses > vocab_size * max_senses:
        raise ValueError(
            f"`total_senses` gives {total_senses} senses for {vocab_size} words, more than "
            f"`max_senses` {max_senses} of each: ask for at most {max_senses} times as many senses "
            "as words, or raise `max_senses`."
        )


def random_allocation(
    vocab_size: int, total_senses: int, max_senses: int, generator: torch.Generator | None = None
) -> Tensor:
    """Allocate senses to words at random, and return the word of each sense, [M].

    Sense i < V belongs to word i, like the rows of a softmax. The others are drawn uniformly from
    the free places of all words.

    Args:
        vocab_size: number of words V.
        total_senses: number of senses M.
        max_senses: maximum number of senses of a word.
        generator: random generator [torch's default].

    Raises:
        ValueError: M is below V or above ``max_senses`` · V.
    """
    _check_sizes(vocab_size, total_senses, max_senses)
    places = torch.randperm(vocab_size * (max_senses - 1), generator=generator)
    extra = places[: total_senses - vocab_size] % vocab_size
    return torch.cat([torch.arange(vocab_size), extra])


def equal_allocation(
    vocab_size: int, total_senses: int, max_senses: int, generator: torch.Generator | None = None
) -> Tensor:
    """Allocate equally many senses to all words, and return the word of each sense, [M].

    Sense m belongs to word m mod V, as in the authors' released code. That code has only whole
    numbers M/V. Otherwise, and this is our choice, the last M mod V senses belong to different
    words, which are drawn at random. Arguments and errors are those of :func:`random_allocation`.
    """
    _check_sizes(vocab_size, total_senses, max_senses)
    each, rest = divmod(total_senses, vocab_size)
    extra = torch.randperm(vocab_size, generator=generator)[:rest]
    return torch.cat([torch.arange(vocab_size).repeat(each), extra])


ALLOCATIONS = {"random": random_allocation, "equal": equal_allocation}
"""Initial allocations of senses to words, by their name for ``--sense-allocation``."""


class SenseInventory(nn.Module):
    """Allocation of senses and their statistics, as buffers of the checkpoint.

    ``.half()`` and ``.bfloat16()`` do not change the dtype of these buffers.

    Args:
        vocab_size: number of words V.
        total_senses: number of senses M (M_sum of Algorithm 1).
        max_senses: maximum number of senses of a word.
        sense_allocation: initial allocation, a name in :data:`ALLOCATIONS`.

    Raises:
        ValueError: M is below V or above ``max_senses`` · V, or no allocation has that name.
    """

    word_of_sense: Tensor  # [M] word of each sense
    usage: Tensor  # [M] U of Eq. 13, initially 1/M
    log_prob: Tensor  # [V] log P of Eq. 12, initially 0
    # Sums since the last reallocation. The policy ``released`` reads the first three, and
    # --new-sense split the last.
    interval_count: Tensor  # [V] number of target occurrences
    interval_prob: Tensor  # [V] sum of P(ŷ_t) over these
    interval_joint: Tensor  # [M] sum of P(s_t = m) (Eq. 5) over those of the sense's word
    interval_posterior: Tensor  # [M] sum of P(s_t = m | ŷ_t) over the same

    def __init__(
        self,
        vocab_size: int,
        total_senses: int,
        max_senses: int = 4,
        sense_allocation: str = "random",
    ) -> None:
        super().__init__()
        if sense_allocation not in ALLOCATIONS:
            raise ValueError(
                f"`sense_allocation`: there is no '{sense_allocation}'; choose one of "
                f"{', '.join(ALLOCATIONS)}."
            )
        self.vocab_size, self.total_senses, self.max_senses = vocab_size, total_senses, max_senses
        allocation = ALLOCATIONS[sense_allocation](vocab_size, total_senses, max_senses)
        self.register_buffer("word_of_sense", allocation)
        self.register_buffer("usage", torch.full((total_senses,), 1.0 / total_senses))
        self.register_buffer("log_prob", torch.zeros(vocab_size))
        sizes = {
            "count": vocab_size,
            "prob": vocab_size,
            "joint": total_senses,
            "posterior": total_senses,
        }
        for name, size in sizes.items():
            self.register_buffer(f"interval_{name}", torch.zeros(size))
        # "log_prob" and "joint" update log P and U, all but "log_prob" the sums over the interval
        self._sizes = {"log_prob": vocab_size, **sizes}
        self._names = tuple(sizes)
        self._table: SenseTable | None = None
        self._renew_table()
        # Sums since the last update. Not a buffer, because DDP broadcasts buffers and would
        # overwrite the sums of each process.
        self._pending: Tensor | None = None
        self.pending.zero_()  # allocated before torch.compile traces the layer
        self.recording = True  # False turns record() off

    @property
    def table(self) -> SenseTable:
        """Senses of every word, [V, max_senses]. Rebuilt when the allocation changes."""
        if self._table is None or self._table.senses.device != self.word_of_sense.device:
            self._table = build_sense_table(self.word_of_sense, self.vocab_size, self.max_senses)
        return self._table

    @torch.no_grad()
    def move(self, senses: Tensor, words: Tensor) -> None:
        """Assign senses [K] to words [K], in order. A sense that occurs twice gets its last word.

        Raises a ValueError, and changes nothing, if a word would have no sense or too many.
        """
        allocation = self.word_of_sense.clone()
        last = dict(zip(senses.tolist(), words.tolist()))
        allocation[list(last)] = allocation.new_tensor(list(last.values()))
        self._table = build_sense_table(allocation, self.vocab_size, self.max_senses)
        self.word_of_sense.copy_(allocation)

    @property
    def pending(self) -> Tensor:
        """Recorded sums since the last update, a flat tensor [2 M + 3 V]. Sum it over processes."""
        if self._pending is None or self._pending.device != self.usage.device:
            fresh = self.usage.new_zeros(sum(self._sizes.values()))
            self._pending = fresh if self._pending is None else fresh.copy_(self._pending)
        return self._pending

    def _sums(self) -> dict[str, Tensor]:
        """Views of :attr:`pending` by name."""
        return dict(zip(self._sizes, self.pending.split([*self._sizes.values()])))

    @torch.no_grad()
    def record(self, target: Tensor, posteriors: TargetPosteriors) -> None:
        """Add a batch of targets [N] and their posteriors to :attr:`pending`, for :meth:`update`.

        Targets whose log-probability is not finite are left out. Otherwise a single overflow in
        mixed precision would stay in the statistics.
        """
        if not self.recording:
            return
        sums = self._sums()
        valid = posteriors.counted & posteriors.log_prob.isfinite()  # [N]
        counted = valid.to(self.usage.dtype)
        words = torch.where(valid, target, 0)
        log_prob = torch.where(valid, posteriors.log_prob, 0.0).to(counted.dtype)
        joint = torch.where(valid.unsqueeze(1), posteriors.sense_prob, 0.0).to(counted.dtype)
        share = joint / joint.sum(1, keepdim=True).clamp_min(torch.finfo(joint.dtype).tiny)
        sums["log_prob"].index_add_(0, words, log_prob)
        sums["prob"].index_add_(0, words, log_prob.exp() * counted)
        sums["count"].index_add_(0, words, counted)
        senses = posteriors.senses.flatten()
        sums["joint"].index_add_(0, senses, joint.flatten())
        sums["posterior"].index_add_(0, senses, share.flatten())

    @torch.no_grad()
    def update(self, decay: float) -> Tensor:
        """Update log P and U by Eq. 12 and 13 with the recorded targets, and clear these.

        The paper's recursion takes one target at a time. The n targets of an update have no order,
        so this is the mean of the recursion over all orders. With γ = (1 − (1 − β)^n)/(nβ),

            log P_i ← (1 − β)^n log P_i + γ Σ_{t: ŷ_t = i} log P(ŷ_t)
            U_m     ← (1 − β)^n U_m + γβ Σ_t P(s_t = m)

        For n = 1 it is the paper's recursion. With stationary targets the statistics do not depend
        on the batch size. β is ``decay``; a ValueError is raised if it is outside [0, 1).

        Returns n, a scalar tensor.
        """
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"`decay` is {decay}, but it must be within [0, 1).")
        sums = self._sums()
        targets = sums["count"].sum()
        # in float64: float32 would round 1 − β itself
        exponent = targets.double() * math.log1p(-decay)
        keep = exponent.exp()
        fresh = torch.where(
            exponent < 0, -exponent.expm1() / (targets.double() * decay).clamp_min(1e-300), 1.0
        )
        self.log_prob.mul_(keep).add_(sums["log_prob"] * fresh)
        self.usage.mul_(keep).add_(sums["joint"] * (fresh * decay))
        for name in self._names:
            self.get_buffer(f"interval_{name}").add_(sums[name])
        self.pending.zero_()
        return targets

    @torch.no_grad()
    def start_interval(self) -> None:
        """Clear the sums since the last reallocation."""
        for name in self._names:
            self.get_buffer(f"interval_{name}").zero_()

    def _apply(self, *args: Any, **options: Any) -> SenseInventory:
        exact = dict(self.named_buffers())
        super()._apply(*args, **options)
        for name, buffer in exact.items():
            moved = self.get_buffer(name)
            if moved.dtype != buffer.dtype:
                self._buffers[name] = buffer.to(moved.device)
        self._renew_table()
        return self

    def _renew_table(self) -> None:
        """Build the table now: torch.compile could not, since sizes in it depend on values."""
        self._table = None
        if self.word_of_sense.device.type != "meta":
            with suppress(ValueError):  # a damaged allocation is refused where it is used
                self._table = self.table

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.pending.zero_()
        self._renew_table()

    def extra_repr(self) -> str:
        return f"words={self.vocab_size}, senses={self.total_senses}, max_senses={self.max_senses}"
