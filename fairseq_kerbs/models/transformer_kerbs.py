"""Transformer with a KerBS (or plain softmax) output layer (Section 5.1).

A Transformer decoder is trained on all positions at once, but the input embedding at position t
needs the context vector of position t − 1 (Eq. 6). It is found by iteration: pass 0 composes with
the prior, pass k with the posteriors of pass k − 1; only the last pass has a gradient. After k
passes the first k positions are those of the sequential recursion.

Step-by-step decoding computes the same: every pass keeps its own attention state, and the features
of its last step for the next pass.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerModel,
    base_architecture,
)
from torch import Tensor, nn

from fairseq_kerbs.composition import ComposedEmbedding
from fairseq_kerbs.models.decoding import ScoredByOutputLayer
from fairseq_kerbs.models.options import (
    KerbsConfig,
    as_namespace,
    build_output_layer,
    build_schedule,
    fill_defaults,
    user_errors,
)
from fairseq_kerbs.models.reallocation_hook import install_hook

_PASSES = "fairseq_kerbs.passes"  # key of the earlier passes in the incremental state

IncrementalState = dict[str, Any]


class _PassEmbedding(ComposedEmbedding):
    """Composed embedding for a decoder that looks words up without their context vectors.

    The decoder sets ``features`` before each pass: those of the pass before, [batch, len, d], or
    in step-by-step decoding, of its last step, [batch, 1, d].
    """

    features: Tensor | None = None
    one_step: bool = False

    def forward(self, words: Tensor, contexts: Tensor | None = None) -> Tensor:
        if contexts is not None or self.features is None:
            return super().forward(words, contexts)
        if self.one_step:
            return super().forward(words, self.features)
        features, self.features = self.features, None
        return self.embed_sequence(words, features)


class KerbsTransformerDecoder(ScoredByOutputLayer, TransformerDecoderBase):
    """Transformer decoder whose forward returns features; the output layer scores them.

    Args:
        cfg: fairseq's Transformer configuration.
        dictionary: target dictionary.
        embed_tokens: composed input embedding, which refers to the output layer.
        passes: passes that refine the posteriors, before the last one.
        no_encoder_attn: leave out attention to an encoder.

    Attributes:
        output: the output layer.
    """

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Any,
        embed_tokens: _PassEmbedding,
        passes: int,
        no_encoder_attn: bool = False,
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        self.passes = passes if embed_tokens.posterior else 0

    def build_output_projection(self, cfg: Any, dictionary: Any, embed_tokens: Any) -> None:
        """Take the output layer from the embedding that is composed of it."""
        self.output = embed_tokens.layer

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any,
        incremental_state: IncrementalState | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features of all positions [batch, len, d]; in decoding of the last one [batch, 1, d]."""
        if incremental_state is not None:
            return self._next_features(
                prev_output_tokens, encoder_out, incremental_state, *args, **kwargs
            )
        features = None
        for _ in range(self.passes):
            with torch.no_grad():
                features, _ = self._one_pass(features, prev_output_tokens, encoder_out, None)
        return self._one_pass(features, prev_output_tokens, encoder_out, None, *args, **kwargs)

    def _one_pass(
        self, features: Tensor | None, *args: Any, one_step: bool = False, **kwargs: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        embed: Any = self.embed_tokens
        embed.features, embed.one_step = features, one_step
        try:
            result: tuple[Tensor, dict[str, Any]] = self.extract_features_scriptable(
                *args, **kwargs
            )
        finally:
            embed.features = None
        return result

    def _next_features(
        self, tokens: Tensor, encoder_out: Any, state: IncrementalState, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        if not self.passes:
            return self._one_pass(None, tokens, encoder_out, state, *args, **kwargs)
        earlier = state.setdefault(_PASSES, [{"state": {}} for _ in range(self.passes)])
        last_step: Tensor | None = None  # features of the pass before, at the step before
        for stream in earlier:
            now, _ = self._one_pass(last_step, tokens, encoder_out, stream["state"], one_step=True)
            last_step, stream["features"] = stream.get("features"), now
        return self._one_pass(last_step, tokens, encoder_out, state, *args, one_step=True, **kwargs)

    def reorder_incremental_state_scripting(
        self, incremental_state: IncrementalState, new_order: Tensor
    ) -> None:
        """Reorder the states of all passes with the beam."""
        super().reorder_incremental_state_scripting(incremental_state, new_order)
        for stream in incremental_state.get(_PASSES, ()):
            super().reorder_incremental_state_scripting(stream["state"], new_order)
            if "features" in stream:
                stream["features"] = stream["features"].index_select(0, new_order)


@register_model("transformer_kerbs")
class TransformerKerbsModel(TransformerModel):
    """Transformer (Section 5.1) with an output layer of ours; ``--output-layer softmax`` its twin.

    The decoder's input embedding is composed of the output layer's senses, and so tied with it.
    """

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Flags of fairseq's transformer, and ours."""
        super().add_args(parser)
        gen_parser_from_dataclass(parser, KerbsConfig(), delete_default=True)

    @classmethod
    def build_model(cls, args: Any, task: Any) -> TransformerKerbsModel:
        """Build the model and make the task reallocate its senses.

        Raises:
            SystemExit: a flag is wrong; the message is one sentence that names it.
        """
        args = as_namespace(args)
        base_kerbs_architecture(args)
        with user_errors():
            _refuse_unsupported(args)
            schedule = build_schedule(args)
            model: TransformerKerbsModel = super().build_model(args, task)
        install_hook(task, schedule)
        return model

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Any, embed_tokens: nn.Embedding) -> Any:
        """Build the decoder on a fresh output layer; fairseq's target embedding is left unused."""
        cfg: Any = TransformerConfig.from_namespace(args)
        layer = build_output_layer(cfg, len(tgt_dict), cfg.decoder.embed_dim)
        embed = _PassEmbedding(layer, tgt_dict.pad(), cfg.composition == "posterior")
        return KerbsTransformerDecoder(
            cfg, tgt_dict, embed, cfg.composition_passes, no_encoder_attn=cfg.no_cross_attention
        )


def _refuse_unsupported(args: Any) -> None:
    if args.composition_passes < 0:
        raise ValueError(f"--composition-passes is {args.composition_passes}; use 0 or more.")
    for name in ("adaptive_softmax_cutoff", "decoder_embed_path", "share_all_embeddings"):
        if getattr(args, name, None):
            flag = "--" + name.replace("_", "-")
            raise ValueError(
                f"{flag} does not go together with --arch transformer_kerbs: the target embedding "
                "is composed of senses. Leave it out."
            )
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if getattr(args, name, args.decoder_embed_dim) != args.decoder_embed_dim:
            flag = "--" + name.replace("_", "-")
            raise ValueError(
                f"{flag} must equal --decoder-embed-dim ({args.decoder_embed_dim}): input and "
                "output embeddings are the same senses."
            )


@register_model_architecture("transformer_kerbs", "transformer_kerbs")
def base_kerbs_architecture(args: Any) -> None:
    """Sizes of fairseq's transformer, defaults of ours for the rest."""
    fill_defaults(args, KerbsConfig)
    # input and output embeddings are the same rows, whatever the flag says
    args.share_decoder_input_output_embed = True
    base_architecture(args)


@register_model_architecture("transformer_kerbs", "transformer_kerbs_iwslt")
def iwslt_architecture(args: Any) -> None:
    """Sizes of Section 5.1: 288, feed-forward 507, dropout 0.1, 5 layers, 2 heads."""
    _preset(args, embed=288, ffn=507, layers=5, heads=2, dropout=0.1)


@register_model_architecture("transformer_kerbs", "transformer_kerbs_small")
def small_architecture(args: Any) -> None:
    """Small enough for a CPU: 128, feed-forward 256, dropout 0.1, 3 layers, 4 heads."""
    _preset(args, embed=128, ffn=256, layers=3, heads=4, dropout=0.1)


def _preset(args: Any, embed: int, ffn: int, layers: int, heads: int, dropout: float) -> None:
    values: dict[str, Any] = {"dropout": dropout}
    for side in ("encoder", "decoder"):
        values |= {
            f"{side}_embed_dim": embed,
            f"{side}_ffn_embed_dim": ffn,
            f"{side}_layers": layers,
            f"{side}_attention_heads": heads,
        }
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    base_kerbs_architecture(args)
