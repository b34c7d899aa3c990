"""Intervals of values."""

import math

import pytest

from fairseq_kerbs.utils.intervals import within


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1)", [0, 0.5, math.nextafter(1, 0)], [-1e-300, 1]),
        ("(0, 1]", [1e-300, 1], [0, math.nextafter(1, 2)]),
        ("(-inf, 0]", [-1e308, 0], [1e-300]),
        ("[1, inf)", [1, 1e308], [0.999]),
    ],
)
def test_ends_belong_to_an_interval_or_not(
    interval: str, inside: list[float], outside: list[float]
) -> None:
    assert all(within(number, interval) for number in inside)
    assert not any(within(number, interval) for number in outside)
    assert not any(within(number, interval) for number in (math.nan, math.inf, -math.inf))
