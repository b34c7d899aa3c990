"""Kernelized Bayesian softmax as a layer for any PyTorch model (Section 4).

docs/inside.md has complete trainings with this layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_kerbs.kernels import Kernel, apply_kernel, compute_dtype, safe_norm
from fairseq_kerbs.likelihood.compilation import call, worthwhile
from fairseq_kerbs.likelihood.nll import NllOptions
from fairseq_kerbs.output_layers.base import Losses, OutputLayer, SenseLookup
from fairseq_kerbs.reallocation import (
    Moves,
    Policy,
    ReallocationSettings,
    SenseState,
    build_policy,
    reallocate,
)
from fairseq_kerbs.reallocation.clusters import spare_senses
from fairseq_kerbs.reallocation.context_sample import LEAST_CONTEXTS, ContextSample
from fairseq_kerbs.reallocation.placement import Progress, no_progress
from fairseq_kerbs.senses import SenseInventory, SenseTable
from fairseq_kerbs.torch_compat import is_compiling

SAMPLED_CONTEXTS = 600
"""Maximum number of contexts per word in a sample by :meth:`KerbsOutputLayer.start_sampling`."""

SAMPLE_MEMORY = 2 << 30
"""Its maximum size in bytes, or more if that is less than the minimum for all words."""

SAMPLE = "sample_"
"""Prefix of the names of :attr:`KerbsOutputLayer.sample` in a checkpoint."""


def _in_backward() -> bool:
    """Whether activation checkpointing repeats a forward pass during backward."""
    if is_compiling():
        return False
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


def posterior_weights(
    h: Tensor,
    rows: Tensor,
    theta: Tensor,
    mask: Tensor,
    kernel: Kernel,
    prepared: Tensor | None = None,
) -> Tensor:
    """Posterior of the senses of a known word, given its context vector (Eq. 7).

    The normalizer of Eq. 5 cancels, so only the senses of the word are needed.

    Args:
        h: context vectors h_{t−1}, [..., d].
        rows: embeddings of the word's senses, [..., K, d].
        theta: their kernel parameters, [..., K].
        mask: False at padding, [..., K].
        kernel: kernel of the output layer.
        prepared: ``kernel.prepare(theta)`` if it is known.

    Returns:
        [..., K], 0 at padding, sums to 1. Uniform if all is padding.
    """
    dtype = compute_dtype(h, rows, theta)
    with torch.autocast(h.device.type, enabled=False):
        wide_h = h.to(dtype)
        wide_rows = rows.to(dtype)
        bound = kernel.bind(rows.shape[-1])
        x = torch.einsum("...d,...kd->...k", bound.map_contexts(wide_h), wide_rows)
        row_norm = safe_norm(wide_rows).squeeze(-1)  # [..., K]
        logits = apply_kernel(bound, x, safe_norm(wide_h), row_norm, theta, prepared)
        return _masked_softmax(logits, mask)


def _masked_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last axis where ``mask`` is True, or uniform weights if it is nowhere."""
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(-1)


