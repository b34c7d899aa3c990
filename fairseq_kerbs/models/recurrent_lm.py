"""Recurrent language models with an output layer of ours (Section 5.1), left-to-right and cloze.

The Bayesian composition of Eq. 6 needs the context vector of the step before, so a model with it
steps through time. Where a word's embedding is the same in every context (softmax, one sense a
word, ``--composition prior``) the whole sequence goes through torch's own LSTM or GRU. Both ways
use the same weights, those of ``nn.LSTM`` or ``nn.GRU``.

The cloze model scores each word from what stands before it and after it. The product of these
probabilities over a text is no probability of the text. What fairseq-eval-lm and fairseq-validate
call perplexity is a *pseudo-perplexity* there: it compares cloze models with each other, and must
not be compared with the perplexity of left-to-right models.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import FairseqDecoder, FairseqLanguageModel
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

from fairseq_kerbs.models import recurrent
from fairseq_kerbs.models.base import ScoredByOutputLayer
from fairseq_kerbs.models.config import RecurrentLanguageModelConfig
from fairseq_kerbs.utils.errors import UserError


class RecurrentLanguageModelDecoder(recurrent.RecurrentKerbsDecoder):
    """LSTM or GRU over words."""

    def run(
        self, tokens: Tensor, encoder_out: None, state: dict[str, Any] | None
    ) -> tuple[Tensor, Tensor | None]:
        """Context vectors [batch, len, d]: at once where no embedding depends on them."""
        if state is not None or self.embed_tokens.posterior:
            return super().run(tokens, encoder_out, state)
        hidden, _ = self.rnn(self.dropout(self.embed_tokens(tokens)))  # [batch, len, hidden]
        return self.contexts(self.to_context(self.dropout(hidden))), None


class LstmLanguageModel(recurrent.RecurrentModel, FairseqLanguageModel):
    """LSTM language model."""

    arch = "lstm_lm_kerbs"
    cell = "lstm"
    target = "future"
    flags = RecurrentLanguageModelConfig
    decoder_class = RecurrentLanguageModelDecoder


class GruLanguageModel(LstmLanguageModel):
    """GRU language model, the paper's testbed (``configs/lm1b``)."""

    arch = "gru_lm_kerbs"
    cell = "gru"


# ------------------------------------------------------------------ cloze model


class ClozeDecoder(ScoredByOutputLayer, FairseqDecoder):
    """Two LSTMs, one in each direction; their projected states are the context vectors.

    That of position t is made of the forward state after word t − 1 and the backward state after
    word t + 1, so any output layer can score word t, which neither of the two has read.

    Input embeddings are composed with the prior. The posterior of word t (Eq. 6) comes from the
    context vector of position t, which has read word t + 1: the forward state after word t would
    know the word that it has to predict next, and likewise backwards.

    With several layers each direction has a stack of its own, as in ELMo: layers that read both
    directions of the layer below would see the target.
    """

    def __init__(self, cell: str, args: Any, dictionary: Any, embed_tokens: Any) -> None:
        super().__init__(dictionary)
        self.output = embed_tokens.layer
        self.embed_tokens = embed_tokens
        embed_tokens.posterior = False
        self.forwards = recurrent.build_rnn(
            cell, args.embed_dim, args.hidden_size, args, batch_first=True
        )
        self.backwards = recurrent.build_rnn(
            cell, args.embed_dim, args.hidden_size, args, batch_first=True
        )
        self.to_context = nn.Linear(2 * args.hidden_size, args.embed_dim)
        self.dropout = FairseqDropout(args.dropout, type(self).__name__)

    def forward(
        self, prev_output_tokens: Tensor, src_lengths: Tensor | None = None, **others: Any
    ) -> tuple[Tensor, Any]:
        """Context vectors of every word [batch, len] from all others, [batch, len, d].

        A UserError is raised for generators, which this model cannot serve.
        """
        if "encoder_out" in others or others.get("incremental_state") is not None:
            raise UserError(
                "--arch bilstm_lm_kerbs reads both sides of a word and cannot generate text: use "
                "it with fairseq-validate or fairseq-eval-lm."
            )
        return super().forward(prev_output_tokens)

    def extract_features(
        self, prev_output_tokens: Tensor, **_: Any
    ) -> tuple[Tensor, dict[str, list[None]]]:
        padding = self.embed_tokens.padding_idx
        tokens, places = recurrent.right_padded(prev_output_tokens, padding)
        embedded = self.dropout(self.embed_tokens(tokens))  # [batch, len, d]
        after, _state = self.forwards(embedded)  # after reading word t, [batch, len, hidden]
        # places that turn the words of each row around, and back, and leave padding where it is
        lengths = tokens.ne(padding).sum(1, keepdim=True)  # [batch, 1]
        place = torch.arange(tokens.shape[1], device=tokens.device)
        turned = torch.where(place < lengths, lengths - 1 - place, place)  # [batch, len]
        read_back, _state = self.backwards(recurrent.at_places(embedded, turned))
        # both directions have read one word less than there is in front of them: the state before
        # the first word is zero, and padding comes after the words in either direction
        before = F.pad(after, (0, 0, 1, -1))
        behind = recurrent.at_places(F.pad(read_back, (0, 0, 1, -1)), turned)
        both = self.dropout(torch.cat([before, behind], dim=-1))  # [batch, len, 2 · hidden]
        return recurrent.at_places(self.contexts(self.to_context(both)), places), {"attn": [None]}


class BilstmLanguageModel(recurrent.RecurrentModel, FairseqLanguageModel):
    """Two-sided LSTM cloze model, for --task language_modeling --self-target."""

    arch = "bilstm_lm_kerbs"
    target = "self"
    supported_targets = frozenset({"self"})
    flags = RecurrentLanguageModelConfig
    decoder_class = ClozeDecoder
