"""Output layers: from a context vector to word probabilities (Sections 3 and 4.1).

Every layer offers ``log_probs``, ``nll`` and ``predict``, in the manner of
``torch.nn.AdaptiveLogSoftmaxWithLoss``, and works in any PyTorch model. Training with KerBS:

    layer = KerbsOutputLayer(embed_dim=288, vocab_size=10_000, total_senses=30_000)
    loss = layer.nll(h, target, reduction="mean")      # records statistics while training
    loss.backward(); optimizer.step()
    layer.update_statistics(decay=1e-5)                # Eq. 12–13, after every update
    if step % 200 == 0:
        moves = layer.reallocate("paper")              # Algorithm 1
        reset_moments(optimizer, layer.sense_parameters(), moves.senses)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_kerbs.kernels import Kernel, build_kernel
from fairseq_kerbs.likelihood import kerbs_log_probs, nll_with_evidence, score_words
from fairseq_kerbs.reallocation import (
    MOVED_THETA,
    Moves,
    ReallocationSettings,
    carry_out,
    find_moves,
)
from fairseq_kerbs.reallocation.moved_vectors import check_new_sense, new_vectors
from fairseq_kerbs.senses import Evidence, SenseInventory, SenseTable

SENSE_INITS = ("random", "shared")
SHARED_COSINE = 0.95
PREDICTED_SCORES = 4 << 20  # context vectors × words that predict keeps at a time


class _Anchor(torch.autograd.Function):
    """The first argument itself, as a function of all; only the first receives a gradient."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, *parameters: Tensor) -> Tensor:
        ctx.others = len(parameters)
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (grad, *[None] * ctx.others)


class OutputLayer(nn.Module):
    """Base of the layers that score senses with one kernel.

    Args:
        embed_dim: size d of context vectors and sense embeddings.
        vocab_size: number of words V.
        total_senses: number of senses M.
        max_senses: most senses of one word.
        kernel: name of a kernel, or a kernel.
        sense_init: how vectors begin, see :meth:`reset_parameters`.
        new_sense: how vectors of moved senses begin, see :mod:`.reallocation.moved_vectors`.

    Attributes:
        weight: sense embeddings W, [M, d]; normal with deviation d^−½.
        theta: kernel parameters θ, [M]; a parameter where the kernel has one, else zeros.
        inventory: allocation of senses to words, and its statistics.
        biased: whether the last coordinate of all context vectors is 1, so that the last one of a
            sense is its bias; whoever makes the context vectors sets this.
    """

    theta: Tensor
    biased = False

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
    ) -> None:
        super().__init__()
        check_new_sense(new_sense)
        if sense_init not in SENSE_INITS:
            raise ValueError(
                f"--sense-init: there is no '{sense_init}'; choose one of {', '.join(SENSE_INITS)}."
            )
        self.sense_init, self.new_sense = sense_init, new_sense
        self.embed_dim, self.vocab_size, self.total_senses = embed_dim, vocab_size, total_senses
        self.kernel = build_kernel(kernel).bind(embed_dim)
        context_dim = embed_dim if new_sense == "context" else 0
        self.inventory = SenseInventory(
            vocab_size, total_senses, max_senses, context_dim=context_dim
        )
        self.weight = nn.Parameter(torch.empty(total_senses, embed_dim))
        if self.kernel.has_theta:
            self.theta = nn.Parameter(torch.empty(total_senses))
        else:
            self.register_buffer("theta", torch.zeros(total_senses), persistent=False)
        self._prepared: tuple[tuple[Any, ...], Any] | None = None  # its key, and backends
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw W and θ at random, as Section 4.2 begins.

        ``sense_init`` "random" draws every sense alone: most senses of a word then lie so far from
        its contexts that one of them wins them all. "shared" draws the senses of a word around its
        first one, with a cosine of about :data:`SHARED_COSINE` to it, so that all of them begin
        alive; the first one is longer, by the factor cos + sin (1.26), and so leads at first.
        """
        nn.init.normal_(self.weight, std=self.embed_dim**-0.5)
        if self.sense_init == "shared":
            with torch.no_grad():
                owners = self.inventory.word_of_sense
                center = self.weight[self.table.senses[:, 0]][owners]  # [M, d]
                own = (1.0 - SHARED_COSINE**2) ** 0.5 * self.weight
                self.weight.copy_(SHARED_COSINE * center + own)
        if self.kernel.has_theta:
            nn.init.normal_(self.theta, self.kernel.theta_mean, self.kernel.theta_std)

    @property
    def table(self) -> SenseTable:
        """Senses of every word."""
        return self.inventory.table

    @property
    def usage(self) -> Tensor:
        """Usage U of every sense, [M]."""
        return self.inventory.usage

    def sense_parameters(self) -> list[nn.Parameter]:
        """Parameters whose rows belong to senses."""
        return [value for value in (self.weight, self.theta) if isinstance(value, nn.Parameter)]

    def as_contexts(self, rows: Tensor) -> Tensor:
        """Sense vectors [..., d] in the place of context vectors: these have no bias, but a 1."""
        if not self.biased:
            return rows
        return torch.cat([rows[..., :-1], torch.ones_like(rows[..., -1:])], dim=-1)

    def anchor(self, h: Tensor) -> Tensor:
        """Context vectors as they are, but in autograd's graph a result of the layer, too.

        The likelihood is computed outside the model's ``forward``. DistributedDataParallel with
        ``find_unused_parameters`` takes a parameter that its outputs do not depend on for unused.
        """
        if not torch.is_grad_enabled():
            return h
        anchored: Tensor = _Anchor.apply(h, *self.parameters())
        return anchored

    def log_probs(self, h: Tensor) -> Tensor:
        """Log-probabilities of all words (Eq. 4–5), [..., d] -> [..., V], at least float32."""
        owners = self.inventory.word_of_sense
        if torch.is_grad_enabled():
            return kerbs_log_probs(
                h,
                self.weight,
                self.theta,
                owners,
                self.vocab_size,
                kernel=self.kernel,
                table=self.table,
            )
        versions = (self.weight._version, self.theta._version, owners._version)
        key = (self.weight.data_ptr(), h.dtype, versions)
        prepared = None
        if self._prepared is not None and self._prepared[0] == key and not self.training:
            prepared = self._prepared[1]
        scores, prepared = score_words(
            h, self.weight, self.theta, owners, self.table, kernel=self.kernel, backend=prepared
        )
        self._prepared = None if self.training else (key, prepared)
        return scores

    def train(self, mode: bool = True) -> OutputLayer:
        """Set training mode; either way, what was prepared for decoding is forgotten.

        Optimizers change weights through ``.data``, which no version counter sees.
        """
        self._prepared = None
        super().train(mode)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_prepared": None}

    def predict(self, h: Tensor) -> Tensor:
        """Most probable word for each context vector, [..., d] -> [...], a few at a time."""
        most = max(1, PREDICTED_SCORES // self.vocab_size)
        with torch.no_grad():
            flat = h.reshape(-1, self.embed_dim)
            words = [self.log_probs(part).argmax(-1) for part in flat.split(most)]
            return torch.cat(words).view(h.shape[:-1])

    def nll(
        self,
        h: Tensor,
        target: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "sum",
    ) -> Tensor:
        """Negative log-likelihood of target words in nats; records statistics while training.

        Args:
            h: context vectors, [..., d].
            target: target words, [...].
            ignore_index: targets with this value give no loss.
            label_smoothing: ε, over words.
            reduction: "sum", "mean" or "none".

        Returns:
            A scalar, or [...] for "none".
        """
        loss, _, _ = self.nll_with_evidence(
            h,
            target,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
        )
        return loss

    def nll_with_evidence(
        self,
        h: Tensor,
        target: Tensor,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "sum",
    ) -> tuple[Tensor, Tensor, Evidence]:
        """:meth:`nll`, each token's plain nll [...] (detached), and the evidence on the senses."""
        loss, token_nll, evidence = nll_with_evidence(
            h.reshape(-1, self.embed_dim),
            self.weight,
            self.theta,
            self.inventory.word_of_sense,
            target.reshape(-1),
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            reduction=reduction,
            kernel=self.kernel,
            table=self.table,
        )
        if self.training:
            contexts = h.reshape(-1, self.embed_dim)
            self.inventory.record(target.reshape(-1), evidence, contexts)
        if reduction == "none":
            loss = loss.view(target.shape)
        return loss, token_nll.view(target.shape), evidence

    def extra_repr(self) -> str:
        return f"embed_dim={self.embed_dim}, kernel={self.kernel.name}"


