#!/usr/bin/env python
"""Section 4.1.2 as an experiment: what outliers do to a Gaussian's σ, and to the kernel's θ.

The contexts are those of the paper's argument. A word has a center μ, and its contexts are μ + x.
For a share 1 − α of them x is normal, N(0, σ₁² I), in a subspace of d₁ of the d dimensions. For the
share α, the outliers, x is uniform in a cube of edge length 1. All words share the subspace, |μ| is
1, and words differ in their width √d₁ σ₁, the root mean square of |x|.

Outliers are placed in two ways:

* ``center``: the cube is centered at μ. This is the argument to the letter, with the mean at the
  origin of x. An outlier still says something of its word.
* ``origin``: the cube is centered at the origin of context vectors. An outlier says nothing of its
  word.

To the same contexts are fitted, by maximum likelihood:

* the σ of an isotropic Gaussian N(μ, σ² I) (Eq. 8), one for each width;
* the θ of the kernel (Eq. 9) in the likelihood of words (Eq. 5 and 11), one for each width, and
  one norm |w| of all sense vectors. A word has one sense. Its direction is that of μ, as the mean
  is given in Eq. 8.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# the checkout that this script belongs to, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F
from pandas import DataFrame
from torch import Tensor

from fairseq_kerbs.kernels import KerbsKernel, apply_kernel
from fairseq_kerbs.utils.files import write_json
from scripts.experiments.lemmas import spread_directions

SUBSPACE = 12  # d₁, the size of context vectors in lemmas.py
WIDTHS = (0.6, 0.9, 1.2)  # √d₁ σ₁
WORDS_EACH = 8  # words of each width
SHARES = (0.0, 0.01, 0.05, 0.2)  # α
DIMS = (16, 64, 256, 1024, 4096)  # d
PLACES = ("center", "origin")
FIRST_NORM = 10.0  # |w| at which the fit starts
INFINITE = 1e12  # |h| that stands for the limit: cos(h, w) is 0 to double precision
LEGEND = """\
sigma: of the Gaussian. expected: its closed form. theta: of the kernel, with norm |w|. ±: standard
deviation over seeds. dim inf: sigma is the limit of the closed form, theta is fitted to the limit
of the kernel's values.
"""
Row = dict[str, Any]


@dataclass(frozen=True)
class Outliers:
    """Which contexts are outliers."""

    share: float  # α, of each word's contexts
    place: str = "center"  # "center": their cube is at the word's, "origin"; "none" without any


@dataclass(frozen=True)
class Contexts:
    """What the two fits read of n contexts of V words."""

    word: Tensor  # [n]
    group: Tensor  # [V], the index of a word's width
    square: Tensor  # [n], squared distance to the word's center
    products: Tensor  # [n, V], products with the words' centers, which are unit vectors
    norm: Tensor  # [n, 1], |h|


def expected_sigma(dim: float, width: float, outliers: Outliers) -> float:
    """σ at which the expectation of Eq. 8 is largest.

    It is the root of E|x|²/d, where

        E|x|² = α (d/12 + b) + (1 − α) d₁ σ₁²

    The constant b is the squared distance of the cube's center from the word's: 0 or 1. For d = ∞
    the result is √(α/12).
    """
    between = 1.0 if outliers.place == "origin" else 0.0
    inliers = (1.0 - outliers.share) * width**2
    return math.sqrt(outliers.share * (1.0 / 12.0 + between / dim) + inliers / dim)


def fit_sigma(square: Tensor, dim: int) -> Tensor:
    """σ that maximizes Eq. 8 for squared distances [n] in ``dim`` dimensions: √(Σ|x|²/(nd))."""
    return (square.mean() / dim).sqrt()


def _clusters(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Centers in the subspace [V, d₁], index of the width of each word [V], and σ₁ [V]."""
    group = torch.arange(len(WIDTHS)).repeat_interleave(WORDS_EACH)
    centers = spread_directions(len(group), SUBSPACE, generator).double()
    spread = torch.tensor(WIDTHS, dtype=torch.float64)[group] / math.sqrt(SUBSPACE)
    return centers, group, spread


