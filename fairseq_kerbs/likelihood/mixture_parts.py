"""The components of a mixture over chunks of tokens: products, passes, and scores of all words.

Components with the same kernel are columns of one matrix of products, side by side: k·n columns for
k components and a chunk of n tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, compute_dtype, kernel_logits, safe_norm
from fairseq_kerbs.likelihood.backends.eager import ChunkPasses
from fairseq_kerbs.likelihood.chunked import Gradients, Products, choose_passes, chunk_tokens
from fairseq_kerbs.senses import SenseTable

FEWEST_TOKENS = 8
"""Tokens in a chunk, however many words and components there are."""


class KernelGroup(NamedTuple):
    """Components that share their kernel, and θ where it has one.

    Attributes:
        kernel: the kernel, bound to the size of the vectors.
        components: their numbers, ascending.
    """

    kernel: Kernel
    components: tuple[int, ...]


def group_components(kernels: Sequence[Kernel], dim: int) -> tuple[KernelGroup, ...]:
    """Group components by kernel; each one whose kernel has a θ stands alone.

    Args:
        kernels: kernel of each component.
        dim: size d of the vectors.
    """
    groups: list[tuple[Kernel, list[int]]] = []
    for number, kernel in enumerate(kernels):
        bound = kernel.bind(dim)
        for other, members in groups:
            same = type(other) is type(bound) and vars(other) == vars(bound)
            if same and not bound.has_theta:
                members.append(number)
                break
        else:
            groups.append((bound, [number]))
    return tuple(KernelGroup(kernel, tuple(members)) for kernel, members in groups)


def by_chunk(values: Tensor, tokens: int) -> Tensor:
    """[N, k, …] -> [N·k, …], within each chunk of tokens component after component."""
    if values.shape[1] == 1:
        return values.squeeze(1)
    return torch.cat([part.transpose(0, 1).flatten(0, 1) for part in values.split(tokens)])


def by_token(values: Tensor, tokens: int, width: int) -> Tensor:
    """The way back: [N·k, d] -> [N, k, d]."""
    if width == 1:
        return values.unsqueeze(1)
    parts = values.split(tokens * width)
    return torch.cat(
        [part.unflatten(0, (width, len(part) // width)).transpose(0, 1) for part in parts]
    )


class MixturePart:
    """The components of one group: their products, passes and what a chunk leaves for its way back.

    Attributes:
        index: numbers of the components, [k].
        width: k.
        columns: the chunk's columns in the group's matrices.
        x: its products, [V, k·n].
        h_norm: norms of its context vectors, [k·n].
        joint: log(π_k p_k(v)), [V, k, n]; only with label smoothing.
        share: joint relative to the largest component, exponentiated, [V, k, n].
    """

    columns: slice
    x: Tensor | None
    h_norm: Tensor
    joint: Tensor
    share: Tensor

    def __init__(self, group: KernelGroup, products: Products, device: torch.device) -> None:
        self.products, self.passes = products, products.passes
        self.width = len(group.components)
        self.index = torch.tensor(group.components, device=device)

    def begin(self, rows: slice) -> Tensor:
        """Make the products of a chunk, [V, k·n]."""
        self.columns = slice(rows.start * self.width, rows.stop * self.width)
        self.h_norm = self.products.h_norm[self.columns]
        self.x = self.products.products(self.columns)
        return self.x

    def add_to(self, gradients: Gradients, along_h: Tensor) -> None:
        """Hand P, which ``x`` has become, over to the sums of gradients."""
        assert self.x is not None
        gradients.add(self.columns, self.x, along_h)
        self.x = None  # room for the next chunk's


class MixtureParts:
    """All groups of a mixture over the same chunks of tokens.

    Args:
        contexts: h̃ of every component, [N, K, d].
        w: word vectors, [V, d].
        log_weights: log π, [N, K].
        groups: the components by kernel.
        thetas: θ of every group, [V] each.
        tokens: tokens in a chunk; None lets :func:`chunk_tokens` choose.
        fused: whether passes without logits will do.
        passes: those of every group from an earlier evaluation with the same words.
    """

    def __init__(
        self,
        contexts: Tensor,
        w: Tensor,
        log_weights: Tensor,
        groups: Sequence[KernelGroup],
        thetas: Sequence[Tensor],
        *,
        tokens: int | None = None,
        fused: bool = True,
        passes: Sequence[ChunkPasses] | None = None,
    ) -> None:
        size, count, _ = contexts.shape
        self.dtype, device = compute_dtype(contexts, w), contexts.device
        self.log_weights = log_weights.to(self.dtype)
        words = torch.arange(w.shape[0], device=w.device)
        table = SenseTable(words.unsqueeze(1), torch.ones_like(words, dtype=torch.bool)[:, None])
        wide = [theta.to(self.dtype) for theta in thetas]
        if passes is None:
            w_norm = safe_norm(w.to(self.dtype)).squeeze(-1)  # [V]
            passes = [
                choose_passes(group.kernel, w_norm, theta, table, words, fused=fused)
                for group, theta in zip(groups, wide, strict=True)
            ]
        if tokens is None:
            itemsize = torch.finfo(self.dtype).bits // 8
            most = min(chunk_tokens(each, w.shape[0], device, itemsize) for each in passes)
            tokens = max(FEWEST_TOKENS, most // count)
        self.tokens, self.passes = tokens, list(passes)
        self.chunks = [slice(i, min(i + tokens, size)) for i in range(0, size, tokens)]
        self.parts = []
        for group, theta, own in zip(groups, wide, passes, strict=True):
            picked = contexts if len(groups) == 1 else contexts[:, list(group.components)]
            flat, width = by_chunk(picked, tokens), len(group.components)
            products = Products(
                flat, w, theta, words, table, group.kernel, tokens=tokens * width, passes=own
            )
            self.parts.append(MixturePart(group, products, device))

    def prior(self, rows: slice) -> Tensor:
        """Log π of a chunk, [K, n]."""
        return self.log_weights[rows].t()


def mixture_log_probs(
    contexts: Tensor,
    w: Tensor,
    log_weights: Tensor,
    groups: Sequence[KernelGroup],
    thetas: Sequence[Tensor],
) -> Tensor:
    """Log-probabilities of all words (Gao et al. 2019, Eq. 1), differentiable.

    Args:
        contexts: h̃ of every component, [..., K, d].
        w: word vectors, [V, d].
        log_weights: log π, [..., K].
        groups: the components by kernel.
        thetas: θ of every group, [V] each (not read by kernels without one).

    Returns:
        [..., V] in float32, or float64 where an input is float64; exp of it sums to 1.
    """
    found = []
    for group, theta in zip(groups, thetas, strict=True):
        index = list(group.components)
        scores = kernel_logits(contexts[..., index, :], w, theta, group.kernel).log_softmax(-1)
        found.append(scores + log_weights[..., index, None])  # [..., k, V]
    return torch.cat(found, -2).logsumexp(-2)


@torch.no_grad()
def score_mixture(
    contexts: Tensor,
    w: Tensor,
    log_weights: Tensor,
    groups: Sequence[KernelGroup],
    thetas: Sequence[Tensor],
    passes: Sequence[ChunkPasses] | None = None,
) -> tuple[Tensor, list[ChunkPasses]]:
    """:func:`mixture_log_probs` without gradient: one product a group and chunk.

    Args:
        contexts, w, log_weights, groups, thetas: as there.
        passes: what an earlier call with the same words returned; saves preparing them again.

    Returns:
        [..., V], and the prepared passes.
    """
    flat, flat_weights = (
        contexts.reshape(-1, *contexts.shape[-2:]),
        log_weights.reshape(-1, contexts.shape[-2]),
    )
    parts = MixtureParts(flat, w, flat_weights, groups, thetas, passes=passes)
    out = torch.empty(flat.shape[0], w.shape[0], dtype=parts.dtype, device=w.device)
    with torch.autocast(w.device.type, enabled=False):
        for rows in parts.chunks:
            prior, result = parts.prior(rows), out[rows]
            for number, part in enumerate(parts.parts):
                x = part.begin(rows)
                scores = out.new_empty(x.shape[1], x.shape[0])  # [k·n, V]
                part.passes.log_probs(x, part.h_norm, scores)
                scores.add_(prior[part.index].reshape(-1, 1))
                by_component = scores.view(part.width, -1, len(w))
                if number == 0:
                    torch.logsumexp(by_component, 0, out=result)
                else:
                    torch.logaddexp(result, by_component.logsumexp(0), out=result)
    return out.view(*log_weights.shape[:-1], len(w)), parts.passes
