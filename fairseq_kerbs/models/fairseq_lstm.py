"""fairseq's own LSTM models (``lstm``, ``lstm_lm``) with an output layer of ours.

Their flags, sizes and parameters are those of fairseq, so that a trained model of fairseq can
become one of these (``fairseq-kerbs convert``). ``lstm_kerbs`` and ``lstm_lm_kerbs`` are others.

Where a word's embedding is the same in every context (``--input-embedding separate``, one sense a
word, ``--composition prior``) fairseq's decoder runs as it is. Else the same modules are stepped
through here, each input composed with the posterior of the step before (Eq. 6–7).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from fairseq import utils
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import lstm as stock_lstm
from fairseq.models import lstm_lm as stock_lstm_lm
from fairseq.models import register_model, register_model_architecture
from torch import Tensor

from fairseq_kerbs.models.config import (
    SeparableKerbsConfig,
    as_namespace,
    build_schedule,
    fill_defaults,
    user_errors,
)
from fairseq_kerbs.models.decoding import FittingCheckpoint, ScoredByOutputLayer
from fairseq_kerbs.models.input_embedding import build_input_embedding
from fairseq_kerbs.models.language_modeling import check_task
from fairseq_kerbs.models.recurrent import put_back, right_padded
from fairseq_kerbs.output_layers.composition import ComposedEmbedding, LookedUp, SeparateEmbedding
from fairseq_kerbs.training.sense_updates import install_hook
from fairseq_kerbs.utils.literals import read_literal

EncoderOut = tuple[Tensor, Tensor, Tensor, Tensor]
"""fairseq's: outputs [src_len, batch, units], final h and c [layers, batch, units], padding
[src_len, batch]."""


class _Memory(NamedTuple):
    """Decoder state between two steps; every tensor has the batch in its first dimension.

    Attributes:
        hiddens, cells: h and c of every layer, each [batch, hidden].
        fed: output that is fed in at the next step, [batch, hidden]; None without an encoder.
        context: context vector h_{t−1} of the output layer, [batch, d]; None before step 1.
    """

    hiddens: tuple[Tensor, ...]
    cells: tuple[Tensor, ...]
    fed: Tensor | None
    context: Tensor | None


class StockLstmDecoder(ScoredByOutputLayer, stock_lstm.LSTMDecoder):
    """fairseq's LSTM decoder; forward returns context vectors for the output layer.

    Args:
        dictionary: target dictionary.
        embed_tokens: input embedding, which refers to the output layer. That one's rows are longer
            than the features by one where it has a bias.
        sizes: fairseq's arguments of the decoder.

    Attributes:
        output: the output layer.
    """

    def __init__(
        self, dictionary: Any, embed_tokens: ComposedEmbedding | SeparateEmbedding, **sizes: Any
    ) -> None:
        # "shared": fairseq must not make an output projection of its own
        super().__init__(
            dictionary, pretrained_embed=embed_tokens, share_input_output_embed=True, **sizes
        )
        self.output = embed_tokens.layer
        self.sense_bias = self.output.embed_dim > sizes["out_embed_dim"]

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut | None = None,
        incremental_state: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Context vectors [batch, len, d], and attention [batch, len, src_len] if it is asked for.

        In step-by-step decoding only of the last token: [batch, 1, d]. Tokens are padded on either
        side: no step is spent on padding on the left (``--left-pad-target``).
        """
        tokens, places = prev_output_tokens, None
        if incremental_state is None:
            tokens, places = right_padded(tokens, self.embed_tokens.padding_idx)
        if self.embed_tokens.posterior:
            contexts, attention = self._step_through(tokens, encoder_out, incremental_state)
        else:
            features, attention = super().extract_features(tokens, encoder_out, incremental_state)
            contexts = self.contexts(features)
        if attention is not None:
            attention = put_back(attention, places)
        return put_back(contexts, places), attention

    def _step_through(
        self, tokens: Tensor, encoder_out: EncoderOut | None, state: dict[str, Any] | None
    ) -> tuple[Tensor, Tensor | None]:
        """Compose, run the layers and attend, one step after the other."""
        memory: Any = None
        if state is not None:
            memory = self.get_incremental_state(state, "memory")
            tokens = tokens[:, -1:]
        senses = self.embed_tokens.look_up(tokens)  # at once: its gradient is a vocabulary's size
        if memory is None:
            memory = self._first_memory(senses.rows, encoder_out)
        contexts, attentions = [], []
        for step in zip(*(part.unbind(1) for part in senses), strict=True):
            words = self.embed_tokens.compose(LookedUp(*step), memory.context)
            memory, attention = self._step(words, memory, encoder_out)
            contexts.append(memory.context)
            attentions.append(attention)
        if state is not None:
            self.set_incremental_state(state, "memory", memory)
        shown = not self.training and self.need_attn
        seen = [one for one in attentions if one is not None]
        return torch.stack(contexts, 1), torch.stack(seen, 1) if shown and seen else None

    def _first_memory(self, like: Tensor, encoder_out: EncoderOut | None) -> _Memory:
        zero = like.new_zeros(len(like), self.hidden_size)
        if encoder_out is None:
            return _Memory((zero,) * self.num_layers, (zero,) * self.num_layers, None, None)
        hiddens, cells = (
            tuple(final if project is None else project(final) for final in finals.unbind(0))
            for finals, project in (
                (encoder_out[1], self.encoder_hidden_proj),
                (encoder_out[2], self.encoder_cell_proj),
            )
        )
        return _Memory(hiddens, cells, zero, None)

    def _step(
        self, words: Tensor, memory: _Memory, encoder_out: EncoderOut | None
    ) -> tuple[_Memory, Tensor | None]:
        """One step from embeddings [batch, e]; attention is [batch, src_len]."""
        below = self.dropout_in_module(words)
        if memory.fed is not None:
            below = torch.cat([below, memory.fed], dim=1)
        hiddens, cells = [], []
        for layer, old, old_cell in zip(self.layers, memory.hiddens, memory.cells, strict=True):
            hidden, cell = layer(below, (old, old_cell))
            below = self.dropout_out_module(hidden)
            if self.residuals:
                below = below + old
            hiddens.append(hidden)
            cells.append(cell)
        out, attention = hiddens[-1], None  # as fairseq has it: without the last residual
        if self.attention is not None:
            assert encoder_out is not None
            out, scores = self.attention(out, encoder_out[0], encoder_out[3])
            attention = scores.t()
        out = self.dropout_out_module(out)
        features = out
        if hasattr(self, "additional_fc"):
            features = self.dropout_out_module(self.additional_fc(out))
        fed = None if memory.fed is None else out
        return _Memory(tuple(hiddens), tuple(cells), fed, self.contexts(features)), attention

    def reorder_incremental_state(
        self, incremental_state: dict[str, Any], new_order: Tensor
    ) -> None:
        """Reorder states, fed-in outputs and context vectors with the beam."""
        memory = self.get_incremental_state(incremental_state, "memory")
        if memory is None:
            super().reorder_incremental_state(incremental_state, new_order)
            return
        hiddens, cells = (
            tuple(state.index_select(0, new_order) for state in states)
            for states in (memory.hiddens, memory.cells)
        )
        fed, context = (
            None if value is None else value.index_select(0, new_order)
            for value in (memory.fed, memory.context)
        )
        reordered = _Memory(hiddens, cells, fed, context)
        self.set_incremental_state(incremental_state, "memory", reordered)


