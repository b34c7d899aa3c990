"""The number of threads of the programs that ``fairseq-kerbs`` starts.

The threads of OpenMP, which torch computes with, wait for one another after every operation, and by
default they do so by running in a loop. If another program has one of the cores, a thread waits for
its turn there while the others use up theirs, so that two threads on two cores take several times
as long as one (docs/train.md). Therefore threads wait passively, and there are no more of them than
cores that are free.

OpenMP reads its environment variables when it is loaded, so they are set before torch is imported.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from fairseq_kerbs.utils.processes import usable_cores

NUMBER = "OMP_NUM_THREADS"
"""Environment variable with the number of threads. What the user has set stays."""

WAITING = "OMP_WAIT_POLICY"
"""Environment variable: ACTIVE threads wait in a loop, PASSIVE ones give up their core."""

_STATISTICS = Path("/proc/stat")
_OBSERVED = 0.2  # seconds in which a core must be idle to be free
_FREE = 0.5  # of this time


def limit_threads() -> None:
    """Let threads of this process and of its children wait passively, one on each free core.

    Variables that are set already stay. Nothing is changed by a second call.
    """
    os.environ.setdefault(WAITING, "PASSIVE")
    if NUMBER not in os.environ:
        cores = usable_cores()
        free = free_cores()
        os.environ[NUMBER] = str(max(1, free))
        _say(f"{max(1, free)}, as {free} of {cores} cores are free")


def one_thread(reason: str) -> None:
    """Let programs that are started from now on have one thread, unless the user chose a number.

    Args:
        reason: why one thread is enough, a clause for the log.
    """
    os.environ.setdefault(WAITING, "PASSIVE")
    if NUMBER not in os.environ:
        os.environ[NUMBER] = "1"
        _say(f"1, as {reason}")


def free_cores() -> int:
    """Number of the cores of this process that are idle now, as seen within a fifth of a second.

    On systems without ``/proc/stat`` it is estimated from the load average of the last minute.
    """
    usable = usable_cores()
    before = _idle_times()
    if not before:
        return max(0, usable - round(os.getloadavg()[0]))
    time.sleep(_OBSERVED)
    after = _idle_times()
    ticks = os.sysconf("SC_CLK_TCK") * _OBSERVED
    return sum(after[core] - before[core] >= _FREE * ticks for core in before)


def _idle_times() -> Mapping[int, int]:
    """Time that each core of this process was idle since the system started, in clock ticks."""
    try:
        lines = _STATISTICS.read_text().splitlines()
    except OSError:
        return {}
    times = {}
    for line in lines:
        name, *numbers = line.split()
        core = name.removeprefix("cpu")
        if core != name and core.isdigit():
            idle = numbers[3]
            waiting_for_disk = numbers[4]
            times[int(core)] = int(idle) + int(waiting_for_disk)
    return {core: times[core] for core in os.sched_getaffinity(0) if core in times}


def _say(sentence: str) -> None:
    print(f"fairseq-kerbs: threads: {sentence} ({NUMBER} sets another number)", file=sys.stderr)
