"""The kernels of Gao et al.; only the constant that the paper does not give is the package's."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.kernels.gao import VARIANCE_FLOOR


def plain_logits(h: Tensor, w: Tensor, name: str, options: dict[str, Any]) -> Tensor:
    """Eq. 4–12 as logits [N, M] by autograd over differences of vectors [N, M, d]."""
    apart, d = (w - h[:, None]).square().sum(2), h.shape[1]
    total = h.square().mean(1)[:, None] + w.square().mean(1) + 2 * VARIANCE_FLOOR
    half, alpha = options.get("power", 2.0) / 2, options.get("alpha", 1 / 12)
    if name == "mog":
        wi, hj = w.view(-1, 2, d // 2), h.view(-1, 2, d // 2)
        apart = (wi[:, :, None] - hj[:, None, None]).square().sum((2, 3, 4))
        return -d * torch.log(2 * math.pi * total) - apart / (2 * total)
    if name == "hpb":
        a, b = (v / (1 + torch.sqrt(1 + v.square().sum(1, keepdim=True))) for v in (h, w))
        inside = (1 - a.square().sum(1))[:, None] * (1 - b.square().sum(1))
        return -torch.acosh(1 + 2 * (b - a[:, None]).square().sum(2) / inside)
    wave, width = options.get("a", 100), options.get("b", 100)
    functions: dict[str, Callable[[], Tensor]] = {
        "lin": lambda: h @ w.t(),
        "log": lambda: -torch.log(apart**half + 1),
        "pow": lambda: -(apart**half),
        "pol": lambda: (alpha * h @ w.t() + options.get("offset", 2.0)) ** options.get("power", 3),
        "rbf": lambda: torch.exp(-options.get("gamma", 0.01) * apart),
        "ssg": lambda: -d / 2 * torch.log(2 * math.pi * total) - apart / (2 * total),
        "wav": lambda: torch.cos(apart / wave) * torch.exp(-apart / width),
    }
    return functions[name]()
