"""Input embeddings composed from the senses of the previous word (Section 4.1.1, Eq. 6–7).

    e_t = Σ_j q_t^j w_i^j,  i = ŷ_{t−1},  q_t^j = P(s_{t−1} = ⟨i,j⟩) / Σ_k P(s_{t−1} = ⟨i,k⟩)

The posterior weights q need h_{t−1}, the context vector that predicted ŷ_{t−1}. Where there is
none (first position, pass 0 of a parallel decoder) the prior stands in: usage U, normalized
inside the word.

Where the last coordinate of context vectors is constant (``--sense-bias``), that of the rows is a
bias of the senses. It counts in the weights, but is no part of the embedding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_kerbs.kernels import Kernel, apply_kernel, compute_dtype, safe_norm
from fairseq_kerbs.output_layers.kerbs import OutputLayer
from fairseq_kerbs.senses import SenseTable


def prior_weights(usage: Tensor, table: SenseTable) -> Tensor:
    """Usage normalized inside each word; uniform where a word's senses were never used.

    Args:
        usage: U of Eq. 13, [M].
        table: senses of all words, [V, K], or of some, [..., K].

    Returns:
        of the table's shape; 0 at padding, sums to 1.
    """
    used = usage[table.senses].double() * table.mask  # [..., K]
    total = used.sum(-1, keepdim=True)
    uniform = table.mask / table.mask.sum(-1, keepdim=True)
    # far below float32's range a quotient of decayed usages carries no information
    seen = total > 1e-30
    return torch.where(seen, used / torch.where(seen, total, 1.0), uniform).to(usage.dtype)


def posterior_weights(
    h: Tensor, rows: Tensor, theta: Tensor, mask: Tensor, kernel: Kernel
) -> Tensor:
    """Probability of each sense of a known word, given the context vector that predicted it.

    The normalizer of Eq. 5 cancels inside the word, so its few senses suffice.

    Args:
        h: context vectors h_{t−1}, [..., d].
        rows: embeddings of the word's senses, [..., K, d].
        theta: their kernel parameters, [..., K].
        mask: True at real senses, [..., K].
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


