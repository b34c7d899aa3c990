"""Exact likelihood of words under a mixture of softmaxes, without ever keeping tokens × words.

    p(v | h) = Σ_k π_k softmax_v(S_k(w_v, h̃_k))          Gao et al. 2019, Eq. 1

with word vectors w_v that all components share, a context vector h̃_k and a weight π_k for each
component, and a kernel S_k. K inner products are the mixture of softmaxes of Yang et al. 2018.

Tokens are processed in chunks by :mod:`fairseq_kerbs.likelihood.chunked`. Components with the same
kernel are columns of one matrix of products, side by side: k·n columns for k components and a chunk
of n tokens. With r_kv = π_k p_k(v) / p(v), the gradient of a target's plain nll is in every
component that of a nll of its own, times r_ky: the fused backends serve. Label smoothing gives
every word v the weight q_v:

    loss = Σ_v q_v · −log p(v),   R_k = Σ_v q_v r_kv
    ∂loss/∂s_ku = p_k(u) R_k − q_u r_ku,   ∂loss/∂log π_k = −R_k

Sums over components are made of logarithms, so p_k(v) may lie below the least float.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, compute_dtype, kernel_logits
from fairseq_kerbs.likelihood import chunked
from fairseq_kerbs.likelihood.backends.eager import Backend, Senses, Smoothing
from fairseq_kerbs.senses import SenseTable

Values = tuple[Tensor, Tensor]
Backward = Callable[[Tensor, "_MixtureGradients"], None]


class KernelGroup(NamedTuple):
    """Components, by ascending numbers, that share their kernel, and θ where it has one."""

    kernel: Kernel
    components: tuple[int, ...]


def group_components(kernels: Sequence[Kernel], dim: int) -> tuple[KernelGroup, ...]:
    """Group components by kernel, bound to vectors of size ``dim``; one with a θ stands alone."""
    bound = [kernel.bind(dim) for kernel in kernels]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, kernel in enumerate(bound):
        key = (number,) if kernel.has_theta else (type(kernel), *vars(kernel).items())
        groups.setdefault(key, []).append(number)
    return tuple(KernelGroup(bound[members[0]], tuple(members)) for members in groups.values())


class Mixture(NamedTuple):
    """A mixture for [...] tokens, all of its components together."""

    contexts: Tensor  # h̃ of every component, [..., K, d]
    w: Tensor  # word vectors, [V, d]
    log_weights: Tensor  # log π, [..., K]; exp of a row sums to 1
    groups: Sequence[KernelGroup]  # the components by kernel, see group_components
    thetas: Sequence[Tensor]  # θ of every group, [V] each (not read by kernels without one)


def mixture_nll(mixture: Mixture, target: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Exact negative log-likelihood of target words (Gao et al. 2019, Eq. 1).

    Args:
        mixture: that of N tokens.
        target: target words, [N].
        options: as of :func:`.likelihood.functional.kerbs_nll`.

    Returns:
        the loss, a scalar or [N], and the plain nll of each token, [N], detached: float32, or
        float64 where an input is float64.

    Raises:
        ValueError: shapes do not fit, an option is out of range, or a target is outside the
            vocabulary.
    """
    contexts, w, log_weights, _, thetas = mixture
    if contexts.dim() != 3 or w.dim() != 2 or contexts.shape[2] != w.shape[1]:
        raise ValueError(
            f"`contexts` has shape {tuple(contexts.shape)} and `w` {tuple(w.shape)}; they must be "
            "[N, K, d] and [V, d]."
        )
    if log_weights.shape != contexts.shape[:2]:
        raise ValueError(
            f"`log_weights` has shape {tuple(log_weights.shape)}; it must be [N, K], "
            f"{tuple(contexts.shape[:2])}."
        )
    evaluation = _MixtureEvaluation(mixture, target, options)
    loss, token_nll = evaluation.apply(contexts, w, log_weights, *thetas)
    return loss, token_nll


def mixture_log_probs(mixture: Mixture) -> Tensor:
    """Log-probabilities of all words (Gao et al. 2019, Eq. 1), differentiable: [..., V] in float32,
    or float64 where an input is float64; exp of it sums to 1."""
    found = []
    for group, theta in zip(mixture.groups, mixture.thetas, strict=True):
        index = list(group.components)
        contexts = mixture.contexts[..., index, :]
        scores = kernel_logits(contexts, mixture.w, theta, group.kernel).log_softmax(-1)
        found.append(scores + mixture.log_weights[..., index, None])  # [..., k, V]
    return torch.cat(found, -2).logsumexp(-2)


