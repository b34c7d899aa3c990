#!/usr/bin/env python3
"""Print the tables of results/benchmarks/gpu_estimate.md: a roofline of the likelihood.

Nothing is measured. A pass takes the longest of three: its products at the card's bfloat16 peak,
its other operations at the float32 peak, and its bytes at the bandwidth of the memory.
"""

from __future__ import annotations

from typing import NamedTuple

VOCAB, DIM, TOKENS = 32_000, 512, 8192
SENSES = {"V": VOCAB, "1.5 V": VOCAB * 3 // 2, "3 V": VOCAB * 3}
CARDS = {"A100": (312e12, 19.5e12, 2.039e12), "H100": (989e12, 67e12, 3.35e12)}
"""Peaks of bfloat16 products and of float32, FLOP/s, and bytes/s: NVIDIA's, SXM, 80 GB, dense."""


class Pass(NamedTuple):
    """What is done for each entry of [senses, tokens], and for each number of W [senses, d]."""

    name: str
    products: int  # matrix products, 2 d FLOP an entry each
    operations: int  # in float32, an exponential counted as 10
    entry: int  # bytes of an entry, read and written
    row: int  # bytes of a number of W

    def seconds(self, senses: int, card: str) -> float:
        entries, (low, full, memory) = senses * TOKENS, CARDS[card]
        moved = entries * self.entry + senses * DIM * self.row
        work = entries * 2 * DIM * self.products / low
        return float(max(work, entries * self.operations / full, moved / memory))

    def intensity(self) -> str:
        work = 2 * DIM * self.products or self.operations
        return f"{work / self.entry:.1f}" if self.entry else ""


NOW = (
    Pass("X = W hᵀ, bfloat16", 1, 0, 2, 2),
    Pass("X to float32", 0, 1, 2 + 4, 0),
    Pass("logits", 0, 25, 4 + 4, 0),
    Pass("log Z: peak, then sum", 0, 13, 4 + 4, 0),
    Pass("G ∂s/∂x and sums over tokens", 0, 55, 4 + 4 + 4, 0),
    Pass("sums over senses", 0, 30, 4 + 4, 0),
    Pass("P to bfloat16", 0, 1, 4 + 2, 0),
    Pass("dW = P h, its norms, rounding", 1, 0, 2, 40),
    Pass("dh = Pᵀ W", 1, 0, 2, 2),
)
WITHIN = (
    NOW[0],
    Pass("logits", 0, 25, 2 + 4, 0),
    NOW[3],
    Pass("G ∂s/∂x and sums over tokens", 0, 55, 2 + 4 + 2, 0),
    Pass("sums over senses", 0, 30, 2 + 4, 0),
    *NOW[-2:],
)
NARROW = (
    NOW[0],
    Pass("log Z from X", 0, 50, 2 + 2, 0),
    Pass("P from X and sums over tokens", 0, 55, 2 + 2, 0),
    Pass("sums over senses", 0, 30, 2, 0),
    *NOW[-2:],
)
FUSED = (
    Pass("X = W hᵀ, log Z as its epilogue", 1, 50, 0, 2),
    Pass("X again, P and all sums as its epilogue", 1, 55, 2, 2),
    *NOW[-2:],
)
SOFTMAX = (
    Pass("scores, bfloat16", 1, 0, 2, 2),
    Pass("log_softmax to float32", 0, 15, 2 + 4, 0),
    Pass("nll_loss backward", 0, 0, 4, 0),
    Pass("log_softmax backward", 0, 13, 4 + 4 + 2, 0),
    Pass("dW and dh", 2, 0, 2 + 2, 4),
)
WAYS = {
    "as it is": NOW,
    "widened within": WITHIN,
    "no logits kept": NARROW,
    "fused epilogues": FUSED,
}


def total(passes: tuple[Pass, ...], senses: int, card: str) -> float:
    """Milliseconds of all passes, one after the other."""
    return 1e3 * sum(each.seconds(senses, card) for each in passes)


def line(*cells: object) -> None:
    """A line of a table."""
    print("|", " | ".join(map(str, cells)), "|")


def main() -> None:
    """Print the passes, and then the sums."""
    line("pass", "products", "bytes an entry", "FLOP a byte", *(f"{card}, ms" for card in CARDS))
    line(*["---"] * 6)
    for p in (*NOW, *SOFTMAX):
        title, senses = ("3 V senses", 3 * VOCAB) if p in NOW else ("softmax", VOCAB)
        times = [f"{1e3 * p.seconds(senses, card):.2f}" for card in CARDS]
        line(f"{title}: {p.name}", p.products or "", p.entry, p.intensity(), *times)
    print()
    cells = [(card, name, senses) for card in CARDS for name, senses in SENSES.items()]
    line("ms, and ÷ a softmax over V", *(f"{card}, {name}" for card, name, _ in cells))
    line(*["---"] * 7)
    softmax = {card: total(SOFTMAX, VOCAB, card) for card in CARDS}
    for way, passes in WAYS.items():
        ours = [(total(passes, senses, card), softmax[card]) for card, _, senses in cells]
        line(way, *(f"{time:.1f} ({time / its:.1f})" for time, its in ours))
    products = [6e3 * senses * TOKENS * DIM / CARDS[card][0] for card, _, senses in cells]
    line("three products alone", *(f"{time:.1f}" for time in products))
    line("softmax over V", *(f"{softmax[card]:.1f}" for card, _, _ in cells))


if __name__ == "__main__":
    main()
