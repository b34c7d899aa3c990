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
"""Number of senses from which a training of unknown length compiles."""
LEAST_WORK = 4_000_000
"""Number of senses × updates from which a training saves more time than compilation takes.

On a free core compilation takes about 7 seconds for a softmax. An update of 1,300 tokens saves 3 µs
per word, and 8 µs with label smoothing.
"""
LEAST_WORK_OF_SEVERAL = 1_000_000
"""As LEAST_WORK, where words have several senses, measured with 1.5 and 3 senses per word.

Compilation takes about 14 seconds, and an update of 1,300 tokens saves 27 to 39 µs per sense.
"""

_works = True  # False once compilation has failed
_updates: int | None = None  # length of the training of this process, None if it is not known
_seconds: dict[str, float] = {}  # what the first call of each compiled function took


def expect_updates(updates: int | None) -> None:
    """Say how many updates the training of this process has in all, None if nobody knows.

    It is the number at its end, not the rest. A resumed training thus decides as before.
    """
    global _updates
    _updates = updates


def worthwhile(senses: int, words: int) -> bool:
    """Whether to compile for this number of senses, of so many words."""
    switch = os.environ.get(SWITCH, "")
    if switch == "0" or not _works or not torch_compat.COMPILES:
        return False
    if switch == "1":
        return True
    if _updates is None:
        return senses >= LEAST_SENSES
    return senses * _updates >= (LEAST_WORK_OF_SEVERAL if senses > words else LEAST_WORK)


def describe(senses: int, words: int) -> str:
    """What a training of known length does about compilation, for its log.

    ``senses`` and ``words`` are their numbers.
    """
    if not torch_compat.COMPILES:
        return f"torch {torch.__version__} cannot compile the likelihood"
    if not _works:
        return "the likelihood is not compiled, as torch.compile has failed"
    switch = os.environ.get(SWITCH, "")
    if switch in ("0", "1"):
        compiled = "compiled" if switch == "1" else "not compiled"
        return f"the likelihood is {compiled}, as {SWITCH}={switch} says"
    length = f"{senses} senses and {_updates} updates"
    if worthwhile(senses, words):
        return (
            f"the likelihood is compiled during the first update, since {length} save more time "
            f"than that takes (7 to 15 seconds on a free core; {SWITCH}=0 turns it off)"
        )
    return (
        f"the likelihood is not compiled: with {length} that would take longer than it saves "
        f"({SWITCH}=1 turns it on)"
    )


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


Axes = tuple[int, ...]
"""Axes of a tensor whose sizes vary from call to call."""


def call(function: Callable[..., Any], *arguments: Any, axes: Sequence[Axes] = ()) -> Any:
    """Call a function compiled, or in eager mode after a warning if compilation fails.

    The gradient of a function may be compiled in the backward pass, where a failure is an error.
    ``axes`` has the axes of tokens, and others that vary, for each tensor among the arguments, and
    in tuples among them. Default: the last axis of each.
    """
    global _works
    if not _works:
        return function(*arguments)
    started = time.perf_counter()
    _mark_varying_axes(list(_tensors(arguments)), axes)
    try:
        result = _compiled(function)(*arguments)
    except (torch._dynamo.exc.TorchDynamoException, OSError) as error:  # before the function ran
        _works = False
        _warn_of_failure(error)
        return function(*arguments)
    _log_first_call(function.__name__, time.perf_counter() - started)
    return result


def _mark_varying_axes(tensors: Sequence[Tensor], axes: Sequence[Axes]) -> None:
    """Have torch compile once for all sizes of the axes, such as numbers of tokens."""
    for value, varying in zip(tensors, axes or [(-1,)] * len(tensors)):
        if not value.dim():
            continue
        for axis in varying:
            torch._dynamo.maybe_mark_dynamic(value, axis % value.dim())


def _warn_of_failure(error: Exception) -> None:
    """Say why nothing is compiled from now on."""
    cause = error.__cause__ or error
    lines = [type(cause).__name__, *str(cause).strip().splitlines()]
    logger.warning(
        "torch.compile failed, so it is not used, which takes longer (%s). It "
        "needs a C++ compiler on a CPU. %s=0 disables it.",
        ": ".join(lines[:2]),
        SWITCH,
    )


def _log_first_call(name: str, seconds: float) -> None:
    """Log the time of the first call of a function, which compiles it."""
    if name in _seconds:
        return
    _seconds[name] = seconds
    total = sum(_seconds.values())
    logger.info("compiled %s in %.1f s, %.1f s in all", name, seconds, total)
