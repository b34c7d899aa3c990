"""Comparing contestants: times, ratios of times, losses, memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq_kerbs.benchmarks.measuring import (
    Spread,
    Workload,
    alternate,
    first_losses,
    progress,
    ratios,
)
from fairseq_kerbs.benchmarks.memory import build, peak_memory
from fairseq_kerbs.errors import UserError


@dataclass(frozen=True)
class Settings:
    """What all benchmarks share.

    Attributes:
        device: "cpu" or "cuda".
        dtype: "float32", "bfloat16" or "float16".
        threads: threads of torch.
        repetitions: how often every contestant is timed.
        seed: of inputs, weights and data.
        memory: measure peak memory, too.
        contestants: names of those that take part; None for all.
    """

    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    repetitions: int = 5
    seed: int = 1
    memory: bool = True
    contestants: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Entry:
    """A contestant: its name, what it is, and what makes its workload (here or elsewhere)."""

    name: str
    label: str
    factory: str
    arguments: dict[str, Any]


def chosen(settings: Settings, names: Iterable[str]) -> list[str]:
    """The contestants that take part, in their own order.

    Raises:
        UserError: ``--contestants`` names one that there is not.
    """
    names = list(names)
    if settings.contestants is None:
        return names
    for name in settings.contestants:
        if name not in names:
            raise UserError(
                f"--contestants: there is no '{name}'; choose among {', '.join(names)}."
            )
    return [name for name in names if name in settings.contestants]


def compare(
    entries: Sequence[Entry], pairs: Iterable[tuple[str, str]], settings: Settings
) -> dict[str, Any]:
    """Run all contestants next to each other.

    Args:
        entries: the contestants.
        pairs: (of, over) names whose ratio is wanted; pairs of absent contestants are left out.
        settings: repetitions, threads, …

    Returns:
        ``contestants`` by name and the list ``ratios``, such as JSON can hold.
    """
    workloads = {entry.name: build(entry.factory, entry.arguments) for entry in entries}
    losses = first_losses(workloads)
    times = alternate(workloads, settings.repetitions, settings.device)
    contestants: dict[str, Any] = {}
    for entry in entries:
        workload, seconds = workloads[entry.name], times[entry.name]
        summary = Spread.of(seconds)
        contestants[entry.name] = {
            "label": entry.label,
            "seconds": seconds,
            **summary.as_dict(),
            "rate": workload.amount / summary.median,
            "rate_unit": f"{workload.unit}/s",
            "loss": losses[entry.name],
            "loss_unit": workload.loss_unit,
            "memory": _memory(entry, workload, settings),
        }
    progress("")
    found = [pair for pair in pairs if set(pair) <= set(contestants)]
    return {
        "contestants": contestants,
        "ratios": [_ratio(contestants, of, over) for of, over in found],
    }


def _memory(entry: Entry, workload: Workload, settings: Settings) -> dict[str, Any] | None:
    if not settings.memory:
        return None
    progress(f"memory: {entry.name}")
    here = workload if settings.device == "cuda" else None
    return peak_memory(entry.factory, entry.arguments, settings.threads, here)


def _ratio(contestants: dict[str, Any], of: str, over: str) -> dict[str, Any]:
    values = ratios(contestants[of]["seconds"], contestants[over]["seconds"])
    mine, theirs = ((contestants[name]["memory"] or {}).get("extra_bytes") for name in (of, over))
    return {
        "of": of,
        "over": over,
        "per_repetition": values,
        **Spread.of(values).as_dict(),
        "memory": mine / theirs if mine and theirs else None,
    }
