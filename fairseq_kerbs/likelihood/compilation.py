"""Compile functions by ``torch.compile`` if this works and saves time.

These are the passes over a chunk, and on a GPU the posterior of Eq. 7.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs import torch_compat

logger = logging.getLogger(__name__)

SWITCH = "FAIRSEQ_KERBS_COMPILE"
"""Environment variable: 0 disables compilation, 1 compiles for any number of senses."""
LEAST_SENSES = 4096
"""Number of senses from which a training saves more time than compilation takes."""

_works = True  # False once compilation has failed
_called: set[str] = set()  # names of compiled functions


def worthwhile(senses: int) -> bool:
    """Whether to compile for this number of senses."""
    switch = os.environ.get(SWITCH, "")
    if switch == "0" or not _works or not torch_compat.COMPILES:
        return False
    return switch == "1" or senses >= LEAST_SENSES


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    limits = ("realize_opcount_threshold", "realize_reads_threshold", "realize_acc_reads_threshold")
    options: Any = dict.fromkeys(limits, 1000)  # recompute intermediate values, do not store them
    contract = "enable_floating_point_contract_flag"
    if isinstance(getattr(torch._inductor.config.cpp, contract, None), str):  # fused multiply-add
        options[f"cpp.{contract}"] = "fast"
    if hasattr(torch._inductor.config.triton, "mix_order_reduction"):  # its kernels are slow
        options["triton.mix_order_reduction"] = False
    return torch.compile(function, options=options, dynamic=False)


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors among arguments, in order, also those within named tuples."""
    for value in arguments:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from _tensors(value)


def call(function: Callable[..., Any], *arguments: Any, axes: Sequence[int] = ()) -> Any:
    """Call a function compiled, or in eager mode after a warning if compilation fails.

    The gradient of a function may be compiled in the backward pass, where a failure is an error.
    ``axes`` has the axis of tokens for each tensor among the arguments, and in tuples among them
    [the last ones].
    """
    global _works
    if not _works:
        return function(*arguments)
    started = time.perf_counter()
    tensors = list(_tensors(arguments))
    for value, axis in zip(tensors, axes or [-1] * len(tensors)):
        if value.is_cuda and value.dim():  # tokens vary in number: compile once for all numbers
            torch._dynamo.maybe_mark_dynamic(value, axis % value.dim())
    try:
        result = _compiled(function)(*arguments)
    except (torch._dynamo.exc.TorchDynamoException, OSError) as error:  # before the function ran
        _works = False
        cause = error.__cause__ or error
        lines = [type(cause).__name__, *str(cause).strip().splitlines()]
        logger.warning(
            "torch.compile failed, so it is not used, which takes longer (%s). It "
            "needs a C++ compiler on a CPU. %s=0 disables it.",
            ": ".join(lines[:2]),
            SWITCH,
        )
        return function(*arguments)
    if function.__name__ not in _called:
        _called.add(function.__name__)
        seconds = time.perf_counter() - started
        logger.info("compiled %s in %.1f s", function.__name__, seconds)
    return result
