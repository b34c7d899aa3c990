"""Attention sequence-to-sequence models with a KerBS (or plain softmax) output layer (Section 5.1).

Bidirectional recurrent encoder, recurrent decoder with the attention of Bahdanau et al. (2015) or
of Luong et al. (2015). The decoder steps through time in training as in decoding, so the Bayesian
composition of Eq. 6–7 is exact: the input at step t is composed with the posterior of step t − 1.

fairseq's own LSTM models (``lstm``, ``lstm_lm``) stand below, for converted ones: fairseq builds
them, so their flags, sizes and parameters are fairseq's, and they are stepped through here.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from fairseq.models import (
    FairseqDecoder,
    FairseqEncoder,
    FairseqEncoderDecoderModel,
    FairseqIncrementalDecoder,
    lstm,
    lstm_lm,
)
from fairseq.models.transformer import Embedding
from fairseq.modules import FairseqDropout
from fairseq.utils import apply_to_sample
from torch import Tensor, nn

from fairseq_kerbs.models.attention import Attention, BahdanauAttention, LuongAttention, Maxout
from fairseq_kerbs.models.base import KerbsModel, ScoredByOutputLayer, build_input_embedding
from fairseq_kerbs.models.config import (
    RecurrentAttentionConfig,
    RecurrentKerbsConfig,
    SeparableKerbsConfig,
    refuse_flags,
)
from fairseq_kerbs.utils.errors import UserError


def right_padded(tokens: Tensor, padding_idx: int) -> tuple[Tensor, Tensor | None]:
    """Move the padding on the left of tokens [batch, len] to the right.

    Returns:
        the new rows [batch, len], and the place that each position has in them, [batch, len], for
        :func:`at_places`, or None if nothing moved.
    """
    leading = tokens.ne(padding_idx).cumsum(1).eq(0).sum(1, keepdim=True)  # [batch, 1]
    if not tokens.is_cuda and not leading.any():  # the host would wait for a GPU
        return tokens, None
    place = torch.arange(tokens.shape[1], device=tokens.device)
    moved = tokens.gather(1, (place + leading) % tokens.shape[1])
    return moved, (place - leading) % tokens.shape[1]


def at_places(values: Tensor, places: Tensor | None) -> Tensor:
    """Values [batch, len, …], reordered within each row.

    Position t gets the value at ``places[:, t]``. Values are unchanged if ``places`` is None.
    """
    if places is None:
        return values
    index = places.view(*places.shape, *[1] * (values.dim() - 2))
    return values.gather(1, index.expand_as(values))


LayerStates = tuple[tuple[Tensor, ...], ...]
"""State of each layer: (h,), or (h, c) of an LSTM, each [batch, hidden]."""


class Memory(NamedTuple):
    """State of a recurrent decoder between two steps; every tensor has the batch first."""

    states: LayerStates
    fed: Tensor | None  # output that is fed in at the next step, [batch, hidden], if any
    context: Tensor | None  # h_{t−1} of the output layer, [batch, d]; None before step 1
    keys: Tensor | None = None  # projected encoder outputs, [batch, src_len, hidden], if any


class SteppingDecoder(ScoredByOutputLayer, FairseqIncrementalDecoder, ABC):
    """Recurrent decoder of fairseq: forward returns context vectors."""

    embed_tokens: Any  # refers to the output layer

    @abstractmethod
    def first_memory(self, batch: int, encoder_out: Any) -> Memory:
        """The memory before the first step, for ``batch`` sentences.

        ``encoder_out`` is what the encoder returned, or None for a language model.
        """

    @abstractmethod
    def step(
        self, embedded: Tensor, memory: Memory, encoder_out: Any
    ) -> tuple[Memory, Tensor | None]:
        """One step (Eq. 1–2).

        Args:
            embedded: embeddings of the previous words, [batch, e].
            memory: what the previous step returned.
            encoder_out: as for :meth:`first_memory`.

        Returns:
            the memory after the step, with the context vectors, and the attention weights
            [batch, src_len], or None without attention.
        """

    forward = FairseqDecoder.forward  # by way of extract_features and output_layer

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any = None,
        incremental_state: dict[str, Any] | None = None,
        **_: Any,
    ) -> tuple[Tensor, Any]:
        """Context vectors [batch, len, d], and attention [batch, len, src_len] where there is any.

        In step-by-step decoding only of the last token: [batch, 1, d]. Tokens are padded on either
        side: no step is spent on padding on the left (``--left-pad-target``).
        """
        tokens = prev_output_tokens
        places = None
        if incremental_state is None:
            tokens, places = right_padded(tokens, self.embed_tokens.padding_idx)
        contexts, attention = self.run(tokens, encoder_out, incremental_state)
        if attention is not None:
            attention = at_places(attention, places)
        return at_places(contexts, places), {"attn": [attention]}

    def run(
        self, tokens: Tensor, encoder_out: Any, state: dict[str, Any] | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compose (Eq. 6–7) and step, one word after the other, from the memory in ``state``."""
        embed = self.embed_tokens
        memory: Memory | None = None
        if state is not None:
            memory = self.get_incremental_state(state, "memory")
            tokens = tokens[:, -1:]
        if memory is None:
            memory = self.first_memory(len(tokens), encoder_out)
        # all words are looked up at once, as the gradient of a look-up is as large as the
        # vocabulary; in whole sentences θ is prepared once, too, which takes a hundred operations
        if embed.posterior:
            inputs = embed.look_up(tokens, prepare=state is None).by_position()
        else:
            inputs = embed(tokens).unbind(1)
        contexts: list[Any] = []
        attentions: list[Any] = []
        for looked_up in inputs:
            embedded = looked_up
            if embed.posterior:  # what is looked up are senses, which the last context weights
                embedded = embed.compose(looked_up, memory.context)
            memory, attention = self.step(embedded, memory, encoder_out)
            contexts.append(memory.context)
            attentions.append(attention)
        if state is not None:
            self.set_incremental_state(state, "memory", memory)
        # stacked, and so a copy: generators divide what they receive by the temperature in place
        if attentions[0] is None:
            return torch.stack(contexts, 1), None
        return torch.stack(contexts, 1), torch.stack(attentions, 1)

    def reorder_incremental_state(
        self, incremental_state: dict[str, Any], new_order: Tensor
    ) -> None:
        """Reorder states, fed-in outputs and context vectors with the beam."""
        memory = self.get_incremental_state(incremental_state, "memory")
        if memory is not None:
            chosen = apply_to_sample(lambda state: state.index_select(0, new_order), memory)
            self.set_incremental_state(incremental_state, "memory", Memory(*chosen))


