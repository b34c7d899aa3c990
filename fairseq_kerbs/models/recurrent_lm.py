"""Recurrent language models with a KerBS (or plain softmax) output layer (Section 5.1).

The Bayesian composition of Eq. 6 needs the context vector of the step before, so a model with it
steps through time. Everything that does not depend on that vector is done for all positions at
once: looking up senses before the steps, and scoring words after them. Where a word's embedding
is the same in every context (softmax, one sense a word, ``--composition prior``) there is no need
to step, and the whole sequence goes through torch's own LSTM or GRU. Both ways use the same
weights, those of ``nn.LSTM`` or ``nn.GRU``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import (
    FairseqIncrementalDecoder,
    FairseqLanguageModel,
    register_model,
    register_model_architecture,
)
from torch import Tensor, nn

from fairseq_kerbs.models.config import (
    RecurrentLanguageModelConfig,
    as_namespace,
    build_output_layer,
    build_schedule,
    check_sizes,
    context_size,
    user_errors,
)
from fairseq_kerbs.models.decoding import FittingCheckpoint, ScoredByOutputLayer
from fairseq_kerbs.models.language_modeling import MAX_POSITIONS, check_task, preset
from fairseq_kerbs.models.recurrent import put_back, right_padded
from fairseq_kerbs.output_layers.composition import ComposedEmbedding, LookedUp
from fairseq_kerbs.training.sense_updates import install_hook

RECURRENT: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


class _Memory(NamedTuple):
    """Decoder state between two steps.

    Attributes:
        states: for each layer its states (h; for LSTM also c), each [batch, hidden].
        context: context vector h_{t−1} of the output layer, [batch, d]; None before step 1.
    """

    states: list[tuple[Tensor, ...]]
    context: Tensor | None


class RecurrentLanguageModelDecoder(ScoredByOutputLayer, FairseqIncrementalDecoder):
    """LSTM or GRU over words; its projected output is the context vector of the output layer.

    Args:
        cell: "lstm" or "gru".
        dictionary: dictionary of the words.
        embed_tokens: composed input embedding, which refers to the output layer.
        hidden_size: units of a layer.
        layers: number of layers.
        dropout: dropout of embeddings and of each layer's output.

    Attributes:
        output: the output layer.
    """

    def __init__(
        self,
        cell: str,
        dictionary: Any,
        embed_tokens: ComposedEmbedding,
        hidden_size: int,
        layers: int,
        dropout: float,
    ) -> None:
        super().__init__(dictionary)
        self.output, self.embed_tokens = embed_tokens.layer, embed_tokens
        self.cell, self.layers, self.hidden_size = cell, layers, hidden_size
        embed_dim = embed_tokens.embedding_dim
        self.sense_bias = self.output.embed_dim > embed_dim
        self.rnn = RECURRENT[cell](
            embed_dim,
            hidden_size,
            layers,
            batch_first=True,
            dropout=dropout if layers > 1 else 0.0,
        )
        self.to_context = nn.Linear(hidden_size, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: None = None,
        incremental_state: dict[str, Any] | None = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, list[None]]]:
        """Context vectors for all of the words [batch, len], [batch, len, d].

        In step-by-step decoding only for the last word: [batch, 1, d].
        """
        features, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return self.output_layer(features), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: None = None,
        incremental_state: dict[str, Any] | None = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, list[None]]]:
        """As :meth:`forward`."""
        if incremental_state is not None:
            features = self._next_context(prev_output_tokens[:, -1:], incremental_state)
            return features, {"attn": [None]}
        tokens, places = right_padded(prev_output_tokens, self.embed_tokens.padding_idx)
        if self.embed_tokens.posterior:
            features, _memory = self._step_through(tokens, None)
        else:
            features = self._at_once(tokens)
        return put_back(features, places), {"attn": [None]}

    def _at_once(self, tokens: Tensor) -> Tensor:
        """Context vectors [batch, len, d] where no embedding depends on them."""
        hidden, _ = self.rnn(self.dropout(self.embed_tokens(tokens)))  # [batch, len, hidden]
        return self.contexts(self.to_context(self.dropout(hidden)))

    def _step_through(self, tokens: Tensor, memory: _Memory | None) -> tuple[Tensor, _Memory]:
        """Context vectors [batch, len, d] by Eq. 2 and 6–7, one step after the other."""
        senses = self.embed_tokens.look_up(tokens)
        if memory is None:
            memory = self._first_memory(senses.rows)
        contexts = []
        # unbound at once: the gradient of a slice would be as large as the whole, at every step
        for step in zip(*(part.unbind(1) for part in senses), strict=True):
            embedded = self.embed_tokens.compose(LookedUp(*step), memory.context)
            context, memory = self._step(self.dropout(embedded), memory)
            contexts.append(context)
        return torch.stack(contexts, 1), memory

    def _first_memory(self, like: Tensor) -> _Memory:
        zero = like.new_zeros(len(like), self.hidden_size)
        state = (zero, zero) if self.cell == "lstm" else (zero,)
        return _Memory([state] * self.layers, None)

    def _step(self, below: Tensor, memory: _Memory) -> tuple[Tensor, _Memory]:
        """Context vector [batch, d] after one step of all layers from embeddings [batch, d]."""
        states: list[tuple[Tensor, ...]] = []
        for number, state in enumerate(memory.states):
            weights = self.rnn.all_weights[number]
            if self.cell == "lstm":
                states.append(torch.lstm_cell(below, state, *weights))
            else:
                states.append((torch.gru_cell(below, state[0], *weights),))
            below = self.dropout(states[-1][0])
        context = self.contexts(self.to_context(below))
        return context, _Memory(states, context)

    def _next_context(self, words: Tensor, incremental_state: dict[str, Any]) -> Tensor:
        """Context vectors [batch, 1, d] after one more word, [batch, 1]."""
        memory = self.get_incremental_state(incremental_state, "memory")
        if self.embed_tokens.posterior:
            features, memory = self._step_through(words, memory)
        else:
            embedded = self.embed_tokens(words[:, 0])  # [batch, d]
            memory = memory or self._first_memory(embedded)
            context, memory = self._step(self.dropout(embedded), memory)
            features = context.unsqueeze(1).clone()  # generators divide by the temperature in place
        self.set_incremental_state(incremental_state, "memory", memory)
        return features

    def reorder_incremental_state(
        self, incremental_state: dict[str, Any], new_order: Tensor
    ) -> None:
        """Reorder states and context vectors with the beam."""
        memory = self.get_incremental_state(incremental_state, "memory")
        if memory is None:
            return
        states = [tuple(one.index_select(0, new_order) for one in state) for state in memory.states]
        context = memory.context.index_select(0, new_order)
        self.set_incremental_state(incremental_state, "memory", _Memory(states, context))

    def max_positions(self) -> int:
        """Longest text."""
        return MAX_POSITIONS


class _RecurrentLanguageModel(FittingCheckpoint, FairseqLanguageModel):
    """Recurrent language model; subclasses name the cell."""

    cell: str

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Flags of :class:`RecurrentLanguageModelConfig`."""
        gen_parser_from_dataclass(parser, RecurrentLanguageModelConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> _RecurrentLanguageModel:
        """Build the model and make the task reallocate its senses.

        Raises:
            SystemExit: a flag is wrong; the message is one sentence that names it.
        """
        args = as_namespace(args)
        base_architecture(args)
        with user_errors():
            check_task(task, f"{cls.cell}_lm_kerbs", "future")
            check_sizes(args)
            schedule = build_schedule(args)
            dictionary = task.target_dictionary
            size = context_size(args, args.embed_dim)
            layer = build_output_layer(args, len(dictionary), size)
            posterior = args.composition == "posterior"
            embed = ComposedEmbedding(layer, dictionary.pad(), posterior, args.sense_bias)
            sizes = (args.hidden_size, args.layers, args.dropout)
            decoder = RecurrentLanguageModelDecoder(cls.cell, dictionary, embed, *sizes)
        install_hook(task, schedule)
        return cls(decoder)


@register_model("lstm_lm_kerbs")
class LstmLanguageModel(_RecurrentLanguageModel):
    """LSTM language model with an output layer of ours."""

    cell = "lstm"


@register_model("gru_lm_kerbs")
class GruLanguageModel(_RecurrentLanguageModel):
    """GRU language model with an output layer of ours: the paper's testbed."""

    cell = "gru"


@register_model_architecture("lstm_lm_kerbs", "lstm_lm_kerbs")
@register_model_architecture("gru_lm_kerbs", "gru_lm_kerbs")
def base_architecture(args: Any) -> None:
    """Hidden size 512, embedding 256, one layer, dropout 0.3; the paper names no sizes.

    Its training: batches of 128, ``--lr 1.0 --lr-scheduler reduce_lr_on_plateau --lr-shrink 0.8``
    (with ``--optimizer sgd --clip-norm 1``: a rate of 1 is none for Adam).
    """
    preset(args)


@register_model_architecture("lstm_lm_kerbs", "lstm_lm_kerbs_small")
@register_model_architecture("gru_lm_kerbs", "gru_lm_kerbs_small")
def small_architecture(args: Any) -> None:
    """Hidden size 256, embedding 192, one layer, dropout 0.3: half an hour on a CPU."""
    preset(args, hidden_size=256, embed_dim=192)
