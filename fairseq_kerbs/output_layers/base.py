"""What every output layer offers: from a context vector to word probabilities (Section 3).

Embeddings, models, criterions, analysis and conversion ask a layer for nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_kerbs.kernels import Kernel, build_kernel, kernel_logits
from fairseq_kerbs.likelihood.chunks import kernel_key
from fairseq_kerbs.likelihood.nll import NllOptions, Senses, nll_with_evidence, word_log_probs
from fairseq_kerbs.output_layers.ranked_senses import score_words
from fairseq_kerbs.senses import Evidence, SenseTable, single_senses
from fairseq_kerbs.torch_compat import autocast_dtype, is_compiling

PREDICTED_SCORES = 4 << 20  # context vectors × words that predict keeps at a time


Losses = tuple[Tensor, Tensor, Optional[Evidence]]
"""Loss, plain nll of each token (detached), and the evidence on the senses; None for a mixture."""


class LookedUp(NamedTuple):
    """Senses of words, [...] in number, for composition (Eq. 6–7)."""

    rows: Tensor  # their vectors, [..., K, d]
    theta: Tensor  # their kernel parameters, [..., K]
    prior: Tensor  # their usage inside the word (Eq. 7 without context), [..., K]
    mask: Tensor  # True at senses, False at padding of the table; [..., K]
    senses: Tensor  # their numbers, [..., K]


class OutputAndLoss(NamedTuple):
    """Log-probabilities of targets, [...], and their mean negative, a scalar."""

    output: Tensor
    loss: Tensor


class _Anchor(torch.autograd.Function):
    """The first argument itself, as a function of all; only the first receives a gradient."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, *parameters: Tensor) -> Tensor:
        ctx.others = len(parameters)
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (grad, *[None] * ctx.others)


def prior_weights(usage: Tensor, senses: Tensor, mask: Tensor) -> Tensor:
    """Usage U [M] normalized inside each word; uniform where a word's senses were never used.

    ``senses`` and ``mask`` are those of words, [..., K], as in a table of senses; so is the result,
    which is 0 at padding and sums to 1.
    """
    used = usage[senses].double() * mask  # [..., K]
    total = used.sum(-1, keepdim=True)
    uniform = mask / mask.sum(-1, keepdim=True)
    # far below float32's range a quotient of decayed usages carries no information
    seen = total > 1e-30
    return torch.where(seen, used / torch.where(seen, total, 1.0), uniform).to(usage.dtype)