def _build_decoder(args: Any, dictionary: Any, encoder_units: int, **others: Any) -> Any:
    """The decoder that the flags describe; ``encoder_units`` is 0 where there is no encoder."""
    sizes = args.decoder_embed_dim, args.decoder_out_embed_dim
    embed = build_input_embedding(args, dictionary, ComposedEmbedding, *sizes)
    if getattr(args, "decoder_freeze_embed", False):
        embed.weight.requires_grad = False
    return StockLstmDecoder(
        dictionary,
        embed,
        embed_dim=args.decoder_embed_dim,
        hidden_size=args.decoder_hidden_size,
        out_embed_dim=args.decoder_out_embed_dim,
        num_layers=args.decoder_layers,
        dropout_in=args.decoder_dropout_in,
        dropout_out=args.decoder_dropout_out,
        encoder_output_units=encoder_units,
        **others,
    )


def _build_encoder(args: Any, dictionary: Any) -> Any:
    """fairseq's own encoder."""
    embed = stock_lstm.Embedding(len(dictionary), args.encoder_embed_dim, dictionary.pad())
    if args.encoder_embed_path:
        utils.load_embedding(utils.parse_embedding(args.encoder_embed_path), dictionary, embed)
    embed.weight.requires_grad = not args.encoder_freeze_embed
    return stock_lstm.LSTMEncoder(
        dictionary,
        embed_dim=args.encoder_embed_dim,
        hidden_size=args.encoder_hidden_size,
        num_layers=args.encoder_layers,
        dropout_in=args.encoder_dropout_in,
        dropout_out=args.encoder_dropout_out,
        bidirectional=args.encoder_bidirectional,
        pretrained_embed=embed,
        max_source_positions=getattr(
            args, "max_source_positions", stock_lstm.DEFAULT_MAX_SOURCE_POSITIONS
        ),
    )


def _attends(args: Any) -> bool:
    """``--decoder-attention``, a literal such as "1" or "False", as fairseq reads it."""
    try:
        return bool(read_literal(args.decoder_attention))
    except TypeError:  # no string
        return False
    except ValueError as error:
        raise ValueError(f"--decoder-attention: {error}; give True or False.") from None


