"""Transformer language model with a KerBS (or plain softmax) output layer.

The decoder is that of ``transformer_kerbs`` without attention to a source: its composition passes
and its step-by-step decoding are described there.
"""

from __future__ import annotations

from typing import Any

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import FairseqLanguageModel, register_model, register_model_architecture
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import (
    DEFAULT_MAX_TARGET_POSITIONS,
    TransformerLanguageModelConfig,
    base_lm_architecture,
)

from fairseq_kerbs.models.config import (
    SeparableKerbsConfig,
    as_namespace,
    build_schedule,
    fill_defaults,
    user_errors,
)
from fairseq_kerbs.models.decoding import FittingCheckpoint
from fairseq_kerbs.models.input_embedding import build_input_embedding, check_sizes_of_embeddings
from fairseq_kerbs.models.language_modeling import check_task
from fairseq_kerbs.models.transformer import (
    KerbsTransformerDecoder,
    PassEmbedding,
    check_heads,
)
from fairseq_kerbs.training.sense_updates import install_hook


@register_model("transformer_lm_kerbs")
class TransformerLanguageModel(FittingCheckpoint, FairseqLanguageModel):
    """Transformer language model whose input embedding is composed of the output layer's senses."""

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Flags of fairseq's transformer_lm, and ours."""
        gen_parser_from_dataclass(parser, TransformerLanguageModelConfig(), delete_default=True)
        gen_parser_from_dataclass(parser, SeparableKerbsConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> TransformerLanguageModel:
        """Build the model and make the task reallocate its senses.

        Raises:
            SystemExit: a flag is wrong; the message is one sentence that names it.
        """
        args = as_namespace(args)
        base_architecture(args)
        if getattr(args, "max_target_positions", None) is None:
            longest = getattr(args, "tokens_per_sample", None)
            args.max_target_positions = longest or DEFAULT_MAX_TARGET_POSITIONS
        with user_errors():
            check_task(task, "transformer_lm_kerbs", "future")
            _refuse_unsupported(args)
            schedule = build_schedule(args)
            dictionary = task.target_dictionary
            sizes = args.decoder_input_dim, args.decoder_output_dim
            embed = build_input_embedding(args, dictionary, PassEmbedding, *sizes)
        config: Any = TransformerConfig.from_namespace(args)
        passes = int(args.composition_passes)
        decoder = KerbsTransformerDecoder(config, dictionary, embed, passes, no_encoder_attn=True)
        install_hook(task, schedule)
        return cls(decoder)


def _refuse_unsupported(args: Any) -> None:
    check_heads(args, "decoder")
    for name in ("adaptive_softmax_cutoff", "adaptive_input", "character_embeddings"):
        if getattr(args, name, None):
            flag = "--" + name.replace("_", "-")
            raise ValueError(
                f"{flag} does not go together with --arch transformer_lm_kerbs: words are read and "
                "predicted with the same senses. Leave it out."
            )
    check_sizes_of_embeddings(args)
    if args.decoder_layers_to_keep:
        args.decoder_layers = len(args.decoder_layers_to_keep.split(","))


@register_model_architecture("transformer_lm_kerbs", "transformer_lm_kerbs")
def base_architecture(args: Any) -> None:
    """Sizes of fairseq's transformer_lm (512, feed-forward 2048, 6 layers, 8 heads)."""
    fill_defaults(args, SeparableKerbsConfig)
    after_blocks = getattr(args, "decoder_normalize_before", None) is False
    base_lm_architecture(args)
    if after_blocks:  # fairseq_transformer_lm_kerbs, which comes here again
        args.decoder_normalize_before = False
    # whether input and output embeddings are the same rows is for another flag to say
    args.share_decoder_input_output_embed = args.input_embedding == "composed"


@register_model_architecture("transformer_lm_kerbs", "fairseq_transformer_lm_kerbs")
def stock_architecture(args: Any) -> None:
    """As fairseq's --arch transformer_lm, which normalizes after each block unless a flag says so.

    (Its own larger architectures normalize before, as ``transformer_lm_kerbs`` always does.)
    """
    args.decoder_normalize_before = bool(getattr(args, "decoder_normalize_before", False))
    base_architecture(args)


@register_model_architecture("transformer_lm_kerbs", "transformer_lm_kerbs_small")
def small_architecture(args: Any) -> None:
    """Small enough for a CPU: 128, feed-forward 512, 3 layers, 4 heads, dropout 0.1."""
    sizes = {
        "decoder_embed_dim": 128,
        "decoder_ffn_embed_dim": 512,
        "decoder_layers": 3,
        "decoder_attention_heads": 4,
    }
    for name, value in sizes.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    base_architecture(args)
