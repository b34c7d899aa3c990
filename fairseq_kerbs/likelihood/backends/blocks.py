"""Blocks of rows: how plain torch goes through a chunk of products [M, n] on a CPU.

Rows go through all operations of a direction block by block, each block in the cache and on one
thread. Whichever thread is free takes the next block: one that shares its processor with another
program keeps nobody waiting, as it would after every operation if torch shared each of them out.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from fairseq_kerbs.senses import SenseTable

Result = TypeVar("Result")

BLOCK = 1 << 17
"""Products in a block: few enough for the caches, and many beside the time that a call takes."""


class Buffer:
    """A matrix of a chunk's size, which returns to its pool when nobody holds the buffer.

    Pages that are fresh for every chunk would cost a third of the time.
    """

    def __init__(self, pool: list[Tensor], like: Tensor) -> None:
        # the smallest that is large enough
        found = [i for i, flat in enumerate(pool) if len(flat) >= like.numel()]
        least = min(found, key=lambda i: len(pool[i]), default=None)
        self._flat = like.new_empty(like.numel()) if least is None else pool.pop(least)
        self._pool, self.matrix = pool, self._flat[: like.numel()].view(like.shape)

    def __getitem__(self, rows: slice) -> Tensor:
        return self.matrix[rows]

    def __del__(self) -> None:
        self._pool.append(self._flat)


class Block(NamedTuple):
    """Senses that go through all operations together."""

    senses: Any  # which they are: a slice, or their numbers
    rows: slice  # where they lie in a chunk's matrices of M rows
    ranks: list[int]  # how many words have a first sense here, a second, …: they lie in this order
    words: slice  # where these words lie in matrices of V rows
    numbers: Tensor  # which words they are

    def of(self, *matrices: Tensor | Buffer) -> tuple[Tensor, ...]:
        """The block's rows of matrices of M rows."""
        return tuple(matrix[self.rows] for matrix in matrices)

    def of_words(self, *matrices: Tensor | Buffer) -> tuple[Tensor, ...]:
        """Its words' rows of matrices of V rows."""
        return tuple(matrix[self.words] for matrix in matrices)


def slices(size: int, most: int) -> list[slice]:
    """0 … size − 1, at most ``most`` in a slice."""
    return [slice(i, min(i + most, size)) for i in range(0, size, max(1, most))]


def cut_rows(table: SenseTable, word_of_sense: Tensor, most: int) -> list[Block]:
    """All senses in their own order, at most ``most`` in a block."""
    cuts = slices(len(word_of_sense), most)
    return [Block(at, at, [at.stop - at.start], at, word_of_sense[at]) for at in cuts]


def cut_words(table: SenseTable, word_of_sense: Tensor, most: int) -> list[Block]:
    """All senses so that those of a word are in one block, ``most`` in one on the average."""
    (senses, mask), row = table, 0
    if senses.shape[1] == 1:
        return cut_rows(table, word_of_sense, most)
    # words with many senses first: in every block, those with another sense come first
    order = mask.sum(1).argsort(descending=True, stable=True)
    blocks, step = [], max(1, most * len(senses) // len(word_of_sense))
    for start in range(0, len(order), step):
        numbers = order[start : start + step]
        used = mask[numbers].t()  # [K, words]
        own, ranks = senses[numbers].t()[used], used.sum(1).tolist()
        rows, words = slice(row, row + len(own)), slice(start, start + len(numbers))
        blocks.append(Block(own, rows, [rank for rank in ranks if rank], words, numbers))
        row = rows.stop
    return blocks


def ranked_logsumexp(logits: Tensor, ranks: list[int], total: Tensor, out: Tensor) -> Tensor:
    """Each word's logsumexp ``out`` [words, n] over a block's logits, which lie rank after rank.

    These become q = exp(s − the largest s of the word), and ``total`` the sum of each word's q.
    """
    first, *others = parts = logits.split(ranks)
    peak = first.clone()
    for part in others:
        torch.maximum(peak[: len(part)], part, out=peak[: len(part)])
    for part in parts:
        part.sub_(peak[: len(part)]).exp_()
    total.copy_(first)
    for part in others:
        total[: len(part)].add_(part)
    return torch.log(total, out=out).add_(peak)


def _run_alone() -> None:
    """torch's operations on this thread use no other."""
    torch.get_num_threads()  # a thread's first question sets the number for all, so it comes first
    torch.set_num_threads(1)


@functools.cache
def _workers(threads: int, process: int) -> ThreadPoolExecutor:
    """As many threads, on each of which torch's operations run alone; a fork gets its own."""
    started = threading.Barrier(threads)
    pool = ThreadPoolExecutor(threads, initializer=_run_alone)
    try:
        list(pool.map(lambda _: started.wait(), range(threads)))
    finally:  # if not all could be started, those that were wait no longer
        started.abort()
        torch.set_num_threads(threads)  # each thread's own, but new ones begin with the last
    return pool


def each(work: Callable[..., Result], blocks: Sequence[Any], *more: Any) -> list[Result]:
    """``work`` of every block, and of what belongs to it in ``more``: on as many threads as torch
    has; a block alone on all of torch's."""
    threads = torch.get_num_threads()
    if threads == 1 or len(blocks) == 1:
        return [work(*arguments) for arguments in zip(blocks, *more, strict=True)]
    inference = torch.is_inference_mode_enabled()

    def call(*arguments: Any) -> Result:
        with torch.inference_mode(inference), torch.no_grad():  # these, too, are a thread's own
            return work(*arguments)

    return list(_workers(threads, os.getpid()).map(call, blocks, *more))
