"""Recurrent language models with a KerBS (or plain softmax) output layer (Section 5.1).

The Bayesian composition of Eq. 6 needs the context vector of the step before, so a model with it
steps through time. Everything that does not depend on that vector is done for all positions at
once: looking up senses before the steps, and scoring words after them. Where a word's embedding
is the same in every context (softmax, one sense a word, ``--composition prior``) there is no need
to step, and the whole sequence goes through torch's own LSTM or GRU. Both ways use the same
weights, those of ``nn.LSTM`` or ``nn.GRU``.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models import FairseqIncrementalDecoder, FairseqLanguageModel
from torch import Tensor, nn

from fairseq_kerbs.models.base import KerbsModel, build_input_embedding
from fairseq_kerbs.models.config import RecurrentLanguageModelConfig
from fairseq_kerbs.models.recurrent import (
    MAX_POSITIONS,
    Memory,
    SteppingDecoder,
    check_recurrent,
    run_layers,
)
from fairseq_kerbs.output_layers.composition import SteppingEmbedding

RECURRENT: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class RecurrentLanguageModelDecoder(SteppingDecoder, FairseqIncrementalDecoder):
    """LSTM or GRU over words; its projected output is the context vector of the output layer.

    Args:
        cell: "lstm" or "gru".
        dictionary: dictionary of the words.
        embed_tokens: composed input embedding, which refers to the output layer.
        hidden_size: units of a layer.
        layers: number of layers.
        dropout: dropout of embeddings and of each layer's output.
    """

    def __init__(
        self,
        cell: str,
        dictionary: Any,
        embed_tokens: Any,
        hidden_size: int,
        layers: int,
        dropout: float,
    ) -> None:
        super().__init__(dictionary)
        self.output, self.embed_tokens = embed_tokens.layer, embed_tokens
        self.cell, self.layers, self.hidden_size = cell, layers, hidden_size
        self.rnn = RECURRENT[cell](
            embed_tokens.embedding_dim,
            hidden_size,
            layers,
            batch_first=True,
            dropout=dropout if layers > 1 else 0.0,
        )
        self.to_context = nn.Linear(hidden_size, embed_tokens.embedding_dim)
        self.dropout = nn.Dropout(dropout)

    def run(
        self, tokens: Tensor, encoder_out: None, state: dict[str, Any] | None
    ) -> tuple[Tensor, Tensor | None]:
        """Context vectors [batch, len, d]: at once where no embedding depends on them."""
        if state is not None or self.embed_tokens.posterior:
            return super().run(tokens, encoder_out, state)
        hidden, _ = self.rnn(self.dropout(self.embed_tokens(tokens)))  # [batch, len, hidden]
        return self.contexts(self.to_context(self.dropout(hidden))), None

    def first_memory(self, batch: int, encoder_out: None) -> Memory:
        """Zeros."""
        zero = self.output.weight.new_zeros(batch, self.hidden_size)
        state = (zero, zero) if self.cell == "lstm" else (zero,)
        return Memory((state,) * self.layers, None, None)

    def step(self, words: Tensor, memory: Memory, encoder_out: None) -> tuple[Memory, None]:
        """One step of all layers (Eq. 2) from embeddings [batch, e]."""
        function: Any = torch.lstm_cell if self.cell == "lstm" else torch.gru_cell
        cells = [
            lambda below, state, weights=weights: function(below, state, *weights)
            for weights in self.rnn.all_weights
        ]
        states = run_layers(cells, self.dropout(words), memory.states, self.dropout)
        context = self.contexts(self.to_context(self.dropout(states[-1][0])))
        return Memory(states, None, context), None

    def max_positions(self) -> int:
        """Longest text."""
        return MAX_POSITIONS


class RecurrentLanguageModel(KerbsModel, FairseqLanguageModel):
    """Recurrent language model; subclasses name the cell."""

    cell: str
    flags = RecurrentLanguageModelConfig
    target = "future"
    check = staticmethod(check_recurrent)

    @classmethod
    def build(cls, args: Any, task: Any) -> RecurrentLanguageModel:
        """The decoder, which is all of the model."""
        dictionary, size = task.target_dictionary, args.embed_dim
        embed = build_input_embedding(args, dictionary, SteppingEmbedding, size, size)
        sizes = (args.hidden_size, args.layers, args.dropout)
        return cls(RecurrentLanguageModelDecoder(cls.cell, dictionary, embed, *sizes))


class LstmLanguageModel(RecurrentLanguageModel):
    """LSTM language model with an output layer of ours."""

    arch, cell = "lstm_lm_kerbs", "lstm"


class GruLanguageModel(RecurrentLanguageModel):
    """GRU language model with an output layer of ours: the paper's testbed.

    Its training there: batches of 128, ``--lr 1.0 --lr-scheduler reduce_lr_on_plateau --lr-shrink
    0.8`` (with ``--optimizer sgd --clip-norm 1``: a rate of 1 is none for Adam).
    """

    arch, cell = "gru_lm_kerbs", "gru"