def build_rnn(cell: str, inputs: int, hidden: int, args: Any, **options: bool) -> nn.RNNBase:
    """torch's LSTM or GRU of ``inputs`` numbers a step, with ``--layers`` and ``--dropout``.

    Dropout between layers is off in evaluation mode, also with ``--retain-dropout``.
    """
    between = args.dropout if args.layers > 1 else 0.0
    kind: Any = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
    rnn: nn.RNNBase = kind(inputs, hidden, args.layers, dropout=between, **options)
    return rnn


class EncoderOut(NamedTuple):
    """What the decoder needs of the source, positions as in the source tokens."""

    outputs: Tensor  # [src_len, batch, hidden]
    states: tuple[Tensor, ...]
    """Initial states of the decoder's layers: (h,), or (h, c) of an LSTM, each
    [layers, batch, hidden]."""
    padding: Tensor  # [src_len, batch], True at padding

    def layer_states(self) -> LayerStates:
        """The initial states, layer by layer."""
        return tuple(zip(*(state.unbind(0) for state in self.states)))


class RecurrentEncoder(FairseqEncoder):
    """Bidirectional LSTM or GRU; each direction has half of the hidden units."""

    def __init__(self, cell: str, args: Any, dictionary: Any) -> None:
        super().__init__(dictionary)
        self.padding_idx = dictionary.pad()
        self.layers = args.layers
        self.embed_tokens = Embedding(len(dictionary), args.embed_dim, self.padding_idx)
        self.rnn = build_rnn(cell, args.embed_dim, args.hidden_size // 2, args, bidirectional=True)
        self.dropout = FairseqDropout(args.dropout, type(self).__name__)

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor | None = None, **unused: Any
    ) -> EncoderOut:
        """Encode source tokens [batch, src_len], padded on either side."""
        tokens, places = right_padded(src_tokens, self.padding_idx)
        # sorted here: pack_padded_sequence would wait for a GPU three times
        lengths, order = tokens.ne(self.padding_idx).sum(1).sort(descending=True, stable=True)
        back = order.argsort()
        embedded = self.dropout(self.embed_tokens(tokens[order].t()))  # [src_len, batch, d]
        packed_outputs, final = self.rnn(nn.utils.rnn.pack_padded_sequence(embedded, lengths.cpu()))
        outputs, _ = nn.utils.rnn.pad_packed_sequence(packed_outputs, total_length=tokens.shape[1])
        outputs = outputs[:, back]
        finals = final if isinstance(final, tuple) else (final,)
        states = tuple(self._joined(state[:, back]) for state in finals)
        # attention must name the positions that the caller knows: alignments are read off it
        outputs = at_places(outputs.transpose(0, 1), places).transpose(0, 1)
        return EncoderOut(self.dropout(outputs), states, src_tokens.eq(self.padding_idx).t())

    def _joined(self, state: Tensor) -> Tensor:
        """Both directions together, [layers · 2, batch, hidden/2] -> [layers, batch, hidden]."""
        apart = state.unflatten(0, (self.layers, 2))
        return apart.transpose(1, 2).flatten(2)

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        return EncoderOut(
            *apply_to_sample(lambda part: part.index_select(1, new_order), encoder_out)
        )

    def max_positions(self) -> int:
        return 100_000


