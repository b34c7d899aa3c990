"""What the log of a training tells: parameters, updates, words."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass

_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")
_UPDATE = re.compile(r"\| train_inner \|.* wpb=([\d.]+),.* num_updates=(\d+)")


@dataclass(frozen=True)
class Training:
    """Figures of a training; None where the log does not tell.

    Attributes:
        parameters: trained numbers of the model.
        updates: made so far.
        words: target tokens in all these updates, by the mean size of the batches in the log.
    """

    parameters: int | None = None
    updates: int | None = None
    words: float | None = None

    def words_per_second(self, seconds: float | None) -> float | None:
        """Target tokens a second of training time."""
        return self.words / seconds if self.words and seconds else None


def read_training(log: str) -> Training:
    """The figures in the log of fairseq-train, of all attempts that are in it."""
    parameters = _PARAMETERS.search(log)
    lines = _UPDATE.findall(log)
    updates = max((int(number) for _, number in lines), default=None)
    size = statistics.fmean(float(words) for words, _ in lines) if lines else None
    return Training(
        parameters=int(parameters[1].replace(",", "")) if parameters else None,
        updates=updates,
        words=size * updates if size is not None and updates is not None else None,
    )
