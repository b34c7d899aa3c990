"""Kernelized Bayesian Softmax (KerBS, Miao et al., NeurIPS 2019) as a fairseq plugin.

``--user-dir fairseq_kerbs`` imports this package and registers its models and criterion. The folder
may have another name there. Without fairseq, ``import fairseq_kerbs`` gives lazy access to the
output layers and needs torch and numpy only. ``import fairseq_kerbs.models,
fairseq_kerbs.criterions`` registers explicitly.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
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


def _import_as_fairseq_kerbs() -> None:
    """Import this folder as ``fairseq_kerbs``, and give its modules the other name as well.

    ``--user-dir`` may name it by a link or as a copy that is called differently. Its modules import
    each other by the name of the package, and must not register their models twice.

    Raises:
        SystemExit: another ``fairseq_kerbs`` has been imported.
    """
    own = "fairseq_kerbs"
    folder = os.path.dirname(os.path.realpath(__file__))
    package = sys.modules.get(own)
    if package is None:
        spec = importlib.util.spec_from_file_location(
            own, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        if spec is None or spec.loader is None:
            raise ImportError(folder)
        package = importlib.util.module_from_spec(spec)
        sys.modules[own] = package
        spec.loader.exec_module(package)
    elif os.path.dirname(os.path.realpath(str(package.__file__))) != folder:
        raise SystemExit(
            f"fairseq_kerbs: error: --user-dir {os.path.dirname(__file__)}: fairseq_kerbs has been "
            f"imported from {os.path.dirname(str(package.__file__))}; give --user-dir that folder"
        )
    for name, module in [*sys.modules.items()]:
        if name == own or name.startswith(f"{own}."):
            sys.modules[__name__ + name[len(own) :]] = module


if __name__ != "fairseq_kerbs":
    _import_as_fairseq_kerbs()
# importing fairseq takes seconds, so this package never imports it first
elif "fairseq" in sys.modules:
    from fairseq_kerbs.utils.failures import report_failures

    report_failures()
    import fairseq_kerbs.torch_compat  # noqa: F401  (first: it refuses versions too old)
    from fairseq_kerbs import criterions, models  # noqa: F401
