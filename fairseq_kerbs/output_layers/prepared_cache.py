"""What an output layer has prepared for decoding, kept until one of its values changes."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_kerbs.torch_compat import autocast_dtype


class PreparedCache:
    """Prepared parameters of a layer, for the next call with the same values and dtypes.

    A change of a parameter or buffer is noticed by its version counter. This does not count what is
    written through ``.data`` or by fused optimizers, so a layer calls :meth:`clear` wherever such a
    change may follow.
    """

    def __init__(self) -> None:
        self._kept: tuple[_Values, Any] | None = None

    def get(self, layer: nn.Module, dtype: torch.dtype) -> Any:
        """What was prepared for context vectors of ``dtype``. None if it is not known any more."""
        kept = self._kept  # which another thread may set to None
        if kept is None:
            return None
        values, prepared = kept
        return prepared if values.hold(*_kind_and_values(layer, dtype)) else None

    def put(self, layer: nn.Module, dtype: torch.dtype, prepared: Any) -> None:
        """Keep what was prepared. None is not kept."""
        if prepared is None:
            return
        kind, values = _kind_and_values(layer, dtype)
        # made in inference mode, tensors have no version counters
        counted = not any(value.is_inference() for value in values)
        self._kept = (_Values(kind, values), prepared) if counted else None

    def clear(self) -> None:
        """Forget what was prepared."""
        self._kept = None


def _kind_and_values(
    layer: nn.Module, dtype: torch.dtype
) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """What prepared parameters depend on: dtypes, and the layer's parameters and buffers."""
    values = (*layer.parameters(), *layer.buffers())
    return (dtype, autocast_dtype(values[0].device.type)), values


class _Values:
    """Parameters and buffers at some time, by which later changes are noticed."""

    def __init__(self, kind: tuple[Any, ...], values: tuple[Tensor, ...]) -> None:
        self._kind = kind
        self._values = [weakref.ref(value) for value in values]
        # as long as this is here, no other tensor gets the memory
        self._memory = [value.detach() for value in values]
        self._versions = [value._version for value in values]

    def hold(self, kind: tuple[Any, ...], values: tuple[Tensor, ...]) -> bool:
        """Whether the values are the same ones, and have not changed."""
        return (
            kind == self._kind
            and len(values) == len(self._values)
            and all(now is before() for now, before in zip(values, self._values))
            and all(now.data_ptr() == kept.data_ptr() for now, kept in zip(values, self._memory))
            and all(now._version == before for now, before in zip(values, self._versions))
        )