def draw_contexts(dim: int, outliers: Outliers, each: int, seed: int) -> Contexts:
    """``each`` contexts of every word in ``dim`` ≥ d₁ dimensions.

    Of these, round(α · each) are outliers.
    """
    g = torch.Generator().manual_seed(seed)
    centers, group, spread = _clusters(g)
    random = torch.randn(dim, SUBSPACE, generator=g, dtype=torch.float64)
    basis, _ = torch.linalg.qr(random)  # [d, d₁], orthonormal columns
    directions = centers @ basis.t()  # [V, d]
    far = round(outliers.share * each)
    squares = []
    products = []
    norms = []
    for word, direction in enumerate(directions):
        noise = torch.randn(each - far, SUBSPACE, generator=g, dtype=torch.float64)
        near = direction + spread[word] * noise @ basis.t()
        cube = torch.rand(far, dim, generator=g, dtype=torch.float64) - 0.5
        if outliers.place == "center":
            cube = cube + direction
        h = torch.cat([near, cube])
        squares.append((h - direction).square().sum(1))
        products.append(h @ directions.t())
        norms.append(h.norm(dim=1, keepdim=True))
    return Contexts(
        word=torch.arange(len(group)).repeat_interleave(each),
        group=group,
        square=torch.cat(squares),
        products=torch.cat(products),
        norm=torch.cat(norms),
    )


def draw_limit(outliers: Outliers, each: int, seed: int) -> Contexts:
    """What the kernel's fit reads of contexts in the limit d → ∞.

    Products of an outlier's x and the centers are sums of many independent terms of variance 1/12
    times the squared length of a center. So they are normal, with 1/12 of the centers' products as
    covariance. |h| is infinite, hence the cosine is 0. Inliers do not depend on d.
    """
    g = torch.Generator().manual_seed(seed)
    centers, group, spread = _clusters(g)
    far = round(outliers.share * each)
    products = []
    norms = []
    for word, center in enumerate(centers):
        noise = torch.randn(each - far, SUBSPACE, generator=g, dtype=torch.float64)
        near = center + spread[word] * noise
        x = torch.randn(far, SUBSPACE, generator=g, dtype=torch.float64) / math.sqrt(12.0)
        if outliers.place == "center":
            x = x + center
        products.append(torch.cat([near, x]) @ centers.t())
        infinite = torch.full((far, 1), INFINITE, dtype=torch.float64)
        norms.append(torch.cat([near.norm(dim=1, keepdim=True), infinite]))
    return Contexts(
        word=torch.arange(len(group)).repeat_interleave(each),
        group=group,
        square=torch.full((each * len(group),), math.nan, dtype=torch.float64),
        products=torch.cat(products),
        norm=torch.cat(norms),
    )


def logits(contexts: Contexts, theta: Tensor, norm: Tensor) -> Tensor:
    """Eq. 9 of all contexts and words, [n, V], with θ of each width [G] and |w| of all words."""
    by_word = theta[contexts.group]
    return apply_kernel(KerbsKernel(), contexts.products * norm, contexts.norm, norm, by_word)