class RecurrentKerbsDecoder(SteppingDecoder):
    """Recurrent decoder without an encoder, by flags of :class:`.config.RecurrentKerbsConfig`.

    Its projected state is the context vector. Weights are those of torch's LSTM or GRU.
    """

    attention_class: ClassVar[type[Attention] | None] = None

    def __init__(self, cell: str, args: Any, dictionary: Any, embed_tokens: Any) -> None:
        super().__init__(dictionary)
        self.output = embed_tokens.layer
        self.embed_tokens = embed_tokens
        hidden = args.hidden_size
        inputs = args.embed_dim
        if self.attention_class is not None:
            inputs += hidden  # what is read of the source, beside the word
        self.rnn = build_rnn(cell, inputs, hidden, args, batch_first=True)
        self.attention = None if self.attention_class is None else self.attention_class(hidden)
        self.to_context = self.build_projection(hidden, args.embed_dim)
        self.dropout = FairseqDropout(args.dropout, type(self).__name__)

    def build_projection(self, hidden: int, embed_dim: int) -> nn.Module:
        """The layer whose output is the context vector, without the 1 of ``--sense-bias``."""
        return nn.Linear(hidden, embed_dim)

    def first_memory(self, batch: int, encoder_out: EncoderOut | None) -> Memory:
        zero = self.output.weight.new_zeros(batch, self.rnn.hidden_size)
        state = (zero, zero) if self.rnn.mode == "LSTM" else (zero,)
        return Memory((state,) * self.rnn.num_layers, fed=None, context=None)

    def recur(self, inputs: Tensor, states: LayerStates) -> LayerStates:
        """States of every layer after one step (Eq. 2), from ``inputs`` of the first layer."""
        cell: Any = torch.lstm_cell if self.rnn.mode == "LSTM" else torch.gru_cell
        below = inputs
        new_states: list[tuple[Tensor, ...]] = []
        for state, weights in zip(states, self.rnn.all_weights):
            if new_states:
                below = self.dropout(new_states[-1][0])
            after = cell(below, state if len(state) > 1 else state[0], *weights)
            new_states.append(after if isinstance(after, tuple) else (after,))
        return tuple(new_states)

    def step(
        self, embedded: Tensor, memory: Memory, encoder_out: EncoderOut | None
    ) -> tuple[Memory, Tensor | None]:
        states = self.recur(self.dropout(embedded), memory.states)
        features = self.to_context(self.dropout(states[-1][0]))
        return Memory(states, fed=None, context=self.contexts(features)), None


class LuongDecoder(RecurrentKerbsDecoder):
    """Decoder of Luong et al. (2015): attention after the recurrent step, with input feeding.

    The state s_t after the step is scored against encoder outputs. s̃_t = tanh(W [c_t; s_t]) is
    projected to the context vector of the output layer, and fed into step t + 1 beside the word.
    """

    attention_class = LuongAttention
    attention: LuongAttention

    def first_memory(self, batch: int, encoder_out: EncoderOut | None) -> Memory:
        assert encoder_out is not None
        zero = self.output.weight.new_zeros(batch, self.rnn.hidden_size)
        return Memory(encoder_out.layer_states(), fed=zero, context=None)

    def step(
        self, embedded: Tensor, memory: Memory, encoder_out: EncoderOut | None
    ) -> tuple[Memory, Tensor | None]:
        assert encoder_out is not None
        assert memory.fed is not None
        inputs = torch.cat([self.dropout(embedded), memory.fed], dim=1)
        states = self.recur(inputs, memory.states)
        out, weights = self.attention(states[-1][0], None, encoder_out.outputs, encoder_out.padding)
        out = self.dropout(out)  # [batch, hidden]
        return Memory(states, fed=out, context=self.contexts(self.to_context(out))), weights


