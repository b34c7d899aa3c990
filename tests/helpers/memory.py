"""How much memory a computation takes, counted operation by operation."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Memory(TorchDispatchMode):
    """Largest tensor, peak of living storage in bytes, and products, of what is done inside.

    Tensors under 1 KB are left out: they are many, and none is tokens × senses.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.peak = self.products = 0
        self._living: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.products += str(func).split(".")[1] in ("mm", "_linear_pointwise")
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor) and value.numel() >= 256:
                self.largest = max(self.largest, value.numel())
                self._living.append(weakref.ref(value))
        tensors = [t for t in (ref() for ref in self._living) if t is not None]
        self._living = [weakref.ref(t) for t in tensors]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        self.peak = max(self.peak, sum(storages.values()))
        return result
