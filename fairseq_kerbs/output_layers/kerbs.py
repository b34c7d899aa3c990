"""Kernelized Bayesian softmax as a layer for any PyTorch model (Section 4).

fairseq_kerbs/README.md has complete trainings with this layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_kerbs.clusters import LEAST_CONTEXTS, ContextSample
from fairseq_kerbs.kernels import KERNELS, Kernel, apply_kernel, compute_dtype, safe_norm
from fairseq_kerbs.likelihood.compilation import call, worthwhile
from fairseq_kerbs.likelihood.nll import NllOptions
from fairseq_kerbs.output_layers.base import LookedUp, Losses, OutputLayer
from fairseq_kerbs.reallocation import Moves, ReallocationSettings, policies
from fairseq_kerbs.reallocation.clusters import SPARE_NATS, place_on_clusters
from fairseq_kerbs.reallocation.moves import NEW_SENSES, check_choice, new_vectors
from fairseq_kerbs.senses import SenseInventory, SenseTable
from fairseq_kerbs.torch_compat import is_compiling

SENSE_INITS = ("random", "shared", "spare")
SHARED_COSINE = 0.95
SAMPLED_CONTEXTS, SAMPLE_MEMORY = 600, 2 << 30
"""Maximum contexts per word and bytes of a sample by :meth:`KerbsOutputLayer.start_sampling`."""

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
        wide_h, wide_rows = h.to(dtype), rows.to(dtype)
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
        sense_init: "random" (the paper), "shared" or "spare", see :meth:`reset_parameters`.
        sense_allocation: "random" or "equal", see :mod:`fairseq_kerbs.senses`.
        new_sense: "keep" (the paper) or "split", see :mod:`.reallocation.moves`.
        biased: the last coordinate of context vectors is 1, so that senses have biases.
        init_scale: standard deviation of initial embeddings, in units of d^−½.

    Raises:
        ValueError: M is out of range, or a name is unknown.
    """

    def __init__(
        self,
        embed_dim: int,
        vocab_size: int,
        total_senses: int,
        *,
        max_senses: int = 4,
        kernel: str | Kernel = "kerbs",
        sense_init: str = "random",
        sense_allocation: str = "random",
        new_sense: str = "keep",
        biased: bool = False,
        init_scale: float = 1.0,
    ) -> None:
        check_choice("new_sense", new_sense, NEW_SENSES)
        check_choice("sense_init", sense_init, SENSE_INITS)
        inventory = SenseInventory(vocab_size, total_senses, max_senses, sense_allocation)
        options: Any = {"kernel": kernel, "biased": biased, "init_scale": init_scale}
        super().__init__(embed_dim, vocab_size, total_senses, **options)
        if sense_init == "spare":
            check_biased(biased, self.kernel)
        self.sense_init, self.new_sense, self.max_senses = sense_init, new_sense, max_senses
        self.inventory = inventory  # allocation of senses to words, and its statistics
        self.sample: ContextSample | None = None  # sampled contexts for the policy "clusters"
        if self.has_theta:
            self.theta = nn.Parameter(torch.empty(total_senses))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize W and θ at random (Section 4.2), according to ``sense_init``.

        - "random" draws all senses independently. One sense of a word often takes all occurrences.
        - "shared" draws the senses of a word around its first one, with a cosine of about
          :data:`SHARED_COSINE`. The first sense is longer by a factor of 1.26 and has the largest
          share at first.
        - "spare" uses only the first sense of each word. The policy "clusters" places the others.
        """
        super().reset_parameters()
        if self.sense_init == "shared":
            center = self.weight[self.table.senses[:, 0]][self.word_of_sense]  # [M, d]
            across = (1.0 - SHARED_COSINE**2) ** 0.5 * self.weight
            self.weight.copy_(SHARED_COSINE * center + across)
        if self.has_theta:
            nn.init.normal_(self.theta, std=self.kernel.theta_std)
        if self.sense_init == "spare":  # senses 0 … V − 1 are the first of their words
            extra = slice(self.vocab_size, None)
            self.weight[extra] = self.weight[self.word_of_sense[extra]]
            self.weight[extra, -1] -= SPARE_NATS
            self.theta[extra] = 0.0
            self.inventory.usage[extra] = 0.0

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

    def posterior(self, found: LookedUp, contexts: Tensor) -> Tensor:
        prepared = None if torch.is_grad_enabled() else self._known(contexts.dtype)[1]
        if prepared is None:
            inputs = contexts, found.rows, found.theta, found.mask, self.kernel, found.prepared
            training = torch.is_grad_enabled() and self._may_compile and not is_compiling()
            stepping = training and contexts.is_cuda and found.prepared is not None
            if stepping and worthwhile(self.total_senses):
                # for one position, starting a hundred operations takes longer than running them
                return call(posterior_weights, *inputs, axes=(0, 0, 0, 0, -2))
            return posterior_weights(*inputs)
        with torch.autocast(contexts.device.type, enabled=False):
            logits = prepared.logits_of(found.senses, found.rows, contexts)
            return _masked_softmax(logits, found.mask)

    def _nll(self, h: Tensor, target: Tensor, options: NllOptions) -> Losses:
        loss, token_nll, posteriors = super()._nll(h, target, options)
        if self.training and posteriors is not None and not _in_backward():
            self.inventory.record(target, posteriors)
            if self.sample is not None and self.inventory.recording:
                valid = posteriors.counted & posteriors.log_prob.isfinite()
                rows = valid.nonzero().squeeze(1)  # a single synchronization with a GPU
                self.sample.add(target[rows], h.detach()[rows, :-1])
        return loss, token_nll, posteriors

    def update_statistics(self, decay: float) -> Tensor:
        """Update log P and U with the recorded targets (Eq. 12–13). β is ``decay``, within [0, 1).

        Returns the number of targets, a scalar tensor.
        """
        return self.inventory.update(decay)

    def start_sampling(self, counts: Tensor | None = None, special: int = 0) -> None:
        """Start sampling contexts of target words, for the policy "clusters".

        Args:
            counts: frequency of each word in the training data, [V] [unknown]. Contexts of rare
                words are not sampled.
            special: number of special symbols at the start of the vocabulary. They keep one sense.

        Raises:
            ValueError: the layer has no biases, or its kernel is not the inner product at θ = 0.
        """
        check_biased(self.biased, self.kernel)
        if counts is None:
            counts = torch.full((self.vocab_size,), SAMPLED_CONTEXTS)
        dim = self.embed_dim - 1
        memory = max(SAMPLE_MEMORY, 2 * dim * LEAST_CONTEXTS * self.vocab_size)
        self.sample = ContextSample(counts, dim, SAMPLED_CONTEXTS, memory, special)

    @torch.no_grad()
    def propose_moves(self, policy: str, settings: ReallocationSettings | None = None) -> Moves:
        """The moves of :meth:`reallocate`. The layer does not change, except that "clusters" clears
        :attr:`sample`. In a parallel training only one process has a sample."""
        if policy != "clusters":
            moves = policies.propose_moves(self.inventory, policy, settings)
            if moves.vectors is None:
                vectors = new_vectors(self.inventory, self.weight, moves, self.new_sense)
                moves = replace(moves, vectors=vectors)
            return moves
        if self.sample is None:
            raise ValueError("`policy` clusters reads contexts: call start_sampling() before.")
        gap = (settings or ReallocationSettings()).gap
        sample, self.sample = self.sample, None
        senses = self.inventory, self.weight, self.theta, self.kernel
        return place_on_clusters(*senses, sample, gap)

    @torch.no_grad()
    def apply_moves(self, moves: Moves) -> list[tuple[Tensor, Tensor | None]]:
        """Apply the moves of :meth:`propose_moves`.

        Returns:
            all parameters of senses, with the new values of the moved rows, [K, ...], or None for
            those that do not change.
        """
        if hasattr(self.weight, "full_tensor"):
            raise ValueError(
                "The senses of a layer whose parameters are sharded by `fully_shard` cannot move: "
                "leave the layer out of it, or reallocate no senses."
            )
        policies.apply_moves(self.inventory, moves)
        written: list[tuple[Tensor, Tensor | None]] = [(self.weight, moves.vectors)]
        if self.has_theta:
            theta = torch.full((len(moves),), self.kernel.moved_theta)
            written.append((self.theta, theta if moves.reset_theta else None))
        for parameter, values in written:
            if values is not None:
                parameter[moves.senses.to(parameter.device)] = values.to(parameter)
        return written

    def reallocate(self, policy: str, settings: ReallocationSettings | None = None) -> Moves:
        """Move senses between words.

        Then reset the optimizer's moments of the moved senses by
        :func:`fairseq_kerbs.reallocation.reset_moments`, except after "released".

        Args:
            policy: "paper" (Algorithm 1), "released" or "clusters".
            settings: hyper-parameters of the policy.

        Returns:
            the moves, with the embeddings of moved senses.

        Raises:
            ValueError: no policy has that name, parameters are sharded (FSDP2), or there is no
                :attr:`sample` for "clusters".
        """
        moves = self.propose_moves(policy, settings)
        self.apply_moves(moves)
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


def check_biased(biased: bool, kernel: Kernel) -> None:
    """Raise a ValueError if senses cannot be placed on clusters."""
    if not biased:
        raise ValueError("Senses on clusters need biases: give `biased`.")
    if not kernel.inner_product_at_zero:
        names = " or ".join(name for name, known in KERNELS.items() if known.inner_product_at_zero)
        raise ValueError(f"Senses on clusters need `kernel` {names}, not {kernel.name}.")
