"""Exact likelihood of words under a mixture of senses, without ever keeping tokens × senses.

    P(sense m) = exp(s_m) / Σ_{all senses k} exp(s_k)          Eq. 5
    P(word i)  = Σ_{m: L(m)=i} P(sense m)                      Eq. 4
    nll        = −log P(y) = logsumexp_k s_k − logsumexp_{m: L(m)=y} s_m

The work is done chunk by chunk in :mod:`fairseq_kerbs.likelihood.chunked`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, build_kernel, kernel_logits
from fairseq_kerbs.likelihood.backends.eager import ChunkPasses
from fairseq_kerbs.likelihood.chunked import ChunkedNll, NllOptions, Products
from fairseq_kerbs.senses import Evidence, SenseTable, build_sense_table


def kerbs_nll(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    word_of_sense: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "sum",
    kernel: str | Kernel = "kerbs",
    table: SenseTable | None = None,
    chunk_tokens: int | None = None,
) -> Tensor:
    """Exact negative log-likelihood of target words (Eq. 4, 5, 11), in nats.

    Args:
        h: context vectors, [N, d].
        w: sense embeddings, [M, d].
        theta: kernel parameters, [M].
        word_of_sense: owner of each sense, [M]; every word of 0 … V−1 owns at least one.
        target: target words, [N].
        ignore_index: targets with this value give no loss and no gradient.
        label_smoothing: ε ≥ 0; the loss of a token is (1 − ε − ε')·nll + ε' Σ_i −log P(word i)
            with ε' = ε/(V − 1), as fairseq's label smoothing.
        reduction: "sum", "mean" (over tokens that count) or "none" ([N], 0 where ignored).
        kernel: name of a kernel, or a kernel.
        table: senses of every word, where the caller has them already.
        chunk_tokens: tokens in one chunk; by default what
            :func:`fairseq_kerbs.likelihood.chunked.chunk_tokens` finds right.

    Returns:
        A scalar, or [N] for "none": float32, or float64 where an input is float64.

    Raises:
        ValueError: shapes do not fit, an option is unknown, or a target is outside the vocabulary.
    """
    loss, _, _ = nll_with_evidence(
        h,
        w,
        theta,
        word_of_sense,
        target,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
        kernel=kernel,
        table=table,
        chunk_tokens=chunk_tokens,
    )
    return loss


def nll_with_evidence(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    word_of_sense: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "sum",
    kernel: str | Kernel = "kerbs",
    table: SenseTable | None = None,
    chunk_tokens: int | None = None,
) -> tuple[Tensor, Tensor, Evidence]:
    """:func:`kerbs_nll` together with its by-products, which cost no further product.

    Returns:
        the loss; the plain nll of each token without smoothing, [N], detached; and what the batch
        says about the senses (Eq. 12–13), detached.
    """
    if table is None:
        vocab_size = int(word_of_sense.max()) + 1 if word_of_sense.numel() else 0
        table = build_sense_table(word_of_sense, vocab_size)
    _check(h, w, theta, word_of_sense, target, table, ignore_index, label_smoothing, reduction)
    options = NllOptions(
        build_kernel(kernel), ignore_index, label_smoothing, chunk_tokens, torch.is_grad_enabled()
    )
    loss, token_nll, joint = ChunkedNll.apply(
        h, w, theta, word_of_sense, target, table, options, reduction
    )
    counted = target != ignore_index
    senses = table.senses[torch.where(counted, target, 0)]
    return loss, token_nll, Evidence(-token_nll, senses, joint, counted)


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
        w: sense embeddings, [M, d].
        theta: kernel parameters, [M].
        word_of_sense: owner of each sense, [M].
        vocab_size: number of words V.
        kernel: name of a kernel, or a kernel.
        table: senses of every word, where the caller has them already.

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
    passes: ChunkPasses | None = None,
) -> tuple[Tensor, ChunkPasses]:
    """Log-probabilities of all words without gradient: one product and one sweep a chunk.

    Args:
        h: context vectors, [..., d].
        w: sense embeddings, [M, d].
        theta: kernel parameters, [M].
        word_of_sense: owner of each sense, [M].
        table: senses of every word.
        kernel: name of a kernel, or a kernel.
        passes: what an earlier call with the same senses returned; saves preparing them again.

    Returns:
        [..., V] as of :func:`kerbs_log_probs`, and the prepared senses.
    """
    flat = h.reshape(-1, h.shape[-1])
    products = Products(flat, w, theta, word_of_sense, table, build_kernel(kernel), passes=passes)
    words = table.senses.shape[0]
    out = torch.empty(flat.shape[0], words, dtype=products.dtype, device=h.device)
    with torch.autocast(h.device.type, enabled=False):
        for rows in products.chunks:
            x = products.products(rows)  # [M, n]
            products.passes.log_probs(x, products.h_norm[rows], out[rows])
    return out.view(*h.shape[:-1], words), products.passes


def word_logsumexp(logits: Tensor, table: SenseTable) -> Tensor:
    """Sum exp(logits) over the senses of each word, in the log: [..., M] -> [..., V].

    Each word is scaled by its own largest sense, so that improbable words keep their precision.
    """
    if table.senses.shape[1] == 1:
        return logits.index_select(-1, table.senses[:, 0])
    slots = logits[..., table.senses]  # [..., V, K]
    return slots.masked_fill(~table.mask, -torch.inf).logsumexp(-1)


def _check(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    word_of_sense: Tensor,
    target: Tensor,
    table: SenseTable,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> None:
    if h.dim() != 2 or w.dim() != 2 or h.shape[1] != w.shape[1]:
        raise ValueError(
            f"h has shape {tuple(h.shape)} and w {tuple(w.shape)}; they must be [N, d] and [M, d]."
        )
    if theta.shape != w.shape[:1] or word_of_sense.shape != w.shape[:1]:
        raise ValueError(
            f"theta {tuple(theta.shape)} and word_of_sense {tuple(word_of_sense.shape)} must both "
            f"be [M] with M = {w.shape[0]}, the number of senses."
        )
    if target.shape != h.shape[:1]:
        raise ValueError(
            f"target has shape {tuple(target.shape)}; it must be [N], N = {h.shape[0]}."
        )
    check_options(target, table.senses.shape[0], ignore_index, label_smoothing, reduction)


def check_options(
    target: Tensor, vocab_size: int, ignore_index: int, label_smoothing: float, reduction: str
) -> None:
    """Raise a ValueError where a target is no word, or an option of a likelihood is unknown."""
    if reduction not in ("sum", "mean", "none"):
        raise ValueError(f"reduction is '{reduction}'; it must be 'sum', 'mean' or 'none'.")
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing is {label_smoothing}; it must be within [0, 1).")
    if target.device.type == "cpu" and target.numel():
        # on other devices an index error is raised by the gather itself, without a pause here
        used = target[target != ignore_index]
        if used.numel() and not 0 <= int(used.min()) <= int(used.max()) < vocab_size:
            raise ValueError(
                f"A target is outside the vocabulary of {vocab_size} words and is not "
                f"ignore_index ({ignore_index})."
            )
