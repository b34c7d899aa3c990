"""``--store-ema``: weights are averaged over time, the allocation of senses is not."""

from typing import Any

from fairseq.models.ema.ema import EMA
from torch import nn

from fairseq_kerbs.fairseq_patches.registry import patched
from fairseq_kerbs.senses import SenseInventory


@patched(EMA, "__init__", "every entry is averaged, but the words of senses are whole numbers")
def init(stock: Any, average: Any, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Have the averaged model copy the sense inventories, with their statistics."""
    stock(average, model, *args, **kwargs)
    average.skip_keys = set(average.skip_keys) | {
        f"{name}.{key}"
        for name, module in model.named_modules()
        if isinstance(module, SenseInventory)
        for key in module.state_dict()
    }
