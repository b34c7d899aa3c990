"""fairseq's own LSTM models (``lstm``, ``lstm_lm``) with an output layer of ours.

Their flags, sizes and parameters are those of fairseq, so that a trained model of fairseq can
become one of these (``fairseq-kerbs convert``). ``lstm_kerbs`` and ``lstm_lm_kerbs`` are others.

Where a word's embedding is the same in every context (``--input-embedding separate``, one sense a
word, ``--composition prior``) fairseq's decoder runs as it is. Else the same modules are stepped
through here, each input composed with the posterior of the step before (Eq. 6–7).
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq import utils
from fairseq.models import lstm, lstm_lm
from torch import Tensor

from fairseq_kerbs.models.base import KerbsModel, build_input_embedding
from fairseq_kerbs.models.config import SeparableKerbsConfig, check_ranges, check_tied, refuse_flags
from fairseq_kerbs.models.recurrent import Memory, SteppingDecoder
from fairseq_kerbs.utils.literals import read_literal

EncoderOut = tuple[Tensor, Tensor, Tensor, Tensor]
"""fairseq's: outputs [src_len, batch, units], final h and c [layers, batch, units], padding
[src_len, batch]."""


class FairseqLstmDecoder(SteppingDecoder, lstm.LSTMDecoder):
    """fairseq's LSTM decoder, by fairseq's arguments; forward returns context vectors."""

    def __init__(self, dictionary: Any, embed_tokens: Any, **sizes: Any) -> None:
        # "shared": fairseq must not make an output projection of its own
        lstm.LSTMDecoder.__init__(
            self, dictionary, pretrained_embed=embed_tokens, share_input_output_embed=True, **sizes
        )
        self.output = embed_tokens.layer

    def run(
        self, tokens: Tensor, encoder_out: EncoderOut | None, state: dict[str, Any] | None
    ) -> tuple[Tensor, Tensor | None]:
        """fairseq's decoder as it is where no embedding depends on context vectors."""
        if self.embed_tokens.posterior:
            contexts, attention = super().run(tokens, encoder_out, state)
            return contexts, attention if not self.training and self.need_attn else None
        features, attention = lstm.LSTMDecoder.extract_features(self, tokens, encoder_out, state)
        return self.contexts(features), attention

    def first_memory(self, batch: int, encoder_out: EncoderOut | None) -> Memory:
        zero = self.output.weight.new_zeros(batch, self.hidden_size)
        if encoder_out is None:
            return Memory(((zero, zero),) * self.num_layers, None, None)
        projections = (self.encoder_hidden_proj, self.encoder_cell_proj)
        finals = (
            [final if project is None else project(final) for final in given.unbind(0)]
            for given, project in zip(encoder_out[1:3], projections, strict=True)
        )
        return Memory(tuple(zip(*finals, strict=True)), zero, None)

    def step(
        self, words: Tensor, memory: Memory, encoder_out: EncoderOut | None
    ) -> tuple[Memory, Tensor | None]:
        below = self.dropout_in_module(words)
        if memory.fed is not None:
            below = torch.cat([below, memory.fed], dim=1)
        states = []
        for layer, old in zip(self.layers, memory.states, strict=True):
            states.append(layer(below, old))
            below = self.dropout_out_module(states[-1][0])
            if self.residuals:
                below = below + old[0]
        out, attention = states[-1][0], None  # as fairseq has it: without the last residual
        if self.attention is not None:
            assert encoder_out is not None
            out, scores = self.attention(out, encoder_out[0], encoder_out[3])
            attention = scores.t()
        features = out = self.dropout_out_module(out)
        if hasattr(self, "additional_fc"):
            features = self.dropout_out_module(self.additional_fc(out))
        fed = None if memory.fed is None else out
        return Memory(tuple(states), fed, self.contexts(features)), attention

    def reorder_incremental_state(
        self, incremental_state: dict[str, Any], new_order: Tensor
    ) -> None:
        super().reorder_incremental_state(incremental_state, new_order)
        if not self.embed_tokens.posterior:
            lstm.LSTMDecoder.reorder_incremental_state(self, incremental_state, new_order)


def _sizes(args: Any, side: str) -> dict[str, Any]:
    """What fairseq's encoder and decoder are both told, from the flags of a side."""
    names = ("embed_dim", "hidden_size", "dropout_in", "dropout_out")
    sizes = {name: getattr(args, f"{side}_{name}") for name in names}
    return sizes | {"num_layers": getattr(args, f"{side}_layers")}


