"""Results as tables for a terminal and as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairseq_kerbs.corpora.files import atomic_write

ABSENT = "–"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned to the right, the first one and text without a heading to the left."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 or not header[column] else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def seconds(value: float) -> str:
    """A time with a unit that fits it."""
    if value >= 1.0:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"


def megabytes(value: float | None) -> str:
    """Bytes in MB (10^6)."""
    return ABSENT if value is None else f"{value / 1e6:,.1f}"


def quartiles(spread: dict[str, Any], digits: int = 2) -> str:
    """First and third quartile."""
    return f"{spread['q1']:.{digits}f}–{spread['q3']:.{digits}f}"


def comparison_tables(result: dict[str, Any]) -> str:
    """The tables of one comparison: contestants, then ratios."""
    contestants = result["contestants"]
    if not contestants:
        return "nothing was measured"
    one = next(iter(contestants.values()))
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "median": lambda entry: seconds(entry["median"]),
        "quartiles": lambda entry: f"{seconds(entry['q1'])}–{seconds(entry['q3'])}",
        one["rate_unit"]: lambda entry: f"{entry['rate']:,.1f}",
        f"loss, {one['loss_unit']}": lambda entry: _loss(entry["loss"]),
        "peak MB": lambda entry: _memory(entry, "extra_bytes"),
        "without gradients": lambda entry: _memory(entry, "without_gradients_bytes"),
        "": lambda entry: entry["label"],
    }
    shown = {
        title: cells
        for title, show in columns.items()
        if set(cells := [show(entry) for entry in contestants.values()]) != {ABSENT}
    }
    rows = list(zip(contestants, *shown.values(), strict=True))
    parts = [table(["contestant", *shown], rows)]
    if result["ratios"]:
        parts.append(ratio_table(result["ratios"]))
    problems = {
        name: entry["memory"]["error"]
        for name, entry in contestants.items()
        if "error" in (entry["memory"] or {})
    }
    parts += [f"memory of {name} not measured: {reason}" for name, reason in problems.items()]
    return "\n\n".join(parts)


def _memory(entry: dict[str, Any], key: str) -> str:
    return megabytes((entry["memory"] or {}).get(key))


def _loss(value: float | str | None) -> str:
    if value is None:
        return ABSENT
    return value if isinstance(value, str) else f"{value:.5f}"


def ratio_table(ratios: Sequence[dict[str, Any]]) -> str:
    """Medians of the ratios of single repetitions, their quartiles, and the ratio of memory."""
    rows = [
        [
            f"{ratio['of']} ÷ {ratio['over']}",
            f"{ratio['median']:.2f}",
            quartiles(ratio),
            ABSENT if ratio["memory"] is None else f"{ratio['memory']:.3f}",
        ]
        for ratio in ratios
    ]
    return table(["ratio", "time", "quartiles", "peak memory"], rows)


def heading(name: str, sizes: dict[str, Any], settings: dict[str, Any]) -> str:
    """One line that says what was measured."""
    numbers = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in sizes.items())
    return (
        f"{name}: {numbers}; {settings['dtype']} on {settings['device']}, "
        f"{settings['threads']} threads, {settings['repetitions']} repetitions"
    )


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write the document so that the file is complete or absent."""
    with atomic_write(path) as stream:
        json.dump(document, stream, indent=1, ensure_ascii=False, allow_nan=False)
        stream.write("\n")