class ComposedEmbedding(nn.Module):
    """Embedding of words as mixtures of the output layer's sense rows: tied by construction.

    Has what fairseq asks of an embedding (``embedding_dim``, ``padding_idx``, ``weight``). The
    output layer is referred to, not owned: its parameters appear once in the state dict.

    Args:
        layer: output layer whose rows are composed.
        padding_idx: word whose embedding is 0.
        posterior: compose with Eq. 6–7; otherwise always with the prior.
        sense_bias: the last coordinate of the rows is a bias: embeddings have one less.
    """

    def __init__(
        self,
        layer: OutputLayer,
        padding_idx: int,
        posterior: bool = True,
        sense_bias: bool = False,
    ) -> None:
        super().__init__()
        self._reference = [layer]  # in a list, so that it is no submodule
        self.padding_idx = padding_idx
        self.embedding_dim = layer.embed_dim - int(sense_bias)
        self.num_embeddings = layer.vocab_size
        # one sense a word: every composition is that sense
        self.posterior = posterior and layer.total_senses > layer.vocab_size

    @property
    def layer(self) -> OutputLayer:
        """The output layer whose rows are composed."""
        return self._reference[0]

    @property
    def weight(self) -> Tensor:
        """Rows of all senses, [M, d]."""
        return self.layer.weight

    def _mix(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Σ_j q^j w^j without biases: weights [..., n, K], rows [..., K, d] -> [..., n, e]."""
        if self.embedding_dim < rows.shape[-1]:
            rows = rows[..., : self.embedding_dim]
        return weights.to(rows.dtype) @ rows

    def forward(self, words: Tensor, contexts: Tensor | None = None) -> Tensor:
        """Embed words, each with its own context vector where one is given.

        Args:
            words: [...] word numbers.
            contexts: [..., d] context vectors that predicted them; None composes with the prior.

        Returns:
            [..., e], e = d but for a bias
        """
        layer = self.layer
        table = layer.table
        senses, mask = table.senses[words], table.mask[words]  # [..., K]
        if table.senses.shape[1] == 1 or layer.total_senses == layer.vocab_size:
            single = F.embedding(senses[..., 0], layer.weight)[..., : self.embedding_dim]
            return self._hide_padding(single, words)
        rows = F.embedding(senses, layer.weight)  # [..., K, d]
        if contexts is None or not self.posterior:
            weights = prior_weights(layer.usage, SenseTable(senses, mask))
        else:
            weights = posterior_weights(contexts, rows, layer.theta[senses], mask, layer.kernel)
        composed = self._mix(weights.unsqueeze(-2), rows).squeeze(-2)  # [..., e]
        return self._hide_padding(composed, words)

    def embed_sequence(self, words: Tensor, features: Tensor | None) -> Tensor:
        """Embed a whole input sequence for a parallel decoder.

        Position t holds ŷ_{t−1}; its context vector is the feature of position t − 1. The first
        position, and one that follows padding, is composed with the prior.

        Args:
            words: [batch, len] previous output tokens.
            features: [batch, len, d] of an earlier pass; None composes all with the prior.

        Returns:
            [batch, len, e]
        """
        if features is None or not self.posterior or words.shape[1] < 2:
            return self(words)
        first = self(words[:, :1])  # [batch, 1, e]
        rest = self(words[:, 1:], features[:, :-1])  # [batch, len − 1, e]
        after_padding = words[:, :-1].eq(self.padding_idx)
        if after_padding.any():
            rest = torch.where(after_padding.unsqueeze(-1), self(words[:, 1:]), rest)
        return torch.cat([first, rest], dim=1)

    def embed_streams(self, words: Tensor, contexts: Tensor) -> Tensor:
        """Embed each word once with the prior and once with each of its context vectors.

        Args:
            words: [batch] word numbers.
            contexts: [batch, n, d] context vectors.

        Returns:
            [batch, n + 1, e], the composition with the prior first.
        """
        layer = self.layer
        senses, mask = layer.table.senses[words], layer.table.mask[words]  # [batch, K]
        rows = F.embedding(senses, layer.weight).unsqueeze(1)  # [batch, 1, K, d]
        prior = prior_weights(layer.usage, SenseTable(senses, mask)).unsqueeze(1)
        theta, mask = layer.theta[senses].unsqueeze(1), mask.unsqueeze(1)  # [batch, 1, K]
        posterior = posterior_weights(contexts, rows, theta, mask, layer.kernel)
        weights = torch.cat([prior.to(posterior.dtype), posterior], dim=1)  # [batch, n + 1, K]
        composed = self._mix(weights, rows.squeeze(1))  # [batch, n + 1, e]
        return self._hide_padding(composed, words.unsqueeze(1))

    def _hide_padding(self, embedded: Tensor, words: Tensor) -> Tensor:
        return embedded.masked_fill(words.eq(self.padding_idx).unsqueeze(-1), 0.0)


class LookedUp(NamedTuple):
    """What composition needs of words, [...] in number.

    Attributes:
        rows: embeddings of their senses, [..., K, d].
        theta: kernel parameters of these, [..., K].
        prior: usage of these inside the word (Eq. 7 without context), [..., K].
        mask: True at senses, False at padding of the table and everywhere for the padding word;
            [..., K].
    """

    rows: Tensor
    theta: Tensor
    prior: Tensor
    mask: Tensor


class SteppingEmbedding(ComposedEmbedding):
    """Composed embedding in two parts, of which only the second needs context vectors."""

    def look_up(self, words: Tensor) -> LookedUp:
        """Senses of words [...]."""
        layer = self.layer
        senses, mask = layer.table.senses[words], layer.table.mask[words]  # [..., K]
        prior = prior_weights(layer.usage, SenseTable(senses, mask))
        real = words.ne(self.padding_idx).unsqueeze(-1)
        rows = F.embedding(senses, layer.weight)  # [..., K, d]
        return LookedUp(rows, layer.theta[senses], prior, mask & real)

    def compose(self, senses: LookedUp, contexts: Tensor | None) -> Tensor:
        """Embeddings [..., e] of looked-up words, given the context vectors before them.

        Args:
            senses: of [...] words.
            contexts: [..., d] context vectors that predicted them; None composes with the prior.
        """
        if contexts is None:
            weights = senses.prior
        else:
            # the padding word has no sense at all: any finite weights will do for it
            some = senses.mask | ~senses.mask.any(-1, keepdim=True)
            kernel = self.layer.kernel
            weights = posterior_weights(contexts, senses.rows, senses.theta, some, kernel)
        weights = weights * senses.mask
        return self._mix(weights.unsqueeze(-2), senses.rows).squeeze(-2)


class SeparateEmbedding(nn.Embedding):
    """Embedding with one vector a word, which are not those of the output layer.

    Stands where a composed embedding would, and so refers to the output layer as that does.

    Args:
        layer: output layer.
        padding_idx: word whose embedding is 0 at first, and is not trained.
        size: size e of the vectors.
    """

    posterior = False

    def __init__(self, layer: OutputLayer, padding_idx: int, size: int) -> None:
        super().__init__(layer.vocab_size, size, padding_idx)
        self._reference = [layer]  # in a list, so that it is no submodule
        nn.init.normal_(self.weight, std=size**-0.5)
        nn.init.zeros_(self.weight[padding_idx])

    @property
    def layer(self) -> OutputLayer:
        """The output layer that scores what the decoder makes of these."""
        return self._reference[0]
