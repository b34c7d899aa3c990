"""Applying a function to every line of a corpus, in several processes where it is worth it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing.pool import Pool

from tqdm import tqdm

from fairseq_kerbs.utils.processes import end_with_parent

LineFunction = Callable[[str], str]

_CHUNK = 1000  # lines a worker takes at a time
_SMALL = 5000  # corpora below this are done in this process: starting workers costs more

_function: LineFunction | None = None


def usable_cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start_worker(make: Callable[[], LineFunction]) -> None:
    global _function
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and stops the pool
    _function = make()


def _apply_chunk(lines: list[str]) -> list[str]:
    assert _function is not None
    return [_function(line) for line in lines]


def _chunks(lines: Iterator[str]) -> Iterator[list[str]]:
    while chunk := list(islice(lines, _CHUNK)):
        yield chunk


def map_lines(
    make: Callable[[], LineFunction],
    lines: Iterable[str],
    *,
    total: int,
    workers: int,
    description: str,
) -> Iterator[str]:
    """The results of a function for each line, in order, under a progress bar.

    Args:
        make: builds the function; called once in each process, so it must be picklable.
        lines: the input, read only a little ahead of the output.
        total: number of lines, for the bar.
        workers: processes to use; 1, or a small corpus, needs none.
        description: what the bar says.
    """
    tqdm.monitor_interval = 0  # no monitor thread: processes are forked beside it
    stream = iter(lines)
    with tqdm(total=total, desc=description, unit=" lines", leave=False, disable=None) as bar:
        if workers == 1 or total < _SMALL:
            function = make()
            for line in stream:
                yield function(line)
                bar.update()
            return
        with _pool(make, workers) as pool:
            blocks = _chunks(stream)
            while block := list(islice(blocks, 4 * workers)):
                for results in pool.map(_apply_chunk, block, chunksize=1):
                    yield from results
                    bar.update(len(results))


def _pool(make: Callable[[], LineFunction], workers: int) -> Pool:
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    return context.Pool(workers, _start_worker, (make,))