class BahdanauDecoder(RecurrentKerbsDecoder):
    r"""Decoder of Bahdanau et al. (2015): attention before the recurrent step.

    From the paper, with s the state (h of an LSTM) of the last layer, e_t the embedding of the
    previous word, and c_t the mean of encoder outputs, weighted by :class:`BahdanauAttention`:

    .. math::

        c_t = \text{attention}(s_{t-1}), \quad s_t = f(s_{t-1}, [e_t; c_t]), \quad
        h_t = \text{maxout}(U s_t + V e_t + C c_t + b)

    where maxout is the maximum of pairs of units. h_t, of the size of word embeddings, is the
    context vector of the output layer.

    The paper prints s_{t−1} in the maxout layer (Appendix A.2.2) and s_t in its Eq. 4; we take s_t.
    It has one layer of its GRU, with s_0 = tanh(W h_1). Ours are several layers, the LSTM, and
    initial states, which are the final ones of the encoder. Dropout is ours, too.
    """

    attention_class = BahdanauAttention
    attention: BahdanauAttention

    def build_projection(self, hidden: int, embed_dim: int) -> nn.Module:
        return Maxout(2 * hidden + embed_dim, embed_dim)

    def first_memory(self, batch: int, encoder_out: EncoderOut | None) -> Memory:
        assert encoder_out is not None
        keys = self.attention.keys(encoder_out.outputs)
        return Memory(encoder_out.layer_states(), fed=None, context=None, keys=keys)

    def step(
        self, embedded: Tensor, memory: Memory, encoder_out: EncoderOut | None
    ) -> tuple[Memory, Tensor | None]:
        assert encoder_out is not None
        embedded = self.dropout(embedded)
        attended, weights = self.attention(
            memory.states[-1][0], memory.keys, encoder_out.outputs, encoder_out.padding
        )
        states = self.recur(torch.cat([embedded, attended], dim=1), memory.states)
        parts = [self.dropout(states[-1][0]), attended, embedded]
        context = self.contexts(self.to_context(torch.cat(parts, dim=1)))
        return Memory(states, fed=None, context=context, keys=memory.keys), weights


DECODERS: dict[str, type[RecurrentKerbsDecoder]] = {
    "bahdanau": BahdanauDecoder,
    "luong": LuongDecoder,
}
"""Decoder of each ``--attention``."""


class RecurrentModel(KerbsModel):
    """Mixin of models with ``--hidden-size``, ``--embed-dim`` and ``--layers``."""

    flags = RecurrentKerbsConfig
    cell: ClassVar[str] = "lstm"  # or "gru"
    decoder_class: ClassVar[type[nn.Module]]

    @classmethod
    def build(cls, args: Any, task: Any) -> Any:
        """The decoder, on a fresh output layer."""
        return cls(cls.build_decoder(cls.decoder_class, args, task))

    @classmethod
    def build_decoder(cls, decoder_class: type[nn.Module], args: Any, task: Any) -> nn.Module:
        """A decoder with its input embedding and output layer."""
        dictionary = task.target_dictionary
        embed = build_input_embedding(args, dictionary, args.embed_dim, args.embed_dim)
        return decoder_class(cls.cell, args, dictionary, embed)