@torch.no_grad()
def score_mixture(
    mixture: Mixture, backends: Sequence[Backend] | None = None
) -> tuple[Tensor, Sequence[Backend]]:
    """:func:`mixture_log_probs` without gradient: one product a group and chunk.

    ``backends`` is what an earlier call with the same words returned beside the log-probabilities;
    it saves preparing them again.
    """
    contexts, w, log_weights = mixture[:3]
    flat = contexts.reshape(-1, *contexts.shape[-2:])
    flat_weights = log_weights.reshape(-1, contexts.shape[-2])
    whole = ChunkedMixture(
        mixture._replace(contexts=flat, log_weights=flat_weights), backends=backends
    )
    out = torch.empty(len(flat), len(w), dtype=whole.dtype, device=w.device)
    with torch.autocast(w.device.type, enabled=False):
        for rows in whole.chunks:
            prior, result = whole.prior(rows), out[rows]
            for number, part in enumerate(whole.parts):
                backend, x, h_norm = part.begin(rows)
                scores = out.new_empty(x.shape[1], x.shape[0])  # [k·n, V]
                backend.log_probs(x, h_norm, scores)
                scores.add_(prior[part.members].reshape(-1, 1))
                by_component = scores.view(part.width, -1, len(w))
                if number == 0:
                    torch.logsumexp(by_component, 0, out=result)
                else:
                    torch.logaddexp(result, by_component.logsumexp(0), out=result)
    return out.view(*log_weights.shape[:-1], len(w)), whole.backends


# ------------------------------------------------------------------------ chunks of components


class MixturePart(NamedTuple):
    """The components of one group."""

    products: chunked.Products  # with all words; in a chunk of tokens component after component
    members: Tensor  # numbers of the components, [k]
    width: int  # k

    def columns(self, rows: slice) -> slice:
        """A chunk's columns among the group's."""
        return slice(rows.start * self.width, rows.stop * self.width)

    def begin(self, rows: slice) -> tuple[Backend, Tensor, Tensor]:
        """The backend, and a chunk's products [V, k·n] and norms [k·n]."""
        columns = self.columns(rows)
        x, h_norm = self.products.products(columns), self.products.h_norm[columns]
        return self.products.backend, x, h_norm