def _check(args: Any, arch: str) -> None:
    sizes = ("embed_dim", "hidden_size", "layers")
    for name in [f"{side}_{size}" for side in ("encoder", "decoder") for size in sizes]:
        if getattr(args, name, 1) < 1:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} is {getattr(args, name)}, but it must be 1 or more.")
    for name in ("adaptive_softmax_cutoff", "decoder_embed_path", "share_all_embeddings"):
        if getattr(args, name, None):
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} does not go together with --arch {arch}: leave it out.")
    if args.input_embedding == "separate":
        return
    if args.decoder_out_embed_dim != args.decoder_embed_dim:
        raise ValueError(
            f"--decoder-out-embed-dim must equal --decoder-embed-dim ({args.decoder_embed_dim}): "
            "input and output embeddings are the same senses (but for --input-embedding separate)."
        )
    if getattr(args, "decoder_freeze_embed", False):
        raise ValueError("--decoder-freeze-embed asks for --input-embedding separate: give both.")


@register_model("fairseq_lstm_kerbs")
class StockLstmModel(FittingCheckpoint, stock_lstm.LSTMModel):
    """fairseq's ``lstm`` with an output layer of ours."""

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Flags of fairseq's lstm, and ours."""
        stock_lstm.LSTMModel.add_args(parser)
        gen_parser_from_dataclass(parser, SeparableKerbsConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> StockLstmModel:
        """Build the model and make the task reallocate its senses.

        Raises:
            SystemExit: a flag is wrong; the message is one sentence that names it.
        """
        args = as_namespace(args)
        base_lstm_architecture(args)
        with user_errors():
            _check(args, "fairseq_lstm_kerbs")
            if args.encoder_layers != args.decoder_layers:
                raise ValueError(
                    f"--encoder-layers is {args.encoder_layers}, --decoder-layers is "
                    f"{args.decoder_layers}: give the same number."
                )
            schedule = build_schedule(args)
            encoder = _build_encoder(args, task.source_dictionary)
            decoder = _build_decoder(
                args,
                task.target_dictionary,
                encoder.output_units,
                attention=_attends(args),
                max_target_positions=getattr(
                    args, "max_target_positions", stock_lstm.DEFAULT_MAX_TARGET_POSITIONS
                ),
            )
        install_hook(task, schedule)
        return cls(encoder, decoder)


@register_model("fairseq_lstm_lm_kerbs")
class StockLstmLanguageModel(FittingCheckpoint, stock_lstm_lm.LSTMLanguageModel):
    """fairseq's ``lstm_lm`` with an output layer of ours."""

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Flags of fairseq's lstm_lm, and ours."""
        stock_lstm_lm.LSTMLanguageModel.add_args(parser)
        gen_parser_from_dataclass(parser, SeparableKerbsConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> StockLstmLanguageModel:
        """Build the model and make the task reallocate its senses.

        Raises:
            SystemExit: a flag is wrong; the message is one sentence that names it.
        """
        args = as_namespace(args)
        base_lm_architecture(args)
        longest = getattr(args, "max_target_positions", None)
        if longest is None:
            default = stock_lstm_lm.DEFAULT_MAX_TARGET_POSITIONS
            longest = getattr(args, "tokens_per_sample", default)
        with user_errors():
            check_task(task, "fairseq_lstm_lm_kerbs", "future")
            _check(args, "fairseq_lstm_lm_kerbs")
            schedule = build_schedule(args)
            decoder = _build_decoder(
                args,
                task.target_dictionary,
                0,
                attention=False,
                max_target_positions=longest,
                residuals=args.residuals,
            )
        install_hook(task, schedule)
        return cls(decoder)


@register_model_architecture("fairseq_lstm_kerbs", "fairseq_lstm_kerbs")
def base_lstm_architecture(args: Any) -> None:
    """Sizes of fairseq's lstm (all 512, one layer), defaults of ours for the rest."""
    _ours(args)
    stock_lstm.base_architecture(args)


@register_model_architecture("fairseq_lstm_lm_kerbs", "fairseq_lstm_lm_kerbs")
def base_lm_architecture(args: Any) -> None:
    """Sizes of fairseq's lstm_lm (all 512, one layer), defaults of ours for the rest."""
    _ours(args)
    stock_lstm_lm.base_architecture(args)


def _ours(args: Any) -> None:
    fill_defaults(args, SeparableKerbsConfig)
    # fairseq's default of this is read by one criterion only
    args.adaptive_softmax_cutoff = getattr(args, "adaptive_softmax_cutoff", None)
    # whether input and output embeddings are the same rows is for another flag to say
    args.share_decoder_input_output_embed = args.input_embedding == "composed"
