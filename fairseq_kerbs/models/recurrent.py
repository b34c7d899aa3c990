"""Attention sequence-to-sequence models with a KerBS (or plain softmax) output layer (Section 5.1).

Bidirectional recurrent encoder, recurrent decoder with attention and input feeding. The decoder
steps through time in training as in decoding, so the Bayesian composition of Eq. 6–7 is exact: the
input at step t is composed with the posterior of step t − 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import (
    FairseqEncoder,
    FairseqEncoderDecoderModel,
    FairseqIncrementalDecoder,
    register_model,
    register_model_architecture,
)
from fairseq.models.lstm import AttentionLayer
from torch import Tensor, nn

from fairseq_kerbs.models.config import (
    RecurrentKerbsConfig,
    as_namespace,
    build_output_layer,
    build_schedule,
    check_sizes,
    context_size,
    fill_defaults,
    user_errors,
)
from fairseq_kerbs.models.decoding import FittingCheckpoint, ScoredByOutputLayer
from fairseq_kerbs.output_layers.composition import ComposedEmbedding, LookedUp
from fairseq_kerbs.training.sense_updates import install_hook

MAX_POSITIONS = 100_000


def right_padded(tokens: Tensor, padding_idx: int) -> tuple[Tensor, Tensor | None]:
    """Move padding from the left of each row to its right.

    Args:
        tokens: [batch, len], padded on either side.
        padding_idx: the padding token.

    Returns:
        the rows without padding on the left, [batch, len]; and for :func:`put_back` the place that
        each position has in them, [batch, len], or None where nothing moved.
    """
    leading = tokens.ne(padding_idx).cumsum(1).eq(0).sum(1, keepdim=True)  # [batch, 1]
    if not leading.any():
        return tokens, None
    place = torch.arange(tokens.shape[1], device=tokens.device)
    moved = tokens.gather(1, (place + leading) % tokens.shape[1])
    return moved, (place - leading) % tokens.shape[1]


def put_back(values: Tensor, places: Tensor | None) -> Tensor:
    """Undo :func:`right_padded` for values of positions, [batch, len, …]."""
    if places is None:
        return values
    index = places.view(*places.shape, *[1] * (values.dim() - 2))
    return values.gather(1, index.expand_as(values))


class EncoderOut(NamedTuple):
    """What the decoder needs of the source, positions as in the source tokens.

    Attributes:
        outputs: [src_len, batch, hidden].
        states: first decoder states of every layer, [layers, batch, hidden]; for LSTM a pair.
        padding: [src_len, batch] True at padding.
    """

    outputs: Tensor
    states: tuple[Tensor, ...]
    padding: Tensor


class RecurrentEncoder(FairseqEncoder):
    """Bidirectional LSTM or GRU; each direction has half of the hidden units.

    Args:
        cell: "lstm" or "gru".
        dictionary: source dictionary.
        embed_dim: size of source embeddings.
        hidden_size: units of a layer, an even number.
        layers: number of layers.
        dropout: dropout of embeddings and of each layer's output.
    """

    def __init__(
        self,
        cell: str,
        dictionary: Any,
        embed_dim: int,
        hidden_size: int,
        layers: int,
        dropout: float,
    ) -> None:
        super().__init__(dictionary)
        self.padding_idx, self.hidden_size, self.layers = dictionary.pad(), hidden_size, layers
        self.embed_tokens = nn.Embedding(len(dictionary), embed_dim, self.padding_idx)
        nn.init.normal_(self.embed_tokens.weight, std=embed_dim**-0.5)
        nn.init.zeros_(self.embed_tokens.weight[self.padding_idx])
        recurrent = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
        self.rnn = recurrent(
            embed_dim,
            hidden_size // 2,
            layers,
            dropout=dropout if layers > 1 else 0.0,
            bidirectional=True,
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor | None = None, **unused: Any
    ) -> EncoderOut:
        """Encode source tokens [batch, src_len], padded on either side."""
        tokens, places = right_padded(src_tokens, self.padding_idx)
        lengths = tokens.ne(self.padding_idx).sum(1)
        embedded = self.dropout(self.embed_tokens(tokens)).transpose(0, 1)  # [src_len, batch, d]
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths.cpu(), enforce_sorted=False)
        packed_outputs, final = self.rnn(packed)
        outputs, _ = nn.utils.rnn.pad_packed_sequence(packed_outputs, total_length=tokens.shape[1])
        finals = final if isinstance(final, tuple) else (final,)
        states = tuple(self._join_directions(state) for state in finals)
        # attention must name the positions that the caller knows: alignments are read off it
        outputs = put_back(outputs.transpose(0, 1), places).transpose(0, 1)
        return EncoderOut(self.dropout(outputs), states, src_tokens.eq(self.padding_idx).t())

    def _join_directions(self, state: Tensor) -> Tensor:
        # [layers · 2, batch, hidden/2] -> [layers, batch, hidden]
        parts = state.view(self.layers, 2, state.shape[1], -1)
        return torch.cat([parts[:, 0], parts[:, 1]], dim=-1)

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Reorder the batch for beam search."""
        return EncoderOut(
            encoder_out.outputs.index_select(1, new_order),
            tuple(state.index_select(1, new_order) for state in encoder_out.states),
            encoder_out.padding.index_select(1, new_order),
        )

    def max_positions(self) -> int:
        """Longest source."""
        return MAX_POSITIONS


