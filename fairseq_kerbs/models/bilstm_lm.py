"""Bidirectional (cloze) language model: each word from what stands before it and after it.

One LSTM reads the text forwards, another one backwards. The context vector of position t is a
projection of the forward state after word t − 1 and the backward state after word t + 1, so any
output layer can score word t, which neither of the two has read.

The product of these probabilities over a text is no probability of the text. What fairseq-eval-lm
and fairseq-validate call perplexity is a *pseudo-perplexity* here: it compares cloze models with
each other, and must not be compared with the perplexity of left-to-right models.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import FairseqDecoder, FairseqLanguageModel
from torch import Tensor, nn

from fairseq_kerbs.models.base import ScoredByOutputLayer
from fairseq_kerbs.models.config import RecurrentLanguageModelConfig
from fairseq_kerbs.models.recurrent import (
    MAX_POSITIONS,
    RecurrentModel,
    build_rnn,
    put_back,
    right_padded,
)
from fairseq_kerbs.output_layers.composition import ComposedEmbedding
from fairseq_kerbs.utils.errors import ProgramEnd


def reversal(tokens: Tensor, padding_idx: int) -> Tensor:
    """Places that turn the words of each row around and leave its padding where it is.

    Args:
        tokens: [batch, len], padded on the right.
        padding_idx: the padding token.

    Returns:
        for each position of the turned row the place that its word has in the row, [batch, len];
        the same places turn it back.
    """
    lengths = tokens.ne(padding_idx).sum(1, keepdim=True)  # [batch, 1]
    place = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    return torch.where(place < lengths, lengths - 1 - place, place)


def at_places(values: Tensor, places: Tensor) -> Tensor:
    """Values [batch, len, d] of places [batch, len] of their rows."""
    return values.gather(1, places.unsqueeze(-1).expand_as(values))


class ClozeDecoder(ScoredByOutputLayer, FairseqDecoder):
    """Two LSTMs, one in each direction; their projected states are the context vectors.

    Input embeddings are composed with the prior. The posterior of word t (Eq. 6) comes from the
    context vector of position t, which has read word t + 1: the forward state after word t would
    know the word that it has to predict next, and likewise backwards.

    With several layers each direction has a stack of its own, as in ELMo: layers that read both
    directions of the layer below would see the target.

    Args:
        cell: "lstm".
        args: flags of :class:`.config.RecurrentLanguageModelConfig`.
        dictionary: dictionary of the words.
        embed_tokens: composed input embedding, which refers to the output layer.
    """

    def __init__(self, cell: str, args: Any, dictionary: Any, embed_tokens: Any) -> None:
        super().__init__(dictionary)
        self.output, self.embed_tokens = embed_tokens.layer, embed_tokens
        embed_tokens.posterior = False
        self.forwards, self.backwards = (
            build_rnn(cell, args, args.hidden_size, batch_first=True) for _ in range(2)
        )
        self.to_context = nn.Linear(2 * args.hidden_size, args.embed_dim)
        self.dropout = nn.Dropout(args.dropout)

    def forward(
        self, prev_output_tokens: Tensor, src_lengths: Tensor | None = None, **others: Any
    ) -> tuple[Tensor, dict[str, list[None]]]:
        """Context vectors of every word from all others, [batch, len, d].

        Args:
            prev_output_tokens: the words themselves, [batch, len], padded on either side.
            src_lengths: not needed.
            others: not used.

        Raises:
            ProgramEnd: a generator is calling, which this model cannot serve.
        """
        if "encoder_out" in others or others.get("incremental_state") is not None:
            raise ProgramEnd(
                "--arch bilstm_lm_kerbs reads both sides of a word and cannot generate text: use "
                "it with fairseq-validate or fairseq-eval-lm."
            )
        features, extra = self.extract_features(prev_output_tokens)
        return self.output_layer(features), extra

    def extract_features(
        self, prev_output_tokens: Tensor, **_: Any
    ) -> tuple[Tensor, dict[str, list[None]]]:
        """As :meth:`forward`."""
        padding = self.embed_tokens.padding_idx
        tokens, places = right_padded(prev_output_tokens, padding)
        embedded = self.dropout(self.embed_tokens(tokens))  # [batch, len, d]
        after, _state = self.forwards(embedded)  # after reading word t, [batch, len, hidden]
        turned = reversal(tokens, padding)
        read_back, _state = self.backwards(at_places(embedded, turned))
        # both directions have read one word less than there is in front of them: the state before
        # the first word is zero, and padding comes after the words in either direction
        before = F.pad(after, (0, 0, 1, -1))
        behind = at_places(F.pad(read_back, (0, 0, 1, -1)), turned)
        both = self.dropout(torch.cat([before, behind], dim=-1))  # [batch, len, 2 · hidden]
        return put_back(self.contexts(self.to_context(both)), places), {"attn": [None]}

    def max_positions(self) -> int:
        """Longest text."""
        return MAX_POSITIONS


class BilstmLanguageModel(RecurrentModel, FairseqLanguageModel):
    """Cloze model with an output layer of ours, for ``--task language_modeling --self-target``."""

    arch = "bilstm_lm_kerbs"
    flags = RecurrentLanguageModelConfig
    decoder_class, embedding = ClozeDecoder, ComposedEmbedding
    target = "self"

    @property
    def supported_targets(self) -> set[str]:
        """fairseq's name for predicting the words that are read."""
        return {"self"}
