"""The kernels of Gao et al. once more, with explicit differences: in mpmath and by autograd.

Only the constant that the paper does not give is taken from the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import torch
from torch import Tensor

from fairseq_kerbs.kernels.gao import VARIANCE_FLOOR
from tests.helpers.reference import value_and_slopes

Numbers = Sequence[mpmath.mpf]


def dot(a: Numbers, b: Numbers) -> mpmath.mpf:
    return mpmath.fsum(p * q for p, q in zip(a, b, strict=True))


def apart(a: Numbers, b: Numbers) -> mpmath.mpf:
    return mpmath.sqrt(mpmath.fsum((p - q) ** 2 for p, q in zip(a, b, strict=True)))


def variance(v: Numbers) -> mpmath.mpf:
    return dot(v, v) / len(v) + mpmath.mpf(VARIANCE_FLOOR)


def log_overlap(a: Numbers, b: Numbers, total: mpmath.mpf) -> mpmath.mpf:
    """log ∏ of one-dimensional normal densities of the differences."""
    densities = (mpmath.npdf(p - q, 0, mpmath.sqrt(total)) for p, q in zip(a, b, strict=True))
    return mpmath.fsum(mpmath.log(density) for density in densities)


def ball(v: Numbers) -> list[mpmath.mpf]:
    return [p / (1 + mpmath.sqrt(1 + dot(v, v))) for p in v]


def hyperbolic(h: Numbers, w: Numbers) -> mpmath.mpf:
    a, b = ball(h), ball(w)
    return -mpmath.acosh(1 + 2 * apart(a, b) ** 2 / ((1 - dot(a, a)) * (1 - dot(b, b))))


def mixture(h: Numbers, w: Numbers) -> mpmath.mpf:
    half, total = len(h) // 2, variance(h) + variance(w)
    parts = [(w[:half], h[:half]), (w[:half], h[half:]), (w[half:], h[:half]), (w[half:], h[half:])]
    return mpmath.fsum(log_overlap(a, b, total) for a, b in parts)


def printed(name: str, options: dict[str, Any]) -> Callable[[Numbers, Numbers], mpmath.mpf]:
    """Eq. 4–12 with explicit differences of vectors."""
    p = mpmath.mpf(options.get("power", 3 if name == "pol" else 2))
    alpha = mpmath.mpf(options.get("alpha", 1.0 / 12.0))
    c = mpmath.mpf(options.get("offset", 2.0))
    gamma = mpmath.mpf(options.get("gamma", 0.01))
    a, b = (mpmath.mpf(options.get(key, 100.0)) for key in ("a", "b"))
    return {
        "lin": dot,
        "log": lambda h, w: -mpmath.log(apart(w, h) ** p + 1),
        "pow": lambda h, w: -(apart(w, h) ** p),
        "pol": lambda h, w: (alpha * dot(w, h) + c) ** p,
        "rbf": lambda h, w: mpmath.exp(-gamma * apart(w, h) ** 2),
        "ssg": lambda h, w: log_overlap(w, h, variance(h) + variance(w)),
        "mog": mixture,
        "hpb": hyperbolic,
        "wav": lambda h, w: mpmath.cos(apart(w, h) ** 2 / a) * mpmath.exp(-(apart(w, h) ** 2) / b),
    }[name]


def exact(
    name: str, options: dict[str, Any], h: list[float], w: list[float]
) -> tuple[float, list[float]]:
    """Value, and gradient by all numbers of h and w (central differences), in 60 digits."""
    function, d, step = printed(name, options), len(h), mpmath.mpf("1e-20")
    with mpmath.workdps(60):
        return value_and_slopes(lambda v: function(v[:d], v[d:]), [*h, *w], step)


def plain_logits(h: Tensor, w: Tensor, name: str, options: dict[str, Any]) -> Tensor:
    """Logits [N, M] by autograd over differences [N, M, d]."""
    apart, d = (w - h[:, None]).square().sum(2), h.shape[1]
    total = h.square().mean(1)[:, None] + w.square().mean(1) + 2 * VARIANCE_FLOOR
    half = options.get("power", 2.0) / 2
    if name == "mog":
        pairs = [(i, j) for i in (0, 1) for j in (0, 1)]
        wi, hj = w.view(-1, 2, d // 2), h.view(-1, 2, d // 2)
        apart = sum((wi[:, i] - hj[:, None, j]).square().sum(2) for i, j in pairs)  # type: ignore
        return -d * torch.log(2 * math.pi * total) - apart / (2 * total)
    if name == "hpb":
        a, b = (v / (1 + torch.sqrt(1 + v.square().sum(1, keepdim=True))) for v in (h, w))
        inside = (1 - a.square().sum(1))[:, None] * (1 - b.square().sum(1))
        return -torch.acosh(1 + 2 * (b - a[:, None]).square().sum(2) / inside)
    functions: dict[str, Callable[[], Tensor]] = {
        "lin": lambda: h @ w.t(),
        "log": lambda: -torch.log(apart**half + 1),
        "pow": lambda: -(apart**half),
        "pol": lambda: (
            (options.get("alpha", 1 / 12) * h @ w.t() + options.get("offset", 2.0))
            ** options.get("power", 3)
        ),
        "rbf": lambda: torch.exp(-options.get("gamma", 0.01) * apart),
        "ssg": lambda: -d / 2 * torch.log(2 * math.pi * total) - apart / (2 * total),
        "wav": lambda: (
            torch.cos(apart / options.get("a", 100)) * torch.exp(-apart / options.get("b", 100))
        ),
    }
    return functions[name]()