class ChunkedMixture:
    """All groups of a mixture of N tokens over the same chunks of tokens.

    ``tokens`` are those in a chunk, ``backends`` those of an earlier evaluation with the same
    words; ``fused`` says whether backends that never have all logits will do.
    """

    def __init__(
        self,
        mixture: Mixture,
        *,
        tokens: int | None = None,
        fused: bool = True,
        backends: Sequence[Backend] | None = None,
    ) -> None:
        contexts, w, log_weights, groups, thetas = mixture
        self.dtype, device = compute_dtype(contexts, w), contexts.device
        self.log_weights = log_weights.to(self.dtype)
        words = torch.arange(len(w), device=w.device)
        table = SenseTable(words.unsqueeze(1), torch.ones_like(words, dtype=torch.bool)[:, None])
        senses = [
            Senses(w, theta, words, table, group.kernel)
            for group, theta in zip(groups, thetas, strict=True)
        ]
        if backends is None:
            backends = [chunked.choose_backend(each, self.dtype, fused) for each in senses]
        if tokens is None:
            most = min(chunked.chunk_tokens(each, len(w), device, self.dtype) for each in backends)
            tokens = max(8, most // contexts.shape[1])
        self.tokens, self.backends, size = tokens, backends, len(contexts)
        self.chunks = [slice(i, min(i + tokens, size)) for i in range(0, size, tokens)]
        self.parts = []
        for group, each, backend in zip(groups, senses, backends, strict=True):
            members, width = torch.tensor(group.components, device=device), len(group.components)
            flat = self.by_chunk(contexts[:, members])
            products = chunked.Products(flat, each, tokens * width, backend)
            self.parts.append(MixturePart(products, members, width))

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


class _MixtureEvaluation(chunked.Evaluation):
    """A mixture's components, whose probabilities of the words add up."""

    @torch.no_grad()
    def __init__(self, mixture: Mixture, target: Tensor, options: dict[str, Any]) -> None:
        super().__init__(target, len(mixture.contexts), len(mixture.w), options)
        plain, tokens = not self.smoothing.uniform_weight, self.options.chunk_tokens
        self.mixture = ChunkedMixture(mixture, tokens=tokens, fused=plain)
        self.dtype, self.chunks = self.mixture.dtype, self.mixture.chunks
        self.reads = (True, True, True, *(group.kernel.has_theta for group in mixture.groups))

    def chunk(self, rows: slice) -> tuple[Values, Backward]:
        return self._smoothed(rows) if self.smoothing.uniform_weight else self._plain(rows)

    def _plain(self, rows: slice) -> tuple[Values, Backward]:
        target, joint, found = self.target[rows], self.mixture.prior(rows).clone(), []  # [K, n]
        for part in self.mixture.parts:
            backend, x, h_norm = part.begin(rows)
            saved = backend.forward(x, h_norm, target.repeat(part.width), Smoothing())
            log_p = (saved.target.logits.squeeze(1) - saved.normalizer).clamp_max(0.0)
            joint[part.members] += log_p.view(part.width, -1)
            found.append(saved)
            del x, saved
        log_p = joint.logsumexp(0)
        nll = (-log_p).clamp_min(0.0)

        def backward(scale: Tensor, gradients: _MixtureGradients) -> None:
            share = (joint - log_p).exp() * scale  # r_ky of each component, [K, n]
            for part, sums in zip(self.mixture.parts, gradients.parts, strict=True):
                weight = share[part.members].flatten()
                p_and_along_h = part.products.backend.backward(found.pop(0), weight, sums.sums)
                sums.add(part.columns(rows), *p_and_along_h, scale)
            gradients.log_weights[rows] = -share.t()

        return (nll, nll), backward

    def _smoothed(self, rows: slice) -> tuple[Values, Backward]:
        target, prior, weights = self.target[rows], self.mixture.prior(rows), self.smoothing
        columns = torch.arange(len(target), device=target.device)
        found, peak = [], None  # the largest component, [V, n]
        for part in self.mixture.parts:
            backend, x, h_norm = part.begin(rows)
            logits, kept = backend.logits(x, h_norm)  # [V, k·n]
            shift = prior[part.members].flatten() - logits.logsumexp(0)
            joint = logits.add_(shift).view(len(logits), part.width, -1)  # log(π_k p_k(v))
            largest = joint.amax(1)
            peak = largest if peak is None else torch.maximum(peak, largest, out=peak)
            found.append((x, h_norm, kept, joint))
        assert peak is not None
        shares, total = [], torch.zeros_like(peak)  # p(v) relative to the peak, [V, n]
        for part, (*_, joint) in zip(self.mixture.parts, found, strict=True):
            share = part.products.backend.buffer(joint)  # [V, k, n]
            total += torch.sub(joint, peak.unsqueeze(1), out=share.matrix).exp_().sum(1)
            shares.append(share)
        log_p = peak.add_(total.log())
        nll = (-log_p[target, columns]).clamp_min(0.0)
        loss = weights.target_weight * nll
        loss = loss + weights.uniform_weight * (-log_p.sum(0)).clamp_min(0.0)

        def backward(scale: Tensor, gradients: _MixtureGradients) -> None:
            own = (target, slice(None), columns)
            for part, sums in zip(self.mixture.parts, gradients.parts, strict=True):
                (x, h_norm, kept, joint), room = found.pop(0), shares.pop(0)
                share = room.matrix.div_(total.unsqueeze(1))  # r_kv, [V, k, n]
                own_share = weights.target_weight * share[own]  # [n, k]
                weight = weights.uniform_weight * share.sum(0) + own_share.t()  # R_k, [k, n]
                gradients.log_weights[rows, part.members] = (-scale * weight).t()
                grad = joint.sub_(prior[part.members]).exp_().mul_(weight * scale)
                grad.sub_(share.mul_(weights.uniform_weight * scale))
                grad[own] -= own_share * scale.unsqueeze(1)
                p_and_along_h = part.products.backend.backward_logits(
                    grad.flatten(1), x, h_norm, kept, sums.sums
                )
                sums.add(part.columns(rows), *p_and_along_h, scale)

        return (loss, nll), backward

    def new_gradients(self, needs: Sequence[bool]) -> _MixtureGradients:
        return _MixtureGradients(self.mixture, needs, self.options.gradient_filter)


class _MixtureGradients:
    """Sums of gradients by contexts, w, log π and every group's θ over chunks."""

    def __init__(
        self, mixture: ChunkedMixture, needs: Sequence[bool], gradient_filter: float
    ) -> None:
        self.mixture = mixture
        self.log_weights = torch.zeros_like(mixture.log_weights)  # [N, K]
        self.parts = [
            chunked.Gradients(part.products, (needs[0], needs[1], theta), gradient_filter)
            for part, theta in zip(mixture.parts, needs[3:], strict=True)
        ]

    def finish(self) -> list[Tensor | None]:
        """Gradients by contexts [N, K, d], w [V, d], log π [N, K] and every group's θ [V]."""
        by_contexts: Tensor | None = None
        by_w: Tensor | None = None
        thetas = []
        for part, sums in zip(self.mixture.parts, self.parts, strict=True):
            h, w, theta = sums.finish()
            thetas.append(theta)
            if h is not None:
                if by_contexts is None:
                    by_contexts = h.new_empty(*self.log_weights.shape, h.shape[1])
                by_contexts[:, part.members] = self.mixture.by_token(h, part.width)
            if w is not None:
                by_w = w if by_w is None else by_w.add_(w)
        return [by_contexts, by_w, self.log_weights, *thetas]
