"""Results as tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tabulate import tabulate

ABSENT = "–"
FEWEST = 5  # of fewer repetitions quartiles would say nothing: they are told by their range


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned to the right, the first one and text without a heading to the left."""
    sides = ["left", *("right" if name else "left" for name in header[1:])]
    return tabulate(rows, header, "plain", disable_numparse=True, colalign=sides)


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

    def loss(entry: dict[str, Any]) -> str:
        value = entry["loss"]
        return ABSENT if value is None else value if isinstance(value, str) else f"{value:.5f}"

    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "median": lambda entry: seconds(entry["median"]),
        spread_name(count): lambda entry: spread(entry, seconds, count),
        one["rate_unit"]: lambda entry: f"{entry['rate']:,.1f}",
        f"loss, {one['loss_unit']}": loss,
        "peak MB": lambda entry: megabytes(entry, "extra_bytes"),
        "without gradients": lambda entry: megabytes(entry, "without_gradients_bytes"),
        "": lambda entry: entry["label"],
    }
    cells = {title: [show(one) for one in contestants.values()] for title, show in columns.items()}
    shown = {title: column for title, column in cells.items() if set(column) != {ABSENT}}
    parts = [table(["contestant", *shown], list(zip(contestants, *shown.values(), strict=True)))]
    rows = [
        [
            f"{ratio['of']} ÷ {ratio['over']}",
            f"{ratio['median']:.2f}",
            spread(ratio, "{:.2f}".format, count),
            ABSENT if ratio["memory"] is None else f"{ratio['memory']:.3f}",
        ]
        for ratio in result["ratios"]
    ]
    if rows:
        parts.append(table(["ratio", "time", spread_name(count), "peak memory"], rows))
    for name, entry in contestants.items():
        if "error" in (entry["memory"] or {}):
            parts.append(f"memory of {name} not measured: {entry['memory']['error']}")
    return "\n\n".join(parts)


def heading(name: str, sizes: dict[str, Any], settings: dict[str, Any]) -> str:
    """One line that says what was measured."""
    numbers = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in sizes.items())
    return (
        f"{name}: {numbers}; {settings['dtype']} on {settings['device']}, "
        f"{settings['threads']} threads, {settings['repetitions']} repetitions"
    )