class _Memory(NamedTuple):
    """Decoder state between two steps; every tensor has the batch in its first dimension.

    Attributes:
        states: for each of the cell's states (h; for LSTM also c), [batch, layers, hidden].
        attended: attention output that is fed in at the next step, [batch, hidden].
        context: context vector h_{t−1} of the output layer, [batch, d]; None before step 1.
    """

    states: tuple[Tensor, ...]
    attended: Tensor
    context: Tensor | None


class RecurrentKerbsDecoder(ScoredByOutputLayer, FairseqIncrementalDecoder):
    """Recurrent decoder with attention; forward returns context vectors for the output layer.

    Args:
        cell: "lstm" or "gru".
        dictionary: target dictionary.
        embed_tokens: composed input embedding, which refers to the output layer.
        hidden_size: units of a layer.
        layers: number of layers.
        dropout: dropout of embeddings and outputs.

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
        embed_dim = embed_tokens.embedding_dim
        self.sense_bias = self.output.embed_dim > embed_dim
        make_cell = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[cell]
        sizes = [embed_dim + hidden_size] + [hidden_size] * (layers - 1)
        self.cells = nn.ModuleList([make_cell(size, hidden_size) for size in sizes])
        self.attention = AttentionLayer(hidden_size, hidden_size, hidden_size)
        self.to_context = nn.Linear(hidden_size, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: dict[str, Any] | None = None,
        **_: Any,
    ) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """Context vectors [batch, len, d], and attention [batch, len, src_len].

        In step-by-step decoding only of the last token: [batch, 1, d]. Tokens are padded on either
        side: no step is spent on padding on the left (``--left-pad-target``).
        """
        memory: Any = None
        places: Tensor | None = None
        if incremental_state is not None:
            memory = self.get_incremental_state(incremental_state, "memory")
            prev_output_tokens = prev_output_tokens[:, -1:]
        else:
            prev_output_tokens, places = right_padded(
                prev_output_tokens, self.embed_tokens.padding_idx
            )
        if memory is None:
            memory = self._first_memory(encoder_out)
        contexts, attentions = [], []
        for words in self._look_up(prev_output_tokens):
            memory, attention = self._step(words, memory, encoder_out)
            contexts.append(memory.context)
            attentions.append(attention)
        if incremental_state is not None:
            self.set_incremental_state(incremental_state, "memory", memory)
        features = put_back(torch.stack(contexts, 1), places)
        attention = put_back(torch.stack(attentions, 1), places)
        return self.output_layer(features), {"attn": [attention]}

    def _look_up(self, words: Tensor) -> Iterator[Tensor | LookedUp]:
        """For each position of [batch, len] its embeddings [batch, d], or what they are made of.

        All are looked up at once: the gradient of a look-up is as large as the vocabulary.
        """
        if not self.embed_tokens.posterior:
            yield from self.embed_tokens(words).unbind(1)
            return
        parts = (part.unbind(1) for part in self.embed_tokens.look_up(words))
        for step in zip(*parts, strict=True):
            yield LookedUp(*step)

    def _first_memory(self, encoder_out: EncoderOut) -> _Memory:
        states = tuple(state.transpose(0, 1) for state in encoder_out.states)
        return _Memory(states, torch.zeros_like(states[0][:, 0]), None)

    def _step(
        self, words: Tensor | LookedUp, memory: _Memory, encoder_out: EncoderOut
    ) -> tuple[_Memory, Tensor]:
        """One step of Eq. 1–2 with the composition of Eq. 6–7; words as from :meth:`_look_up`."""
        if isinstance(words, LookedUp):
            words = self.embed_tokens.compose(words, memory.context)
        below = torch.cat([self.dropout(words), memory.attended], dim=1)
        new_states: list[tuple[Tensor, ...]] = []
        for number, cell in enumerate(self.cells):
            old = tuple(state[:, number] for state in memory.states)
            new = cell(below, old if len(old) > 1 else old[0])
            new_states.append(new if isinstance(new, tuple) else (new,))
            below = new_states[-1][0]
            if number + 1 < len(self.cells):
                below = self.dropout(below)
        attended, attention = self.attention(below, encoder_out.outputs, encoder_out.padding)
        attended = self.dropout(attended)  # [batch, hidden]
        states = tuple(torch.stack(layers, 1) for layers in zip(*new_states, strict=True))
        context = self.contexts(self.to_context(attended))  # [batch, d]
        return _Memory(states, attended, context), attention.t()

    def reorder_incremental_state(
        self, incremental_state: dict[str, Any], new_order: Tensor
    ) -> None:
        """Reorder states, fed-in attention and context vectors with the beam."""
        memory = self.get_incremental_state(incremental_state, "memory")
        if memory is None:
            return
        states = tuple(state.index_select(0, new_order) for state in memory.states)
        context = memory.context.index_select(0, new_order)
        reordered = _Memory(states, memory.attended.index_select(0, new_order), context)
        self.set_incremental_state(incremental_state, "memory", reordered)

    def max_positions(self) -> int:
        """Longest target."""
        return MAX_POSITIONS


class _RecurrentKerbsModel(FittingCheckpoint, FairseqEncoderDecoderModel):
    """Sequence to sequence with attention (Section 5.1); subclasses name the cell."""

    cell: str

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Flags of :class:`RecurrentKerbsConfig`."""
        gen_parser_from_dataclass(parser, RecurrentKerbsConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> _RecurrentKerbsModel:
        """Build the model and make the task reallocate its senses.

        Raises:
            SystemExit: a flag is wrong; the message is one sentence that names it.
        """
        args = as_namespace(args)
        base_recurrent_architecture(args)
        with user_errors():
            check_sizes(args)
            _check_halves(args)
            schedule = build_schedule(args)
            sizes = (args.hidden_size, args.layers, args.dropout)
            encoder = RecurrentEncoder(cls.cell, task.source_dictionary, args.embed_dim, *sizes)
            dictionary = task.target_dictionary
            size = context_size(args, args.embed_dim)
            layer = build_output_layer(args, len(dictionary), size)
            posterior = args.composition == "posterior"
            embed = ComposedEmbedding(layer, dictionary.pad(), posterior, args.sense_bias)
            decoder = RecurrentKerbsDecoder(cls.cell, dictionary, embed, *sizes)
        install_hook(task, schedule)
        return cls(encoder, decoder)


def _check_halves(args: Any) -> None:
    if args.hidden_size % 2:
        raise ValueError(
            f"--hidden-size is {args.hidden_size}, but the two directions of the encoder "
            "share it: use an even number."
        )


@register_model("lstm_kerbs")
class LstmKerbsModel(_RecurrentKerbsModel):
    """LSTM sequence to sequence with attention and an output layer of ours."""

    cell = "lstm"


@register_model("gru_kerbs")
class GruKerbsModel(_RecurrentKerbsModel):
    """GRU sequence to sequence with attention and an output layer of ours (Eq. 2)."""

    cell = "gru"


@register_model_architecture("lstm_kerbs", "lstm_kerbs")
@register_model_architecture("gru_kerbs", "gru_kerbs")
def base_recurrent_architecture(args: Any) -> None:
    """Hidden size 512, embedding 256: the paper's sizes for machine translation."""
    fill_defaults(args, RecurrentKerbsConfig)


@register_model_architecture("lstm_kerbs", "lstm_kerbs_dialog")
@register_model_architecture("gru_kerbs", "gru_kerbs_dialog")
def dialog_architecture(args: Any) -> None:
    """Hidden size 1024, embedding 512: the paper's sizes for dialog."""
    args.hidden_size = getattr(args, "hidden_size", None) or 1024
    args.embed_dim = getattr(args, "embed_dim", None) or 512
    fill_defaults(args, RecurrentKerbsConfig)
