"""What happens to a chunk of products between the matrix products of the likelihood, by kernel.

From the products X [M, n] of all senses with n context vectors, :meth:`Backend.forward` finds their
logsumexp and the logits of the target's senses; :meth:`Backend.backward` turns what was saved into
P = G·∂s/∂x [M, n], G the gradient of the logits, which the likelihood multiplies with W and h. What
is left are gradients by the norms and θ, sums over tokens that the caller keeps.

A sense is a row and a token a column, so that the senses of a word are whole rows, wherever they
lie. The classes here are plain torch: every dtype, every device, and the reference of the fused
ones (:mod:`.likelihood.backends.cpu`, :mod:`.likelihood.backends.triton`).
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import THETA_LIMIT, Kernel, kerbs_gain, safe_inverse, safe_norm
from fairseq_kerbs.kernels.base import polynomial
from fairseq_kerbs.senses import SenseTable

Tensors = tuple[Tensor, ...]
Kept = tuple[Any, ...]  # tensors and buffers

BENT = [0.4999999801, 0.3333333313, 0.1250006353, 0.0333333973]
BENT += [0.006941279401, 0.001190157391, 0.0001786452495, 2.255325601e-5]
"""r(z) = (z e^z − (e^z − 1))/z² for |z| ≤ 1 in float32: the polynomial through the Chebyshev nodes,
relative error 7e-8."""

BENT_SERIES = [1.0 / (math.factorial(k) * (k + 2)) for k in range(14)]
"""The same as its power series, for |z| ≤ ½ in float64."""


class Buffer:
    """A matrix of a chunk's size, which returns to its pool when nobody holds the buffer.

    Pages that are fresh for every chunk would cost a third of the time.
    """

    def __init__(self, pool: list[Tensor], like: Tensor) -> None:
        flat = pool.pop() if pool else like.new_empty(0)
        self._flat = flat if len(flat) >= like.numel() else like.new_empty(like.numel())
        self._pool, self.matrix = pool, self._flat[: like.numel()].view(like.shape)

    def __del__(self) -> None:
        self._pool.append(self._flat)


class Smoothing(NamedTuple):
    """Label smoothing over words: loss = target_weight·nll + uniform_weight·uniform_nll.

    G of a sense of word i: total·P(m) − uniform_weight·P(m | i) − target_weight·P(m | y)·1[i = y].
    """

    target_weight: float = 1.0  # 1 − ε − ε', the weight of the plain nll
    uniform_weight: float = 0.0  # ε' = ε/(V − 1), the weight of each word's −log P
    total: float = 1.0  # target_weight + V·ε'

    @classmethod
    def of(cls, epsilon: float, vocab_size: int) -> Smoothing:
        """Weights for smoothing by ε."""
        each = epsilon / max(1, vocab_size - 1)
        rest = 1.0 - epsilon - each
        return cls(rest, each, rest + vocab_size * each)


class Senses(NamedTuple):
    """What context vectors are scored against."""

    w: Tensor  # sense embeddings, [M, d]
    theta: Tensor  # kernel parameters, [M] (not read by kernels without one)
    word_of_sense: Tensor  # the word of each sense, [M]; all words of 0 … V−1 have one or more
    table: SenseTable  # senses of every word
    kernel: Kernel


class Target(NamedTuple):
    """The senses of each token's target word."""

    word: Tensor  # [n]
    senses: Tensor  # their numbers, [n, K]
    x: Tensor  # their products in the compute dtype, [n, K]
    logits: Tensor  # [n, K]; −∞ at padding
    kept: Tensors  # what else the backend wants of them, [n, K] each


class Saved(NamedTuple):
    """What forward finds in a chunk. :meth:`Backend.backward` uses it up: P lies where x did."""

    x: Tensor  # products, [M, n]
    h_norm: Tensor  # [n]
    normalizer: Tensor  # logsumexp over all senses, [n] (Eq. 5's denominator)
    uniform_nll: Tensor | None  # Σ_i −log P(word i) over all words, [n]; with label smoothing
    target: Target
    smoothing: Smoothing  # of the loss
    kept: Kept  # what else the backend wants


