"""Transformers with an output layer of ours: translation (Section 5.1) and language model.

A Transformer decoder is trained on all positions at once, but the input embedding at position t
needs the context vector of position t − 1 (Eq. 6). It is found by iteration: pass 0 composes with
the prior, pass k with the posteriors of pass k − 1; only the last pass has a gradient. After k
passes the first k positions are those of the sequential recursion.

Step-by-step decoding is the sequential recursion itself: the features of the step before are kept.

A pass takes the time of a decoder's forward. ``--composition-from`` (ours) trains with the prior
before a share of the updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import FairseqLanguageModel, transformer, transformer_lm
from torch import Tensor, nn

from fairseq_kerbs.models.base import KerbsModel, ScoredByOutputLayer, build_input_embedding
from fairseq_kerbs.models.config import TransformerKerbsConfig, refuse_flags
from fairseq_kerbs.output_layers.composition import ComposedEmbedding

_FEATURES = "fairseq_kerbs.features"  # key of the last step's features in the incremental state


class PassEmbedding(ComposedEmbedding):
    """Composed embedding for decoders of fairseq's, which look words up without their contexts."""

    embed_next: Callable[[Tensor], Tensor] | None = None
    """Embeds the words of the next call with their contexts. That call resets it."""

    def forward(self, words: Tensor, contexts: Tensor | None = None) -> Tensor:
        embed = self.embed_next
        self.embed_next = None
        if embed is not None:
            return embed(words)
        return super().forward(words, contexts)


class KerbsTransformerDecoder(ScoredByOutputLayer, transformer.TransformerDecoderBase):
    """Transformer decoder whose forward returns features; the output layer scores them.

    Arguments are those of fairseq's decoder. ``embed_tokens`` refers to the output layer.
    ``passes`` refine the posteriors before the last one. −1 means as many as there are positions
    before the last. Decoding step by step takes as many, unless ``passes`` is 0. With
    ``--composition-from`` training has no passes before the update ``first_update``. Validation has
    them from the beginning.
    """

    refines = True  # False while a training has not reached ``first_update``

    def build_output_projection(self, cfg: Any, dictionary: Any, embed_tokens: Any) -> None:
        """Take the output layer from the embedding that is composed of it."""
        self.output = embed_tokens.layer
        self.passes = int(cfg.composition_passes) if embed_tokens.posterior else 0
        share = float(getattr(cfg, "composition_from", 0.0))
        self.first_update = math.ceil(share * int(getattr(cfg, "max_update", None) or 0))

    def set_num_updates(self, num_updates: int) -> None:
        """Note how many updates are done. fairseq calls this before every update."""
        self.refines = num_updates >= self.first_update

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any,
        incremental_state: dict[str, Any] | None = None,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features of all positions [batch, len, d]; in decoding of the last one [batch, 1, d]."""
        inputs = (prev_output_tokens, encoder_out, incremental_state)
        embed = self.embed_tokens
        embed_next: Callable[[Tensor], Tensor] | None = None
        if incremental_state is not None:
            features = incremental_state.get(_FEATURES)  # of the step before
            if features is not None:
                embed_next = partial(embed, contexts=features)  # [batch, 1, d]
            output = self._one_pass(embed_next, *inputs, **options)
            if self.passes:
                # a copy: generators divide what they receive by the temperature in place
                incremental_state[_FEATURES] = output[0].clone()
            return output
        passes = self.passes if self.passes >= 0 else prev_output_tokens.shape[1] - 1
        if self.training and not self.refines:
            passes = 0
        for _ in range(passes):
            with torch.no_grad():
                features, _ = self._one_pass(embed_next, *inputs)
            embed_next = partial(embed.embed_sequence, features=features)
        return self._one_pass(embed_next, *inputs, **options)

    def _one_pass(
        self, embed_next: Callable[[Tensor], Tensor] | None, *inputs: Any, **options: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features of words embedded by ``embed_next``, or without contexts."""
        # also replaces one that an earlier pass left when it ended in an error
        self.embed_tokens.embed_next = embed_next
        output = self.extract_features_scriptable(*inputs, **options)
        return self.contexts(output[0]), output[1]

    def reorder_incremental_state_scripting(
        self, incremental_state: dict[str, Any], new_order: Tensor
    ) -> None:
        """Reorder the features of the step before with the beam, too."""
        super().reorder_incremental_state_scripting(incremental_state, new_order)
        if _FEATURES in incremental_state:
            features = incremental_state[_FEATURES]
            incremental_state[_FEATURES] = features.index_select(0, new_order)


class _Transformer(KerbsModel):
    """What both models check and build.

    The decoder's input embedding is composed of the output layer's senses, and so tied with it;
    with ``--input-embedding separate`` it is one of its own.
    """

    flags = TransformerKerbsConfig
    refused: ClassVar[tuple[str, ...]]

    @classmethod
    def check(cls, args: Any) -> None:
        """Check sizes, and refuse what an output layer of ours has no use for."""
        refuse_flags(args, cls.arch, "adaptive_softmax_cutoff", *cls.refused)
        if args.composition_from and not getattr(args, "max_update", None):
            raise ValueError("--composition-from is a share of --max-update: give that, too.")
        if args.composition_from and (args.composition == "prior" or not args.composition_passes):
            raise ValueError(
                "--composition-from goes with --composition posterior and --composition-passes: "
                "leave one out."
            )
        composed = args.input_embedding == "composed"
        if args.composition_from and not composed:
            raise ValueError(
                "--composition-from is about composed input embeddings, and not read with "
                f"--input-embedding {args.input_embedding}: leave it out."
            )
        if composed and args.decoder_input_dim != args.decoder_output_dim:
            raise ValueError(
                "--decoder-input-dim must equal --decoder-output-dim: input and output embeddings "
                "are the same senses (but for --input-embedding separate)."
            )

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: nn.Embedding | None) -> Any:
        """Build the decoder on a fresh output layer; fairseq's target embedding is left unused."""
        cfg: Any = transformer.TransformerConfig.from_namespace(args)
        embed: Any = build_input_embedding(
            cfg, tgt_dict, cfg.decoder.input_dim, cfg.decoder.output_dim, PassEmbedding
        )
        without_encoder = cls.target is not None or cfg.no_cross_attention
        return KerbsTransformerDecoder(cfg, tgt_dict, embed, no_encoder_attn=without_encoder)


class TransformerKerbsModel(_Transformer, transformer.TransformerModel):
    """Transformer, sequence to sequence (Section 5.1)."""

    arch = "transformer_kerbs"
    refused = ("decoder_embed_path", "share_all_embeddings")

    @classmethod
    def fill_stock(cls, args: Any) -> None:
        """Sizes of fairseq's transformer; its flags for two of them have no type."""
        transformer.base_architecture(args)
        args.decoder_input_dim = int(args.decoder_input_dim)
        args.decoder_output_dim = int(args.decoder_output_dim)


class TransformerLanguageModel(_Transformer, FairseqLanguageModel):
    """Transformer language model."""

    arch = "transformer_lm_kerbs"
    target = "future"
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
    def build(cls, args: Any, task: Any) -> TransformerLanguageModel:
        """The decoder, which is all of the model."""
        if args.decoder_layers_to_keep:
            args.decoder_layers = len(args.decoder_layers_to_keep.split(","))
        if getattr(args, "max_target_positions", None) is None:
            longest = getattr(args, "tokens_per_sample", None)
            args.max_target_positions = longest or transformer_lm.DEFAULT_MAX_TARGET_POSITIONS
        return cls(cls.build_decoder(args, task.target_dictionary, None))
