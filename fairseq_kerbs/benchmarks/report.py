"""Results as tables for a terminal and as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from fairseq_kerbs.utils.files import atomic_write

ABSENT = "–"
FEWEST = 5  # of fewer repetitions quartiles would say nothing: they are told by their range


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned to the right, the first one and text without a heading to the left."""
    sides = ["right" if name else "left" for name in header[1:]]
    return tabulate(
        rows,
        header,
        "plain",
        disable_numparse=True,
        colalign=("left", *sides),
        preserve_whitespace=True,
    )


def seconds(value: float) -> str:
    """A time with a unit that fits it."""
    if value >= 1.0:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"


def megabytes(entry: dict[str, Any], key: str) -> str:
    """A contestant's memory in MB (10^6)."""
    value = (entry["memory"] or {}).get(key)
    return ABSENT if value is None else f"{value / 1e6:,.1f}"


def spread_name(repetitions: int) -> str:
    """What :func:`spread` shows: quartiles, or of few repetitions the range."""
    return "quartiles" if repetitions >= FEWEST else "range"


def spread(figures: dict[str, Any], show: Callable[[float], str], repetitions: int) -> str:
    """Between which values half of the repetitions lie; of fewer than five, all."""
    ends = ("q1", "q3") if repetitions >= FEWEST else ("lowest", "highest")
    return "–".join(show(figures[end]) for end in ends)


def comparison_tables(result: dict[str, Any]) -> str:
    """The tables of one comparison: contestants, then ratios."""
    contestants = result["contestants"]
    if not contestants:
        return "nothing was measured"
    one = next(iter(contestants.values()))
    count = len(one["seconds"])
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "median": lambda entry: seconds(entry["median"]),
        spread_name(count): lambda entry: spread(entry, seconds, count),
        one["rate_unit"]: lambda entry: f"{entry['rate']:,.1f}",
        f"loss, {one['loss_unit']}": lambda entry: _loss(entry["loss"]),
        "peak MB": lambda entry: megabytes(entry, "extra_bytes"),
        "without gradients": lambda entry: megabytes(entry, "without_gradients_bytes"),
        "": lambda entry: entry["label"],
    }
    cells = {title: [show(one) for one in contestants.values()] for title, show in columns.items()}
    shown = {title: column for title, column in cells.items() if set(column) != {ABSENT}}
    parts = [table(["contestant", *shown], list(zip(contestants, *shown.values(), strict=True)))]
    if result["ratios"]:
        rows = [
            [
                f"{ratio['of']} ÷ {ratio['over']}",
                f"{ratio['median']:.2f}",
                spread(ratio, "{:.2f}".format, count),
                ABSENT if ratio["memory"] is None else f"{ratio['memory']:.3f}",
            ]
            for ratio in result["ratios"]
        ]
        parts.append(table(["ratio", "time", spread_name(count), "peak memory"], rows))
    for name, entry in contestants.items():
        if "error" in (entry["memory"] or {}):
            parts.append(f"memory of {name} not measured: {entry['memory']['error']}")
    return "\n\n".join(parts)


def _loss(value: float | str | None) -> str:
    if value is None:
        return ABSENT
    return value if isinstance(value, str) else f"{value:.5f}"


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