def fit_theta(contexts: Contexts) -> tuple[Tensor, float]:
    """θ of each width [G] and |w| that maximize the likelihood of words (Eq. 11), from θ = 0.

    Raises:
        RuntimeError: the gradient has not vanished.
    """
    groups = int(contexts.group.max()) + 1
    theta = torch.zeros(groups, dtype=torch.float64, requires_grad=True)
    log_norm = torch.tensor(math.log(FIRST_NORM), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [theta, log_norm],
        max_iter=300,
        tolerance_grad=1e-7,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(logits(contexts, theta, log_norm.exp()), contexts.word)
        value.backward()
        return value

    optimizer.step(loss)
    loss()
    assert theta.grad is not None
    steepest = float(theta.grad.abs().max())
    if not steepest <= 1e-4:  # also for NaN
        raise RuntimeError(
            f"the fit of theta did not converge: its gradient is {steepest:.1g}; "
            "draw more contexts by --contexts"
        )
    return theta.detach(), float(log_norm.detach().exp())


def fit(dim: int | None, outliers: Outliers, each: int, seed: int) -> list[Row]:
    """Both fits to the same contexts, a row for each width. ``dim`` None is the limit d → ∞."""
    contexts = (
        draw_limit(outliers, each, seed)
        if dim is None
        else draw_contexts(dim, outliers, each, seed)
    )
    theta, norm = fit_theta(contexts)
    rows = []
    for index, width in enumerate(WIDTHS):
        closed = expected_sigma(math.inf if dim is None else dim, width, outliers)
        own = contexts.group[contexts.word] == index
        sigma = closed if dim is None else float(fit_sigma(contexts.square[own], dim))
        rows.append(
            {
                "place": outliers.place,
                "alpha": outliers.share,
                "dim": dim,
                "width": width,
                "seed": seed,
                "sigma": sigma,
                "expected": closed,
                "theta": float(theta[index]),
                "norm": norm,
            }
        )
    return rows


def simulate(dims: Sequence[int], seeds: Sequence[int], each: int) -> list[Row]:
    """Rows of all places, shares, dimensions and seeds, with the limit d → ∞ as dimension None.

    Without outliers both places are the same: the rows have the place ``none``.
    """
    rows = []
    cases = [Outliers(0.0, "none")]
    cases += [Outliers(share, place) for place in PLACES for share in SHARES if share > 0]
    for outliers in cases:
        for dim in (*dims, None):
            for seed in seeds:
                rows += fit(dim, outliers, each, seed)
    return rows


def summary(rows: Sequence[Row]) -> str:
    """A table of means and standard deviations over seeds."""
    table = DataFrame(list(rows)).fillna({"dim": math.inf})
    by = ["place", "alpha", "dim", "width"]
    groups = table.groupby(by, sort=False)
    means = groups.mean(numeric_only=True)
    deviations = groups.std(numeric_only=True)
    shown = DataFrame(
        {
            "sigma": means["sigma"].map("{:.4f}".format),
            "±": deviations["sigma"].map("{:.4f}".format),
            "expected": means["expected"].map("{:.4f}".format),
            "theta": means["theta"].map("{:.2f}".format),
            "± ": deviations["theta"].map("{:.2f}".format),
            "norm": means["norm"].map("{:.1f}".format),
        }
    )
    return str(shown.reset_index().to_string(index=False))


def main(argv: Sequence[str] | None = None) -> None:
    """The simulation, its table, and a JSON file."""
    parser = argparse.ArgumentParser(
        description="Section 4.1.2 of the KerBS paper: what a share of outliers does to the sigma "
        "of a Gaussian, and to the theta of the kernel, fitted to the same contexts."
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="JSON [none]")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds [%(default)s]"
    )
    parser.add_argument(
        "--contexts", type=int, default=300, metavar="N", help="contexts of each word [%(default)s]"
    )
    parser.add_argument(
        "--dims",
        type=int,
        nargs="+",
        default=list(DIMS),
        help="dimensions d of contexts [%(default)s]",
    )
    args = parser.parse_args(argv)
    if min(args.dims) < SUBSPACE:
        parser.error(f"--dims must be at least {SUBSPACE}, not {min(args.dims)}")
    if args.contexts < 100:
        parser.error(f"--contexts must be at least 100, not {args.contexts}")
    rows = simulate(args.dims, args.seeds, args.contexts)
    print(f"Section 4.1.2: sigma and theta with outliers\n\n{summary(rows)}\n\n{LEGEND}", end="")
    if args.output is not None:
        settings = {"seeds": args.seeds, "contexts": args.contexts, "dims": args.dims}
        write_json(args.output, {"settings": settings, "torch": torch.__version__, "rows": rows})


if __name__ == "__main__":
    main()
