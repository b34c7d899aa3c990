"""Do something again and again while something else runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(function: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call a function every so many seconds in a thread, until the block ends.

    The first call is after the first interval. A call that runs is waited for at the end.
    """
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            function()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