class KerbsOutputLayer(OutputLayer):
    """Kernelized Bayesian softmax, with several senses per word and a learned kernel parameter θ.

    With the senses S_i of word i, the layer computes (Eq. 4–5)

        P(i) = Σ_{m ∈ S_i} exp K(h, w_m; θ_m) / Σ_{all m} exp K(h, w_m; θ_m)

    Args:
        embed_dim: size d of context vectors and sense embeddings.
        vocab_size: number of words V.
        total_senses: number of senses M, V ≤ M ≤ V·max_senses.
        max_senses: maximum number of senses of a word.
        kernel: a kernel, or its name. θ is a parameter only if the kernel uses it.
        policy: the policy that will move senses, or its name. It may change the initial
            senses, which are drawn at random, as in the paper.
        sense_allocation: "random" or "equal", see :mod:`fairseq_kerbs.senses.allocation`.
        biased: the last coordinate of context vectors is 1, so that senses have biases.
        init_scale: standard deviation of initial embeddings, in units of d^−½.

    Raises:
        ValueError: M is out of range, a name is unknown, or the policy cannot move such senses.
    """

    # three sizes, and the paper's choices by name, each a flag of the models
    def __init__(  # noqa: PLR0913
        self,
        embed_dim: int,
        vocab_size: int,
        total_senses: int,
        *,
        max_senses: int = 4,
        kernel: str | Kernel = "kerbs",
        policy: str | Policy | None = None,
        sense_allocation: str = "random",
        biased: bool = False,
        init_scale: float = 1.0,
    ) -> None:
        inventory = SenseInventory(vocab_size, total_senses, max_senses, sense_allocation)
        super().__init__(
            embed_dim,
            vocab_size,
            total_senses,
            kernel=kernel,
            biased=biased,
            init_scale=init_scale,
        )
        self.policy = None if policy is None else build_policy(policy)
        if self.policy is not None:
            self.policy.check_layer(self.kernel, biased)
        self.max_senses = max_senses
        self.inventory = inventory  # allocation of senses to words, and its statistics
        self.sample: ContextSample | None = None  # for policies that read contexts
        if self.has_theta:
            self.theta = nn.Parameter(torch.empty(total_senses))
        self._initialize()

    def reset_parameters(self) -> None:
        """Initialize everything anew: senses of words and their statistics, W and θ."""
        self.inventory.begin_anew()
        self._initialize()

    @torch.no_grad()
    def _initialize(self) -> None:
        """Initialize W and θ at random (Section 4.2), then as the policy changes them."""
        super().reset_parameters()
        if self.has_theta:
            nn.init.normal_(self.theta, std=self.kernel.theta_std)
        if self.policy is not None and not self.weight.is_meta:  # which has no values
            self.policy.initialize(self.sense_state())

    def in_use(self) -> Tensor:
        if not self.biased:
            return super().in_use()
        inventory = self.inventory
        weight = self.weight.detach()
        return ~spare_senses(weight, inventory.usage, self.word_of_sense, self.vocab_size)

    def sense_state(self, progress: Progress = no_progress) -> SenseState:
        """Senses of this layer for :mod:`fairseq_kerbs.reallocation`.

        ``progress`` wraps the loops of policies that take long.
        """
        return SenseState(
            self.inventory,
            self.weight,
            self.theta,
            self.kernel,
            biased=self.biased,
            contexts=self.sample,
            progress=progress,
        )

    @property
    def word_of_sense(self) -> Tensor:
        return self.inventory.word_of_sense

    @property
    def table(self) -> SenseTable:
        return self.inventory.table

    @property
    def usage(self) -> Tensor:
        return self.inventory.usage

    @property
    def log_prob(self) -> Tensor:
        return self.inventory.log_prob

    def posterior(self, found: SenseLookup, contexts: Tensor) -> Tensor:
        """As :meth:`.OutputLayer.posterior`, by the fastest of three ways.

        Decoding uses the norms and θ that :meth:`log_probs` has prepared. Training position by
        position on a GPU compiles :func:`posterior_weights`, where that pays. Otherwise it is
        called as it is.
        """
        ranked = None
        if not torch.is_grad_enabled():
            ranked = self._cache.get(self, contexts.dtype)
        if ranked is not None:
            with torch.autocast(contexts.device.type, enabled=False):
                logits = ranked.logits_of(found.senses, found.rows, contexts)
                return _masked_softmax(logits, found.mask)
        training = torch.is_grad_enabled() and self.may_compile and not is_compiling()
        stepping = training and contexts.is_cuda and found.prepared is not None
        if stepping and worthwhile(self.total_senses, self.vocab_size):
            # for one position, starting a hundred operations takes longer than running them
            return call(
                posterior_weights,
                contexts,
                found.rows,
                found.theta,
                found.mask,
                self.kernel,
                found.prepared,
                axes=((0,), (0,), (0,), (0,), (-2,)),
            )
        return posterior_weights(
            contexts, found.rows, found.theta, found.mask, self.kernel, found.prepared
        )

    def _nll(self, h: Tensor, target: Tensor, options: NllOptions) -> Losses:
        loss, token_nll, probabilities = super()._nll(h, target, options)
        if self.training and probabilities is not None and not _in_backward():
            self.inventory.record(target, probabilities)
            if self.sample is not None and self.inventory.recording:
                # a single synchronization with a GPU
                rows = probabilities.usable.nonzero().squeeze(1)
                self.sample.add(target[rows], h.detach()[rows, : self.sample.dim])
        return loss, token_nll, probabilities

    def update_statistics(self, decay: float) -> Tensor:
        """Update log P and U with the recorded targets (Eq. 12–13). β is ``decay``, within [0, 1).

        Returns the number of targets, a scalar tensor.
        """
        return self.inventory.update(decay)

    def start_sampling(self, counts: Tensor | None = None, special: int = 0) -> None:
        """Start sampling contexts of target words, for a policy that reads contexts.

        Contexts are sampled without the constant 1 of a bias.

        Args:
            counts: frequency of each word in the training data, int64 [V], if known. Contexts of
                rare words are not sampled.
            special: number of special symbols at the start of the vocabulary. They keep one sense.

        Raises:
            ValueError: ``counts`` has another shape, or is not int64.
        """
        if counts is None:
            counts = torch.full((self.vocab_size,), SAMPLED_CONTEXTS)
        wanted = f"torch.int64 [{self.vocab_size}], the frequency of every word"
        if not torch.is_tensor(counts):
            raise ValueError(f"`counts` is {type(counts)}; it must be {wanted}.")
        if counts.dtype != torch.int64 or counts.shape != (self.vocab_size,):
            raise ValueError(
                f"`counts` is {counts.dtype} {list(counts.shape)}; it must be {wanted}."
            )
        dim = self.embed_dim - int(self.biased)
        memory = max(SAMPLE_MEMORY, 2 * dim * LEAST_CONTEXTS * self.vocab_size)
        self.sample = ContextSample(counts, dim, SAMPLED_CONTEXTS, memory, special)

    def reallocate(
        self, policy: str | Policy, settings: ReallocationSettings | None = None
    ) -> Moves:
        """Move senses between words.

        A policy that reads contexts takes :attr:`sample`, which is None afterwards. Then reset the
        optimizer's moments of the moved senses by
        :func:`fairseq_kerbs.reallocation.reset_moments`, if ``Moves.reset_moments`` says so.

        Args:
            policy: a policy, or its name in :data:`fairseq_kerbs.reallocation.POLICIES`.
            settings: settings of the policy. Default: its own.

        Returns:
            the moves, with the embeddings of moved senses if these change.

        Raises:
            ValueError: no policy has that name, the policy cannot move senses of this layer,
                parameters are sharded (FSDP2), or there is no :attr:`sample` for a policy that
                reads contexts.
        """
        built = build_policy(policy, settings)
        moves = reallocate(self.sense_state(), built)
        if built.needs_contexts:
            self.sample = None
        return moves

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        state = {} if self.sample is None else self.sample.state()
        destination.update({f"{prefix}{SAMPLE}{name}": value for name, value in state.items()})

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        start = f"{prefix}{SAMPLE}"
        keys = [key for key in state_dict if key.startswith(start)]
        state = {key.removeprefix(start): state_dict.pop(key) for key in keys}
        self.sample = ContextSample.from_state(state) if state else None
        super()._load_from_state_dict(state_dict, prefix, *args)
