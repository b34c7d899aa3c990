"""Exact likelihood of words under a mixture of senses, without ever keeping tokens × senses.

    P(sense m) = exp(s_m) / Σ_{all senses k} exp(s_k)          Eq. 5
    P(word i)  = Σ_{m: L(m)=i} P(sense m)                      Eq. 4
    nll        = −log P(y) = logsumexp_k s_k − logsumexp_{m: L(m)=y} s_m

The work is done chunk by chunk in :mod:`fairseq_kerbs.likelihood.chunked`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Unpack

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, build_kernel, kernel_logits
from fairseq_kerbs.likelihood.backends.eager import Backend, word_logsumexp
from fairseq_kerbs.likelihood.chunked import (
    ChunkedNll,
    Evaluation,
    Gradients,
    NllKeywords,
    NllOptions,
    Products,
)
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
    **options: Unpack[NllKeywords],
) -> Tensor:
    """Exact negative log-likelihood of target words (Eq. 4, 5, 11), in nats.

    Args:
        h: context vectors, [N, d].
        w: sense embeddings, [M, d].
        theta: kernel parameters, [M].
        word_of_sense: the word of each sense, [M]; every word of 0 … V−1 has at least one.
        target: target words, [N].
        kernel: name of a kernel, or a kernel.
        table: senses of every word, where the caller has them already.
        options: ``ignore_index``, ``label_smoothing``, ``reduction`` and ``chunk_tokens``, as of
            :class:`.likelihood.chunked.NllKeywords`.

    Returns:
        A scalar, or [N] for "none": float32, or float64 where an input is float64.

    Raises:
        ValueError: shapes do not fit, an option is unknown, or a target is outside the vocabulary.
    """
    found = nll_with_evidence(
        h, w, theta, word_of_sense, target, kernel=kernel, table=table, **options
    )
    return found[0]


def nll_with_evidence(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    word_of_sense: Tensor,
    target: Tensor,
    *,
    kernel: str | Kernel = "kerbs",
    table: SenseTable | None = None,
    **options: Unpack[NllKeywords],
) -> tuple[Tensor, Tensor, Evidence]:
    """:func:`kerbs_nll` together with its by-products, which cost no further product.

    Returns:
        the loss; the plain nll of each token without smoothing, [N], detached; and what the batch
        says about the senses (Eq. 12–13), detached.
    """
    if table is None:
        vocab_size = int(word_of_sense.max()) + 1 if word_of_sense.numel() else 0
        table = build_sense_table(word_of_sense, vocab_size)
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
    settings = NllOptions(**options)
    check_options(target, len(h), len(table.senses), settings)
    fixed = (word_of_sense, target, table, build_kernel(kernel), settings)
    build = functools.partial(_SenseEvaluation, *fixed)
    loss, token_nll, joint = ChunkedNll.apply(build, settings, torch.is_grad_enabled(), h, w, theta)
    counted = target != settings.ignore_index
    senses = table.senses[torch.where(counted, target, 0)]
    return loss, token_nll, Evidence(-token_nll, senses, joint, counted)


class _SenseEvaluation(Evaluation):
    """Words as sums over their senses; beside loss and nll it finds P(s_t = m), [N, K]."""

    def __init__(
        self,
        word_of_sense: Tensor,
        target: Tensor,
        table: SenseTable,
        kernel: Kernel,
        options: NllOptions,
        h: Tensor,
        w: Tensor,
        theta: Tensor,
    ) -> None:
        super().__init__(target, len(table.senses), options)
        self.products = Products(h, w, theta, word_of_sense, table, kernel, options.chunk_tokens)
        self.dtype, self.chunks = self.products.dtype, self.products.chunks
        self.reads = (True, True, kernel.has_theta)
        self.widths = ((), (), (table.senses.shape[1],))

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
            gradients.add(rows, *backend.backward(saved, scale, gradients.sums))

        return (loss, nll, joint), backward

    def new_gradients(self, needs: Sequence[bool]) -> Gradients:
        return Gradients(self.products, needs)


def kerbs_log_probs(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    word_of_sense: Tensor,
    vocab_size: int,
    *,
    kernel: str | Kernel = "kerbs",
    table: SenseTable | None = None,
) -> Tensor:
    """Log-probabilities of all words (Eq. 4–5), differentiable.

    Where autograd is off this is :func:`score_words`, which is faster and needs less memory.

    Args:
        h: context vectors, [..., d].
        w, theta, word_of_sense, kernel, table: as of :func:`kerbs_nll`.
        vocab_size: number of words V.

    Returns:
        [..., V] in float32, or float64 where an input is float64; exp of it sums to 1.
    """
    if table is None:
        table = build_sense_table(word_of_sense, vocab_size)
    if not torch.is_grad_enabled():
        return score_words(h, w, theta, word_of_sense, table, kernel=kernel)[0]
    logits = kernel_logits(h, w, theta, kernel)  # [..., M]
    return word_logsumexp(logits, table) - logits.logsumexp(-1, keepdim=True)


@torch.no_grad()
def score_words(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    word_of_sense: Tensor,
    table: SenseTable,
    *,
    kernel: str | Kernel = "kerbs",
    backend: Backend | None = None,
) -> tuple[Tensor, Backend]:
    """Log-probabilities of all words without gradient: one product and one sweep a chunk.

    Args:
        h, w, theta, word_of_sense, table, kernel: as of :func:`kerbs_log_probs`.
        backend: what an earlier call with the same senses returned; saves preparing them again.

    Returns:
        [..., V] as of :func:`kerbs_log_probs`, and the backend with the senses prepared.
    """
    flat, words = h.reshape(-1, h.shape[-1]), len(table.senses)
    products = Products(flat, w, theta, word_of_sense, table, build_kernel(kernel), backend=backend)
    out = torch.empty(flat.shape[0], words, dtype=products.dtype, device=h.device)
    with torch.autocast(h.device.type, enabled=False):
        for rows in products.chunks:
            x = products.products(rows)  # [M, n]
            products.backend.log_probs(x, products.h_norm[rows], out[rows])
    return out.view(*h.shape[:-1], words), products.backend


def check_options(target: Tensor, tokens: int, vocab_size: int, options: NllOptions) -> None:
    """Raise a ValueError where a target is no word, or an option of a likelihood is unknown."""
    if target.shape != (tokens,):
        raise ValueError(f"`target` has shape {tuple(target.shape)}; it must be [N], N = {tokens}.")
    if options.reduction not in ("sum", "mean", "none"):
        raise ValueError(
            f"`reduction` is '{options.reduction}'; it must be 'sum', 'mean' or 'none'."
        )
    if not 0.0 <= options.label_smoothing < 1.0:
        raise ValueError(
            f"`label_smoothing` is {options.label_smoothing}; it must be within [0, 1)."
        )
    if target.device.type == "cpu" and target.numel():
        # on other devices an index error is raised by the gather itself, without a pause here
        used = target[target != options.ignore_index]
        if used.numel() and not 0 <= int(used.min()) <= int(used.max()) < vocab_size:
            raise ValueError(
                f"A target is outside the vocabulary of {vocab_size} words and is not "
                f"`ignore_index` ({options.ignore_index})."
            )
