"""``benchmark.py likelihood``: loss and gradients of the output layer alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.benchmarks.comparison import Entry, Settings, chosen, compare
from fairseq_kerbs.benchmarks.contestants import CONTESTANTS
from fairseq_kerbs.benchmarks.inputs import Sizes, make_inputs
from fairseq_kerbs.benchmarks.machine import free_bytes
from fairseq_kerbs.benchmarks.measuring import Workload
from fairseq_kerbs.benchmarks.products import fastest_layout, make_layout

PRODUCTS = "products"
NAMES = (PRODUCTS, *CONTESTANTS)
PAIRS = (
    ("kerbs", PRODUCTS),
    ("kerbs-trained", PRODUCTS),
    ("kerbs-smoothed", PRODUCTS),
    ("kerbs", "naive"),
    ("kerbs", "naive-stable"),
    ("kerbs", "stock"),
    ("kerbs-smoothed", "stock-smoothed"),
    ("kerbs", "lean"),
    ("kerbs-smoothed", "lean-smoothed"),
    ("lean", "stock"),
    ("lean-smoothed", "stock-smoothed"),
    ("kerbs-trained", "kerbs"),
    ("kerbs-smoothed", "kerbs"),
    ("lean-smoothed", "lean"),
    ("stock-smoothed", "stock"),
    ("kerbs-eval", "kerbs"),
    ("kerbs-eval", "stock-eval"),
)


def workload(
    name: str, sizes: dict[str, Any], dtype: str, device: str, seed: int, layout: str = ""
) -> Workload:
    """One contestant on its inputs.

    Args:
        name: the contestant, of :data:`NAMES`.
        sizes: fields of :class:`Sizes`.
        dtype: of the inputs.
        device: where they lie.
        seed: of the inputs.
        layout: of the bare products.
    """
    inputs = make_inputs(Sizes(**sizes), dtype, device, seed)
    tokens = len(inputs.target)
    if name == PRODUCTS:
        products = make_layout(layout)
        return Workload(
            run=lambda: products(inputs.h, inputs.w),
            forget=products.forget,
            amount=tokens,
            unit="tokens",
            gradient_bytes=inputs.h.nbytes + inputs.w.nbytes,
        )
    contestant = CONTESTANTS[name]
    loss_of = contestant.make()

    def run() -> Tensor:
        if not contestant.backward:
            with torch.no_grad():
                return loss_of(inputs)
        loss = loss_of(inputs)
        loss.backward()
        return loss.detach()

    return Workload(
        run=run,
        reset=inputs.drop_gradients,
        amount=tokens,
        unit="tokens",
        gradient_bytes=contestant.gradient_bytes(inputs),
        losses=tokens,
    )


def run(sizes: Sizes, settings: Settings) -> dict[str, Any]:
    """Compare all contestants at one size.

    Returns:
        what :func:`compare` returns, with ``products`` (the layout that won, and all times) and
        ``left_out`` (reasons by name).
    """
    names = chosen(settings, NAMES)
    free = free_bytes(settings.device)
    left_out = {
        name: f"it needs about {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        for name in names
        if name != PRODUCTS and (need := CONTESTANTS[name].peak_bytes(sizes)) > 0.8 * free > 0
    }
    arguments: dict[str, Any] = {
        "sizes": dict(vars(sizes)),
        "dtype": settings.dtype,
        "device": settings.device,
        "seed": settings.seed,
    }
    layouts: dict[str, Any] = {}
    if PRODUCTS in names:
        inputs = make_inputs(sizes, settings.dtype, settings.device, settings.seed)
        best, times = fastest_layout(inputs.h.detach(), inputs.w.detach(), free)
        layouts = {"fastest": best, "seconds": times}
    factory = f"{__name__}:workload"
    entries = []
    for name in names:
        if name in left_out:
            continue
        own = {"name": name, **arguments}
        if name == PRODUCTS:
            label = f"h Wᵀ, P W, Pᵀ h ({layouts['fastest']})"
            entries.append(Entry(name, label, factory, own | {"layout": layouts["fastest"]}))
        else:
            entries.append(Entry(name, CONTESTANTS[name].label, factory, own))
    result = compare(entries, PAIRS, settings)
    make_inputs.cache_clear()
    return result | {"products": layouts, "left_out": left_out}


def notes(result: dict[str, Any]) -> list[str]:
    """Lines below the tables."""
    lines = [f"{name} left out: {reason}" for name, reason in result["left_out"].items()]
    if result["products"]:
        lines.append(
            f"bare products: fastest of {', '.join(result['products']['seconds'])} "
            f"is {result['products']['fastest']}"
        )
    return lines
