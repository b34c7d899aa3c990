"""One more kernel for a training, of a module of its own that the package does not know."""

import sys
from dataclasses import dataclass
from typing import Any


def add(_: str) -> None:
    """Register the kernel, and then the plugin's models and criterion instead of ``--user-dir``."""
    # an import of the package registers its models if there is fairseq: the kernel comes first
    fairseq = sys.modules.pop("fairseq")
    _register()
    sys.modules["fairseq"] = fairseq

    import fairseq_kerbs.criterions
    import fairseq_kerbs.models  # noqa: F401


def _register() -> None:
    from fairseq_kerbs.kernels import Kernel, option, register
    from fairseq_kerbs.kernels.base import Partials

    @register
    @dataclass(frozen=True)
    class ScaledKernel(Kernel):
        """K = f h·w."""

        name = "scaled"
        has_theta = False
        inner_product_at_zero = False
        scale_factor: float = option(2.0, "f")

        def value(self, x: Any, h_norm: Any, w_norm: Any, prepared: Any) -> Any:
            return self.scale_factor * x

        def partials(self, x: Any, h_norm: Any, w_norm: Any, prepared: Any) -> Any:
            return Partials(self.scale_factor)
