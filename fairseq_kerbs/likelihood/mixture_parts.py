"""The components of a mixture over chunks of tokens, and scores of all words.

Components with the same kernel are columns of one matrix of products, side by side: k·n columns for
k components and a chunk of n tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, compute_dtype, kernel_logits, safe_norm
from fairseq_kerbs.likelihood.backends.eager import Backend, Senses
from fairseq_kerbs.likelihood.chunked import Products, choose_backend, chunk_tokens
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


class MixturePart(NamedTuple):
    """The components of one group.

    Attributes:
        products: theirs with all words; within a chunk of tokens component after component.
        members: numbers of the components, [k].
        width: k.
    """

    products: Products
    members: Tensor
    width: int

    def columns(self, rows: slice) -> slice:
        """A chunk's columns among the group's."""
        return slice(rows.start * self.width, rows.stop * self.width)

    def begin(self, rows: slice) -> tuple[Backend, Tensor, Tensor]:
        """The backend, and a chunk's products [V, k·n] and norms [k·n]."""
        columns = self.columns(rows)
        x, h_norm = self.products.products(columns), self.products.h_norm[columns]
        return self.products.backend, x, h_norm


class MixtureParts:
    """All groups of a mixture over the same chunks of tokens.

    Args:
        contexts: h̃ of every component, [N, K, d].
        w: word vectors, [V, d].
        log_weights: log π, [N, K].
        groups: the components by kernel.
        thetas: θ of every group, [V] each.
        tokens: tokens in a chunk; None lets :func:`.chunked.chunk_tokens` choose.
        fused: whether backends that never have all logits will do.
        backends: those of every group from an earlier evaluation with the same words.
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
        backends: Sequence[Backend] | None = None,
    ) -> None:
        size, count, _ = contexts.shape
        self.dtype, device = compute_dtype(contexts, w), contexts.device
        self.log_weights = log_weights.to(self.dtype)
        words = torch.arange(w.shape[0], device=w.device)
        table = SenseTable(words.unsqueeze(1), torch.ones_like(words, dtype=torch.bool)[:, None])
        if backends is None:
            w_norm = safe_norm(w.to(self.dtype)).squeeze(-1)  # [V]
            backends = [
                choose_backend(Senses(kernel, w_norm, theta.to(self.dtype), table, words), fused)
                for (kernel, _), theta in zip(groups, thetas, strict=True)
            ]
        if tokens is None:
            itemsize = torch.finfo(self.dtype).bits // 8
            most = min(chunk_tokens(each, w.shape[0], device, itemsize) for each in backends)
            tokens = max(FEWEST_TOKENS, most // count)
        self.tokens, self.backends = tokens, list(backends)
        self.chunks = [slice(i, min(i + tokens, size)) for i in range(0, size, tokens)]
        self.parts = []
        for (kernel, members), theta, backend in zip(groups, thetas, backends, strict=True):
            index, width = torch.tensor(members, device=device), len(members)
            flat = self.by_chunk(contexts if len(groups) == 1 else contexts[:, index])
            step = tokens * width
            products = Products(flat, w, theta, words, table, kernel, step, backend=backend)
            self.parts.append(MixturePart(products, index, width))

    def prior(self, rows: slice) -> Tensor:
        """Log π of a chunk, [K, n]."""
        return self.log_weights[rows].t()

    def by_chunk(self, values: Tensor) -> Tensor:
        """[N, k, d] -> [N·k, d], within each chunk of tokens component after component."""
        if values.shape[1] == 1:
            return values.squeeze(1)
        parts = values.split(self.tokens)
        return torch.cat([part.transpose(0, 1).flatten(0, 1) for part in parts])

    def by_token(self, values: Tensor, width: int) -> Tensor:
        """The way back: [N·k, d] -> [N, k, d]."""
        if width == 1:
            return values.unsqueeze(1)
        parts = values.split(self.tokens * width)
        return torch.cat([part.unflatten(0, (width, -1)).transpose(0, 1) for part in parts])


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
    backends: Sequence[Backend] | None = None,
) -> tuple[Tensor, list[Backend]]:
    """:func:`mixture_log_probs` without gradient: one product a group and chunk.

    Args:
        contexts, w, log_weights, groups, thetas: as there.
        backends: what an earlier call with the same words returned; saves preparing them again.

    Returns:
        [..., V], and the backends with the words prepared.
    """
    flat = contexts.reshape(-1, *contexts.shape[-2:])
    flat_weights = log_weights.reshape(-1, contexts.shape[-2])
    mixture = MixtureParts(flat, w, flat_weights, groups, thetas, backends=backends)
    out = torch.empty(flat.shape[0], w.shape[0], dtype=mixture.dtype, device=w.device)
    with torch.autocast(w.device.type, enabled=False):
        for rows in mixture.chunks:
            prior, result = mixture.prior(rows), out[rows]
            for number, part in enumerate(mixture.parts):
                backend, x, h_norm = part.begin(rows)
                scores = out.new_empty(x.shape[1], x.shape[0])  # [k·n, V]
                backend.log_probs(x, h_norm, scores)
                scores.add_(prior[part.members].reshape(-1, 1))
                by_component = scores.view(part.width, -1, len(w))
                if number == 0:
                    torch.logsumexp(by_component, 0, out=result)
                else:
                    torch.logaddexp(result, by_component.logsumexp(0), out=result)
    return out.view(*log_weights.shape[:-1], len(w)), mixture.backends
