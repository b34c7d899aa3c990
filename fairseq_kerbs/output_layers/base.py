"""Interface of output layers, and the softmax baseline.

An output layer computes word probabilities from context vectors (Section 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_kerbs.kernels import Kernel, build_kernel, compute_dtype, kernel_logits
from fairseq_kerbs.likelihood.custom_operator import kernel_key
from fairseq_kerbs.likelihood.nll import (
    NllOptions,
    SenseParameters,
    nll_with_probabilities,
    word_log_probs,
)
from fairseq_kerbs.output_layers.decoding import score_words
from fairseq_kerbs.output_layers.prepared_cache import PreparedCache
from fairseq_kerbs.senses import SenseTable, TargetProbabilities
from fairseq_kerbs.senses.statistics import LEAST_USAGE
from fairseq_kerbs.torch_compat import is_compiling

PREDICTED_SCORES = 4 << 20  # scores that predict() computes at a time


Losses = tuple[Tensor, Tensor, Optional[TargetProbabilities]]
"""Loss, detached nll of each token, and probabilities of the targets (None for a mixture)."""


class SenseLookup(NamedTuple):
    """Senses of words [...], for composition (Eq. 6–7)."""

    rows: Tensor  # sense embeddings, [..., K, d]
    theta: Tensor  # kernel parameters, [..., K]
    usage: Tensor  # usage U of the senses, [..., K]
    mask: Tensor  # False at padding, [..., K]
    senses: Tensor  # sense numbers, [..., K]
    prepared: Tensor | None = None  # Kernel.prepare(θ), [..., K] or [C, ..., K], if known

    @property
    def prior(self) -> Tensor:
        """Usage of the senses within their word, [..., K]."""
        return prior_weights(self.usage, self.mask)

    def by_position(self) -> Iterator[SenseLookup]:
        """Senses of words [batch, len], position by position."""
        tensors = (self.rows, self.theta, self.usage, self.mask, self.senses)
        parts = [tensor.unbind(1) for tensor in tensors]
        if self.prepared is not None:
            parts.append(self.prepared.unbind(-2))
        return (SenseLookup(*position) for position in zip(*parts))


class OutputAndLoss(NamedTuple):
    """Log-probabilities of targets, [...], and the mean loss in nats, a scalar."""

    output: Tensor
    loss: Tensor


class _Anchor(torch.autograd.Function):
    """Identity of ``h``. The parameters join the autograd graph without gradient."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, *parameters: Tensor) -> Tensor:
        ctx.others = len(parameters)
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (grad, *[None] * ctx.others)


def prior_weights(usage: Tensor, mask: Tensor) -> Tensor:
    """Usage U of senses [..., K], normalized within each word, or uniform if none was used.

    Padding, where ``mask`` is False, gets 0. The sum is 1, or 0 if all is padding.
    """
    used = usage.double() * mask  # [..., K]
    total = used.sum(-1, keepdim=True)
    uniform = mask / mask.sum(-1, keepdim=True).clamp_min(1)
    seen = total > LEAST_USAGE
    return torch.where(seen, used / torch.where(seen, total, 1.0), uniform).to(usage.dtype)


