"""Kernelized Bayesian Softmax (KerBS, Miao et al., NeurIPS 2019) as a fairseq plugin.

``--user-dir fairseq_kerbs`` imports this package, which registers the models and the criterion. A
program that has not imported fairseq gets the mathematics alone, with torch and nothing else: the
names below, imported when they are asked for. ``import fairseq_kerbs.models`` and
``import fairseq_kerbs.criterions`` register by hand.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
LOWEST = {"Python": "3.9", "torch": "1.12"}
"""The lowest versions that this package runs with; setup.py reads them, too."""

if TYPE_CHECKING:
    from fairseq_kerbs.likelihood import kerbs_nll
    from fairseq_kerbs.output_layers import (
        KerbsOutputLayer,
        MixtureOutputLayer,
        SoftmaxOutputLayer,
    )
    from fairseq_kerbs.reallocation import ReallocationSettings, reset_moments

__all__ = [
    "KerbsOutputLayer", "MixtureOutputLayer", "ReallocationSettings", "SoftmaxOutputLayer",
    "kerbs_nll", "reset_moments",
]  # fmt: skip

_MODULES = {
    "kerbs_nll": "likelihood",
    "ReallocationSettings": "reallocation",
    "reset_moments": "reallocation",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'output_layers')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# fairseq takes seconds to import: who has not asked for it does not wait for it
if "fairseq" in sys.modules:
    import fairseq_kerbs.torch_compat  # noqa: F401  (first: it refuses versions too old)
    from fairseq_kerbs import criterions, models  # noqa: F401
