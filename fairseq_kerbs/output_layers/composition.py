"""Input embeddings composed from the senses of the previous word (Section 4.1.1, Eq. 6–7).

    e_t = Σ_j q_t^j w_i^j,  i = ŷ_{t−1},  q_t^j = P(s_{t−1} = ⟨i,j⟩) / Σ_k P(s_{t−1} = ⟨i,k⟩)

The posterior weights q need h_{t−1}, the context vector that predicted ŷ_{t−1}. Where there is
none (first position, pass 0 of a parallel decoder) the prior stands in: usage U, normalized
inside the word.

Where the last coordinate of context vectors is constant (``sense_bias``), that of the rows is a
bias of the senses. It counts in the weights, but is no part of the embedding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_kerbs.output_layers.base import LookedUp, OutputLayer


class _OfLayer:
    """An embedding that refers to the output layer, which is no submodule of it: its parameters
    appear once in the state dict."""

    _reference: list[OutputLayer]  # in a list, so that nn.Module does not find it

    @property
    def layer(self) -> OutputLayer:
        """The output layer that scores what the decoder makes of the embeddings."""
        return self._reference[0]


class ComposedEmbedding(_OfLayer, nn.Module):
    """Embedding of words as mixtures of the output layer's sense rows: tied by construction.

    Has what fairseq asks of an embedding (``embedding_dim``, ``padding_idx``, ``weight``).

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
        self._reference = [layer]
        self.padding_idx = padding_idx
        self.embedding_dim = layer.embed_dim - int(sense_bias)
        self.num_embeddings = layer.vocab_size
        # one sense a word: every composition is that sense
        self.posterior = posterior and layer.total_senses > layer.vocab_size

    @property
    def weight(self) -> Tensor:
        """Rows of all senses, [M, d]."""
        return self.layer.weight

    def look_up(self, words: Tensor) -> LookedUp:
        """Senses of words [...], which needs no context vectors; the padding word has none."""
        found = self.layer.look_up(words)
        return found._replace(mask=found.mask & words.ne(self.padding_idx).unsqueeze(-1))

    def compose(
        self, found: LookedUp, contexts: Tensor | None = None, alone: Tensor | None = None
    ) -> Tensor:
        """As :meth:`forward`, of words that are looked up already: Σ_j q^j w^j without biases.

        Words at the places of ``alone`` [...] are composed with the prior all the same.
        """
        weights = found.prior
        if contexts is not None and self.posterior:
            # the padding word has no sense at all: any finite weights will do for it
            some = found.mask | ~found.mask.any(-1, keepdim=True)
            weights = self.layer.posterior(found._replace(mask=some), contexts)
            if alone is not None:
                weights = torch.where(alone.unsqueeze(-1), found.prior, weights)
        rows = found.rows[..., : self.embedding_dim]
        weights = (weights * found.mask).unsqueeze(-2)
        return (weights.to(rows.dtype) @ rows).squeeze(-2)

    def forward(self, words: Tensor, contexts: Tensor | None = None) -> Tensor:
        """Embed words [...] with the context vectors [..., d] that predicted them, or else with the
        prior: [..., e], e = d but for a bias."""
        layer = self.layer
        if layer.total_senses > layer.vocab_size:
            return self.compose(self.look_up(words), contexts)
        single = F.embedding(layer.table.senses[words][..., 0], layer.weight)
        embedded = single[..., : self.embedding_dim]
        return embedded.masked_fill(words.eq(self.padding_idx).unsqueeze(-1), 0.0)

    def embed_sequence(self, words: Tensor, features: Tensor | None) -> Tensor:
        """Embed a whole input sequence for a parallel decoder, [batch, len, e].

        Position t of ``words`` [batch, len] holds ŷ_{t−1}; its context vector is the feature of
        position t − 1 in an earlier pass, [batch, len, d]. The first position, and one that follows
        padding, is composed with the prior, as are all without features.
        """
        if features is None or not self.posterior:
            return self(words)
        before = F.pad(features[:, :-1], (0, 0, 1, 0))  # [batch, len, d]
        alone = F.pad(words[:, :-1].eq(self.padding_idx), (1, 0), value=True)
        return self.compose(self.look_up(words), before, alone)


class SeparateEmbedding(_OfLayer, nn.Embedding):
    """One vector a word, apart from those of the output layer; that of the padding word is 0."""

    posterior = False

    def __init__(self, layer: OutputLayer, padding_idx: int, size: int) -> None:
        super().__init__(layer.vocab_size, size, padding_idx)
        self._reference = [layer]
        nn.init.normal_(self.weight, std=size**-0.5)
        nn.init.zeros_(self.weight[padding_idx])
