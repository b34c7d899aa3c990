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

from fairseq_kerbs.models.config import RecurrentLanguageModelConfig
from fairseq_kerbs.models.recurrent import (
    Memory,
    RecurrentModel,
    SteppingDecoder,
    build_rnn,
    run_layers,
)


class RecurrentLanguageModelDecoder(SteppingDecoder, FairseqIncrementalDecoder):
    """LSTM or GRU over words; its projected output is the context vector of the output layer.

    Args:
        cell: "lstm" or "gru".
        args: flags of :class:`.config.RecurrentLanguageModelConfig`.
        dictionary: dictionary of the words.
        embed_tokens: composed input embedding, which refers to the output layer.
    """

    def __init__(self, cell: str, args: Any, dictionary: Any, embed_tokens: Any) -> None:
        super().__init__(dictionary)
        self.output, self.embed_tokens = embed_tokens.layer, embed_tokens
        self.cell, self.layers, self.hidden_size = cell, args.layers, args.hidden_size
        self.rnn = build_rnn(cell, args, args.hidden_size, batch_first=True)
        self.to_context = nn.Linear(args.hidden_size, args.embed_dim)
        self.dropout = nn.Dropout(args.dropout)

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


class RecurrentLanguageModel(RecurrentModel, FairseqLanguageModel):
    """Recurrent language model; subclasses name the cell."""

    flags = RecurrentLanguageModelConfig
    decoder_class = RecurrentLanguageModelDecoder
    target = "future"


class LstmLanguageModel(RecurrentLanguageModel):
    """LSTM language model with an output layer of ours."""

    arch, cell = "lstm_lm_kerbs", "lstm"


class GruLanguageModel(RecurrentLanguageModel):
    """GRU language model with an output layer of ours: the paper's testbed.

    Its training there: batches of 128, ``--lr 1.0 --lr-scheduler reduce_lr_on_plateau --lr-shrink
    0.8`` (with ``--optimizer sgd --clip-norm 1``: a rate of 1 is none for Adam).
    """

    arch, cell = "gru_lm_kerbs", "gru"
