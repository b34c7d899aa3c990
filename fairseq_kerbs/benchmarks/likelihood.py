"""``benchmark.py likelihood`` and ``scaling``: loss and gradients of the output layer alone."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from fairseq_kerbs.benchmarks.comparison import Entry, Settings, Workload, compare
from fairseq_kerbs.benchmarks.contestants import (
    CONTESTANTS,
    LIKELIHOOD_NAMES,
    LIKELIHOOD_RATIOS,
    PRODUCTS,
    make_inputs,
)
from fairseq_kerbs.benchmarks.products import Products, fastest_layout
from fairseq_kerbs.benchmarks.report import (
    comparison_tables,
    megabytes,
    seconds,
    spread,
    spread_name,
    table,
)
from fairseq_kerbs.utils.machine import free_bytes

Sizes = dict[str, Any]
"""dim (d), vocab (V), senses_per_word (M ÷ V) and tokens (N)."""


def workload(name: str, layout: str = "", **inputs_of: Any) -> Workload:
    """One contestant on its inputs.

    Args:
        name: the contestant, of :data:`LIKELIHOOD_NAMES`.
        layout: of the bare products.
        inputs_of: arguments of :func:`make_inputs`.
    """
    inputs = make_inputs(**inputs_of)
    tokens = len(inputs.target)
    if name == PRODUCTS:
        products = Products(layout)
        return Workload(
            run=lambda: products(inputs.h, inputs.w),
            forget=products.forget,
            amount=tokens,
            unit="tokens",
            gradient_bytes=inputs.h.nbytes + inputs.w.nbytes,
        )
    contestant = CONTESTANTS[name]
    weights = [inputs.w, inputs.theta] if contestant.senses else [inputs.words]

    def run() -> Tensor:
        loss = contestant.loss(inputs)
        loss.backward()
        return loss.detach()

    return Workload(
        run=run,
        reset=inputs.drop_gradients,
        amount=tokens,
        unit="tokens",
        gradient_bytes=sum(tensor.nbytes for tensor in (inputs.h, *weights)),
        losses=tokens,
    )


def run(sizes: Sizes, settings: Settings) -> tuple[dict[str, Any], str]:
    """Compare all contestants at one size.

    Returns:
        what :func:`compare` returns, with ``products`` (the layout that won, and all times) and
        ``left_out`` (reasons by name); and the tables.
    """
    inputs_of, free = {**sizes, **settings.inputs()}, free_bytes(settings.device)
    entries: dict[str, Entry] = {}
    left_out, products, notes = {}, {}, []
    for name in settings.chosen(LIKELIHOOD_NAMES):
        if name == PRODUCTS:
            inputs = make_inputs(**inputs_of)
            best, times = fastest_layout(inputs.h.detach(), inputs.w.detach(), free)
            products = {"fastest": best, "seconds": times}
            notes.append(f"bare products: fastest of {', '.join(times)} is {best}")
            make = partial(workload, name, best, **inputs_of)
            entries[name] = f"h Wᵀ, P W, Pᵀ h ({best})", make
            continue
        one = CONTESTANTS[name]
        columns = sizes["vocab"] * (sizes["senses_per_word"] if one.senses else 1)
        need = 4.0 * one.temporaries * sizes["tokens"] * columns
        if need > 0.8 * free > 0:
            left_out[name] = f"it needs about {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
            notes.append(f"{name} left out: {left_out[name]}")
        else:
            entries[name] = one.label, partial(workload, name, **inputs_of)
    result = compare(entries, LIKELIHOOD_RATIOS, settings)
    make_inputs.cache_clear()
    text = "\n".join([comparison_tables(result), *notes])
    return result | {"products": products, "left_out": left_out}, text


# ------------------------------------------------------------------ scaling


def scaling_points(
    senses_per_word: list[float], tokens: list[int], **others: int
) -> dict[str, list[Sizes]]:
    """Sizes on each axis: senses vary at the middle one of ``tokens``, tokens at most senses."""
    middle, most = statistics.median_low(tokens), max(senses_per_word)
    points = {
        "senses": [(factor, middle) for factor in sorted(set(senses_per_word))],
        "tokens": [(most, count) for count in sorted(set(tokens))],
    }
    return {
        axis: [{**others, "senses_per_word": factor, "tokens": count} for factor, count in pairs]
        for axis, pairs in points.items()
    }


def run_scaling(axes: dict[str, list[Sizes]], settings: Settings) -> tuple[dict[str, Any], str]:
    """Time forward and backward at all points of both axes, next to each other.

    Returns:
        what :func:`compare` returns, with ``axes``: by axis the points, the fitted line and how
        constant the time per token and sense is; and the tables.
    """
    entries: dict[str, Entry] = {
        _point(sizes): ("kerbs_nll", partial(workload, "kerbs", **sizes, **settings.inputs()))
        for axis in axes.values()
        for sizes in axis
    }
    result = compare(entries, (), settings)
    make_inputs.cache_clear()
    result["axes"] = {axis: describe_axis(sizes, result) for axis, sizes in axes.items()}
    return result, "\n\n".join(_table(axis, result) for axis in axes)


def _point(sizes: Sizes) -> str:
    return f"{round(sizes['senses_per_word'] * sizes['vocab'])} senses, {sizes['tokens']} tokens"


def describe_axis(axis: list[Sizes], result: dict[str, Any]) -> dict[str, Any]:
    """Line of the median time over tokens × senses, and each point's time by token and sense.

    The line is fitted so that relative errors count: they grow with the times.
    """
    work = np.array(
        [float(one["tokens"] * round(one["senses_per_word"] * one["vocab"])) for one in axis]
    )
    times = np.array([result["contestants"][_point(sizes)]["median"] for sizes in axis])
    each, line = times / work, None
    if len(axis) > 1:
        slope, intercept = np.polyfit(work, times, 1, w=1.0 / times)
        error = np.abs((intercept + slope * work) / times - 1.0).max()
        line = {
            "intercept": float(intercept),
            "slope": float(slope),
            "largest_relative_error": float(error),
        }
    return {
        "points": [_point(sizes) for sizes in axis],
        "tokens_times_senses": work.tolist(),
        "seconds_per_token_and_sense": each.tolist(),
        "constant_within": float(np.abs(each / np.median(each) - 1.0).max()),
        "line": line,
    }


def _table(axis: str, result: dict[str, Any]) -> str:
    """One axis, with its line below."""
    found, rows, count = result["axes"][axis], [], 0
    for name, each in zip(found["points"], found["seconds_per_token_and_sense"], strict=True):
        entry = result["contestants"][name]
        count = len(entry["seconds"])
        times = seconds(entry["median"]), spread(entry, seconds, count), f"{each * 1e9:.3f} ns"
        memory = (megabytes(entry, key) for key in ("extra_bytes", "without_gradients_bytes"))
        rows.append([name, *times, *memory])
    columns = ("median", spread_name(count), "a token and sense", "peak MB", "without gradients")
    text = f"time of a token and sense: constant within {100 * found['constant_within']:.1f} %"
    if line := found["line"]:
        text += (
            f"; line: {line['intercept'] * 1e3:.2f} ms + {line['slope'] * 1e9:.3f} ns × tokens × "
            f"senses, off by {100 * line['largest_relative_error']:.1f} % at most"
        )
    return table([f"against {axis}", *columns], rows) + "\n" + text
