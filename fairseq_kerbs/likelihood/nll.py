"""Exact likelihood of words under a mixture of senses, without a matrix of all tokens × senses.

    P(sense m) = exp(s_m) / Σ_{all senses k} exp(s_k)          Eq. 5
    P(word i)  = Σ_{m: L(m)=i} P(sense m)                      Eq. 4
    nll        = −log P(y) = logsumexp_k s_k − logsumexp_{m: L(m)=y} s_m

Matrix products use the dtype of the inputs, or that of autocast. Everything else is computed in
float32, or float64 if an input is float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_kerbs import torch_compat
from fairseq_kerbs.kernels import Kernel, build_kernel, check_inputs, compute_dtype, kernel_logits
from fairseq_kerbs.kernels.autograd import link_of
from fairseq_kerbs.kernels.prepared import product_dtype
from fairseq_kerbs.likelihood.chunks import Smoothing, chunk_size
from fairseq_kerbs.likelihood.custom_operator import Nll, OperatorSettings, Request, kernel_key
from fairseq_kerbs.likelihood.passes import word_logits
from fairseq_kerbs.senses import SenseTable, TargetProbabilities, build_sense_table


class SenseParameters(NamedTuple):
    """Senses with their parameters, and the kernel that scores context vectors with them."""

    w: Tensor  # sense embeddings, [M, d]
    theta: Tensor  # kernel parameters, [M], ignored by kernels without one
    table: SenseTable  # senses of each word
    kernel: Kernel


@dataclass(frozen=True)
class NllOptions:
    """Options of a likelihood.

    With label smoothing ε, as in fairseq, the loss of a token is

        (1 − ε − ε')·nll − ε' Σ_i log P(word i),    ε' = ε/(V − 1)

    The mean of no target is 0, where ``torch.nn.functional.cross_entropy`` has NaN.

    Raises:
        ValueError: there is no such reduction, ε is outside [0, 1), or the ignored index is no
            integer.
    """

    ignore_index: int = -100  # targets with this value are ignored
    label_smoothing: float = 0.0  # ε
    reduction: str = "sum"  # or "mean" over the targets that are not ignored, or "none"
    compile: bool = True  # allow ``torch.compile``

    def __post_init__(self) -> None:
        if not isinstance(self.ignore_index, (int, np.integer)):
            raise ValueError(
                f"`ignore_index` is {self.ignore_index!r}; it must be an integer. One that is no "
                "word, such as -100, ignores nothing else."
            )
        if self.reduction not in ("sum", "mean", "none"):
            raise ValueError(
                f"`reduction` is '{self.reduction}'; it must be 'sum', 'mean' or 'none'."
            )
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(
                f"`label_smoothing` is {self.label_smoothing}; it must be within [0, 1)."
            )

    def smoothing_weights(self, vocab_size: int) -> Smoothing:
        """Weights of the nll and of each word's −log P in the loss of a token."""
        each = self.label_smoothing / max(1, vocab_size - 1)
        return Smoothing(nll=1.0 - self.label_smoothing - each, word=each)


def check_target(target: Tensor, h: Tensor) -> None:
    """Raise a ValueError unless ``target`` is int64 [N] on the device of ``h`` [N, …]."""
    shape = h.shape[:1]
    if target.shape != shape or target.dtype != torch.int64 or target.device != h.device:
        given = _described(target.shape, target.dtype, target.device)
        needed = _described(shape, torch.int64, h.device)
        raise ValueError(f"`target` is {given}; it must be {needed}, with indices of words.")


def _described(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> str:
    """Shape, dtype and device of a tensor in a sentence."""
    return f"{dtype} {list(shape)} on {device}"


# the equation's symbols, and options by name, as torch.nn.functional.cross_entropy has them
def kerbs_nll(  # noqa: PLR0913
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
        word_of_sense: word of each sense, int64 [M]. Each word 0 … V − 1 has at least one.
        target: target words, int64 [N].
        kernel: a kernel, or its name.
        ignore_index, label_smoothing, reduction, compile: see :class:`NllOptions`.

    Returns:
        A scalar, or [N] for "none" with 0 for ignored targets. float32, or float64 if an input is.

    Raises:
        ValueError: a shape, dtype or device does not fit, or an option or target is out of range.
    """
    _check_word_of_sense(word_of_sense, w)
    table = build_sense_table(word_of_sense, int(word_of_sense.max()) + 1)
    options = NllOptions(ignore_index, label_smoothing, reduction, compile)
    senses = SenseParameters(w, theta, table, build_kernel(kernel))
    return nll_with_probabilities(h, senses, target, options)[0]


def _check_word_of_sense(word_of_sense: Tensor, w: Tensor) -> None:
    """Raise a ValueError unless there is a word for each of the senses w [M, d], int64 [M]."""
    if word_of_sense.shape != w.shape[:1] or not len(w):
        raise ValueError(
            f"`word_of_sense` has shape {tuple(word_of_sense.shape)}; it must be [M], M = {len(w)}."
        )
    if word_of_sense.dtype != torch.int64:
        raise ValueError(
            f"`word_of_sense` is {word_of_sense.dtype}; it must be torch.int64, with indices of "
            "words."
        )
    if word_of_sense.device != w.device:
        raise ValueError(
            f"`word_of_sense` is on {word_of_sense.device} and `w` on {w.device}; they must be on "
            "one device."
        )


def nll_with_probabilities(
    h: Tensor, senses: SenseParameters, target: Tensor, options: NllOptions
) -> tuple[Tensor, Tensor, TargetProbabilities]:
    """The loss of :func:`kerbs_nll`, and what Eq. 12–13 need, without further products.

    Args:
        h: context vectors, [N, d].
        senses: senses with their parameters.
        target: target words, int64 [N].
        options: options of the likelihood.

    Returns:
        the loss, and detached from it the nll of each token without smoothing, [N], and the
        probabilities of the targets and of their senses.

    Raises:
        ValueError: see :func:`kerbs_nll`.
    """
    w, theta, table, kernel = senses
    check_inputs(h, w, theta)
    if h.dim() != 2:
        raise ValueError(f"`h` has shape {tuple(h.shape)}; it must be [N, d].")
    check_target(target, h)
    counted = target != options.ignore_index
    h = torch.where(counted.unsqueeze(1), h, 0.0)  # ignored contexts may be NaN or infinite
    weight = counted.to(compute_dtype(h, w, theta))
    words = torch.where(counted, target, 0)
    if not kernel.has_theta:
        theta = theta.detach()
    request = Request(
        gradients=torch.is_grad_enabled() and any(leaf.requires_grad for leaf in (h, w, theta)),
        unreduced=options.reduction == "none",
        settings=OperatorSettings(
            options.smoothing_weights(len(table.senses)),
            kernel_key(kernel.bind(w.shape[1])),
            product_dtype(h, w),
            options.compile,
        ),
    )
    link = link_of(h, w, theta)
    loss, token_nll, sense_prob = Nll.apply(request, link, weight, words, h, w, theta, *table)
    if options.reduction == "mean":
        loss = loss / counted.sum().clamp_min(1)
    return (
        loss,
        token_nll,
        TargetProbabilities(-token_nll, table.senses[words], sense_prob, counted),
    )


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

    Raises:
        ValueError: a shape, dtype or device does not fit, a word 0 … V − 1 has no sense, or no
            kernel has that name.
    """
    _check_word_of_sense(word_of_sense, w)
    table = build_sense_table(word_of_sense, vocab_size)
    return word_log_probs(h, SenseParameters(w, theta, table, build_kernel(kernel)))


def word_log_probs(h: Tensor, senses: SenseParameters) -> Tensor:
    """Log-probabilities of all words as in :func:`kerbs_log_probs`, [..., d] -> [..., V]."""
    w, theta, table, kernel = senses
    products = product_dtype(h, w)
    flat = h.reshape(-1, h.shape[-1])
    if torch.is_grad_enabled() or torch_compat.is_compiling():
        chunks = [flat]
    else:
        chunks = list(flat.split(chunk_size(len(flat), w, compiled=False)))
    scores = []
    for contexts in chunks:
        logits = kernel_logits(contexts, w, theta, kernel, products).t()  # [M, n]
        scores.append(word_logits(logits, table.senses, table.mask).log_softmax(0).t())
    return torch.cat(scores).reshape(*h.shape[:-1], len(table.senses))
