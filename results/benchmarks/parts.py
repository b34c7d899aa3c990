"""Where the time of the likelihood and of decoding goes, by model: medians of milliseconds.

    python results/benchmarks/parts.py DATA MODEL...

The likelihood is that of 1,350 random context vectors, about a batch of 80 sentences, with label
smoothing. Decoding is as in translation_time.py.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from statistics import median
from typing import Any

import torch
from translation_time import load, translate

from fairseq_kerbs.likelihood import chunks, compilation
from fairseq_kerbs.output_layers.base import OutputLayer
from fairseq_kerbs.output_layers.composition import ComposedEmbedding

SPENT: Counter[str] = Counter()


def watch(owner: Any, name: str) -> None:
    """Add the seconds of each call of a function to SPENT. A compiled pass has its own name."""
    function = getattr(owner, name)

    def watched(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments, **options)
        label = arguments[0].__name__ if callable(arguments[0]) and name == "call" else name
        SPENT[label] += time.perf_counter() - start
        return result

    setattr(owner, name, watched)


def report(path: str, what: str, run: Any, repetitions: int) -> None:
    run()  # compiles
    rounds = []
    for _ in range(repetitions):
        SPENT.clear()
        start = time.perf_counter()
        run()
        rounds.append({"whole": time.perf_counter() - start, **SPENT})
    parts = {name: median(part.get(name, 0.0) for part in rounds) * 1e3 for name in rounds[0]}
    print(path, what, *(f"{name} {value:.1f}" for name, value in parts.items()), sep="\t")


if __name__ == "__main__":
    data, *paths = sys.argv[1:]
    for owner, name in (
        (chunks, "multiply"), (compilation, "call"), (OutputLayer, "log_probs"),
        (ComposedEmbedding, "look_up"), (ComposedEmbedding, "compose"),
    ):
        watch(owner, name)
    for path in paths:
        job = load(path, data, cuda=False)
        report(path, "decoding", lambda job=job: translate(*job), 3)
        layer = next(part for part in job[0][0].modules() if isinstance(part, OutputLayer)).train()
        torch.manual_seed(1)
        contexts = torch.randn(1350, layer.embed_dim, requires_grad=True)
        words = (torch.rand(1350) ** 3 * (layer.vocab_size - 4)).long() + 4  # frequent ones first
        nll = lambda: layer.nll(contexts, words, label_smoothing=0.1).backward()  # noqa: B023, E731
        report(path, "likelihood", nll, 15)
