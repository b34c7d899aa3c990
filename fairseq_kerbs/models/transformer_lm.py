"""Transformer language model with a KerBS (or plain softmax) output layer.

The decoder is that of ``transformer_kerbs`` without attention to a source: its composition passes
and its step-by-step decoding are described there.
"""

from __future__ import annotations

from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import FairseqLanguageModel
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import (
    DEFAULT_MAX_TARGET_POSITIONS,
    TransformerLanguageModelConfig,
    base_lm_architecture,
)

from fairseq_kerbs.models.base import KerbsModel, build_input_embedding, refuse_flags
from fairseq_kerbs.models.config import SeparableKerbsConfig
from fairseq_kerbs.models.transformer import (
    KerbsTransformerDecoder,
    PassEmbedding,
    check_transformer,
)


class TransformerLanguageModel(KerbsModel, FairseqLanguageModel):
    """Transformer language model whose input embedding is composed of the output layer's senses."""

    arch = "transformer_lm_kerbs"
    flags = SeparableKerbsConfig
    target = "future"

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Flags of fairseq's transformer_lm, and ours."""
        gen_parser_from_dataclass(parser, TransformerLanguageModelConfig(), delete_default=True)
        super().add_args(parser)

    @classmethod
    def fill_stock(cls, args: Any) -> None:
        """Sizes of fairseq's transformer_lm (512, feed-forward 2048, 6 layers, 8 heads)."""
        after_blocks = getattr(args, "decoder_normalize_before", None) is False
        base_lm_architecture(args)
        if after_blocks:  # fairseq_transformer_lm_kerbs; fairseq always normalizes before here
            args.decoder_normalize_before = False

    @classmethod
    def check(cls, args: Any) -> None:
        """Check sizes, and refuse what an output layer of ours has no use for."""
        refuse_flags(
            args, cls.arch, "adaptive_softmax_cutoff", "adaptive_input", "character_embeddings"
        )
        check_transformer(args, "decoder")
        if args.decoder_layers_to_keep:
            args.decoder_layers = len(args.decoder_layers_to_keep.split(","))

    @classmethod
    def build(cls, args: Any, task: Any) -> TransformerLanguageModel:
        """The decoder, which is all of the model."""
        dictionary, passes = task.target_dictionary, int(args.composition_passes)
        sizes = args.decoder_input_dim, args.decoder_output_dim
        embed = build_input_embedding(args, dictionary, PassEmbedding, *sizes)
        if getattr(args, "max_target_positions", None) is None:
            longest = getattr(args, "tokens_per_sample", None)
            args.max_target_positions = longest or DEFAULT_MAX_TARGET_POSITIONS
        config: Any = TransformerConfig.from_namespace(args)
        return cls(KerbsTransformerDecoder(config, dictionary, embed, passes, no_encoder_attn=True))
