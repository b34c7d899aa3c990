"""``--store-ema``: weights are averaged over time, the allocation of senses is not."""

from functools import partial
from typing import Any

import torch
from fairseq.models.ema.ema import EMA
from torch import Tensor, nn

from fairseq_kerbs.fairseq_patches.registry import patched
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.senses import SenseInventory


@patched(EMA, "__init__", "every entry is averaged, but the words of senses are whole numbers")
def init(stock: Any, average: Any, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Have the averaged model copy the sense inventories, with their statistics, and begin the
    averages of senses anew where these move: what they were is another sense's."""
    stock(average, model, *args, **kwargs)
    average.skip_keys = set(average.skip_keys)
    for name, module in model.named_modules():
        if isinstance(module, SenseInventory):
            average.skip_keys |= {f"{name}.{key}" for key in module.state_dict()}
        elif isinstance(module, KerbsOutputLayer):
            module.after_moves.append(partial(_copy_rows, average, model, name))


@torch.no_grad()
def _copy_rows(average: Any, model: nn.Module, name: str, senses: Tensor) -> None:
    """Copy rows [K] of the parameters of the layer of that name to the averages, and the words of
    its senses, which with --ema-update-freq would follow later."""
    layer: Any = model.get_submodule(name)
    inventory = average.get_model().get_submodule(name).inventory
    inventory.load_state_dict(layer.inventory.state_dict())
    averages = [average.get_model().state_dict(), average.fp32_params]
    for parameter in layer.sense_parameters():
        rows = senses.to(parameter.device)
        for key, value in model.state_dict(keep_vars=True).items():
            for one in averages if value is parameter else ():
                if key in one:
                    one[key][rows.to(one[key].device)] = parameter[rows].to(one[key])
