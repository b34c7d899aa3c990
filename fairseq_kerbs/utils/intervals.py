"""Intervals of the values of flags and settings, written as in mathematics."""

from __future__ import annotations

import math


def within(number: float, interval: str) -> bool:
    """Tell whether a finite number is in an interval such as ``[0, 1)`` or ``(0, inf)``."""
    low, high = map(float, interval[1:-1].split(","))
    above = number >= low if interval[0] == "[" else number > low
    below = number <= high if interval[-1] == "]" else number < high
    return math.isfinite(number) and above and below
