"""Compiling the passes over a chunk by ``torch.compile``, where that pays and where it works."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from fairseq_kerbs.senses import SenseTable

logger = logging.getLogger(__name__)

SWITCH = "FAIRSEQ_KERBS_COMPILE"
"""Environment variable: 0 never compiles, 1 compiles whatever the size."""

LEAST_SENSES = 4096
"""Senses from which on a training saves more time than compiling takes."""

_works = True  # whether compiling has not failed yet


def worthwhile(senses: int) -> bool:
    """Whether the passes over chunks with so many senses are to be compiled."""
    asked = os.environ.get(SWITCH, "")
    if asked == "0" or not _works or not hasattr(torch, "compile"):
        return False
    return torch_version() >= (2, 4) and (asked == "1" or senses >= LEAST_SENSES)


@functools.cache
def torch_version() -> tuple[int, ...]:
    """Major and minor version of torch."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # what lies between inputs and results is to be computed again where it is used, and not kept
    options: Any = {"realize_opcount_threshold": 1000, "realize_reads_threshold": 1000}
    contract = "enable_floating_point_contract_flag"
    if isinstance(getattr(torch._inductor.config.cpp, contract, None), str):  # fused multiply-add
        options[f"cpp.{contract}"] = "fast"
    return torch.compile(function, options=options, dynamic=False)


def _varying(arguments: Iterable[Any]) -> Iterator[tuple[torch.Tensor, int]]:
    """Tensors with a size that is not the same in all calls, and its dimension: a number of words
    with several senses (as of the table's tensors, and all after it), on a GPU one of tokens."""
    shared = -1
    for value in arguments:
        if isinstance(value, SenseTable):
            shared = len(value.shared)
            yield value.shared, 0
        elif isinstance(value, tuple):
            yield from _varying(value)
        elif isinstance(value, torch.Tensor) and value.dim():
            if value.is_cuda:
                yield value, value.dim() - 1
            if value.dim() == 2 and len(value) == shared:
                yield value, 0


_called: set[Any] = set()  # functions, and what they were called with, that are compiled


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """A function's result by its compiled form; by itself, with one warning, if that fails."""
    global _works
    if not _works:
        return function(*arguments)
    known = (function, arguments[0], arguments[1].dtype, any(value is None for value in arguments))
    started = time.perf_counter()
    for tensor, dimension in _varying(arguments):  # one compilation for all
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)
    try:
        result = _compiled(function)(*arguments)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # of dynamo, of Inductor, of the compiler it calls
        if known in _called:  # it runs already, and may have written
            raise
        _works = False
        cause = error.__cause__ or error
        lines = str(cause).strip().splitlines()
        logger.warning(
            "torch.compile failed, so the likelihood runs without it, which takes longer (%s: %s). "
            "It needs a C++ compiler on a CPU; %s=0 does not try.",
            *(type(cause).__name__, lines[0] if lines else "", SWITCH),
        )
        return function(*arguments)
    if known not in _called:
        _called.add(known)
        seconds = time.perf_counter() - started
        logger.info("compiled the likelihood's %s in %.1f s", function.__name__, seconds)
    return result
