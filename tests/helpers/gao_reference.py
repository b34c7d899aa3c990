"""The kernels of Gao et al.; only the constant that the paper does not give is the package's."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.kernels.gao import VARIANCE_FLOOR

NINE = ["lin", "log", "pow", "pol", "rbf", "ssg", "mog", "hpb", "wav"]
"""Their names in the order of the equations."""


def plain_logits(h: Tensor, w: Tensor, name: str, options: dict[str, Any]) -> Tensor:
    """Eq. 4–12 as logits [N, M] by autograd over differences of vectors [N, M, d]."""
    d = h.shape[1]
    distance = (w - h[:, None]).square().sum(2)
    variance = h.square().mean(1)[:, None] + w.square().mean(1) + 2 * VARIANCE_FLOOR
    if name == "mog":
        w_halves = w.view(-1, 2, d // 2)
        h_halves = h.view(-1, 2, d // 2)
        differences = w_halves[:, :, None] - h_halves[:, None, None]
        distance = differences.square().sum((2, 3, 4))
        return -d * torch.log(2 * math.pi * variance) - distance / (2 * variance)
    if name == "hpb":
        h_ball, w_ball = (v / (1 + torch.sqrt(1 + v.square().sum(1, keepdim=True))) for v in (h, w))
        inside = (1 - h_ball.square().sum(1))[:, None] * (1 - w_ball.square().sum(1))
        return -torch.acosh(1 + 2 * (w_ball - h_ball[:, None]).square().sum(2) / inside)
    half_power = options.get("power", 2.0) / 2
    alpha = options.get("alpha", 1 / 12)
    offset = options.get("offset", 2.0)
    gamma = options.get("gamma", 0.01)
    wave = options.get("a", 100)
    width = options.get("b", 100)
    functions: dict[str, Callable[[], Tensor]] = {
        "lin": lambda: h @ w.t(),
        "log": lambda: -torch.log(distance**half_power + 1),
        "pow": lambda: -(distance**half_power),
        "pol": lambda: (alpha * h @ w.t() + offset) ** options.get("power", 3),
        "rbf": lambda: torch.exp(-gamma * distance),
        "ssg": lambda: -d / 2 * torch.log(2 * math.pi * variance) - distance / (2 * variance),
        "wav": lambda: torch.cos(distance / wave) * torch.exp(-distance / width),
    }
    return functions[name]()
