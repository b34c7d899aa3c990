"""The systems of ``scripts/benchmark.py``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from scripts.benchmarks import likelihood
from scripts.benchmarks.comparison import Entries


def entries(benchmark: str, names: Sequence[str], inputs: dict[str, Any]) -> Entries:
    """The named systems of a benchmark.

    Args:
        benchmark: likelihood, step or decode.
        names: names of the systems.
        inputs: arguments of their workloads.
    """
    if benchmark == "likelihood":
        labels = {name: label for name, (label, _) in likelihood.CONTESTANTS.items()}
        make: Any = likelihood.workload
    else:
        from scripts.benchmarks import translation  # fairseq takes seconds to import

        labels = translation.MODELS
        make = translation.step_workload if benchmark == "step" else translation.decode_workload
    return {name: (labels[name], partial(make, name, **inputs)) for name in names}
