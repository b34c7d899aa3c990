"""Transformers with an output layer of ours: translation (Section 5.1) and language model.

A Transformer decoder is trained on all positions at once, but the input embedding at position t
needs the context vector of position t − 1 (Eq. 6). It is found by iteration: pass 0 composes with
the prior, pass k with the posteriors of pass k − 1; only the last pass has a gradient. After k
passes the first k positions are those of the sequential recursion.

Step-by-step decoding computes the same. Pass k needs the features of pass k − 1 at the step before,
so all passes of one step run at once, as *streams* of one batch. At step t, passes t, t + 1, … are
all equal to the sequential recursion: decoding begins with one stream, and with each step another
one begins as a copy of the last, until there is one for every pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import FairseqLanguageModel, transformer, transformer_lm
from torch import Tensor, nn

from fairseq_kerbs.models import incremental_attention as incremental
from fairseq_kerbs.models.base import KerbsModel, ScoredByOutputLayer, build_input_embedding
from fairseq_kerbs.models.config import SeparableKerbsConfig, check_tied, refuse_flags
from fairseq_kerbs.output_layers.composition import ComposedEmbedding, SeparateEmbedding

_FEATURES = "fairseq_kerbs.features"  # key of the streams' last features in the incremental state


class PassEmbedding(ComposedEmbedding):
    """Composed embedding for decoders of fairseq's, which look words up without their contexts."""

    # how the next words are embedded, if with contexts; used once
    embed_next: Callable[[Tensor], Tensor] | None = None

    def forward(self, words: Tensor, contexts: Tensor | None = None) -> Tensor:
        embed, self.embed_next = self.embed_next, None
        return super().forward(words, contexts) if embed is None else embed(words)


class KerbsTransformerDecoder(ScoredByOutputLayer, transformer.TransformerDecoderBase):
    """Transformer decoder whose forward returns features; the output layer scores them.

    Arguments are those of fairseq's decoder. ``embed_tokens`` refers to the output layer;
    ``passes`` refine the posteriors before the last one, −1 for all there can be;
    ``decoding_passes`` do so in decoding step by step, None for as many.
    """

    def __init__(
        self,
        cfg: transformer.TransformerConfig,
        dictionary: Any,
        embed_tokens: PassEmbedding | SeparateEmbedding,
        passes: int,
        no_encoder_attn: bool = False,
        decoding_passes: int | None = None,
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        self.passes = passes if embed_tokens.posterior else 0
        chosen = passes if decoding_passes is None else decoding_passes
        self.decoding_passes = chosen if self.passes else 0

    def build_output_projection(self, cfg: Any, dictionary: Any, embed_tokens: Any) -> None:
        """Take the output layer from the embedding that is composed of it."""
        self.output = embed_tokens.layer

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> Any:
        """A layer of fairseq's whose state a beam search does not move."""
        layer = super().build_decoder_layer(cfg, no_encoder_attn)
        incremental.keep_in_place(layer)
        return layer

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any,
        incremental_state: incremental.IncrementalState | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features of all positions [batch, len, d]; in decoding of the last one [batch, 1, d]."""
        if incremental_state is not None:
            return self._next_features(
                prev_output_tokens, encoder_out, incremental_state, *args, **kwargs
            )
        features = None
        passes = self.passes if self.passes >= 0 else prev_output_tokens.shape[1] - 1
        for _ in range(passes):
            with torch.no_grad():
                features, _ = self._one_pass(features, prev_output_tokens, encoder_out)
        return self._one_pass(features, prev_output_tokens, encoder_out, *args, **kwargs)

    def _one_pass(
        self, features: Tensor | None, tokens: Tensor, encoder_out: Any, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        embed: Any = self.embed_tokens
        # an earlier pass that ended in an error may have left its own
        known = None if features is None else partial(embed.embed_sequence, features=features)
        embed.embed_next = known
        found = self.extract_features_scriptable(tokens, encoder_out, None, *args, **kwargs)
        return self.contexts(found[0]), found[1]

    def _next_features(
        self,
        tokens: Tensor,
        encoder_out: Any,
        state: incremental.IncrementalState,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """All passes of one step; what the last one finds."""
        beams: incremental.Beams | None = state.get(incremental.BEAMS)
        if beams is None:
            group = 1 if self.cross_self_attention else incremental.equal_neighbours(encoder_out)
            beams = incremental.Beams(len(tokens), group, tokens.device)
            state[incremental.BEAMS] = beams
        contexts: Tensor | None = state.get(_FEATURES)  # of the step before, [batch, streams, d]
        sequential = self.decoding_passes < 0
        n = 1 if contexts is None or sequential else contexts.shape[1] + 1
        if n > beams.streams:
            beams.widen(self, state, n)
        beams.begin_step(tokens[:, -1].eq(self.padding_idx))
        embed = None if contexts is None else partial(self._embed_step, contexts=contexts)
        self.embed_tokens.embed_next = embed
        features, extra = self.extract_features_scriptable(
            tokens if n == 1 else tokens.repeat_interleave(n, 0),
            incremental.one_source_each(encoder_out, beams.group),
            state,
            *args,
            **kwargs,
        )
        by_stream = self.contexts(features).view(len(tokens), n, -1)
        if self.decoding_passes:
            # a copy: generators divide what they receive by the temperature in place
            kept = 1 if sequential else self.decoding_passes
            state[_FEATURES] = by_stream[:, :kept].clone()
        if n > 1:
            extra = _of_last_stream(extra, n)
        return by_stream[:, -1:], extra

    def _embed_step(self, words: Tensor, contexts: Tensor) -> Tensor:
        """The last words [batch × streams, 1] with the contexts of the step before."""
        embed: Any = self.embed_tokens
        if self.decoding_passes < 0:
            return embed(words, contexts)
        last = words.view(len(contexts), -1)[:, 0]
        return embed.embed_streams(last, contexts).view(-1, 1, embed.embedding_dim)

    def reorder_incremental_state_scripting(
        self, incremental_state: incremental.IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the states of all passes with the beam."""
        if incremental.BEAMS not in incremental_state:  # nothing was decoded yet
            return
        incremental_state[incremental.BEAMS].reorder(self, incremental_state, new_order)
        if _FEATURES in incremental_state:
            features = incremental_state[_FEATURES]
            incremental_state[_FEATURES] = features.index_select(0, new_order)


def _of_last_stream(extra: dict[str, Any], streams: int) -> dict[str, Any]:
    """Attention [batch × streams, 1, src_len] and hidden states [1, batch × streams, d] of one."""
    return extra | {
        "attn": [None if one is None else one[streams - 1 :: streams] for one in extra["attn"]],
        "inner_states": [hidden[:, streams - 1 :: streams] for hidden in extra["inner_states"]],
    }


class _Transformer(KerbsModel):
    """What both models check and build.

    The decoder's input embedding is composed of the output layer's senses, and so tied with it;
    with ``--input-embedding separate`` it is one of its own.
    """

    flags = SeparableKerbsConfig
    sides: ClassVar[tuple[str, ...]]
    refused: ClassVar[tuple[str, ...]]

    @classmethod
    def check(cls, args: Any) -> None:
        """Check sizes, and refuse what an output layer of ours has no use for."""
        refuse_flags(args, cls.arch, "adaptive_softmax_cutoff", *cls.refused)
        for side in cls.sides:
            sizes = getattr(args, f"{side}_embed_dim"), getattr(args, f"{side}_attention_heads")
            if sizes[1] < 1 or sizes[0] % sizes[1]:
                raise ValueError(
                    f"--{side}-attention-heads is {sizes[1]}, but must divide "
                    f"--{side}-embed-dim {sizes[0]}."
                )
        names = ("decoder_input_dim", "decoder_output_dim")
        read, scored = (getattr(args, name, None) for name in names)
        if read != scored:
            check_tied(args, *names)

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: nn.Embedding | None) -> Any:
        """Build the decoder on a fresh output layer; fairseq's target embedding is left unused."""
        cfg: Any = transformer.TransformerConfig.from_namespace(args)
        sizes = cfg.decoder.input_dim, cfg.decoder.output_dim
        embed: Any = build_input_embedding(cfg, tgt_dict, *sizes, PassEmbedding)
        passes, alone = int(cfg.composition_passes), "encoder" not in cls.sides
        return KerbsTransformerDecoder(
            cfg, tgt_dict, embed, passes, alone or cfg.no_cross_attention, args.decoding_passes
        )