class OutputLayer(nn.Module):
    """Base class of output layers. By default every word has one sense, and a kernel scores them.

    Args:
        embed_dim: size d of context vectors and sense embeddings.
        vocab_size: number of words V.
        total_senses: number of senses M. Default: V.
        kernel: a kernel, or its name.
        biased: the last coordinate of context vectors is 1, so that the last coordinate of a sense
            embedding is its bias.
        init_scale: standard deviation of initial embeddings, in units of d^−½.

    Raises:
        ValueError: there is no such kernel, or it does not take vectors of this size.
    """

    theta: Tensor  # kernel parameters, [M], zeros if not learned; the kernel's θ by theta_of()
    has_theta: bool  # whether θ is learned
    max_senses = 1  # maximum number of senses of a word
    kernel_name: str  # name of the kernel, or names of all components separated by commas

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        total_senses: int | None = None,
        *,
        kernel: str | Kernel = "lin",
        biased: bool = False,
        init_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.vocab_size = vocab_size
        self.biased = biased
        self.init_scale = init_scale
        self.total_senses = vocab_size if total_senses is None else total_senses
        self.weight = nn.Parameter(torch.empty(self.total_senses, embed_dim))  # senses, [M, d]
        self.register_buffer("theta", torch.zeros(self.total_senses), persistent=False)
        self._cache = PreparedCache()  # for decoding
        self.kernel = build_kernel(kernel).bind(embed_dim)
        self.kernel_name = self.kernel.name
        self.has_theta = self.kernel.has_theta
        kernel_key(self.kernel)  # registered before torch.compile traces the layer

    def reset_parameters(self) -> None:
        """Initialize W from a normal distribution with standard deviation ``init_scale`` · d^−½."""
        nn.init.normal_(self.weight, std=self.init_scale * self.embed_dim**-0.5)
        if not isinstance(self.theta, nn.Parameter):
            self.theta.zero_()

    @property
    def word_of_sense(self) -> Tensor:
        """Word of each sense, [M]."""
        return torch.arange(self.vocab_size, device=self.weight.device)

    @property
    def table(self) -> SenseTable:
        """Senses of every word, [V, K]."""
        words = self.word_of_sense
        mask = torch.ones_like(words, dtype=torch.bool)
        return SenseTable(words.unsqueeze(1), mask.unsqueeze(1), words)

    @property
    def usage(self) -> Tensor:
        """Usage U of every sense (Eq. 13), [M], uniform if it is not recorded."""
        usage = torch.ones(self.total_senses, dtype=torch.float32, device=self.weight.device)
        return usage / self.total_senses

    @property
    def log_prob(self) -> Tensor:
        """Decayed sum of log P of every word (Eq. 12), [V], 0 if it is not recorded."""
        return torch.zeros(self.vocab_size, dtype=torch.float32, device=self.weight.device)

    def senses_per_word(self) -> Tensor:
        """Number of senses of every word that are :meth:`in_use`, [V]."""
        words = self.word_of_sense
        return torch.bincount(words, self.in_use().float(), self.vocab_size).long()

    def in_use(self) -> Tensor:
        """Mask of the senses that are not spare (:mod:`.reallocation.clusters`), [M]."""
        return torch.ones_like(self.word_of_sense, dtype=torch.bool)

    def sense_parameters(self) -> list[nn.Parameter]:
        """Parameters with a row per sense, [M, ...]."""
        return [value for value in (self.weight, self.theta) if isinstance(value, nn.Parameter)]

    def look_up(self, words: Tensor, prepare: bool = False) -> SenseLookup:
        """Senses of words [...], with gradients of embeddings and θ.

        With ``prepare`` θ is prepared, too, for several calls of :meth:`posterior`. On a CPU
        an IndexError is raised for a number that is no word.
        """
        table = self.table
        senses = F.embedding(words, table.senses)  # which, unlike an index, refuses negative words
        mask = table.mask[words]  # [..., K]
        usage = self.usage[senses]
        theta = self.theta[senses]
        prepared = None
        if prepare:
            prepared = self.kernel.prepare(theta.detach().to(compute_dtype(theta)))
        return SenseLookup(F.embedding(senses, self.weight), theta, usage, mask, senses, prepared)

    def posterior(self, found: SenseLookup, contexts: Tensor) -> Tensor:
        """Posterior of the senses of known words (Eq. 7), [..., K], 0 at padding, sums to 1.

        The words [...] are ``found`` by :meth:`look_up`. ``contexts`` [..., d] predicted them.
        """
        return found.usage.new_ones(*contexts.shape[:-1], 1)

    def as_contexts(self, rows: Tensor) -> Tensor:
        """Use sense embeddings [..., d] as context vectors: a bias is replaced by 1."""
        return F.pad(rows[..., :-1], (0, 1), value=1.0) if self.biased else rows

    def sense_logits(self, contexts: Tensor, senses: Tensor) -> Tensor:
        """Logits [n, k] of the senses with numbers [k], by the kernel in float32.

        ``contexts`` [n, d] are context vectors, or embeddings :meth:`as_contexts`.
        """
        weight = self.weight[senses].float()
        theta = self.theta[senses].float()
        return kernel_logits(contexts, weight, theta, self.kernel)

    def component_weights(self, h: Tensor) -> Tensor | None:
        """Weights π of mixture components, [..., d] -> [..., K]. None for other layers."""
        return None

    def anchor(self, h: Tensor) -> Tensor:
        """Identity that makes context vectors depend on the layer's parameters in autograd.

        The likelihood is computed outside the model's ``forward``. Without this dependency,
        DistributedDataParallel with ``find_unused_parameters`` would treat them as unused.
        """
        return _Anchor.apply(h, *self.parameters()) if torch.is_grad_enabled() else h

    @property
    def _senses(self) -> SenseParameters:
        """Embeddings, θ, table and kernel, as input of the likelihood."""
        return SenseParameters(self.weight, self.theta, self.table, self.kernel)

    def _log_probs(self, h: Tensor) -> Tensor:
        """Implementation of :meth:`log_probs` with gradients."""
        return word_log_probs(h, self._senses)

    def _score(self, h: Tensor, prepared: Any) -> tuple[Tensor, Any]:
        """Implementation of :meth:`log_probs` without gradients, and a cache for the next call."""
        return score_words(h, self._senses, prepared)

    def _nll(self, h: Tensor, target: Tensor, options: NllOptions) -> Losses:
        """Implementation of :meth:`nll_with_probabilities` for [N, d] and [N]."""
        return nll_with_probabilities(h, self._senses, target, options)

    def _check(self, h: Tensor) -> None:
        """Raise a ValueError for a wrong size of contexts, and a TypeError in torch.jit.trace."""
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            raise self._not_scriptable()
        if not h.dim() or h.shape[-1] != self.embed_dim:
            raise ValueError(
                f"`h` has shape {tuple(h.shape)}, but its last dimension must be {self.embed_dim}, "
                "the size of this layer's embeddings."
            )

    def log_probs(self, h: Tensor) -> Tensor:
        """Log-probabilities of all words (Eq. 4–5), in float32 or float64.

        In evaluation mode and without gradients, prepared parameters are kept for the next call.
        Changed parameters are noticed, but not if they are written through ``.data``, or by a fused
        optimizer since the last loss: call :meth:`eval` again after that.

        Args:
            h: context vectors, [..., d].

        Returns:
            [..., V].

        Raises:
            ValueError: the last dimension of ``h`` is not ``embed_dim``.
        """
        self._check(h)
        if torch.is_grad_enabled() or is_compiling():
            self._forget()
            return self._log_probs(h)
        known = self._cache.get(self, h.dtype)
        scores, prepared = self._score(h, known)
        if self.training:
            self._cache.clear()
        elif known is None:
            self._cache.put(self, h.dtype, prepared)
        return scores

    def _forget(self) -> None:
        """Forget prepared parameters where gradients are computed, as a step may follow.

        Some optimizers write through ``.data``, and fused ones change no version.
        """
        if torch.is_grad_enabled() and not is_compiling():
            self._cache.clear()

    def train(self, mode: bool = True) -> OutputLayer:
        """Set training mode, and forget what :meth:`log_probs` has prepared."""
        self._cache.clear()
        super().train(mode)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        # FSDP2 sets its parameters before each use, and writes to them without another version
        if name in self.__dict__.get("_parameters", ()):
            self._cache.clear()
        super().__setattr__(name, value)

    def _apply(self, *args: Any, **options: Any) -> OutputLayer:
        self._cache.clear()
        super()._apply(*args, **options)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        # the zeros are in no state, so a layer that was made without memory has none yet
        if self.theta.is_meta and not self.weight.is_meta:
            self.theta = torch.zeros_like(self.theta, device=self.weight.device)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cache": PreparedCache()}

    def _replicate_for_data_parallel(self) -> OutputLayer:
        replica: OutputLayer = super()._replicate_for_data_parallel()
        replica._cache = PreparedCache()
        return replica

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        kernel_key(self.kernel)

    @torch.no_grad()
    def predict(self, h: Tensor) -> Tensor:
        """Most probable word for each context vector, [..., d] -> [...]."""
        self._check(h)
        most = max(1, PREDICTED_SCORES // self.vocab_size)
        parts = h.reshape(-1, self.embed_dim).split(most)
        return torch.cat([self.log_probs(part).argmax(-1) for part in parts]).view(h.shape[:-1])

    def nll(self, h: Tensor, target: Tensor, **options: Any) -> Tensor:
        """Negative log-likelihood of target words in nats (Eq. 11).

        In training mode a KerBS layer also records the statistics of Eq. 12–13.

        Args:
            h: context vectors, [..., d].
            target: target words, [...].
            options: ``ignore_index``, ``label_smoothing``, ``reduction`` and ``compile`` of
                :class:`.likelihood.nll.NllOptions`. ``layer.compile`` is the default of the last.

        Returns:
            the loss, a scalar, or [...] with ``reduction="none"``.

        Raises:
            ValueError: shapes do not match, an option is out of range, or a target is not in the
                vocabulary.
        """
        return self.nll_with_probabilities(h, target, **options)[0]

    @property
    def may_compile(self) -> bool:
        """Whether to compile the likelihood where that pays: not if ``layer.compile`` is False."""
        # nn.Module.compile is a method, which the attribute replaces
        return self.__dict__.get("compile") is not False

    def nll_with_probabilities(self, h: Tensor, target: Tensor, **options: Any) -> Losses:
        """As :meth:`nll`, with more results.

        Returns:
            the loss, the detached nll of each token without label smoothing, [...], and the
            probabilities of the targets and of their senses (None for a mixture).
        """
        self._check(h)
        if target.shape != h.shape[:-1]:
            raise ValueError(
                f"`target` has shape {tuple(target.shape)}; for these `h` it must be "
                f"{tuple(h.shape[:-1])}."
            )
        flat = h.reshape(-1, self.embed_dim)
        words = target.reshape(-1)
        options.setdefault("compile", self.may_compile)
        self._forget()
        loss, token_nll, probabilities = self._nll(flat, words, NllOptions(**options))
        if loss.dim():
            loss = loss.view(target.shape)
        return loss, token_nll.view(target.shape), probabilities

    def forward(self, h: Tensor, target: Tensor) -> OutputAndLoss:
        """Log-probability of each target and mean loss, as ``torch.nn.AdaptiveLogSoftmaxWithLoss``.

        Both have gradients. For the loss only, ``nll(…, reduction="mean")`` is faster: three
        products of contexts and senses instead of four.

        Args:
            h: context vectors, [..., d].
            target: target words, [...]. Targets of −100 are ignored, with output 0.

        Raises:
            ValueError: see :meth:`nll`.
        """
        each = self.nll(h, target, reduction="none")
        return OutputAndLoss(-each, each.sum() / target.ne(-100).sum().clamp_min(1))

    def __prepare_scriptable__(self) -> OutputLayer:
        """Refuse ``torch.jit.script``, which asks every module of a model for this method."""
        raise self._not_scriptable()

    def _not_scriptable(self) -> TypeError:
        return TypeError(
            "torch.jit.script and torch.jit.trace cannot compile a model with "
            f"{type(self).__name__}, which is Python that reads its kernel and sizes: use "
            "torch.compile(model)"
        )

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, kernel={self.kernel_name}"


class SoftmaxOutputLayer(OutputLayer):
    """Softmax baseline: P(word i) = softmax_i(h · w_i) (Eq. 3), by the same code as KerBS.

    The arguments are those of :class:`OutputLayer`, without ``total_senses`` and ``kernel``.
    """

    def __init__(
        self, embed_dim: int, vocab_size: int, *, biased: bool = False, init_scale: float = 1.0
    ) -> None:
        super().__init__(embed_dim, vocab_size, biased=biased, init_scale=init_scale)
        self.reset_parameters()
