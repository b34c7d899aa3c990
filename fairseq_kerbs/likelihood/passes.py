"""What happens to a chunk of products between the matrix products: plain functions of tensors.

X [M, n] holds the products of M senses with n context vectors. A sense is a row, so that the senses
of a word are whole rows, wherever they lie. :func:`normalizers` sums over senses, :func:`gradients`
over tokens; it also makes P = G·∂s/∂x [M, n] of X, with G the gradient of the logits s, which the
likelihood multiplies with W and h. X and the logits are kept, which P overwrites; of that size
``torch.compile`` keeps nothing else.

A kernel takes part through its :class:`KernelPasses`. The KerBS kernel has closed forms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import THETA_LIMIT, KerbsKernel, Kernel, kerbs_gain, safe_inverse
from fairseq_kerbs.kernels.base import exp, expm1, is_compiling, polynomial
from fairseq_kerbs.senses import SenseTable

Tensors = tuple[Tensor, ...]
Part = Tensor | float  # a number only if it is 0


class KernelPasses:
    """Any kernel, by its value and partial derivatives.

    The methods take logits of any shape: [M, n] with columns [M, 1] and norms [n], or those of each
    token's target, [n, K] with columns [n, K] and norms [n, 1].
    """

    unit_contexts = False  # whether X holds products with h/|h| instead of h

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def columns(self, w_norm: Tensor, theta: Tensor) -> Tensors:
        """What the other methods want of senses with norms [M] and θ [M]: [M, 1] each."""
        return w_norm.unsqueeze(1), theta.unsqueeze(1)

    def logits(self, x: Tensor, h_norm: Tensor, columns: Tensors) -> Tensor:
        """Logits s."""
        return self.kernel.value(x, h_norm, *columns)

    def along_h(self, x: Tensor, logits: Tensor, h_norm: Tensor, columns: Tensors) -> Part:
        """What G is multiplied with and summed over senses."""
        return self.kernel.partials(x, h_norm, *columns).h_norm

    def pull_back(
        self, grad: Tensor, x: Tensor, logits: Tensor, h_norm: Tensor, columns: Tensors
    ) -> tuple[Tensor, Part, Part]:
        """G·∂s/∂x, and G times two factors, which are summed over tokens."""
        by_x, _, *others = self.kernel.partials(x, h_norm, *columns)
        by_w, by_theta = (0.0 if isinstance(part, float) else grad * part for part in others)
        return grad * by_x, by_w, by_theta

    def h_gradient(self, product: Tensor, along_h: Tensor, h: Tensor, h_norm: Tensor) -> Tensor:
        """Gradient by h [n, d] in the place of the product Pᵀ W [n, d], from it and the sums over
        senses [n]."""
        along = (along_h * safe_inverse(h_norm)).unsqueeze(1)
        return self.kernel.map_contexts(product).addcmul_(h, along)

    def sense_gradients(
        self, product: Tensor, sums: Tensor, w: Tensor, w_norm: Tensor, columns: Tensors
    ) -> tuple[Tensor, Tensor]:
        """Gradients by W [M, d], in the place of the product P h [M, d], and θ [M], from it and the
        sums over tokens [2, M]."""
        along = (sums[0] * safe_inverse(w_norm)).unsqueeze(1)
        return product.addcmul_(w, along), sums[1]


BERNOULLI = [0.1666666169, -0.002776880713, 6.372609382e-05]
"""B(z) = 1/(1 − e^−z) − 1/z = ½ + z/2·Σ_k c_k z^2k for |z| ≤ 1 in float32: the polynomial through
the Chebyshev nodes, relative error 6e-8."""

BERNOULLI_SERIES = [1 / 6, -1 / 360, 1 / 15120, -1 / 604800, 1 / 23950080]
BERNOULLI_SERIES += [-691 / 653837184000, 1 / 37362124800]
"""The same as its power series, c_k = 2 B_2k+2/(2k + 2)!, for |z| ≤ ½ in float64."""


class KerbsPasses(KernelPasses):
    """The KerBS kernel (Eq. 9) as s = |h||w| a E with E = e^z − 1, z = −θc, a = −g(θ)/θ.

    θ = 0 stands for 1e-8 (1e-30 in float64): that near, the kernel is h·w to the last bit, and the
    large a meets an E that is exact for tiny arguments.

    With P = G·∂s/∂x = G·g·(E + 1), homogeneity in |h| and |w| gives the gradients along h and w
    from Σ G s = Σ |h||w| a G E, and dθ from the same sums, with a' = da/dθ:

        h·dh = Σ_m G s,    w·dW = Σ_n G s,    dθ = |w| a' Σ_n |h| G E + w·(P h)/θ

    The last cancels for small θ ("curved" senses). There

        dθ = −|w| (g'/θ · Σ_n |h| G E + g · Σ_n |h| G c² r(z)),   r(z) = (z e^z − E)/z²

    and c² r(z) = E·z B(z)/θ² with the B of :data:`BERNOULLI`, which no E cancels. Summed over
    senses is G s; over tokens |h| G E, and 2 |h| G E z B(z), read of curved senses alone.
    """

    unit_contexts = True

    def columns(self, w_norm: Tensor, theta: Tensor) -> Tensors:
        wide = w_norm.dtype == torch.float64
        tiny, limit = (1e-30, 0.5) if wide else (1e-8, 1.0)
        bounded = theta.clamp(-THETA_LIMIT, THETA_LIMIT).double()
        safe = torch.where(bounded.abs() < tiny, tiny, bounded)
        gain, slope = kerbs_gain(bounded)
        curved = bounded.abs() < limit
        flat = ~curved & (theta.abs() <= THETA_LIMIT)  # beyond the limit ∂s/∂θ is 0
        by_first = torch.where(curved, -slope / safe, (gain / safe - slope) / safe)
        columns = (
            -safe * safe_inverse(w_norm),
            -gain / safe * w_norm,
            gain,
            -safe / gain * safe_inverse(w_norm),
            -gain / safe,
            torch.where(curved | flat, by_first, 0.0),
            torch.where(curved, -0.5 * gain / safe.square(), 0.0),
            torch.where(flat, 1.0 / safe, 0.0),
        )
        most = torch.finfo(w_norm.dtype).max
        return tuple(c.clamp(-most, most).to(w_norm.dtype).unsqueeze(1) for c in columns)

    def logits(self, x: Tensor, h_norm: Tensor, columns: Tensors) -> Tensor:
        to_z, radius = columns[:2]
        return expm1(x * to_z) * radius * h_norm

    def along_h(self, x: Tensor, logits: Tensor, h_norm: Tensor, columns: Tensors) -> Part:
        return logits

    def pull_back(
        self, grad: Tensor, x: Tensor, logits: Tensor, h_norm: Tensor, columns: Tensors
    ) -> tuple[Tensor, Part, Part]:
        to_z, _, gain, inverse_radius = columns[:4]
        z, e = x * to_z, logits * inverse_radius * safe_inverse(h_norm)
        series = BERNOULLI_SERIES if z.dtype == torch.float64 else BERNOULLI
        square = z.square()
        bent = z + square * polynomial(square, series)  # 2z B(z)
        grad_e = grad * e
        weighted = grad_e * h_norm
        return (grad + grad_e) * gain, weighted, weighted * bent

    def h_gradient(self, product: Tensor, along_h: Tensor, h: Tensor, h_norm: Tensor) -> Tensor:
        inverse = safe_inverse(h_norm)
        return _with_radial(product, h, inverse, along_h * inverse)

    def sense_gradients(
        self, product: Tensor, sums: Tensor, w: Tensor, w_norm: Tensor, columns: Tensors
    ) -> tuple[Tensor, Tensor]:
        a, by_first, by_bent, by_product = (column.squeeze(1) for column in columns[4:])
        along = torch.einsum("md,md->m", product, w)
        bent = torch.where(by_bent != 0, sums[1] * by_bent, 0.0)  # elsewhere it may be infinite
        by_theta = w_norm * (by_first * sums[0] + bent) + along * by_product
        return _with_radial(product, w, safe_inverse(w_norm), a * sums[0]), by_theta


def _with_radial(product: Tensor, rows: Tensor, inverse_norm: Tensor, radial: Tensor) -> Tensor:
    """Replace the component along ``rows`` [·, d] of ``product`` [·, d] by ``radial`` [·].

    The zero vector has no direction: its product stays whole.
    """
    along = torch.einsum("id,id->i", product, rows) * inverse_norm
    return product.addcmul_(rows, ((radial - along) * inverse_norm).unsqueeze(1))


def passes_of(kernel: Kernel) -> KernelPasses:
    """How a bound kernel goes through a chunk."""
    return (KerbsPasses if type(kernel) is KerbsKernel else KernelPasses)(kernel)


def word_logits(logits: Tensor, table: SenseTable, rows: int | None = None) -> Tensor:
    """Log of the unnormalized probability of every word (Eq. 4), [M, n] -> [V, n]; of words with
    several senses ``rows`` at a time."""
    words = logits[table.senses[:, 0]]
    if not table.shared.numel():
        return words
    masses = []
    for at in slices(len(table.shared), rows or len(table.shared)):
        peak, shares, _ = _shared_senses(logits, table._replace(shared=table.shared[at]))
        masses.append(functools.reduce(torch.add, shares).log() + peak)
    return words.index_copy(0, table.shared, torch.cat(masses))


def _shared_senses(logits: Tensor, table: SenseTable) -> tuple[Tensor, list[Tensor], Tensor]:
    """Of the words with several senses: the largest logit, [U, n]; exp of the logits below it, K
    times [U, n], 0 where there is no sense; the senses' numbers, [K, U].

    Sense by sense: torch.compile would go along K, which is short, with a CPU's vectors.
    """
    numbers = table.senses[table.shared].t()  # a place without a sense repeats the first
    there = table.mask[table.shared].t().unsqueeze(2).to(logits.dtype)  # [K, U, 1]
    rows = [logits[number] for number in numbers]
    peak = functools.reduce(torch.maximum, rows)
    shares = [torch.exp(row - peak) * mask for row, mask in zip(rows, there, strict=True)]
    return peak, shares, numbers


def shared_words(
    passes: KernelPasses, x: Tensor, h_norm: Tensor, columns: Tensors, logits: Tensor,
    along: Part | None, table: SenseTable, log_mass: Tensor, mean: Tensor,
) -> None:  # fmt: skip
    """Of words with several senses the logsumexp over these, and the mean by P(m | word) of what
    ``passes.along_h`` gives: written into ``log_mass`` and ``mean``, [U, n] each."""
    peak, shares, numbers = _shared_senses(logits, table)
    total = functools.reduce(torch.add, shares)
    along = passes.along_h(x, logits, h_norm, columns) if along is None else along
    if isinstance(along, Tensor):
        parts = [share * along[number] for share, number in zip(shares, numbers, strict=True)]
        mean.copy_(functools.reduce(torch.add, parts) / total)
    else:
        mean.zero_()
    log_mass.copy_(peak + total.log())


ROWS = 64
"""Rows of X that :func:`_over_rows` takes at a time."""


class Normalizers(NamedTuple):
    """Sums over the senses of a chunk."""

    log_z: Tensor  # logsumexp of all logits, [n] (Eq. 5's denominator)
    mean: Tensor  # mean by P(m) of what ``passes.along_h`` gives, [n]
    alone: Tensor  # sum of the logits of words with one sense, [n]; with label smoothing
    along: Tensor  # sum over the same of what ``passes.along_h`` gives, [n]


def write_logits(
    passes: KernelPasses, x: Tensor, h_norm: Tensor, columns: Tensors, out: Tensor
) -> Tensor:
    """The logits of a chunk, or of some rows of it, written into ``out``."""
    return out.copy_(passes.logits(x, h_norm, columns))


def normalizers(
    passes: KernelPasses,
    x: Tensor,
    h_norm: Tensor,
    columns: Tensors,
    logits: Tensor,
    along: Part | None,
    table: SenseTable | None,
    rows: int,
) -> Normalizers:
    """Sums over the senses of a chunk.

    Args:
        passes: the kernel.
        x: products, [M, n].
        h_norm: norms of the context vectors, [n].
        columns: those of ``passes``.
        logits: what :func:`write_logits` gives, [M, n].
        along: what ``passes.along_h`` gives; None to find it, 0 where no gradient is wanted.
        table: senses of every word, for label smoothing; None without it.
        rows: senses that are summed up together, before all sums are.
    """
    along = passes.along_h(x, logits, h_norm, columns) if along is None else along
    parts = slices(len(x), rows)
    peak = torch.stack([_over_rows(torch.amax, logits[at]) for at in parts]).amax(0)
    alone = None if table is None else (table.place < 0).unsqueeze(1).to(logits.dtype)
    sums = []
    for at in parts:
        shares = exp(logits[at] - peak)
        total = _over_rows(torch.sum, shares)
        means = singles = within = torch.zeros_like(peak)
        if alone is not None:
            singles = _over_rows(torch.sum, logits[at] * alone[at])
        if isinstance(along, Tensor):
            means = _over_rows(torch.sum, shares * along[at])
            if along is logits:
                within = singles
            elif alone is not None:
                within = _over_rows(torch.sum, along[at] * alone[at])
        sums.append(torch.stack([total, means, singles, within]))
    total, means, singles, within = torch.stack(sums).sum(0)
    return Normalizers(peak + total.log(), means / total, singles, within)


def _over_rows(reduce: Callable[..., Tensor], values: Tensor) -> Tensor:
    """``torch.sum`` or ``torch.amax`` of [M, n] over M. Compiled, it goes through a few rows at a
    time, whose columns a CPU's cache holds."""
    whole = len(values) // ROWS * ROWS
    if not is_compiling() or whole == 0:
        return reduce(values, 0)
    parts = [reduce(values[:whole].unflatten(0, (-1, ROWS)), 1)]
    if whole < len(values):
        parts.append(reduce(values[whole:], 0, keepdim=True))
    return reduce(torch.cat(parts), 0)


def slices(size: int, most: int) -> list[slice]:
    """0 … size − 1, at most ``most`` in a slice."""
    return [slice(i, min(i + most, size)) for i in range(0, size, most)]


def gradients(
    passes: KernelPasses,
    x: Tensor,
    h_norm: Tensor,
    columns: Tensors,
    logits: Tensor,
    table: SenseTable | None,
    each: float,
    log_z: Tensor,
    log_mass: Tensor | None,
    weight: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradient of a chunk's loss, or of some rows of it, but for the target's senses.

    Args:
        passes, x, h_norm, columns: as of :func:`normalizers`.
        logits: the logits [M, n], in whose place P is written.
        table: as there; of its ``place`` the same rows.
        each: weight in the gradient of the logits of −P(m | its word) ÷ that of P(m).
        log_z: logsumexp of all logits, [n].
        log_mass: what :func:`shared_words` wrote, [U, n]; None where no word has several senses.
        weight: weight of P(m), [n].

    Returns:
        twice what ``passes.sense_gradients`` wants, [M].
    """
    grad = exp(logits - log_z)
    if table is not None:
        grad = grad - each * _within_words(logits, log_mass, table)
    p, *parts = passes.pull_back(grad * weight, x, logits, h_norm, columns)
    by_w, by_theta = (
        part.sum(1) if isinstance(part, Tensor) else x.new_zeros(len(x)) for part in parts
    )
    logits.copy_(p)
    return by_w, by_theta


def _within_words(logits: Tensor, log_mass: Tensor | None, table: SenseTable) -> Tensor:
    """P(m | its word), [M, n]."""
    if log_mass is None:
        return torch.ones_like(logits)
    own = log_mass[table.place.clamp_min(0)]
    return torch.where((table.place < 0).unsqueeze(1), 1.0, exp(logits - own))
