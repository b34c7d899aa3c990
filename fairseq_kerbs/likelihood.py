"""Exact likelihood of words under a mixture of senses, without ever keeping tokens × senses.

    P(sense m) = exp(s_m) / Σ_{all senses k} exp(s_k)          Eq. 5
    P(word i)  = Σ_{m: L(m)=i} P(sense m)                      Eq. 4
    nll        = −log P(y) = logsumexp_k s_k − logsumexp_{m: L(m)=y} s_m

Tokens are processed in chunks. The loss is a sum over tokens, so the gradient of a chunk is known
as soon as its logits are: it is multiplied into dh, dW and dθ at once (three matrix products in
all: logits, dh, dW) and the chunk's buffers are used again for the next one. With label smoothing
over words the gradient of the smoothed target needs, besides, the posterior of every sense inside
its own word: one gather a chunk.

Products run in the dtype of the inputs (that of autocast, where it is on), everything after them
in float32, or float64 for float64 inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.chunk_kernels import State, over_chunks
from fairseq_kerbs.kernels import Kernel, build_kernel, compute_dtype, kernel_logits, safe_norm
from fairseq_kerbs.senses import Evidence, SenseTable, build_sense_table

CHUNK_BYTES = 8 << 20
"""Size of one tokens × senses buffer in float32: a chunk's few buffers stay near the caches."""


