"""Show how far a command is: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import AbstractContextManager
from typing import Any

from fairseq_kerbs.utils.repeating import repeating

EVERY = 10.0  # seconds between two lines


def progress(items: Iterable[Any], title: str, unit: str, total: int | None = None) -> Any:
    """Iterate over items, and show on standard error how many are done.

    Args:
        items: what the loop is about.
        title: what is done with them.
        unit: what they are, in the plural and with a space before, such as " words".
        total: their number [that of ``items``, if it has one].
    """
    if total is None and isinstance(items, Sized):
        total = len(items)
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return _with_lines(items, title, unit, total)
    if not sys.stderr.isatty():
        return _with_lines(items, title, unit, total)
    tqdm.monitor_interval = 0  # no monitor thread, as processes may be forked
    return tqdm(items, title, total, unit=unit, leave=False)


def _with_lines(items: Iterable[Any], title: str, unit: str, total: int | None) -> Iterator[Any]:
    """Iterate over items, and write a line after every :data:`EVERY` seconds."""
    started = time.monotonic()
    due = started + EVERY
    for done, item in enumerate(items):
        now = time.monotonic()
        if now >= due:
            count = str(done) if total is None else f"{done} of {total}"
            print(f"{title}: {count}{unit}, {now - started:.0f} s", file=sys.stderr, flush=True)
            due = now + EVERY
        yield item


class Reminder:
    """Writes every :data:`EVERY` seconds which step is running, within :meth:`running`."""

    def __init__(self) -> None:
        """Without a step."""
        self.step = ""
        self._since = 0.0

    def begin(self, step: str) -> None:
        """Name the step that begins now."""
        self.step = step
        self._since = time.monotonic()

    def running(self) -> AbstractContextManager[None]:
        """Remind of steps until the block ends."""
        return repeating(self._remind, EVERY)

    def _remind(self) -> None:
        seconds = time.monotonic() - self._since
        if self.step and seconds >= EVERY:
            line = f"{self.step}: {seconds:.0f} s so far\n"
            # past Python's buffer, whose lock a process forked at this moment would inherit
            os.write(sys.stderr.fileno(), line.encode())
