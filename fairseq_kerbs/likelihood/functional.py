"""Exact likelihood of words under a mixture of senses, without ever keeping tokens × senses.

    P(sense m) = exp(s_m) / Σ_{all senses k} exp(s_k)          Eq. 5
    P(word i)  = Σ_{m: L(m)=i} P(sense m)                      Eq. 4
    nll        = −log P(y) = logsumexp_k s_k − logsumexp_{m: L(m)=y} s_m

The work is done chunk by chunk in :mod:`fairseq_kerbs.likelihood.chunked`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, build_kernel, kernel_logits
from fairseq_kerbs.likelihood.backends.eager import Backend, Senses
from fairseq_kerbs.likelihood.chunked import Evaluation, Gradients, Products
from fairseq_kerbs.senses import Evidence, SenseTable, build_sense_table


def kerbs_nll(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    word_of_sense: Tensor,
    target: Tensor,
    *,
    kernel: str | Kernel = "kerbs",
    table: SenseTable | None = None,
    **options: Any,
) -> Tensor:
    """Exact negative log-likelihood of target words (Eq. 4, 5, 11), in nats.

    Args:
        h: context vectors, [N, d].
        w, theta, word_of_sense: as of :class:`.likelihood.backends.eager.Senses`.
        target: target words, [N].
        kernel: name of a kernel, or a kernel.
        table: senses of every word, where the caller has them already.
        options: ``ignore_index``, ``label_smoothing``, ``reduction``, ``chunk_tokens`` and
            ``gradient_filter``, as of :class:`.likelihood.chunked.NllOptions`.

    Returns:
        A scalar, or [N] for "none": float32, or float64 where an input is float64.

    Raises:
        ValueError: shapes do not fit, an option is out of range, or a target is outside the
            vocabulary.
    """
    if table is None:
        vocab_size = int(word_of_sense.max()) + 1 if word_of_sense.numel() else 0
        table = build_sense_table(word_of_sense, vocab_size)
    senses = Senses(w, theta, word_of_sense, table, build_kernel(kernel))
    return nll_with_evidence(h, senses, target, **options)[0]


def nll_with_evidence(
    h: Tensor, senses: Senses, target: Tensor, **options: Any
) -> tuple[Tensor, Tensor, Evidence]:
    """:func:`kerbs_nll` together with its by-products, which cost no further product: the plain nll
    of each token without smoothing, [N], and the evidence on the senses (Eq. 12–13), detached."""
    w, theta, word_of_sense = senses[:3]
    if h.dim() != 2 or w.dim() != 2 or h.shape[1] != w.shape[1]:
        raise ValueError(
            f"`h` has shape {tuple(h.shape)} and `w` {tuple(w.shape)}; they must be [N, d] and "
            "[M, d]."
        )
    if theta.shape != w.shape[:1] or word_of_sense.shape != w.shape[:1]:
        raise ValueError(
            f"`theta` {tuple(theta.shape)} and `word_of_sense` {tuple(word_of_sense.shape)} must "
            f"both be [M] with M = {w.shape[0]}, the number of senses."
        )
    evaluation = _SenseEvaluation(h, senses, target, options)
    loss, token_nll, joint = evaluation.apply(h, w, theta)
    own = senses.table.senses[evaluation.target]
    return loss, token_nll, Evidence(-token_nll, own, joint, evaluation.counted)


class _SenseEvaluation(Evaluation):
    """Words as sums over their senses; beside loss and nll it finds P(s_t = m), [N, K]."""

    @torch.no_grad()
    def __init__(self, h: Tensor, senses: Senses, target: Tensor, options: dict[str, Any]) -> None:
        super().__init__(target, len(h), len(senses.table.senses), options)
        self.products = Products(h, senses, self.options.chunk_tokens)
        self.dtype, self.chunks = self.products.dtype, self.products.chunks
        self.reads = (True, True, senses.kernel.has_theta)
        self.widths = ((), (), (senses.table.senses.shape[1],))

    def chunk(self, rows: slice) -> tuple[tuple[Tensor, ...], Callable[[Tensor, Gradients], None]]:
        products, backend, weights = self.products, self.products.backend, self.smoothing
        saved = backend.forward(
            products.products(rows), products.h_norm[rows], self.target[rows], weights
        )
        logits = saved.target.logits
        # rounded alone, a word that is all but certain could get a probability above 1
        nll = (saved.normalizer - logits.logsumexp(1)).clamp_min(0.0)
        loss = weights.target_weight * nll
        if saved.uniform_nll is not None:
            loss = loss + weights.uniform_weight * saved.uniform_nll
        joint = (logits - saved.normalizer.unsqueeze(1)).exp().clamp_max(1.0)

        def backward(scale: Tensor, gradients: Gradients) -> None:
            gradients.add(rows, *backend.backward(saved, scale, gradients.sums), scale)

        return (loss, nll, joint), backward

    def new_gradients(self, needs: Sequence[bool]) -> Gradients:
        return Gradients(self.products, needs, self.options.gradient_filter)


def kerbs_log_probs(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    word_of_sense: Tensor,
    vocab_size: int,
    *,
    kernel: str | Kernel = "kerbs",
) -> Tensor:
    """Log-probabilities of all words (Eq. 4–5), differentiable.

    Where autograd is off this is :func:`score_words`, which is faster and needs less memory.

    Args:
        h: context vectors, [..., d].
        w, theta, word_of_sense, kernel: as of :func:`kerbs_nll`.
        vocab_size: number of words V.

    Returns:
        [..., V] in float32, or float64 where an input is float64; exp of it sums to 1.
    """
    table = build_sense_table(word_of_sense, vocab_size)
    senses = Senses(w, theta, word_of_sense, table, build_kernel(kernel))
    return word_log_probs(h, senses) if torch.is_grad_enabled() else score_words(h, senses)[0]


def word_log_probs(h: Tensor, senses: Senses) -> Tensor:
    """:func:`kerbs_log_probs` by autograd: all logits at once, each word scaled by its own largest
    sense, so that improbable words keep their precision."""
    logits = kernel_logits(h, senses.w, senses.theta, senses.kernel)  # [..., M]
    numbers, mask = senses.table
    words = logits.index_select(-1, numbers.flatten())  # [..., V], or several senses of each
    if numbers.shape[1] > 1:
        slots = words.unflatten(-1, numbers.shape)
        words = slots.masked_fill_(~mask, -torch.inf).logsumexp(-1)
    return words - logits.logsumexp(-1, keepdim=True)


@torch.no_grad()
def score_words(
    h: Tensor, senses: Senses, backend: Backend | None = None
) -> tuple[Tensor, Backend]:
    """:func:`kerbs_log_probs` without gradient: one product and one sweep a chunk.

    ``backend`` is what an earlier call with the same senses returned beside the [..., V]
    log-probabilities; it saves preparing them again.
    """
    flat, words = h.reshape(-1, h.shape[-1]), len(senses.table.senses)
    products = Products(flat, senses, backend=backend)
    out = torch.empty(flat.shape[0], words, dtype=products.dtype, device=h.device)
    with torch.autocast(h.device.type, enabled=False):
        for rows in products.chunks:
            x = products.products(rows)  # [M, n]
            products.backend.log_probs(x, products.h_norm[rows], out[rows])
    return out.view(*h.shape[:-1], words), products.backend