@dataclass(frozen=True)
class NllOptions:
    """Settings of one evaluation; see :func:`kerbs_nll` for their meaning."""

    kernel: Kernel
    ignore_index: int = -100
    label_smoothing: float = 0.0
    chunk_tokens: int | None = None


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
        chunk_tokens: tokens in one chunk; by default what fits :data:`CHUNK_BYTES`.

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
    options = NllOptions(build_kernel(kernel), ignore_index, label_smoothing, chunk_tokens)
    loss, token_nll, joint = _ChunkedNll.apply(
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
    logits = kernel_logits(h, w, theta, kernel)  # [..., M]
    return word_logsumexp(logits, table) - logits.logsumexp(-1, keepdim=True)


def word_logsumexp(logits: Tensor, table: SenseTable) -> Tensor:
    """Sum exp(logits) over the senses of each word, in the log: [..., M] -> [..., V].

    Each word is scaled by its own largest sense, so that improbable words keep their precision.
    """
    if table.senses.shape[1] == 1:
        return logits.index_select(-1, table.senses[:, 0])
    slots = logits[..., table.senses]  # [..., V, K]
    return slots.masked_fill(~table.mask, -torch.inf).logsumexp(-1)


# --------------------------------------------------------------------- the chunked function


class _Plan:
    """Everything about one evaluation that does not depend on the chunk."""

    def __init__(
        self,
        h: Tensor,
        w: Tensor,
        theta: Tensor,
        word_of_sense: Tensor,
        target: Tensor,
        table: SenseTable,
        options: NllOptions,
    ) -> None:
        self.dtype = compute_dtype(h, w, theta)
        device = h.device.type
        if torch.is_autocast_enabled(device):
            self.product_dtype = torch.get_autocast_dtype(device)
        else:
            self.product_dtype = torch.promote_types(h.dtype, w.dtype)
        self.h, self.w = h.to(self.product_dtype), w.to(self.product_dtype)
        self.h_norm = safe_norm(h.to(self.dtype))  # [N, 1]
        self.w_norm = safe_norm(w.to(self.dtype)).squeeze(-1)  # [M]
        self.kernel = over_chunks(options.kernel, self.w_norm, theta.to(self.dtype))
        self.word_of_sense, self.table, self.options = word_of_sense, table, options
        self.counted = target != options.ignore_index  # [N]
        self.target = torch.where(self.counted, target, 0)
        tokens = options.chunk_tokens or max(16, CHUNK_BYTES // (4 * max(1, w.shape[0])))
        self.chunks = [
            slice(i, min(i + tokens, h.shape[0])) for i in range(0, h.shape[0], tokens)
        ]

    def logits(self, rows: slice) -> tuple[Tensor, State]:
        """Kernel logits of a chunk, [n, M], and what the kernel wants back with their gradient."""
        x = (self.h[rows] @ self.w.t()).to(self.dtype)  # [n, M]
        return self.kernel.logits(x, self.h_norm[rows])


class _Gradients:
    """Sums dh, dW and dθ over chunks."""

    def __init__(self, plan: _Plan, needs: tuple[bool, bool, bool]) -> None:
        self.plan, self.needs = plan, needs
        plan.kernel.reset()
        self.h = torch.zeros_like(plan.h, dtype=plan.dtype) if needs[0] else None
        # dθ of the KerBS kernel, too, is read off the product Pᵀ h
        self.w = torch.zeros_like(plan.w, dtype=plan.dtype) if needs[1] or needs[2] else None

    def add(self, rows: slice, state: State, grad_logits: Tensor) -> None:
        """Take in a chunk: the kernel's state and the gradient of its logits, [n, M]."""
        plan, h_norm = self.plan, self.plan.h_norm[rows]
        by_x, along_h = plan.kernel.pull_back(grad_logits, state, h_norm)
        by_x = by_x.to(plan.product_dtype)
        h = plan.h[rows]
        if self.h is not None:
            product = (by_x @ plan.w).to(plan.dtype)
            self.h[rows] = plan.kernel.h_gradient(product, along_h, h.to(plan.dtype), h_norm)
        if self.w is not None:
            if plan.product_dtype == plan.dtype:
                self.w.addmm_(by_x.t(), h)
            else:
                self.w += by_x.t() @ h

    def finish(self, dtypes: tuple[torch.dtype, ...]) -> tuple[Tensor | None, ...]:
        """Gradients of h, w and theta in their own dtypes; None where none is needed."""
        w, theta = self.plan.w.to(self.plan.dtype), None
        if self.needs[2] and self.w is not None:
            theta = self.plan.kernel.theta_gradient(self.w, w)
        if self.needs[1] and self.w is not None:
            self.w = self.plan.kernel.w_gradient(self.w, w)
        return tuple(
            None if gradient is None or not need else gradient.to(dtype)
            for gradient, need, dtype in zip(
                (self.h, self.w, theta), self.needs, dtypes, strict=True
            )
        )


def _token_terms(plan: _Plan, rows: slice, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """logsumexp over all senses [n, 1], plain nll [n], target posteriors and joints [n, K]."""
    target = plan.target[rows]
    senses, mask = plan.table.senses[target], plan.table.mask[target]  # [n, K]
    normalizer = logits.logsumexp(1, keepdim=True)  # [n, 1]
    own = logits.gather(1, senses).masked_fill(~mask, -torch.inf)
    word = own.logsumexp(1, keepdim=True)  # [n, 1]
    counted = plan.counted[rows]
    nll = torch.where(counted, (normalizer - word).squeeze(1), 0.0)
    joint = torch.where(counted.unsqueeze(1), (own - normalizer).exp(), 0.0)
    return normalizer, nll, (own - word).exp(), joint


def _smoothing(plan: _Plan) -> tuple[float, float]:
    """Weights (1 − ε − ε', ε') of the plain nll and of the sum over words."""
    epsilon, vocab_size = plan.options.label_smoothing, plan.table.senses.shape[0]
    if epsilon == 0.0:
        return 1.0, 0.0
    each = epsilon / max(1, vocab_size - 1)
    return 1.0 - epsilon - each, each


def _run_chunks(
    plan: _Plan, gradients: _Gradients | None, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Go through all chunks once.

    Args:
        plan: the evaluation.
        gradients: sums to add gradients to, or None.
        weight: [N] gradient of the result by each token's loss; None where all are 1.

    Returns:
        smoothed loss [N], plain nll [N], P(s_t = m) of the target's senses [N, K].
    """
    size, width = plan.h.shape[0], plan.table.senses.shape[1]
    loss = plan.h_norm.new_zeros(size)
    plain = plan.h_norm.new_zeros(size)
    joints = plan.h_norm.new_zeros(size, width)
    for rows in plan.chunks:
        logits, state = plan.logits(rows)
        normalizer, nll, posterior, joint = _token_terms(plan, rows, logits)
        plain[rows], joints[rows] = nll, joint
        share, each = _smoothing(plan)
        words = word_logsumexp(logits, plan.table) if each else None  # [n, V]
        loss[rows] = share * nll
        if words is not None:
            counted = plan.counted[rows]
            spread = words.shape[1] * normalizer.squeeze(1) - words.sum(1)
            loss[rows] += each * torch.where(counted, spread, 0.0)
        if gradients is not None:
            scale = plan.counted[rows].to(plan.dtype)
            if weight is not None:
                scale = scale * weight[rows]
            grad = _grad_logits(plan, rows, logits, normalizer, posterior, words)
            gradients.add(rows, state, grad.mul_(scale.unsqueeze(1)))
    return loss, plain, joints


def _grad_logits(
    plan: _Plan,
    rows: slice,
    logits: Tensor,
    normalizer: Tensor,
    posterior: Tensor,
    words: Tensor | None,
) -> Tensor:
    """d loss/d logits of a chunk, [n, M]; overwrites ``logits``.

    (share + each·V)·P(m) − share·P(m | word y)·1[L(m)=y] − each·P(m | word L(m))
    """
    share, each = _smoothing(plan)
    target = plan.target[rows]
    senses, mask = plan.table.senses[target], plan.table.mask[target]
    within = None
    if words is not None:
        within = (logits - words.index_select(1, plan.word_of_sense)).exp_()
    grad = logits.sub_(normalizer).exp_()
    if words is not None and within is not None:
        grad.mul_(share + each * words.shape[1]).sub_(within, alpha=each)
    return grad.scatter_add_(1, senses, -share * posterior)


class _ChunkedNll(torch.autograd.Function):
    """Loss whose gradient is ready when its value is; see the head of this file.

    For reduction "none" each token's loss meets its own gradient only in backward, where the
    logits are computed once more: four products instead of three.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        h: Tensor,
        w: Tensor,
        theta: Tensor,
        word_of_sense: Tensor,
        target: Tensor,
        table: SenseTable,
        options: NllOptions,
        reduction: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        plan = _Plan(h, w, theta, word_of_sense, target, table, options)
        needs = (
            ctx.needs_input_grad[0],
            ctx.needs_input_grad[1],
            ctx.needs_input_grad[2] and options.kernel.has_theta,
        )
        now = any(needs) and reduction != "none"
        gradients = _Gradients(plan, needs) if now else None
        with torch.autocast(h.device.type, enabled=False):
            loss, plain, joints = _run_chunks(plan, gradients, None)
        ctx.reduction, ctx.plan, ctx.needs = reduction, plan if any(needs) else None, needs
        ctx.dtypes = (h.dtype, w.dtype, theta.dtype)
        ctx.divisor = plan.counted.sum().clamp_min(1).to(plan.dtype)
        ctx.mark_non_differentiable(plain, joints)
        if gradients is not None:
            ctx.gradients, ctx.plan = gradients.finish(ctx.dtypes), None
        if reduction == "sum":
            loss = loss.sum()
        elif reduction == "mean":
            loss = loss.sum() / ctx.divisor
        return loss, plain, joints

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.reduction == "none":
            gradients = _Gradients(ctx.plan, ctx.needs)
            with torch.autocast(grad_loss.device.type, enabled=False):
                _run_chunks(ctx.plan, gradients, grad_loss)
            results = gradients.finish(ctx.dtypes)
        else:
            factor = grad_loss / ctx.divisor if ctx.reduction == "mean" else grad_loss
            results = tuple(
                None if gradient is None else (gradient * factor).to(gradient.dtype)
                for gradient in ctx.gradients
            )
        return (*results, None, None, None, None, None)


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
        raise ValueError(f"target has shape {tuple(target.shape)}; it must be [N], N = {h.shape[0]}.")
    if reduction not in ("sum", "mean", "none"):
        raise ValueError(f"reduction is '{reduction}'; it must be 'sum', 'mean' or 'none'.")
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(f"label_smoothing is {label_smoothing}; it must be within [0, 1).")
    if h.device.type == "cpu" and target.numel():
        # on other devices an index error is raised by the gather itself, without a pause here
        used = target[target != ignore_index]
        if used.numel() and not 0 <= int(used.min()) <= int(used.max()) < table.senses.shape[0]:
            raise ValueError(
                f"A target is outside the vocabulary of {table.senses.shape[0]} words and is not "
                f"ignore_index ({ignore_index})."
            )
