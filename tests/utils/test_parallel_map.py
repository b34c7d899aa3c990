"""Mapping lines in one process and in several gives the same lines in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import parallel_map


def _make_prefixer(prefix: str) -> Callable[[str], str]:
    return partial(_prefix, prefix)


def _prefix(prefix: str, line: str) -> str:
    return prefix + line


def _run(count: int, workers: int) -> list[str]:
    lines = (f"line {i}" for i in range(count))
    make = partial(_make_prefixer, "> ")
    return list(parallel_map(make, lines, total=count, workers=workers, description="test"))


@pytest.mark.parametrize("count", [0, 1, 4999, 5000, 12345])
def test_workers_do_not_change_the_result(count: int) -> None:
    expected = [f"> line {i}" for i in range(count)]
    assert _run(count, workers=1) == expected
    assert _run(count, workers=3) == expected


def test_error_of_the_input_reaches_the_caller() -> None:
    def lines() -> Iterator[str]:
        yield from ("x" for _ in range(7000))
        raise UserError("line 7001 is broken")

    with pytest.raises(UserError, match="line 7001"):
        list(
            parallel_map(
                partial(_make_prefixer, ""), lines(), total=9000, workers=2, description="test"
            )
        )