def _build_decoder(args: Any, dictionary: Any, encoder_units: int, **others: Any) -> Any:
    """The decoder that the flags describe; ``encoder_units`` is 0 where there is no encoder."""
    read, features = args.decoder_embed_dim, args.decoder_out_embed_dim
    embed = build_input_embedding(args, dictionary, read, features)
    if getattr(args, "decoder_freeze_embed", False):
        embed.weight.requires_grad = False
    others |= {"out_embed_dim": features, "encoder_output_units": encoder_units}
    return FairseqLstmDecoder(dictionary, embed, **_sizes(args, "decoder"), **others)


def _build_encoder(args: Any, dictionary: Any) -> Any:
    embed = lstm.Embedding(len(dictionary), args.encoder_embed_dim, dictionary.pad())
    if args.encoder_embed_path:
        utils.load_embedding(utils.parse_embedding(args.encoder_embed_path), dictionary, embed)
    embed.weight.requires_grad = not args.encoder_freeze_embed
    longest = getattr(args, "max_source_positions", lstm.DEFAULT_MAX_SOURCE_POSITIONS)
    return lstm.LSTMEncoder(
        dictionary,
        bidirectional=args.encoder_bidirectional,
        pretrained_embed=embed,
        max_source_positions=longest,
        **_sizes(args, "encoder"),
    )


def _attends(args: Any) -> bool:
    """``--decoder-attention``, a literal such as "1" or "False", as fairseq reads it."""
    try:
        return bool(read_literal(args.decoder_attention))
    except TypeError:  # no string
        return False
    except ValueError as error:
        raise ValueError(f"--decoder-attention: {error}; give True or False.") from None


class _FairseqLstm(KerbsModel):
    """What both models check."""

    flags = SeparableKerbsConfig

    @classmethod
    def check(cls, args: Any) -> None:
        """Check sizes, and refuse what an output layer of ours has no use for."""
        sizes = ("embed_dim", "hidden_size", "layers")
        check_ranges(args, *(f"{side}_{size}" for side in ("encoder", "decoder") for size in sizes))
        refuse_flags(
            args, cls.arch, "adaptive_softmax_cutoff", "decoder_embed_path", "share_all_embeddings"
        )
        check_tied(args, "decoder_out_embed_dim")
        if args.input_embedding == "composed" and getattr(args, "decoder_freeze_embed", False):
            raise ValueError(
                "--decoder-freeze-embed asks for --input-embedding separate: give both."
            )


class FairseqLstmModel(_FairseqLstm, lstm.LSTMModel):
    """fairseq's lstm, for converted models."""

    arch = "fairseq_lstm_kerbs"
    fill_stock = staticmethod(lstm.base_architecture)

    @classmethod
    def build(cls, args: Any, task: Any) -> FairseqLstmModel:
        if args.encoder_layers != args.decoder_layers:
            raise ValueError(
                f"--encoder-layers is {args.encoder_layers}, --decoder-layers is "
                f"{args.decoder_layers}: give the same number."
            )
        encoder = _build_encoder(args, task.source_dictionary)
        longest = getattr(args, "max_target_positions", lstm.DEFAULT_MAX_TARGET_POSITIONS)
        others = {"attention": _attends(args), "max_target_positions": longest}
        words = task.target_dictionary
        return cls(encoder, _build_decoder(args, words, encoder.output_units, **others))


class FairseqLstmLanguageModel(_FairseqLstm, lstm_lm.LSTMLanguageModel):
    """fairseq's lstm_lm, for converted models."""

    arch = "fairseq_lstm_lm_kerbs"
    fill_stock = staticmethod(lstm_lm.base_architecture)
    target = "future"

    @classmethod
    def build(cls, args: Any, task: Any) -> FairseqLstmLanguageModel:
        longest = getattr(args, "max_target_positions", None)
        if longest is None:
            default = lstm_lm.DEFAULT_MAX_TARGET_POSITIONS
            longest = getattr(args, "tokens_per_sample", default)
        others = {"attention": False, "max_target_positions": longest, "residuals": args.residuals}
        return cls(_build_decoder(args, task.target_dictionary, 0, **others))
