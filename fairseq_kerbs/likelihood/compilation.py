"""Compiling the passes over a chunk by ``torch.compile``, where that pays and where it works."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs import torch_compat

logger = logging.getLogger(__name__)

SWITCH = "FAIRSEQ_KERBS_COMPILE"  # environment variable: 0 never compiles, 1 whatever the size
LEAST_SENSES = 4096  # from which on a training saves more time than compiling takes

_works = True  # whether compiling has not failed yet
_called: set[str] = set()  # names of functions that are compiled


def worthwhile(senses: int) -> bool:
    """Whether the passes over chunks with so many senses are to be compiled."""
    asked = os.environ.get(SWITCH, "")
    if asked == "0" or not _works or not torch_compat.COMPILES:
        return False
    return asked == "1" or senses >= LEAST_SENSES


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # what lies between inputs and results is to be computed again where it is used, and not kept
    limits = ("realize_opcount_threshold", "realize_reads_threshold", "realize_acc_reads_threshold")
    options: Any = dict.fromkeys(limits, 1000)
    contract = "enable_floating_point_contract_flag"
    if isinstance(getattr(torch._inductor.config.cpp, contract, None), str):  # fused multiply-add
        options[f"cpp.{contract}"] = "fast"
    return torch.compile(function, options=options, dynamic=False)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """A function's result by its compiled form; by itself, with one warning, if that fails."""
    global _works
    if not _works:
        return function(*arguments)
    started = time.perf_counter()
    for value in arguments:  # on a GPU the number of tokens varies: one compilation for all
        if isinstance(value, Tensor) and value.is_cuda:
            torch._dynamo.maybe_mark_dynamic(value, value.dim() - 1)
    try:
        result = _compiled(function)(*arguments)
    except (torch._dynamo.exc.TorchDynamoException, OSError) as error:  # nothing has run yet
        _works = False
        cause = error.__cause__ or error
        lines = [type(cause).__name__, *str(cause).strip().splitlines()]
        logger.warning(
            "torch.compile failed, so the likelihood runs without it, which takes longer (%s). "
            "It needs a C++ compiler on a CPU; %s=0 does not try.", ": ".join(lines[:2]), SWITCH
        )  # fmt: skip
        return function(*arguments)
    if function.__name__ not in _called:
        _called.add(function.__name__)
        took = time.perf_counter() - started
        logger.info("compiled the likelihood's %s in %.1f s", function.__name__, took)
    return result
