"""``benchmark.py scaling``: time and memory of KerBS against senses and against tokens."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fairseq_kerbs.benchmarks import likelihood
from fairseq_kerbs.benchmarks.comparison import Entry, Settings, compare
from fairseq_kerbs.benchmarks.inputs import Sizes, make_inputs
from fairseq_kerbs.benchmarks.measuring import fit_line
from fairseq_kerbs.benchmarks.report import megabytes, seconds, table

AXES = ("senses", "tokens")


def points(
    dim: int, vocab: int, senses_per_word: Sequence[float], tokens: Sequence[int]
) -> dict[str, list[Sizes]]:
    """The sizes measured on each axis.

    Senses vary at the middle one of ``tokens``, tokens vary at the most senses.
    """
    middle, most = sorted(tokens)[(len(tokens) - 1) // 2], max(senses_per_word)
    return {
        "senses": [Sizes(dim, vocab, factor, middle) for factor in sorted(set(senses_per_word))],
        "tokens": [Sizes(dim, vocab, most, count) for count in sorted(set(tokens))],
    }


def run(axes: dict[str, list[Sizes]], settings: Settings) -> dict[str, Any]:
    """Time forward and backward at all points of both axes, next to each other.

    Returns:
        what :func:`compare` returns, with ``axes``: by axis the points, the fitted line and how
        constant the time per token and sense is.
    """
    distinct = {_name(sizes): sizes for axis in axes.values() for sizes in axis}
    entries = [
        Entry(
            name,
            "kerbs_nll",
            f"{likelihood.__name__}:workload",
            {
                "name": "kerbs",
                "sizes": dict(vars(sizes)),
                "dtype": settings.dtype,
                "device": settings.device,
                "seed": settings.seed,
            },
        )
        for name, sizes in distinct.items()
    ]
    result = compare(entries, (), settings)
    make_inputs.cache_clear()
    result["axes"] = {axis: _describe(sizes, result) for axis, sizes in axes.items()}
    return result


def _name(sizes: Sizes) -> str:
    return f"{sizes.senses} senses, {sizes.tokens} tokens"


def _describe(axis: Sequence[Sizes], result: dict[str, Any]) -> dict[str, Any]:
    """Line of the median time over tokens × senses, and each point's time by token and sense."""
    work = [float(sizes.tokens * sizes.senses) for sizes in axis]
    times = [result["contestants"][_name(sizes)]["median"] for sizes in axis]
    each = [time / amount for time, amount in zip(times, work, strict=True)]
    typical = statistics.median(each)
    return {
        "points": [_name(sizes) for sizes in axis],
        "tokens_times_senses": work,
        "seconds_per_token_and_sense": each,
        "constant_within": max(abs(value / typical - 1.0) for value in each),
        "line": fit_line(work, times) if len(axis) > 1 else None,
    }


def tables(result: dict[str, Any]) -> str:
    """One table an axis, with its line below."""
    parts = []
    for axis, found in result["axes"].items():
        rows = []
        for name, each in zip(found["points"], found["seconds_per_token_and_sense"], strict=True):
            entry = result["contestants"][name]
            memory = entry["memory"] or {}
            rows.append(
                [
                    name,
                    seconds(entry["median"]),
                    f"{seconds(entry['q1'])}–{seconds(entry['q3'])}",
                    f"{each * 1e9:.3f} ns",
                    megabytes(memory.get("extra_bytes")),
                    megabytes(memory.get("without_gradients_bytes")),
                ]
            )
        header = ["", "median", "quartiles", "a token and sense", "peak MB", "without gradients"]
        parts.append(table([f"against {axis}", *header[1:]], rows) + "\n" + _summary(found))
    return "\n\n".join(parts)


def _summary(found: dict[str, Any]) -> str:
    text = f"time of a token and sense: constant within {100 * found['constant_within']:.1f} %"
    if found["line"] is None:
        return text
    line = found["line"]
    return (
        f"{text}; line: {line['intercept'] * 1e3:.2f} ms + {line['slope'] * 1e9:.3f} ns × tokens × "
        f"senses, off by {100 * line['largest_relative_error']:.1f} % at most"
    )
