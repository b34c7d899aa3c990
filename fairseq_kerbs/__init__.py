"""Kernelized Bayesian Softmax (KerBS, Miao et al., NeurIPS 2019) as a fairseq plugin.

``--user-dir fairseq_kerbs`` imports this package and registers its models and criterion. Without
fairseq, ``import fairseq_kerbs`` gives lazy access to the output layers and needs torch and numpy
only. ``import fairseq_kerbs.models, fairseq_kerbs.criterions`` registers explicitly.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
LOWEST = {"Python": "3.9", "torch": "1.12"}
"""Lowest supported versions, also read by setup.py."""

if TYPE_CHECKING:
    from fairseq_kerbs.likelihood import kerbs_nll
    from fairseq_kerbs.output_layers import KerbsOutputLayer, MixtureOutputLayer, SoftmaxOutputLayer
    from fairseq_kerbs.reallocation import ReallocationSettings, reset_moments

__all__ = [
    "KerbsOutputLayer",
    "MixtureOutputLayer",
    "ReallocationSettings",
    "SoftmaxOutputLayer",
    "kerbs_nll",
    "reset_moments",
]

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


# importing fairseq takes seconds, so this package never imports it first
if "fairseq" in sys.modules:
    import fairseq_kerbs.torch_compat  # noqa: F401  (first: it refuses versions too old)
    from fairseq_kerbs import criterions, models  # noqa: F401
