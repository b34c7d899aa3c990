"""Rows of parameters as optimizers keep them: moments, and float32 master copies of ``--fp16``.

fairseq's FP16 optimizers step a float32 copy of the parameters and write it over the model's after
each step: what moves only in the model would be undone. The copy is one flat tensor a device, or
(``--fp16-no-flatten-grads``) one tensor a parameter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.reallocation import reset_moments


class OptimizerRows:
    """Rows of parameters in an optimizer: torch's own, or fairseq's around one."""

    def __init__(self, optimizer: Any) -> None:
        self._torch = getattr(optimizer, "optimizer", optimizer)
        self._copied = list(getattr(optimizer, "fp16_params", ()))
        self._masters = getattr(optimizer, "fp32_params", None)

    def _find(self, parameter: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What the optimizer steps for a parameter, and the places of rows along its first axis."""
        if self._masters is None:
            return parameter, rows
        if not isinstance(self._masters, dict):
            pairs = zip(self._copied, self._masters)
            return next(master for copied, master in pairs if copied is parameter), rows
        together = [copied for copied in self._copied if copied.device == parameter.device]
        number = next(n for n, copied in enumerate(together) if copied is parameter)
        before = sum(copied.numel() for copied in together[:number])
        width = parameter[0].numel()
        places = before + rows.cpu().unsqueeze(1) * width + torch.arange(width)
        return self._masters[parameter.device.index], places.flatten()

    @torch.no_grad()
    def zero_moments(self, parameter: Tensor, rows: Tensor) -> None:
        """Zero the optimizer's per-element state in rows [K] of a parameter."""
        master, places = self._find(parameter, rows)
        reset_moments(self._torch, [master], places)

    @torch.no_grad()
    def set_master_rows(self, parameter: Tensor, rows: Tensor, values: Tensor) -> None:
        """Write values [K, ...] into rows [K] of a parameter's master copy, where there is one."""
        if self._masters is not None:
            master, places = self._find(parameter, rows)
            shape = (len(places), *master.shape[1:])
            master.data[places.to(master.device)] = values.to(master).reshape(shape)