class TransformerKerbsModel(_Transformer, transformer.TransformerModel):
    """Transformer, sequence to sequence (Section 5.1)."""

    arch = "transformer_kerbs"
    sides = ("encoder", "decoder")
    refused = ("decoder_embed_path", "share_all_embeddings")

    @classmethod
    def fill_stock(cls, args: Any) -> None:
        """Sizes of fairseq's transformer; its flags for two of them have no type."""
        transformer.base_architecture(args)
        args.decoder_input_dim = int(args.decoder_input_dim)
        args.decoder_output_dim = int(args.decoder_output_dim)

    @classmethod
    def build(cls, args: Any, task: Any) -> Any:
        """As fairseq does."""
        return super(KerbsModel, cls).build_model(args, task)


class TransformerLanguageModel(_Transformer, FairseqLanguageModel):
    """Transformer language model."""

    arch = "transformer_lm_kerbs"
    target = "future"
    sides = ("decoder",)
    refused = ("adaptive_input", "character_embeddings")

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Flags of fairseq's transformer_lm, and ours."""
        gen_parser_from_dataclass(
            parser, transformer_lm.TransformerLanguageModelConfig(), delete_default=True
        )
        super().add_args(parser)

    @classmethod
    def fill_stock(cls, args: Any) -> None:
        """Sizes of fairseq's transformer_lm (512, feed-forward 2048, 6 layers, 8 heads)."""
        after_blocks = getattr(args, "decoder_normalize_before", None) is False
        transformer_lm.base_lm_architecture(args)
        if after_blocks:  # fairseq_transformer_lm_kerbs; fairseq always normalizes before here
            args.decoder_normalize_before = False

    @classmethod
    def check(cls, args: Any) -> None:
        super().check(args)
        if args.decoder_layers_to_keep:
            args.decoder_layers = len(args.decoder_layers_to_keep.split(","))

    @classmethod
    def build(cls, args: Any, task: Any) -> TransformerLanguageModel:
        """The decoder, which is all of the model."""
        if getattr(args, "max_target_positions", None) is None:
            longest = getattr(args, "tokens_per_sample", None)
            args.max_target_positions = longest or transformer_lm.DEFAULT_MAX_TARGET_POSITIONS
        return cls(cls.build_decoder(args, task.target_dictionary, None))
