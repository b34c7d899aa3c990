"""The sense inventory: which word each sense belongs to (Section 4.2).

Sense m is row m of the output layer's weight and belongs to word ``word_of_sense[m]``. Every word
always has 1 to ``max_senses`` senses. The statistics of their use are in :mod:`.statistics`.
"""

from __future__ import annotations

import operator
import zlib
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.senses.allocation import ALLOCATIONS
from fairseq_kerbs.senses.statistics import SenseStatistics
from fairseq_kerbs.torch_compat import is_compiling


class SenseTable(NamedTuple):
    """Senses of every word as a padded table. K is the largest number of senses of a word."""

    senses: Tensor  # [V, K] sense numbers, ascending. Padding repeats the word's first sense
    mask: Tensor  # [V, K] False at padding
    words: Tensor  # [M] the word of each sense


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


def checksum_of(word_of_sense: Tensor) -> Tensor:
    """The CRC-32 of an allocation of whole numbers, [M], as two numbers of 16 bits: int64 [2].

    Programs that average checkpoints average these numbers, too. If senses moved between the
    checkpoints, the results are not the checksum of the averaged allocation. If none did, they are,
    also in float32, in which sums of such numbers are exact.
    """
    number = zlib.crc32(word_of_sense.cpu().numpy().astype("<i8").tobytes())
    return torch.tensor([number >> 16, number & 0xFFFF])


def _version_of(value: Tensor) -> tuple[Tensor, int]:
    """A tensor and how often it was written to, by which later writing is noticed."""
    version = -1  # where torch does not count
    if not (is_compiling() or value.is_inference()):
        version = value._version
    return (value, version)


class SenseInventory(SenseStatistics):
    """Allocation of senses to words and the statistics of their use, as buffers of the checkpoint.

    ``.half()`` and ``.bfloat16()`` do not change the dtype of these buffers.

    Args:
        vocab_size: number of words V.
        total_senses: number of senses M (M_sum of Algorithm 1).
        max_senses: maximum number of senses of a word.
        sense_allocation: initial allocation, a name in :data:`.allocation.ALLOCATIONS`.

    Raises:
        ValueError: M is below V, above ``max_senses`` · V or no integer, or no allocation has that
            name.
    """

    word_of_sense: Tensor  # [M] word of each sense
    checksum: Tensor  # [2] that of word_of_sense, by which an average of checkpoints is known

    def __init__(
        self,
        vocab_size: int,
        total_senses: int,
        max_senses: int = 4,
        sense_allocation: str = "random",
    ) -> None:
        if sense_allocation not in ALLOCATIONS:
            raise ValueError(
                f"`sense_allocation`: there is no '{sense_allocation}'; choose one of "
                f"{', '.join(ALLOCATIONS)}."
            )
        try:
            total_senses = operator.index(total_senses)
        except TypeError:
            raise ValueError(
                f"`total_senses` is {total_senses!r}; it must be an integer, the number of senses."
            ) from None
        allocation = ALLOCATIONS[sense_allocation](vocab_size, total_senses, max_senses)
        super().__init__(vocab_size, total_senses)
        self.max_senses = max_senses
        self.sense_allocation = sense_allocation
        self.register_buffer("word_of_sense", allocation)
        self.register_buffer("checksum", torch.zeros(2, dtype=torch.long))
        self._renew_checksum()
        self._table: SenseTable | None = None
        self._seen: tuple[Tensor, int] | None = None  # the allocation of the table, see _version_of
        self._renew_table()

    @property
    def table(self) -> SenseTable:
        """Senses of every word, [V, max_senses].

        Rebuilt by :meth:`move`, by loading a state, on another device, and where others have
        written to ``word_of_sense``, as averages of weights do that copy buffers. Compiled models
        do not look for that: ask for the table once after such a copy. A ValueError is raised if
        others have not written an allocation with its checksum.
        """
        table = self._table
        if table is None or table.senses.device != self.word_of_sense.device or self._is_written():
            if not self._fits_checksum():
                raise ValueError(
                    "`word_of_sense` does not fit `checksum`: it is an average of allocations "
                    "between which senses moved, or was never set. Load a state, or copy both."
                )
            table = build_sense_table(self.word_of_sense, self.vocab_size, self.max_senses)
            self._table = table
            self._seen = _version_of(self.word_of_sense)
        return table

    def _is_written(self) -> bool:
        """Whether the allocation is not that of the table, which is there."""
        if is_compiling() or self._table is None:
            return False
        now = _version_of(self.word_of_sense)
        if self._seen is not None and self._seen[0] is now[0] and self._seen[1] == now[1]:
            return False
        # DistributedDataParallel may copy buffers before every batch, mostly the same values
        if torch.equal(self._table.words, self.word_of_sense):
            self._seen = now
            return False
        return True

    def _fits_checksum(self) -> bool:
        return torch.equal(self.checksum.cpu(), checksum_of(self.word_of_sense))

    @torch.no_grad()
    def move(self, senses: Tensor, words: Tensor) -> None:
        """Assign senses [K] to words [K], in order. A sense that occurs twice gets its last word.

        Raises a ValueError, and changes nothing, if a word would have no sense or too many.
        """
        allocation = self.word_of_sense.clone()
        last = dict(zip(senses.tolist(), words.tolist()))
        allocation[list(last)] = allocation.new_tensor(list(last.values()))
        table = build_sense_table(allocation, self.vocab_size, self.max_senses)
        self._set(allocation, table)

    def _set(self, allocation: Tensor, table: SenseTable) -> None:
        self.word_of_sense.copy_(allocation)
        self._renew_checksum()
        self._table = table
        self._seen = _version_of(self.word_of_sense)

    @torch.no_grad()
    def begin_anew(self) -> None:
        """Allocate senses anew, at random or equally, and set all statistics to initial values.

        Without memory, on the device meta, nothing is done.
        """
        if self.word_of_sense.is_meta:
            return
        super().begin_anew()
        allocate = ALLOCATIONS[self.sense_allocation]
        allocation = allocate(self.vocab_size, self.total_senses, self.max_senses)
        allocation = allocation.to(self.word_of_sense.device)
        self._set(allocation, build_sense_table(allocation, self.vocab_size, self.max_senses))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_seen": None}  # versions of copies begin at 0

    def _apply(self, *args: Any, **options: Any) -> SenseInventory:
        super()._apply(*args, **options)
        self._renew_table()
        return self

    def _renew_checksum(self) -> None:
        if self.word_of_sense.device.type != "meta":
            self.checksum.copy_(checksum_of(self.word_of_sense))

    def _renew_table(self) -> None:
        """Build the table now: torch.compile could not, since sizes in it depend on values."""
        self._table = None
        if self.word_of_sense.device.type != "meta":
            with suppress(ValueError):  # a damaged allocation is refused where it is used
                self._table = self.table

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        given = state_dict.get(f"{prefix}word_of_sense")
        loaded = given is not None and given.shape == self.word_of_sense.shape
        if not loaded or f"{prefix}checksum" not in state_dict:  # as strict=False allows
            self._renew_checksum()
        elif not self.word_of_sense.is_meta and not self._fits_checksum():
            error_messages = args[-1]  # which load_state_dict() raises
            error_messages.append(
                f"{prefix}word_of_sense does not fit {prefix}checksum: the state is an average of "
                "states between which senses moved to other words. Average only those after the "
                "last reallocation. If it is no average, it is damaged."
            )
        self._renew_table()

    def extra_repr(self) -> str:
        return f"words={self.vocab_size}, senses={self.total_senses}, max_senses={self.max_senses}"
