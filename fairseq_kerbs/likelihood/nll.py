"""Exact likelihood of words under a mixture of senses, without a matrix of all tokens × senses.

    P(sense m) = exp(s_m) / Σ_{all senses k} exp(s_k)          Eq. 5
    P(word i)  = Σ_{m: L(m)=i} P(sense m)                      Eq. 4
    nll        = −log P(y) = logsumexp_k s_k − logsumexp_{m: L(m)=y} s_m

Matrix products use the dtype of the inputs, or that of autocast. Everything else is computed in
float32, or float64 if an input is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs import torch_compat
from fairseq_kerbs.kernels import Kernel, build_kernel, check_shapes, compute_dtype, kernel_logits
from fairseq_kerbs.kernels.prepared import product_dtype
from fairseq_kerbs.likelihood.chunks import chunk_size, kernel_key, run_chunks
from fairseq_kerbs.likelihood.passes import word_masses
from fairseq_kerbs.senses import Evidence, SenseTable, build_sense_table


class Senses(NamedTuple):
    """Senses with their parameters, and the kernel that scores context vectors with them."""

    w: Tensor  # sense embeddings, [M, d]
    theta: Tensor  # kernel parameters, [M], ignored by kernels without one
    table: SenseTable  # senses of each word
    kernel: Kernel


@dataclass(frozen=True)
class NllOptions:
    """Options of a likelihood. With label smoothing ε, as in fairseq, the loss of a token is
    (1 − ε − ε')·nll − ε' Σ_i log P(word i) with ε' = ε/(V − 1)."""

    ignore_index: int = -100  # targets with this value are ignored
    label_smoothing: float = 0.0  # ε
    reduction: str = "sum"  # or "mean" over the targets that are not ignored, or "none"
    compile: bool = True  # allow ``torch.compile``

    def __post_init__(self) -> None:
        if (value := self.reduction) not in ("sum", "mean", "none"):
            raise ValueError(f"`reduction` is '{value}'; it must be 'sum', 'mean' or 'none'.")
        if not 0.0 <= (epsilon := self.label_smoothing) < 1.0:
            raise ValueError(f"`label_smoothing` is {epsilon}; it must be within [0, 1).")

    def smoothing_weights(self, vocab_size: int) -> tuple[float, float]:
        """Weights of the nll and of each word's −log P in the loss of a token."""
        each = self.label_smoothing / max(1, vocab_size - 1)
        return 1.0 - self.label_smoothing - each, each


def check_target(target: Tensor, h: Tensor) -> None:
    """Raise a ValueError unless ``target`` is int64 [N] on the device of ``h`` [N, …]."""
    both = (target.shape, target.dtype, target.device), (h.shape[:1], torch.int64, h.device)
    if both[0] != both[1]:
        texts = (f"{dtype} {list(shape)} on {device}" for shape, dtype, device in both)
        raise ValueError("`target` is {}; it must be {}, with indices of words.".format(*texts))


def _shapes(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    table: Sequence[Tensor],
    target: Tensor,
    weight: Tensor,
    gradients: bool,
    *_: Any,
) -> tuple[Tensor, ...]:
    """Empty tensors with the shapes of the results of :func:`run_chunks`."""
    by_inputs = [value.shape if gradients else 0 for value in (h, w, theta)]
    sizes = weight.shape, weight.shape, (weight.shape[0], table[0].shape[1]), *by_inputs
    return tuple(weight.new_empty(size) for size in sizes)


_run: Callable[..., tuple[Tensor, ...]] = run_chunks
if torch_compat.COMPILES:  # torch.compile and torch.export do not trace into it
    _run = torch.library.custom_op(
        "fairseq_kerbs::nll",
        run_chunks,
        mutates_args=(),
        schema="(Tensor h, Tensor w, Tensor theta, Tensor[] table, Tensor target, Tensor weight, "
        "bool gradients, float[] smoothing, str kernel, ScalarType products, bool compiled) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    )
    _run.register_fake(_shapes)


class _Nll(torch.autograd.Function):
    """Losses of tokens, or their weighted sum with gradients from the forward pass.

    Gradients stay in the compute dtype until the loss scale of mixed precision multiplies them.
    With reduction "none" backward computes the logits again: four products instead of three.
    """

    @staticmethod
    def forward(
        ctx: Any,
        settings: tuple[Any, ...],
        unreduced: bool,
        gradients: bool,
        weight: Tensor,
        target: Tensor,
        h: Tensor,
        w: Tensor,
        theta: Tensor,
        *table: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        inputs = h, w, theta, table, target, weight  # ``settings`` are the last of run_chunks
        loss, nll, joint, *by_inputs = _run(*inputs, gradients and not unreduced, *settings)
        ctx.settings, ctx.unreduced = settings, unreduced
        ctx.dtypes = h.dtype, w.dtype, theta.dtype
        ctx.save_for_backward(*((h, w, theta, target, weight, *table) if unreduced else by_inputs))
        ctx.mark_non_differentiable(nll, joint)
        return loss if unreduced else loss.sum(), nll, joint

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        gradients, factor = ctx.saved_tensors, grad_loss
        if ctx.unreduced:
            h, w, theta, target, weight, *table = gradients
            factor = grad_loss.abs().sum().clamp_min(torch.finfo(grad_loss.dtype).tiny)
            weight = weight * (grad_loss / factor)
            gradients = _run(h, w, theta, table, target, weight, True, *ctx.settings)[3:]
        needs = ctx.needs_input_grad[5:]  # of h, w, θ and the table
        parts = zip(needs[:3], gradients, ctx.dtypes)
        narrowed = (_narrow(part, factor, dtype) if need else None for need, part, dtype in parts)
        return *[None] * 5, *narrowed, *[None] * len(needs[3:])


def _narrow(gradient: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Gradient times ``factor`` in ``dtype``. Only the factor, a loss scale, can cause overflow."""
    limits = torch.finfo(dtype)
    if limits.max < torch.finfo(gradient.dtype).max:
        gradient = gradient.clamp(limits.min, limits.max)
    return (gradient * factor).to(dtype)


def kerbs_nll(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    word_of_sense: Tensor,
    target: Tensor,
    *,
    kernel: str | Kernel = "kerbs",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "sum",
    compile: bool = True,
) -> Tensor:
    """Exact negative log-likelihood of target words (Eq. 4, 5, 11), in nats.

    Args:
        h: context vectors, [N, d].
        w: sense embeddings, [M, d].
        theta: kernel parameters, [M], ignored by kernels without one.
        word_of_sense: word of each sense, [M]. Each word 0 … V − 1 has at least one.
        target: target words, int64 [N].
        kernel: a kernel, or its name.
        ignore_index, label_smoothing, reduction, compile: see :class:`NllOptions`.

    Returns:
        A scalar, or [N] for "none" with 0 for ignored targets. float32, or float64 if an input is.

    Raises:
        ValueError: a shape, dtype or device does not fit, or an option or target is out of range.
    """
    if word_of_sense.shape != w.shape[:1] or not len(w):
        raise ValueError(
            f"`word_of_sense` has shape {tuple(word_of_sense.shape)}; it must be [M], M = {len(w)}."
        )
    table = build_sense_table(word_of_sense, int(word_of_sense.max()) + 1)
    options = NllOptions(ignore_index, label_smoothing, reduction, compile)
    return nll_with_evidence(h, Senses(w, theta, table, build_kernel(kernel)), target, options)[0]


def nll_with_evidence(
    h: Tensor, senses: Senses, target: Tensor, options: NllOptions
) -> tuple[Tensor, Tensor, Evidence]:
    """The loss of :func:`kerbs_nll`, and without further products, detached: the nll of each token
    without smoothing, [N], and the statistics of the senses for Eq. 12–13."""
    w, theta, table, kernel = senses
    check_shapes(h, w, theta)
    if h.dim() != 2:
        raise ValueError(f"`h` has shape {tuple(h.shape)}; it must be [N, d].")
    check_target(target, h)
    counted = target != options.ignore_index
    h = torch.where(counted.unsqueeze(1), h, 0.0)  # ignored contexts may be NaN or infinite
    weight, words = counted.to(compute_dtype(h, w, theta)), torch.where(counted, target, 0)
    key, products = kernel_key(kernel.bind(w.shape[1])), product_dtype(h, w)
    settings = options.smoothing_weights(len(table.senses)), key, products, options.compile
    inputs = h, w, theta if kernel.has_theta else theta.detach()
    gradients = torch.is_grad_enabled() and any(value.requires_grad for value in inputs)
    loss, token_nll, joint = _Nll.apply(
        settings, options.reduction == "none", gradients, weight, words, *inputs, *table
    )
    if options.reduction == "mean":
        loss = loss / counted.sum().clamp_min(1)
    return loss, token_nll, Evidence(-token_nll, table.senses[words], joint, counted)


def kerbs_log_probs(
    h: Tensor,
    w: Tensor,
    theta: Tensor,
    word_of_sense: Tensor,
    vocab_size: int,
    *,
    kernel: str | Kernel = "kerbs",
) -> Tensor:
    """Log-probabilities of all words (Eq. 4–5). With gradients, all logits are in memory at once.

    Args:
        h: context vectors, [..., d]. The other arguments are those of :func:`kerbs_nll`.
        vocab_size: number of words V.

    Returns:
        [..., V] in float32, or float64 if an input is float64.
    """
    table = build_sense_table(word_of_sense, vocab_size)
    return word_log_probs(h, Senses(w, theta, table, build_kernel(kernel)))


def word_log_probs(h: Tensor, senses: Senses) -> Tensor:
    """Log-probabilities of all words as in :func:`kerbs_log_probs`, [..., d] -> [..., V]."""
    (w, theta, table, kernel), flat = senses, h.reshape(-1, h.shape[-1])
    whole = torch.is_grad_enabled() or torch_compat.is_compiling()
    parts = [flat] if whole else flat.split(chunk_size(len(flat), w, compiled=False))
    logits = (kernel_logits(part, w, theta, kernel).t() for part in parts)  # [M, n]
    words = [word_masses(part, table.senses, table.mask).log_softmax(0).t() for part in logits]
    return torch.cat(words).reshape(*h.shape[:-1], len(table.senses))
