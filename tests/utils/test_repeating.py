"""Something is done again and again until a block ends."""

import time

import pytest

from fairseq_kerbs.utils.repeating import repeating


def test_a_function_is_called_until_the_block_ends() -> None:
    calls: list[float] = []
    with repeating(lambda: calls.append(time.monotonic()), 0.02):
        time.sleep(0.5)
    assert len(calls) >= 2
    assert calls[-1] > calls[0]
    ended = len(calls)
    time.sleep(0.1)
    assert len(calls) == ended


def test_a_short_block_calls_nothing() -> None:
    calls: list[int] = []
    with repeating(lambda: calls.append(1), 60.0):
        pass
    assert not calls


def test_an_error_ends_it_too() -> None:
    calls: list[int] = []

    def fail() -> None:
        with repeating(lambda: calls.append(1), 0.02):
            time.sleep(0.1)
            raise KeyError("block")

    with pytest.raises(KeyError):
        fail()
    ended = len(calls)
    time.sleep(0.1)
    assert len(calls) == ended
