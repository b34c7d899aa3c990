"""Made contexts of words."""

from functools import partial

import torch
from torch import Tensor


def blobs(seed: int, sizes: tuple[int, ...] = (70, 40, 30), dim: int = 5) -> Tensor:
    """Contexts around as many centers."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    return torch.cat([4.0 * draw(dim) + draw(size, dim) for size in sizes])
