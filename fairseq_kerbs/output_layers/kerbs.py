"""The kernelized Bayesian softmax as a layer of any PyTorch model (Section 4).

fairseq_kerbs/README.md shows whole trainings with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_kerbs import reallocation
from fairseq_kerbs.kernels import Kernel, apply_kernel, build_kernel, compute_dtype, safe_norm
from fairseq_kerbs.kernels.base import is_compiling
from fairseq_kerbs.likelihood import NllOptions
from fairseq_kerbs.output_layers.base import KernelOutputLayer, LookedUp, Losses
from fairseq_kerbs.reallocation.clusters import GAP
from fairseq_kerbs.reallocation.moved_vectors import NEW_SENSES, new_vectors
from fairseq_kerbs.senses import SenseInventory, SenseTable
from fairseq_kerbs.senses.moves import check_choice

SENSE_INITS = ("random", "shared")
SHARED_COSINE = 0.95
MOST_TURN, MOST_SCALE, BISECTIONS = 0.5, 1.5, 30  # when a sense is split


def _in_backward() -> bool:
    """Whether activation checkpointing runs a forward pass again, inside backward."""
    if is_compiling():
        return False
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


def posterior_weights(
    h: Tensor, rows: Tensor, theta: Tensor, mask: Tensor, kernel: Kernel
) -> Tensor:
    """Probability of each sense of a known word, given what predicted it (Eq. 7).

    The normalizer of Eq. 5 cancels inside the word, so its few senses suffice.

    Args:
        h: context vectors h_{t−1}, [..., d].
        rows, theta, mask: the word's senses, as of :class:`.output_layers.base.LookedUp`.
        kernel: kernel of the output layer.

    Returns:
        [..., K]; 0 at padding, sums to 1.
    """
    dtype = compute_dtype(h, rows, theta)
    with torch.autocast(h.device.type, enabled=False):
        wide_h, wide_rows = h.to(dtype), rows.to(dtype)
        bound = kernel.bind(rows.shape[-1])
        x = torch.einsum("...d,...kd->...k", bound.map_contexts(wide_h), wide_rows)
        row_norm = safe_norm(wide_rows).squeeze(-1)  # [..., K]
        logits = apply_kernel(bound, x, safe_norm(wide_h), row_norm, theta)
        return logits.masked_fill(~mask, -torch.inf).softmax(-1)


class KerbsOutputLayer(KernelOutputLayer):
    """Kernelized Bayesian softmax: several senses a word, a kernel with learned θ.

    Args:
        embed_dim, vocab_size, biased, init_scale: as of :class:`OutputLayer`.
        total_senses: number of senses M, V ≤ M ≤ V·max_senses.
        max_senses: most senses of one word.
        kernel: name of a kernel, or a kernel; ``theta`` is a parameter where it has one.
        sense_init: "random" (the paper) or "shared", see :meth:`reset_parameters`.
        new_sense: "keep" (the paper), "split" or "context", see :mod:`.reallocation.moved_vectors`.
        follow_clusters: keep the statistics that the policy "clusters" needs.

    Attributes:
        inventory: allocation of senses to words, and its statistics.
        after_moves: functions that :meth:`reallocate` calls with the senses [K] that have begun
            anew, for copies of the parameters.

    Raises:
        ValueError: the sense numbers do not fit each other, or a name is unknown.
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
        new_sense: str = "keep",
        biased: bool = False,
        init_scale: float = 1.0,
        follow_clusters: bool = False,
    ) -> None:
        check_choice("new_sense", new_sense, NEW_SENSES)
        check_choice("sense_init", sense_init, SENSE_INITS)
        bound = build_kernel(kernel).bind(embed_dim)
        inventory = SenseInventory(
            *(vocab_size, total_senses, max_senses),
            context_dim=embed_dim if new_sense == "context" else 0,
            cluster_dim=embed_dim if follow_clusters else 0,
        )
        super().__init__(embed_dim, vocab_size, total_senses, biased=biased, init_scale=init_scale)
        self.sense_init, self.new_sense, self.max_senses = sense_init, new_sense, max_senses
        self._bind(bound)
        self.inventory = inventory
        self.after_moves: list[Callable[[Tensor], None]] = []
        if self.has_theta:
            self.theta = nn.Parameter(torch.empty(total_senses))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw W and θ at random, as Section 4.2 begins.

        ``sense_init`` "random" draws every sense alone: most senses of a word then lie so far from
        its contexts that one of them wins them all. "shared" draws the senses of a word around its
        first one, with a cosine of about :data:`SHARED_COSINE` to it, so that all of them begin
        alive; the first one is longer, by the factor cos + sin (1.26), and so leads at first.
        """
        super().reset_parameters()
        if self.sense_init == "shared":
            center = self.weight[self.table.senses[:, 0]][self.word_of_sense]  # [M, d]
            own = (1.0 - SHARED_COSINE**2) ** 0.5 * self.weight
            self.weight.copy_(SHARED_COSINE * center + own)
        if self.has_theta:
            nn.init.normal_(self.theta, self.kernel.theta_mean, self.kernel.theta_std)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"after_moves": []}  # a copy is followed by nothing

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"after_moves": [], **state})

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
            return posterior_weights(contexts, found.rows, found.theta, found.mask, self.kernel)
        with torch.autocast(contexts.device.type, enabled=False):
            logits = prepared.logits_of(found.senses, found.rows, contexts)
            return logits.masked_fill(~found.mask, -torch.inf).softmax(-1)

    def _nll(self, h: Tensor, target: Tensor, options: NllOptions) -> Losses:
        loss, token_nll, evidence = super()._nll(h, target, options)
        if self.training and evidence is not None and not _in_backward():
            self.inventory.record(target, evidence, h)
        return loss, token_nll, evidence

    def update_statistics(self, decay: float, contexts: bool = True) -> Tensor:
        """Take what was recorded into log P and U (Eq. 12–13, ``decay`` = β); sums of context
        vectors stay pending without ``contexts``. Returns the number of targets."""
        return self.inventory.update(decay, contexts)

    @torch.no_grad()
    def reallocate(
        self, policy: str, settings: reallocation.ReallocationSettings | None = None
    ) -> reallocation.Moves:
        """Move senses as a policy of that name proposes (Algorithm 1), by its hyper-parameters.

        The optimizer's moments of the moved rows still are another word's: see
        :func:`fairseq_kerbs.reallocation.reset_moments`.

        Returns:
            the moves that were made, with the vectors that moved senses begin with.

        Raises:
            ValueError: no policy has that name, or the parameters are sharded (FSDP2).
        """
        if hasattr(self.weight, "full_tensor"):
            raise ValueError(
                "The senses of a layer whose parameters are sharded by `fully_shard` cannot move: "
                "leave the layer out of it, or reallocate no senses."
            )
        moves = reallocation.propose_moves(self.inventory, policy, settings)
        if moves.bases is None:
            vectors = new_vectors(self.inventory, self.weight, moves, self.new_sense)
        else:
            vectors = self._split_vectors(moves)
        reallocation.apply_moves(self.inventory, moves)
        rows = moves.senses.to(self.weight.device)
        if vectors is not None:
            self.weight[rows] = vectors.to(self.weight.dtype)
        if self.has_theta and moves.bases is not None:
            self.theta[rows] = self.theta[moves.bases.to(rows.device)]
        elif self.has_theta and moves.reset_theta:
            self.theta[rows] = reallocation.MOVED_THETA
        for follow in self.after_moves if len(moves) else ():
            follow(moves.senses)
        return replace(moves, vectors=vectors)

    def _split_vectors(self, moves: reallocation.Moves) -> Tensor:
        """Vectors [K, d] of senses that begin at sides of another's contexts (`.clusters`)."""
        assert moves.bases is not None
        assert moves.sides is not None
        bases = moves.bases.to(self.weight.device)
        w, theta = self.weight[bases].double(), self.theta[bases].double()
        own = moves.sides.to(w)
        other = own.roll(len(own) // 2, 0)
        unit = nn.functional.normalize(own, dim=1)
        across = other - (other * unit).sum(1, keepdim=True) * unit
        length = across.norm(dim=1, keepdim=True).clamp_min(1e-12)
        longest = MOST_TURN * w.norm(dim=1, keepdim=True) / length

        def logits(contexts: Tensor, rows: Tensor) -> Tensor:
            x = (self.kernel.map_contexts(contexts) * rows).sum(1, keepdim=True)
            norms = safe_norm(contexts), safe_norm(rows)
            return apply_kernel(self.kernel, x, *norms, theta.unsqueeze(1))

        def turned(alpha: Tensor) -> Tensor:
            rows = w - alpha * across
            before, after = logits(own, w), logits(own, rows)
            scale = torch.where((before > 0) & (after > 0), before / after, 1.0)
            return rows * scale.clamp(1.0 / MOST_SCALE, MOST_SCALE)

        low, high = torch.zeros_like(longest), longest
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            falls = logits(other, w) - logits(other, turned(middle)) < GAP
            low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)
        return turned(high).to(torch.promote_types(self.weight.dtype, torch.float32))
