"""The embedding of the words that a decoder reads, as its flags describe it."""

from __future__ import annotations

from typing import Any, TypeVar

from fairseq_kerbs.models.config import build_output_layer, context_size
from fairseq_kerbs.output_layers.composition import ComposedEmbedding, SeparateEmbedding

Composed = TypeVar("Composed", bound=ComposedEmbedding)


def build_input_embedding(
    args: Any, dictionary: Any, composed: type[Composed], read: int, features: int
) -> Composed | SeparateEmbedding:
    """Output layer by the flags, and the embedding that refers to it.

    Args:
        args: flags of :class:`SeparableKerbsConfig`.
        dictionary: target dictionary.
        composed: class of an embedding that is composed of senses.
        read: size of a separate embedding.
        features: size of the decoder's features, and so of a composed embedding.

    Raises:
        ValueError: the flags do not fit the vocabulary or each other.
    """
    layer = build_output_layer(args, len(dictionary), context_size(args, features))
    if args.input_embedding == "separate":
        return SeparateEmbedding(layer, dictionary.pad(), read)
    return composed(layer, dictionary.pad(), args.composition == "posterior", args.sense_bias)


def check_sizes_of_embeddings(args: Any) -> None:
    """Make sure that a composed embedding has the size of what is read and of what is scored.

    Raises:
        ValueError: it has not; the message names the flag.
    """
    read, scored = (getattr(args, f"decoder_{name}_dim", None) for name in ("input", "output"))
    if args.input_embedding == "separate" or read == scored:
        return
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if getattr(args, name, args.decoder_embed_dim) != args.decoder_embed_dim:
            flag = "--" + name.replace("_", "-")
            raise ValueError(
                f"{flag} must equal --decoder-embed-dim ({args.decoder_embed_dim}): input and "
                "output embeddings are the same senses (but for --input-embedding separate)."
            )
