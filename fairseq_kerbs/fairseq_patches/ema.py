"""``--store-ema``: weights are averaged over time, the allocation of senses is not."""

from __future__ import annotations

from typing import Any

from fairseq.models.ema.ema import EMA
from torch import nn

from fairseq_kerbs.senses import SenseInventory


def inventory_keys(model: nn.Module) -> set[str]:
    """Names that the buffers of all sense inventories have in a model's state dict."""
    return {
        f"{name}.{key}"
        for name, module in model.named_modules()
        if isinstance(module, SenseInventory)
        for key in module.state_dict()
    }


def keep_inventories_out_of_averages() -> None:
    """Make fairseq's moving average copy sense inventories; a second call changes nothing.

    fairseq averages every entry of the state dict, but owners of senses are whole numbers: the
    averaged model has the allocation and the statistics of the model itself.
    """
    if getattr(EMA, "_copies_inventories", False):
        return
    stock_init = EMA.__init__

    def init(self: Any, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        stock_init(self, model, *args, **kwargs)
        self.skip_keys = set(self.skip_keys) | inventory_keys(model)

    EMA.__init__ = init
    EMA._copies_inventories = True