class SoftmaxOutputLayer(OutputLayer):
    """Plain softmax (Eq. 3): one sense a word, inner product. The baseline on the same code path.

    Args:
        embed_dim: size d of context vectors and word embeddings.
        vocab_size: number of words V.
    """

    def __init__(self, embed_dim: int, vocab_size: int) -> None:
        super().__init__(embed_dim, vocab_size, vocab_size, max_senses=1, kernel="lin")


class KerbsOutputLayer(OutputLayer):
    """Kernelized Bayesian softmax (Section 4): several senses a word, a kernel with learned θ.

    Args:
        embed_dim: size d of context vectors and sense embeddings.
        vocab_size: number of words V.
        total_senses: number of senses M, V ≤ M ≤ V·max_senses.
        max_senses: most senses of one word.
        kernel: name of a kernel, or a kernel.
        sense_init: "random" (the paper) or "shared", see :meth:`reset_parameters`.
        new_sense: "keep" (the paper), "split" or "context", see :mod:`.reallocation.moved_vectors`.

    Raises:
        ValueError: the sense numbers do not fit each other, or no kernel has that name.
    """

    def update_statistics(self, decay: float) -> Tensor:
        """Take what was recorded into log P and U (Eq. 12–13); returns the number of targets."""
        return self.inventory.update(decay)

    @torch.no_grad()
    def reallocate(self, policy: str, settings: ReallocationSettings | None = None) -> Moves:
        """Move senses as a policy finds right (Algorithm 1); ``new_sense`` says where they begin.

        The optimizer's moments of the moved rows still are another word's: see
        :func:`fairseq_kerbs.reallocation.reset_moments`.

        Args:
            policy: name of a policy.
            settings: its hyper-parameters.

        Returns:
            the moves that were made, with the vectors that moved senses begin with.
        """
        moves = find_moves(self.inventory, policy, settings)
        moves = replace(
            moves, vectors=new_vectors(self.inventory, self.weight, moves, self.new_sense)
        )
        carry_out(self.inventory, moves)
        rows = moves.senses.to(self.weight.device)
        if moves.vectors is not None:
            self.weight[rows] = moves.vectors.to(self.weight.dtype)
        if moves.reset_theta and self.kernel.has_theta:
            self.theta[rows] = MOVED_THETA
        return moves