class Backend:
    """Any kernel in plain torch, in the compute dtype. Nothing changes after construction."""

    unit_contexts = False  # whether the products X are made with h/|h| instead of h
    buffers = 6  # matrices of a chunk's size in use at the same time
    cpu_buffer_bytes = 8 << 20  # one of them on a CPU, so that all are still near the caches

    def __init__(self, senses: Senses, dtype: torch.dtype) -> None:
        self.kernel = senses.kernel.bind(senses.w.shape[1])
        self.w_norm = safe_norm(senses.w.to(dtype)).squeeze(-1)  # [M]
        self.theta, self.table = senses.theta.to(dtype), senses.table
        self.word_of_sense = senses.word_of_sense
        self._pool: list[Tensor] = []

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether X may come, and P leave, in this dtype instead of the compute dtype."""
        return False

    def buffer(self, like: Tensor) -> Buffer:
        """Room for a matrix like this one."""
        return Buffer(self._pool, like)

    # ------------------------------------------------------------ all logits

    def logits(self, x: Tensor, h_norm: Tensor) -> tuple[Tensor, Kept]:
        """Logits [M, n], which last as long as the rest: what :meth:`backward_logits` wants."""
        value = self.kernel.value(x, h_norm, self.w_norm.unsqueeze(1), self.theta.unsqueeze(1))
        return (value.clone() if value is x else value), ()

    def backward_logits(
        self, grad: Tensor, x: Tensor, h_norm: Tensor, kept: Kept, sums: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Carry any gradient of the logits back.

        Args:
            grad: G, [M, n]; used up.
            x, h_norm: products, [M, n], over which P is written, and norms, [n].
            kept: what :meth:`logits` returned beside them; used up.
            sums: sums over tokens, [2, M], to which this chunk's are added.

        Returns:
            P = G·∂s/∂x, [M, n], and what :meth:`h_gradient` wants, [n].
        """
        w_norm, theta = self.w_norm.unsqueeze(1), self.theta.unsqueeze(1)
        partials = self.kernel.partials(x, h_norm, w_norm, theta)
        sums[0] += (grad * partials.w_norm).sum(1)
        sums[1] += (grad * partials.theta).sum(1)
        along_h = (grad * partials.h_norm).sum(0)
        return torch.mul(grad, partials.x, out=x), along_h

    # ------------------------------------------------------------ the protocol

    def forward(self, x: Tensor, h_norm: Tensor, target: Tensor, smoothing: Smoothing) -> Saved:
        """All that the loss of a chunk needs, from products [M, n], norms [n] and targets [n]."""
        logits, kept = self.logits(x, h_norm)
        uniform_nll = None
        own = self._target(x, h_norm, target)
        if smoothing.uniform_weight:
            words = word_logsumexp(logits, self.table, 0)  # [V, n]
            normalizer = words.logsumexp(0)
            uniform_nll = (normalizer - words).sum(0)
            kept = (logits, words, *kept)
        else:
            peak = logits.amax(0)
            numerator = logits.sub_(peak).exp_()
            total = numerator.sum(0)
            normalizer, kept = peak + total.log(), (numerator, total, *kept)
        return Saved(x, h_norm, normalizer, uniform_nll, own, smoothing, kept)

    def backward(self, saved: Saved, scale: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """P and ``along_h`` of a chunk as of :meth:`backward_logits`, for the gradient of its loss.

        ``scale`` is the gradient of the result by each token's loss, [n]; ``saved`` is used up.
        """
        smoothing = saved.smoothing
        if saved.uniform_nll is None:
            numerator, total, *kept = saved.kept
            grad = numerator.mul_(scale * smoothing.total / total)
        else:
            logits, words, *kept = saved.kept
            within = words.index_select(0, self.word_of_sense).neg_().add_(logits).exp_()  # [M, n]
            grad = logits.sub_(saved.normalizer).exp_().mul_(smoothing.total)
            grad.sub_(within, alpha=smoothing.uniform_weight).mul_(scale)
        p, along_h = self.backward_logits(grad, saved.x, saved.h_norm, tuple(kept), sums)
        return p, along_h + self._add_target(p, saved, scale, sums)

    def log_probs(self, x: Tensor, h_norm: Tensor, out: Tensor) -> None:
        """Log-probabilities of all words into ``out``, [n, V] (Eq. 4–5)."""
        logits, _kept = self.logits(x, h_norm)
        words = word_logsumexp(logits, self.table, 0)  # [V, n]
        torch.sub(words, words.logsumexp(0), out=words)
        out.copy_(words.t())

    def logits_of(self, senses: Tensor, rows: Tensor, h: Tensor) -> Tensor:
        """Logits [..., K] of some senses for each context vector h [..., d]: their numbers [..., K]
        and vectors ``rows`` [..., K, d]."""
        wide_h, rows = h.to(self.w_norm.dtype), rows.to(self.w_norm.dtype)
        h_norm = safe_norm(wide_h)
        contexts = self.kernel.map_contexts(wide_h)
        if self.unit_contexts:
            contexts = contexts * safe_inverse(h_norm)
        x = torch.einsum("...d,...kd->...k", contexts, rows)
        return self._target_logits(x, senses, h_norm)[0]

    def h_gradient(self, product: Tensor, along_h: Tensor, h: Tensor, h_norm: Tensor) -> Tensor:
        """Gradient by h, [n, d], from the product Pᵀ W [n, d] (overwritten) and ``along_h`` [n]."""
        by_contexts = self.kernel.map_contexts(product)
        return by_contexts.addcmul_(h * safe_inverse(h_norm).unsqueeze(1), along_h.unsqueeze(1))

    def sense_gradients(self, product: Tensor, w: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients by W [M, d] and θ [M] from the sum of all P h [M, d] (overwritten)."""
        along_w = (sums[0] * safe_inverse(self.w_norm)).unsqueeze(1)
        return product.addcmul_(w, along_w), sums[1]

    # ------------------------------------------------------------ the target's senses

    def _target(self, x: Tensor, h_norm: Tensor, word: Tensor) -> Target:
        senses, mask = self.table.senses[word], self.table.mask[word]
        tokens = torch.arange(len(word), device=word.device).unsqueeze(1)
        own = x[senses, tokens].to(self.w_norm.dtype)  # [n, K]
        logits, kept = self._target_logits(own, senses, h_norm.unsqueeze(1))
        return Target(word, senses, own, logits.masked_fill(~mask, -torch.inf), kept)

    def _add_target(self, p: Tensor, saved: Saved, scale: Tensor, sums: Tensor) -> Tensor:
        """Add the target's −target_weight·P(m | y) to P and ``sums``; its ``along_h`` [n]."""
        target, senses = saved.target, saved.target.senses
        weight = -saved.smoothing.target_weight * scale
        grad = target.logits.softmax(1) * weight.unsqueeze(1)  # [n, K], 0 at padding
        by_x, along_h, *parts = self._target_gradients(grad, target, saved.h_norm.unsqueeze(1))
        for total, part in zip(sums, parts, strict=True):
            total.index_add_(0, senses.flatten(), part.flatten())
        tokens = torch.arange(p.shape[1], device=p.device).unsqueeze(1)
        p.view(-1).index_add_(0, (senses * p.shape[1] + tokens).flatten(), by_x.flatten())
        return along_h.sum(1)

    def _target_logits(self, x: Tensor, senses: Tensor, h_norm: Tensor) -> tuple[Tensor, Tensors]:
        return self.kernel.value(x, h_norm, self.w_norm[senses], self.theta[senses]), ()

    def _target_gradients(self, grad: Tensor, target: Target, h_norm: Tensor) -> Tensors:
        """G [n, K] times ∂s/∂x, times what ``along_h`` sums, and times what the two sums sum."""
        w_norm, theta = self.w_norm[target.senses], self.theta[target.senses]
        return tuple(grad * part for part in self.kernel.partials(target.x, h_norm, w_norm, theta))


class InnerProductBackend(Backend):
    """s = x: nothing to compute in either direction."""

    buffers = 3

    def logits(self, x: Tensor, h_norm: Tensor) -> tuple[Tensor, Kept]:
        logits = self.buffer(x)
        return logits.matrix.copy_(x), (logits,)

    def backward_logits(
        self, grad: Tensor, x: Tensor, h_norm: Tensor, kept: Kept, sums: Tensor
    ) -> tuple[Tensor, Tensor]:
        return x.copy_(grad), torch.zeros_like(h_norm)


class KerbsBackend(Backend):
    """The KerBS kernel (Eq. 9) as s = |h||w| a E with E = e^z − 1, z = −θc, a = −g(θ)/θ.

    θ = 0 stands for 1e-12 (1e-30 in float64) here: that near, the kernel is h·w to the last bit,
    and the large a meets an E that is exact for tiny arguments.

    With P = G·∂s/∂x = G·g·(E + 1), homogeneity in |h| and |w| gives the gradients along h and w
    from Σ G s = Σ |h||w| a G E, and dθ from the same sums, with a' = da/dθ:

        h·dh = Σ_m G s,    w·dW = Σ_n G s,    dθ = |w| a' Σ_n |h| G E + w·(P h)/θ

    The last cancels for small θ ("curved" senses). There

        dθ = −|w| (g'/θ · Σ_n |h| G E + g · Σ_n |h| G c² r(z)),   r(z) = (z e^z − E)/z²

    The two sums over tokens are Σ_n |h| G E, and Σ_n |h| G c² r(z), read of curved senses only.

    Attributes, [M] each: ``inverse_norm`` 1/|w|, or 0; ``minus_theta`` −θ; ``radius`` a|w|;
    ``gain`` g(θ); ``curved`` where |θ| is small.
    """

    unit_contexts = True
    buffers = 4

    def __init__(self, senses: Senses, dtype: torch.dtype) -> None:
        super().__init__(senses, dtype)
        wide = dtype == torch.float64
        tiny, limit = (1e-30, 0.5) if wide else (1e-12, 1.0)
        self._polynomial = BENT_SERIES if wide else BENT
        bounded = self.theta.clamp(-THETA_LIMIT, THETA_LIMIT).double()
        safe = torch.where(bounded.abs() < tiny, tiny, bounded)
        gain, slope = kerbs_gain(bounded)
        self.inverse_norm = safe_inverse(self.w_norm)
        self.minus_theta, self.gain = -safe.to(dtype), gain.to(dtype)
        self._a = (-gain / safe).to(dtype)
        self.radius = self._a * self.w_norm
        self.curved = bounded.abs() < limit  # [M]
        sums = ~self.curved & (self.theta.abs() <= THETA_LIMIT)
        by_first = torch.where(self.curved, -slope / safe, (gain / safe - slope) / safe)
        self._by_first = torch.where(self.curved | sums, by_first, 0.0).to(dtype)
        self._by_product = torch.where(sums, 1.0 / safe, 0.0).to(dtype)

    @functools.cached_property
    def _curved_rows(self) -> Tensor | slice:
        found = self.curved.nonzero().flatten()
        return slice(None) if len(found) == len(self.theta) else found

    def logits(self, x: Tensor, h_norm: Tensor) -> tuple[Tensor, Kept]:
        e, logits = self.buffer(x), self.buffer(x)
        torch.mul(x, (self.inverse_norm * self.minus_theta).unsqueeze(1), out=e.matrix).expm1_()
        torch.mul(e.matrix, self.radius.unsqueeze(1), out=logits.matrix).mul_(h_norm)
        return logits.matrix, (e, logits)

    def backward_logits(
        self, grad: Tensor, x: Tensor, h_norm: Tensor, kept: Kept, sums: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = self._curved_rows
        curved = x[rows]
        buffers = [self.buffer(curved) for _ in range(3)]
        cosine, z, bent = (buffer.matrix for buffer in buffers)
        torch.mul(curved, self.inverse_norm[rows].unsqueeze(1), out=cosine)
        torch.mul(cosine, self.minus_theta[rows].unsqueeze(1), out=z)
        polynomial(z, self._polynomial, bent).mul_(cosine).mul_(cosine).mul_(grad[rows])
        sums[1, rows] += bent @ h_norm
        grad_e = kept[0].matrix.mul_(grad)
        along_h = self.radius @ grad_e  # [n]: Σ_m G s / |h|
        sums[0] += grad_e @ h_norm
        return torch.add(grad, grad_e, out=x).mul_(self.gain.unsqueeze(1)), along_h

    def _target_logits(self, x: Tensor, senses: Tensor, h_norm: Tensor) -> tuple[Tensor, Tensors]:
        cosine = x * self.inverse_norm[senses]
        e = (cosine * self.minus_theta[senses]).expm1()
        return e * self.radius[senses] * h_norm, (cosine, e)

    def _target_gradients(self, grad: Tensor, target: Target, h_norm: Tensor) -> Tensors:
        (cosine, e), senses = target.kept, target.senses
        bent = polynomial(cosine * self.minus_theta[senses], self._polynomial) * cosine.square()
        by_h, by_x = grad * h_norm, grad * self.gain[senses] * (1.0 + e)
        return by_x, grad * e * self.radius[senses], by_h * e, by_h * bent

    def h_gradient(self, product: Tensor, along_h: Tensor, h: Tensor, h_norm: Tensor) -> Tensor:
        return _with_radial(product, h, safe_inverse(h_norm), along_h)

    def sense_gradients(self, product: Tensor, w: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        from_product = torch.einsum("md,md->m", product, w) * self._by_product
        bent = torch.where(self.curved, sums[1] * self.gain, 0.0)
        by_theta = self.w_norm * (self._by_first * sums[0] - bent) + from_product
        return _with_radial(product, w, self.inverse_norm, self._a * sums[0]), by_theta


def _with_radial(product: Tensor, rows: Tensor, inverse_norm: Tensor, radial: Tensor) -> Tensor:
    """Replace the component of ``product`` [·, d] along ``rows`` [·, d] by ``radial`` [·].

    The zero vector has no direction: its product stays whole.
    """
    along = torch.einsum("id,id->i", product, rows) * inverse_norm
    return product.addcmul_(rows, ((radial - along) * inverse_norm).unsqueeze(1))


def word_logsumexp(logits: Tensor, table: SenseTable, dim: int = -1) -> Tensor:
    """Sum exp(logits) over the senses of each word, in the log: M entries along ``dim`` become V.

    ``logits`` are [..., M], or [M, n] with ``dim`` 0. Each word is scaled by its own largest sense,
    so that improbable words keep their precision.
    """
    if table.senses.shape[1] == 1:
        return logits.index_select(dim, table.senses[:, 0])
    slots = logits.index_select(dim, table.senses.flatten()).unflatten(dim, table.senses.shape)
    mask = table.mask if dim else table.mask.unsqueeze(2)
    return slots.masked_fill_(~mask, -torch.inf).logsumexp(1 if dim == 0 else -1)
