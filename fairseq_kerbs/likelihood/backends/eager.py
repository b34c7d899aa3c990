"""What happens to a chunk of products between the matrix products of the likelihood, by kernel.

The likelihood makes the products X [M, n] of all senses with a chunk of n context vectors and needs
from them the logsumexp over senses (:meth:`ChunkPasses.reduce`) and, once the gradient G [M, n] of
the logits is known, P = G·∂s/∂x [M, n], which it multiplies with W and h
(:meth:`ChunkPasses.pull_back`). What is left are gradients by the norms and θ, which are sums over
the chunk. Any kernel gets those from its partial derivatives; the inner product has none; the KerBS
kernel has a shorter way (:mod:`fairseq_kerbs.likelihood.backends.eager_kerbs`).

A sense is a row and a token a column, so that the senses of a word are whole rows, wherever they
lie. The classes here are plain torch: every dtype, every device, and the reference of the fused
ones (:mod:`.likelihood.backends.cpu`, :mod:`.likelihood.backends.triton`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, safe_inverse
from fairseq_kerbs.senses import SenseTable


class Smoothing(NamedTuple):
    """Label smoothing over words: G = total·P(m) − each·P(m | its word) − share·P(m | y)·1[L(m)=y].

    Attributes:
        share: 1 − ε − ε', the weight of the plain nll.
        each: ε' = ε/(V − 1), the weight of each word's −log P.
        total: share + V·ε'.
    """

    share: float
    each: float
    total: float

    @classmethod
    def of(cls, epsilon: float, vocab_size: int) -> Smoothing:
        """Weights for smoothing by ε."""
        each = epsilon / max(1, vocab_size - 1)
        share = 1.0 - epsilon - each
        return cls(share, each, share + vocab_size * each)


class ChunkPasses:
    """Any kernel over the chunks of one evaluation; sums gradients by |w| and θ as it goes.

    ``reduce`` or ``reduce_words`` comes first for every chunk, ``pull_back_targets`` second, which
    is made of ``pull_back`` or ``pull_back_words``, and ``add_own``.

    Args:
        kernel: the kernel.
        w_norm: norms of the sense embeddings, [M].
        theta: kernel parameters, [M].
        table: senses of every word.
        word_of_sense: owner of each sense, [M].

    Attributes:
        unit_contexts: whether the products X are made with h/|h| instead of h.
        product_dtypes: dtypes besides the compute dtype in which X may come and P leaves.
        buffers: matrices of a chunk's size in use at the same time.
        cpu_buffer_bytes: what one of them may take on a CPU and all still be near the caches.
    """

    unit_contexts = False
    product_dtypes: tuple[torch.dtype, ...] = ()
    buffers = 6
    cpu_buffer_bytes = 8 << 20

    def __init__(
        self, kernel: Kernel, w_norm: Tensor, theta: Tensor, table: SenseTable, owner: Tensor
    ) -> None:
        self.kernel, self.w_norm, self.theta = kernel, w_norm, theta
        self.table, self.owner = table, owner
        self._scratch: dict[str, Tensor] = {}
        self._kept: tuple[Tensor, ...] = ()  # what `reduce` leaves for `pull_back`
        self.reset()

    def reset(self) -> None:
        """Forget the sums, before another run over the chunks."""
        self._by_w_norm = torch.zeros_like(self.w_norm)
        self._by_theta = torch.zeros_like(self.w_norm)

    def _take(self, name: str, like: Tensor) -> Tensor:
        """A matrix of a chunk's size that is used again for the next chunk."""
        flat = self._scratch.get(name)
        if flat is None or flat.numel() < like.numel():
            self._scratch[name] = flat = like.new_empty(like.numel())
        return flat[: like.numel()].view(like.shape)

    # ------------------------------------------------------------ logits and their sums

    def logits(self, x: Tensor, h_norm: Tensor) -> Tensor:
        """Logits of a chunk, [M, n]; the caller may overwrite them.

        Args:
            x: products, [M, n].
            h_norm: norms of the context vectors, [n].
        """
        w_norm, theta = self.w_norm.unsqueeze(1), self.theta.unsqueeze(1)
        value = self.kernel.value(x, h_norm, w_norm, theta)
        return value.clone() if value is x else value

    def reduce(self, x: Tensor, h_norm: Tensor) -> Tensor:
        """Logsumexp over all senses, [n] (Eq. 5's denominator).

        Args:
            x: products, [M, n]; not to be changed before the pull back.
            h_norm: [n].
        """
        logits = self.logits(x, h_norm)
        peak = logits.amax(0)  # [n]
        numerator = logits.sub_(peak).exp_()
        total = numerator.sum(0)  # [n]
        self._kept = (numerator, total)
        return peak + total.log()

    def reduce_words(self, x: Tensor, h_norm: Tensor) -> tuple[Tensor, Tensor]:
        """Logsumexp over all senses, and Σ_i −log P(word i) over all words, both [n]."""
        logits = self.logits(x, h_norm)
        words = word_rows(logits, self.table)  # [V, n]
        normalizer = words.logsumexp(0)
        self._kept = (logits, words)
        return normalizer, (normalizer - words).sum(0)

    def log_probs(self, x: Tensor, h_norm: Tensor, out: Tensor) -> None:
        """Log-probabilities of all words into ``out``, [n, V] (Eq. 4–5)."""
        words = word_rows(self.logits(x, h_norm), self.table)  # [V, n]
        torch.sub(words, words.logsumexp(0), out=words)
        out.copy_(words.t())

    def own_logits(self, x: Tensor, senses: Tensor, h_norm: Tensor) -> Tensor:
        """Logits of some senses of each token alone: x and ``senses`` [n, K] -> [n, K]."""
        return self.kernel.value(x, h_norm.unsqueeze(1), self.w_norm[senses], self.theta[senses])

    # ------------------------------------------------------------ and back

    def pull_back(self, x: Tensor, h_norm: Tensor, normalizer: Tensor, scale: Tensor) -> Tensor:
        """Carry G = scale·P(m) back: ``x`` becomes P = G·∂s/∂x.

        Args:
            x: products, [M, n], since :meth:`reduce`.
            h_norm, normalizer: [n].
            scale: gradient of the result by each token's loss, [n].

        Returns:
            what :meth:`h_gradient` wants, [n].
        """
        numerator, total = self._kept
        return self._carry_back(numerator.mul_(scale / total), x, h_norm)

    def pull_back_words(
        self, x: Tensor, h_norm: Tensor, normalizer: Tensor, scale: Tensor, weights: Smoothing
    ) -> Tensor:
        """As :meth:`pull_back`, for G = scale·(total·P(m) − each·P(m | its word))."""
        logits, words = self._kept
        within = words.index_select(0, self.owner).neg_().add_(logits).exp_()  # [M, n]
        grad = logits.sub_(normalizer).exp_().mul_(weights.total)
        return self._carry_back(grad.sub_(within, alpha=weights.each).mul_(scale), x, h_norm)

    def _carry_back(self, grad: Tensor, x: Tensor, h_norm: Tensor) -> Tensor:
        """From G [M, n] (may be overwritten) to P in place of ``x``, and all sums."""
        w_norm, theta = self.w_norm.unsqueeze(1), self.theta.unsqueeze(1)
        partials = self.kernel.partials(x, h_norm, w_norm, theta)
        self._by_w_norm += (grad * partials.w_norm).sum(1)
        self._by_theta += (grad * partials.theta).sum(1)
        along_h = (grad * partials.h_norm).sum(0)
        torch.mul(grad, partials.x, out=x)
        return along_h

    def own_products(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Products with the senses of each token's own word, [M, n] and [n] -> [n, K].

        Returns:
            products in the compute dtype, sense numbers, and True at real entries, [n, K] each.
        """
        senses, mask = self.table.senses[target], self.table.mask[target]
        columns = torch.arange(len(target), device=target.device).unsqueeze(1)
        return x[senses, columns].to(self.w_norm.dtype), senses, mask

    def pull_back_targets(
        self,
        x: Tensor,
        h_norm: Tensor,
        normalizer: Tensor,
        scale: Tensor,
        weights: Smoothing,
        target: Tensor,
    ) -> Tensor:
        """Carry all of G = scale·(total·P(m) − each·P(m | its word) − share·P(m | y)·1[L(m)=y]).

        Args:
            x: products, [M, n], since :meth:`reduce` or :meth:`reduce_words`; becomes P.
            h_norm, normalizer: [n].
            scale: gradient of the result by each token's loss, [n].
            weights: of label smoothing; ``reduce_words`` came before where ``each`` is not 0.
            target: y, [n]; any word where ``scale`` is 0.

        Returns:
            what :meth:`h_gradient` wants, [n].
        """
        own_x, senses, mask = self.own_products(x, target)
        own = self.own_logits(own_x, senses, h_norm).masked_fill(~mask, -torch.inf)
        grad = own.softmax(1) * (-weights.share * scale).unsqueeze(1)  # [n, K], 0 at padding
        if weights.each:
            along_h = self.pull_back_words(x, h_norm, normalizer, scale, weights)
        else:
            along_h = self.pull_back(x, h_norm, normalizer, scale)
        return along_h + self.add_own(x, own_x, senses, grad, h_norm)

    def add_own(self, p: Tensor, x: Tensor, senses: Tensor, grad: Tensor, h_norm: Tensor) -> Tensor:
        """Carry a gradient of the targets' own senses back, too.

        Args:
            p: P of the chunk, [M, n], which receives theirs.
            x: their products, [n, K].
            senses: their numbers, [n, K].
            grad: gradient of their logits, [n, K]; 0 at padding.
            h_norm: [n].

        Returns:
            what :meth:`h_gradient` wants, [n].
        """
        w_norm, theta = self.w_norm[senses], self.theta[senses]
        partials = self.kernel.partials(x, h_norm.unsqueeze(1), w_norm, theta)
        self._by_w_norm.index_add_(0, senses.flatten(), (grad * partials.w_norm).flatten())
        self._by_theta.index_add_(0, senses.flatten(), (grad * partials.theta).flatten())
        add_at(p, senses, grad * partials.x)
        return (grad * partials.h_norm).sum(1)

    def h_gradient(self, product: Tensor, along_h: Tensor, h: Tensor, h_norm: Tensor) -> Tensor:
        """Gradient by h, [n, d], from the product Pᵀ W [n, d] (overwritten) and ``along_h`` [n]."""
        by_contexts = self.kernel.map_contexts(product)
        if by_contexts is not product:
            product.copy_(by_contexts)
        return product.addcmul_(h * safe_inverse(h_norm).unsqueeze(1), along_h.unsqueeze(1))

    def w_gradient(self, product: Tensor, w: Tensor) -> Tensor:
        """Gradient by W, [M, d], from the sum of all P h [M, d] (overwritten)."""
        inverse = safe_inverse(self.w_norm)
        return product.addcmul_(w, (self._by_w_norm * inverse).unsqueeze(1))

    def theta_gradient(self, product: Tensor, w: Tensor) -> Tensor:
        """Gradient by θ, [M]; ``product`` is the sum of all P h, not yet overwritten."""
        return self._by_theta


class InnerProductPasses(ChunkPasses):
    """s = x: nothing to compute in either direction."""

    buffers = 3

    def logits(self, x: Tensor, h_norm: Tensor) -> Tensor:
        return self._take("logits", x).copy_(x)

    def _carry_back(self, grad: Tensor, x: Tensor, h_norm: Tensor) -> Tensor:
        x.copy_(grad)
        return h_norm

    def add_own(self, p: Tensor, x: Tensor, senses: Tensor, grad: Tensor, h_norm: Tensor) -> Tensor:
        add_at(p, senses, grad)
        return h_norm

    def h_gradient(self, product: Tensor, along_h: Tensor, h: Tensor, h_norm: Tensor) -> Tensor:
        return product

    def w_gradient(self, product: Tensor, w: Tensor) -> Tensor:
        return product


def word_rows(logits: Tensor, table: SenseTable) -> Tensor:
    """Sum exp(logits) over the senses of each word, in the log: [M, n] -> [V, n]."""
    if table.senses.shape[1] == 1:
        return logits.index_select(0, table.senses[:, 0])
    slots = logits[table.senses]  # [V, K, n]
    return slots.masked_fill_(~table.mask.unsqueeze(2), -torch.inf).logsumexp(1)


def add_at(p: Tensor, senses: Tensor, values: Tensor) -> None:
    """p[senses[t, k], t] += values[t, k]."""
    tokens = torch.arange(p.shape[1], device=p.device).unsqueeze(1)
    flat = (senses * p.shape[1] + tokens).flatten()
    p.view(-1).index_add_(0, flat, values.flatten())
