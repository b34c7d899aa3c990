"""One curve for a training in three steps, whose third step counts its updates from 1 again.

fairseq begins its number of updates anew with the learning rate, and random numbers and schedules
depend on it. So the numbers stay as they are, and are shifted where they are read:
:func:`begins_after` is a line of the log for ``fairseq-kerbs plot history``, and :class:`Continued`
writes the events of TensorBoard a second time, behind those of the softmax.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.repeating import repeating

EVERY = 10.0
"""Seconds between two copies of the events of a running training."""

_SUFFIX = ".continued"
_EVENTS = "events.out.tfevents.*"
_LINE = re.compile(r"# the softmax has had (\d+) updates, so that update 1 below is update \d+")


def begins_after(updates: int) -> str:
    """The line of a log after which updates are numbered from 1 again.

    Args:
        updates: number of updates of the softmax.
    """
    return (
        f"# the softmax has had {updates} updates, so that update 1 below is update {updates + 1}"
    )


def updates_before(line: str) -> int | None:
    """The number of updates in a line of :func:`begins_after`, or None for another line."""
    found = _LINE.match(line)
    return int(found[1]) if found else None


class Continued:
    """The events of one training, copied behind those of another one.

    Args:
        source: ``--tensorboard-logdir`` of the training.
        target: that of the former one. What an earlier object has written there is replaced.
        updates: number of updates of the former one, which is added to each step.
    """

    def __init__(self, source: Path, target: Path, updates: int) -> None:
        self.source = source
        self.target = target
        self.updates = updates
        self._loaders: dict[Path, Any] = {}
        self._writers: dict[Path, Any] = {}
        for file in target.glob(f"**/{_EVENTS}{_SUFFIX}"):
            file.unlink()

    def copy(self) -> None:
        """Copy the events that were written since the last call."""
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        for file in sorted(self.source.glob(f"**/{_EVENTS}")):
            folder = self.target / file.parent.relative_to(self.source)
            if file not in self._loaders:
                self._loaders[file] = LegacyEventFileLoader(str(file))
            if folder not in self._writers:
                self._writers[folder] = EventFileWriter(str(folder), filename_suffix=_SUFFIX)
            for event in self._loaders[file].Load():
                if event.HasField("summary"):
                    event.step += self.updates
                    self._writers[folder].add_event(event)
            self._writers[folder].flush()

    def close(self) -> None:
        """Copy the last events, and close the files."""
        self.copy()
        for writer in self._writers.values():
            writer.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Copy every :data:`EVERY` seconds, and at the end of the block."""
        try:
            with repeating(self.copy, EVERY):
                yield
        finally:
            self.close()
