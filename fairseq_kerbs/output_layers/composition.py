"""Input embeddings composed of the senses of the previous word (Section 4.1.1, Eq. 6–7).

    e_t = Σ_j q_t^j w_i^j,  i = ŷ_{t−1},  q_t^j = P(s_{t−1} = ⟨i,j⟩) / Σ_k P(s_{t−1} = ⟨i,k⟩)

The posterior weights q need h_{t−1}, the context vector that predicted ŷ_{t−1}. Without it, at the
first position and in pass 0 of a parallel decoder, the prior is used: usage U, normalized within
the word.

If the layer is ``biased``, the last coordinate of a sense embedding is its bias. It affects the
weights, but is not part of the input embedding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_kerbs.output_layers.base import OutputLayer, SenseLookup
from fairseq_kerbs.torch_compat import is_compiling


class ComposedEmbedding(nn.Module):
    """Word embeddings as mixtures of sense embeddings of the output layer (Eq. 6).

    It has the attributes of an embedding that fairseq uses, ``embedding_dim`` and ``padding_idx``.

    Args:
        layer: the output layer.
        padding_idx: the padding word, with embedding 0.
        posterior: weight senses by their posterior (Eq. 7), otherwise by the prior.
    """

    layer: OutputLayer  # no submodule, so its parameters appear once in the state dict

    def __init__(self, layer: OutputLayer, padding_idx: int, posterior: bool = True) -> None:
        super().__init__()
        self.__dict__["layer"] = layer
        self.padding_idx = padding_idx
        self.embedding_dim = layer.embed_dim - int(layer.biased)
        # with one sense per word both weights are 1
        self.posterior = posterior and layer.total_senses > layer.vocab_size

    def look_up(self, words: Tensor, prepare: bool = False) -> SenseLookup:
        """As :meth:`.OutputLayer.look_up`, with an empty mask for the padding word."""
        found = self.layer.look_up(words, prepare)
        return found._replace(mask=found.mask & words.ne(self.padding_idx).unsqueeze(-1))

    def compose(
        self, found: SenseLookup, contexts: Tensor | None = None, use_prior: Tensor | None = None
    ) -> Tensor:
        """Compose Σ_j q^j w^j from senses that are already looked up.

        Args:
            found: senses of words [...], from :meth:`look_up`.
            contexts: context vectors that predicted the words, [..., d]. Without them, the prior is
                used.
            use_prior: [...] True at words that use the prior anyway.

        Returns:
            [..., e], with e = d, or d − 1 with a bias.
        """
        if contexts is None or not self.posterior:
            weights = found.prior
        else:
            weights = self.layer.posterior(found, contexts)
            if use_prior is not None:
                weights = torch.where(use_prior.unsqueeze(-1), found.prior, weights)
        rows = found.rows[..., : self.embedding_dim]
        weights = (weights * found.mask).unsqueeze(-2)
        return (weights.to(rows.dtype) @ rows).squeeze(-2)

    def forward(self, words: Tensor, contexts: Tensor | None = None) -> Tensor:
        """Embed words [...]: [..., e], with e = d, or d − 1 with a bias.

        ``contexts`` [..., d] are the context vectors that predicted the words. Without
        them, the prior is used.
        """
        layer = self.layer
        if layer.total_senses == layer.vocab_size:
            return self._first_senses(words)
        # a GPU would have to wait for the number of words with several senses
        if torch.is_grad_enabled() or is_compiling() or words.is_cuda:
            return self.compose(self.look_up(words), contexts)
        return self._compose_several(words, contexts)

    def _first_senses(self, words: Tensor) -> Tensor:
        """Embeddings [..., e] of the first senses of words [...]."""
        layer = self.layer
        # an index would take negative words
        first = F.embedding(words, layer.table.senses[:, :1]).squeeze(-1)
        single = F.embedding(first, layer.weight)
        embedded = single[..., : self.embedding_dim]
        return embedded.masked_fill(words.eq(self.padding_idx).unsqueeze(-1), 0.0)

    def _compose_several(self, words: Tensor, contexts: Tensor | None) -> Tensor:
        """As :meth:`forward`, but weights are computed for words with several senses alone.

        The only sense of a word has weight 1.
        """
        embedded = self._first_senses(words)
        several = (self.layer.table.mask[:, 1][words] & words.ne(self.padding_idx)).nonzero()
        places = several.unbind(1)
        of_these = None if contexts is None else contexts[places]
        composed = self.compose(self.look_up(words[places]), of_these)
        embedded = embedded.to(composed.dtype)  # of autocast
        embedded[places] = composed
        return embedded

    def embed_sequence(self, words: Tensor, features: Tensor) -> Tensor:
        """Embed an input sequence for a parallel decoder, ŷ_{t−1} at position t: [batch, len, e].

        The context vector of a word is the feature of the position before, from an earlier pass
        [batch, len, d]. The first position and positions after padding use the prior.
        """
        before = F.pad(features[:, :-1], (0, 0, 1, 0))  # [batch, len, d]
        use_prior = F.pad(words[:, :-1].eq(self.padding_idx), (1, 0), value=True)
        return self.compose(self.look_up(words), before, use_prior)


class SeparateEmbedding(nn.Embedding):
    """Word embeddings that are not tied to the output layer. The padding word's is 0."""

    layer: OutputLayer  # as in ComposedEmbedding
    posterior = False

    def __init__(self, layer: OutputLayer, padding_idx: int, size: int) -> None:
        super().__init__(layer.vocab_size, size, padding_idx)
        self.__dict__["layer"] = layer
        nn.init.normal_(self.weight, std=size**-0.5)
        nn.init.zeros_(self.weight[padding_idx])