class RecurrentEncoderDecoder(RecurrentModel):
    """Mixin of models with a recurrent encoder and the attention of ``--attention``."""

    flags = RecurrentAttentionConfig

    @classmethod
    def check(cls, args: Any) -> None:
        if args.hidden_size % 2:
            raise ValueError(
                f"--hidden-size is {args.hidden_size}, but the two directions of the encoder "
                "share it: use an even number."
            )
        if args.attention not in DECODERS:
            raise ValueError(f"--attention is {args.attention}: give {' or '.join(DECODERS)}.")

    @classmethod
    def build(cls, args: Any, task: Any) -> Any:
        """The encoder, and the decoder on a fresh output layer."""
        encoder = RecurrentEncoder(cls.cell, args, task.source_dictionary)
        return cls(encoder, cls.build_decoder(DECODERS[args.attention], args, task))

    def upgrade_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Also refuse, with a UserError, a checkpoint of another ``--attention``."""
        prefix = "decoder.attention."
        given = {key for key in state_dict if key.startswith(prefix)}
        expected = {key for key in self.state_dict() if key.startswith(prefix)}
        if given and given != expected:  # without any it is of another architecture
            raise UserError(
                "the checkpoint was trained with another --attention than this model: give the "
                f"one that it was trained with, {' or '.join(DECODERS)}."
            )
        super().upgrade_state_dict(state_dict)


class LstmKerbsModel(RecurrentEncoderDecoder, FairseqEncoderDecoderModel):
    """LSTM with attention, sequence to sequence (Section 5.1)."""

    arch = "lstm_kerbs"
    cell = "lstm"


class GruKerbsModel(RecurrentEncoderDecoder, FairseqEncoderDecoderModel):
    """GRU (Eq. 2) with attention, sequence to sequence."""

    arch = "gru_kerbs"
    cell = "gru"


# ------------------------------------------------------------------ fairseq's own LSTM models

FairseqEncoderOut = tuple[Tensor, Tensor, Tensor, Tensor]
"""fairseq's: outputs [src_len, batch, units], final h and c [layers, batch, units], padding
[src_len, batch]."""


class FairseqLstmDecoder(SteppingDecoder, lstm.LSTMDecoder):
    """fairseq's LSTM decoder; forward returns context vectors."""

    def first_memory(self, batch: int, encoder_out: FairseqEncoderOut | None) -> Memory:
        zero = self.output.weight.new_zeros(batch, self.hidden_size)
        if encoder_out is None:
            return Memory(((zero, zero),) * self.num_layers, fed=None, context=None)
        _, final_h, final_c, _ = encoder_out
        if self.encoder_hidden_proj is not None:
            final_h = self.encoder_hidden_proj(final_h)
            final_c = self.encoder_cell_proj(final_c)
        states = tuple(zip(final_h.unbind(0), final_c.unbind(0)))
        return Memory(states, fed=zero, context=None)

    def step(
        self, embedded: Tensor, memory: Memory, encoder_out: FairseqEncoderOut | None
    ) -> tuple[Memory, Tensor | None]:
        below = self.dropout_in_module(embedded)
        if memory.fed is not None:
            below = torch.cat([below, memory.fed], dim=1)
        states = []
        for layer, old in zip(self.layers, memory.states):
            states.append(layer(below, old))
            below = self.dropout_out_module(states[-1][0])
            if self.residuals:
                below = below + old[0]
        out = states[-1][0]  # as fairseq has it: without the last residual
        attention = None
        if self.attention is not None:
            assert encoder_out is not None
            out, scores = self.attention(out, encoder_out[0], encoder_out[3])
            attention = scores.t()
        out = self.dropout_out_module(out)
        features = out
        if hasattr(self, "additional_fc"):
            features = self.dropout_out_module(self.additional_fc(out))
        fed = None if memory.fed is None else out
        return Memory(tuple(states), fed=fed, context=self.contexts(features)), attention


class _FairseqLstm(KerbsModel):
    """What both models check and build."""

    flags = SeparableKerbsConfig

    @classmethod
    def check(cls, args: Any) -> None:
        """Refuse what an output layer of ours has no use for."""
        unused = ("adaptive_softmax_cutoff", "decoder_embed_path", "share_all_embeddings")
        refuse_flags(args, cls.arch, *unused)
        if args.input_embedding == "composed" and getattr(args, "decoder_freeze_embed", False):
            raise ValueError(
                "--decoder-freeze-embed asks for --input-embedding separate: give both."
            )

    @classmethod
    def build(cls, args: Any, task: Any) -> Any:
        """fairseq's model, with our embedding and output layer in its decoder."""
        # fairseq freezes an embedding from a file alone, and asks which criterion there is
        stock = {"criterion": None, **vars(args), "decoder_freeze_embed": False}
        model: Any = super().build(argparse.Namespace(**stock), task)
        embed: Any = build_input_embedding(
            args, task.target_dictionary, args.decoder_embed_dim, args.decoder_out_embed_dim
        )
        if getattr(args, "decoder_freeze_embed", False):
            embed.weight.requires_grad = False
        decoder = model.decoder
        decoder.__class__ = FairseqLstmDecoder  # which has the same parameters
        decoder.embed_tokens = embed
        decoder.output = embed.layer
        decoder._modules.pop("fc_out", None)  # fairseq's output vectors
        return model


class FairseqLstmModel(_FairseqLstm, lstm.LSTMModel):
    """fairseq's lstm, for converted models."""

    arch = "fairseq_lstm_kerbs"
    fill_stock = staticmethod(lstm.base_architecture)


class FairseqLstmLanguageModel(_FairseqLstm, lstm_lm.LSTMLanguageModel):
    """fairseq's lstm_lm, for converted models and for Gao et al. (configs/switchboard)."""

    arch = "fairseq_lstm_lm_kerbs"
    fill_stock = staticmethod(lstm_lm.base_architecture)
    target = "future"
