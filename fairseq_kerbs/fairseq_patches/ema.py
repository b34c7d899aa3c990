"""``--store-ema``: weights are averaged over time, the allocation of senses is not."""

from collections.abc import Callable
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
    average.skip_keys = set(average.skip_keys) | {
        f"{name}.{key}"
        for name, module in model.named_modules()
        if isinstance(module, SenseInventory)
        for key in module.state_dict()
    }
    for module in model.modules():
        if isinstance(module, KerbsOutputLayer):
            module.after_moves.append(_follower(average, model, module))


def _follower(average: Any, model: nn.Module, layer: KerbsOutputLayer) -> Callable[[Tensor], None]:
    """What copies rows [K] of a layer's parameters to the averages of its model."""

    @torch.no_grad()
    def copy_rows(senses: Tensor) -> None:
        averages = [average.get_model().state_dict(), average.fp32_params]
        for parameter in layer.sense_parameters():
            rows = senses.to(parameter.device)
            for name, value in model.state_dict(keep_vars=True).items():
                if value is parameter:
                    for one in averages:
                        if name in one:
                            one[name][rows.to(one[name].device)] = parameter[rows].to(one[name])

    return copy_rows