class OutputLayer(nn.Module, ABC):
    """Base of all output layers; as it stands, of those with one vector a word, its only sense.

    Args:
        embed_dim: size d of context vectors and word or sense embeddings.
        vocab_size: number of words V.
        total_senses: number of senses M; by default V.
        biased: the last coordinate of all context vectors is 1, so that that of a sense is its
            bias.
        init_scale: length of first vectors: they are drawn with deviation init_scale · d^−½.

    Attributes:
        weight: embeddings of senses, [M, d].
    """

    theta: Tensor  # kernel parameters of senses, [M]; zeros where none is learned
    has_theta = False  # whether θ is learned
    max_senses = 1  # of one word
    kernel_name = "lin"  # as flags name it, those of several components with commas between

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        total_senses: int | None = None,
        *,
        biased: bool = False,
        init_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.embed_dim, self.vocab_size, self.biased = embed_dim, vocab_size, biased
        self.init_scale = init_scale
        self.total_senses = vocab_size if total_senses is None else total_senses
        self.weight = nn.Parameter(torch.empty(self.total_senses, embed_dim))
        self.register_buffer("theta", torch.zeros(self.total_senses), persistent=False)
        self._prepared: tuple[Any, Any] | None = None  # for decoding: its key, and what it is

    def reset_parameters(self) -> None:
        """Draw all parameters at random: W normal with deviation ``init_scale`` · d^−½."""
        nn.init.normal_(self.weight, std=self.init_scale * self.embed_dim**-0.5)

    @property
    def word_of_sense(self) -> Tensor:
        """Word of each sense, [M]."""
        return torch.arange(self.vocab_size, device=self.weight.device)

    @property
    def table(self) -> SenseTable:
        """Senses of every word, [V, K]."""
        return single_senses(self.vocab_size, self.weight.device)

    @property
    def usage(self) -> Tensor:
        """Usage U of every sense (Eq. 13), [M]; equal where none is recorded."""
        return torch.full((self.total_senses,), 1.0 / self.total_senses, device=self.weight.device)

    @property
    def log_prob(self) -> Tensor:
        """Moving log P of every word (Eq. 12), [V]; 0 where none is recorded."""
        return torch.zeros(self.vocab_size, device=self.weight.device)

    def senses_per_word(self) -> Tensor:
        """Number of senses of every word, [V]."""
        return torch.bincount(self.word_of_sense, minlength=self.vocab_size)

    def sense_parameters(self) -> list[nn.Parameter]:
        """Parameters whose rows belong to senses."""
        return [value for value in (self.weight, self.theta) if isinstance(value, nn.Parameter)]

    def look_up(self, words: Tensor) -> LookedUp:
        """Senses of words [...], with gradients to their vectors and θ."""
        table = self.table
        senses, mask = table.senses[words], table.mask[words]  # [..., K]
        prior = prior_weights(self.usage, senses, mask)
        return LookedUp(F.embedding(senses, self.weight), self.theta[senses], prior, mask, senses)

    def posterior(self, found: LookedUp, contexts: Tensor) -> Tensor:
        """Probability of each sense of [...] known words, given the context vectors [..., d] that
        predicted them (Eq. 7): [..., K]; 0 at padding, sums to 1."""
        return found.prior.new_ones(*contexts.shape[:-1], 1)

    def as_contexts(self, rows: Tensor) -> Tensor:
        """Sense vectors [..., d] in the place of context vectors: these have no bias, but a 1."""
        if not self.biased:
            return rows
        return torch.cat([rows[..., :-1], torch.ones_like(rows[..., -1:])], dim=-1)

    def sense_logits(self, contexts: Tensor, senses: Tensor) -> Tensor:
        """Logits of some senses, [n, d] and [k] -> [n, k], in float32, by the inner product unless
        one kernel scores all.

        ``contexts`` are context vectors, or sense vectors :meth:`as_contexts`.
        """
        return contexts @ self.weight[senses].float().t()

    def component_weights(self, h: Tensor) -> Tensor | None:
        """Weights π of a mixture's components, [..., d] -> [..., K]; None for other layers."""
        return None

    def anchor(self, h: Tensor) -> Tensor:
        """Context vectors as they are, but in autograd's graph a result of the layer, too.

        The likelihood is computed outside the model's ``forward``. DistributedDataParallel with
        ``find_unused_parameters`` takes a parameter that its outputs do not depend on for unused.
        """
        return _Anchor.apply(h, *self.parameters()) if torch.is_grad_enabled() else h

    @abstractmethod
    def _log_probs(self, h: Tensor) -> Tensor:
        """:meth:`log_probs`, differentiable."""

    @abstractmethod
    def _score(self, h: Tensor, prepared: Any) -> tuple[Tensor, Any]:
        """:meth:`log_probs` without gradient, and what is worth keeping for the next call."""

    @abstractmethod
    def _nll(self, h: Tensor, target: Tensor, options: NllOptions) -> Losses:
        """:meth:`nll_with_evidence` of [N, d] and [N]; records statistics while training."""

    def _check(self, h: Tensor) -> None:
        if not h.dim() or h.shape[-1] != self.embed_dim:
            raise ValueError(
                f"`h` has shape {tuple(h.shape)}, but its last dimension must be {self.embed_dim}, "
                "the size of this layer's embeddings."
            )

    def log_probs(self, h: Tensor) -> Tensor:
        """Log-probabilities of all words (Eq. 4–5), [..., d] -> [..., V], at least float32."""
        self._check(h)
        if torch.is_grad_enabled():
            return self._log_probs(h)
        if is_compiling():
            return self._log_probs(h)
        key, prepared = self._known(h.dtype)
        scores, prepared = self._score(h, prepared)
        self._prepared = None if self.training else (key, prepared)
        return scores

    def _known(self, dtype: torch.dtype) -> tuple[Any, Any]:
        """A key of all values for context vectors of ``dtype``, and what was prepared of these."""
        values = (*self.parameters(), *self.buffers())
        products = autocast_dtype(self.weight.device.type)
        key = (dtype, products, *((value.data_ptr(), value._version) for value in values))
        known, prepared = self._prepared or (None, None)
        return key, prepared if known == key else None

    def train(self, mode: bool = True) -> OutputLayer:
        """Set training mode, and forget what was prepared for decoding: optimizers change weights
        through ``.data``, which no version counter sees."""
        self._prepared = None
        super().train(mode)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_prepared": None}

    @torch.no_grad()
    def predict(self, h: Tensor) -> Tensor:
        """Most probable word for each context vector, [..., d] -> [...], a few at a time."""
        self._check(h)
        most = max(1, PREDICTED_SCORES // self.vocab_size)
        parts = h.reshape(-1, self.embed_dim).split(most)
        return torch.cat([self.log_probs(part).argmax(-1) for part in parts]).view(h.shape[:-1])

    def nll(self, h: Tensor, target: Tensor, **options: Any) -> Tensor:
        """Negative log-likelihood of target words in nats; KerBS records statistics in training.

        Args:
            h: context vectors, [..., d].
            target: target words, [...].
            options: ``ignore_index``, ``label_smoothing`` and ``reduction``, as of
                :class:`.likelihood.nll.NllOptions`.

        Raises:
            ValueError: shapes do not fit, an option is out of range, or a target is no word.
        """
        return self.nll_with_evidence(h, target, **options)[0]

    def nll_with_evidence(self, h: Tensor, target: Tensor, **options: Any) -> Losses:
        """:meth:`nll`, each token's plain nll [...] (detached), and the evidence on the senses;
        None for a mixture."""
        self._check(h)
        if target.shape != h.shape[:-1]:
            raise ValueError(
                f"`target` has shape {tuple(target.shape)}; for these `h` it must be "
                f"{tuple(h.shape[:-1])}."
            )
        flat, words = h.reshape(-1, self.embed_dim), target.reshape(-1)
        # nn.Module has a method of this name; False in its place is the user's word
        options.setdefault("compile", self.__dict__.get("compile") is not False)
        loss, token_nll, evidence = self._nll(flat, words, NllOptions(**options))
        if loss.dim():
            loss = loss.view(target.shape)
        return loss, token_nll.view(target.shape), evidence

    def forward(self, h: Tensor, target: Tensor) -> OutputAndLoss:
        """Log-probability of each target and mean nll, as ``torch.nn.AdaptiveLogSoftmaxWithLoss``.

        Both have gradients. Where the loss alone is needed, ``nll(…, reduction="mean")`` takes
        three products of contexts and senses instead of four. Arguments and errors are those of
        :meth:`nll`; a target of −100 is ignored: its output is 0 and the mean leaves it out.
        """
        each = self.nll(h, target, reduction="none")
        return OutputAndLoss(-each, each.sum() / target.ne(-100).sum().clamp_min(1))

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, kernel={self.kernel_name}"


class KernelOutputLayer(OutputLayer):
    """A layer in which one kernel scores context vectors against all senses (Eq. 5)."""

    kernel: Kernel

    def _bind(self, kernel: str | Kernel) -> None:
        self.kernel = build_kernel(kernel).bind(self.embed_dim)
        self.kernel_name, self.has_theta = self.kernel.name, self.kernel.has_theta
        kernel_key(self.kernel)  # torch.compile would note it too late

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        kernel_key(self.kernel)

    @property
    def senses(self) -> Senses:
        """What the likelihood scores context vectors against."""
        return Senses(self.weight, self.theta, self.table, self.kernel)

    def sense_logits(self, contexts: Tensor, senses: Tensor) -> Tensor:
        """See :meth:`OutputLayer.sense_logits`."""
        weight, theta = self.weight[senses].float(), self.theta[senses].float()
        return kernel_logits(contexts, weight, theta, self.kernel)

    def _log_probs(self, h: Tensor) -> Tensor:
        return word_log_probs(h, self.senses)

    def _score(self, h: Tensor, prepared: Any) -> tuple[Tensor, Any]:
        return score_words(h, self.senses, prepared)

    def _nll(self, h: Tensor, target: Tensor, options: NllOptions) -> Losses:
        return nll_with_evidence(h, self.senses, target, options)
