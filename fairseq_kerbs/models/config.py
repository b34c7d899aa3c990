"""Flags that all architectures share, and the output layer that they describe.

fairseq reads the types of configuration fields as they are: annotations are not postponed here.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from math import isfinite
from typing import Any, NoReturn, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import OmegaConf

from fairseq_kerbs.kernels import KERNELS, Kernel, build_kernel
from fairseq_kerbs.output_layers import (
    SENSE_INITS,
    KerbsOutputLayer,
    MixtureOutputLayer,
    OutputLayer,
    SoftmaxOutputLayer,
)
from fairseq_kerbs.reallocation import POLICIES, ReallocationSettings
from fairseq_kerbs.reallocation.moved_vectors import NEW_SENSES

OUTPUT_LAYERS = ("kerbs", "softmax", "mos", "mixture")
BIASED_KERNELS = ("kerbs", "kerbs_released", "lin")
"""Kernels to which a constant coordinate of context vectors adds a bias (the first at θ = 0)."""
INPUT_EMBEDDINGS = ("composed", "separate")


@dataclass
class KerbsConfig(FairseqDataclass):
    """Flags of the output layer, of composition and of reallocation."""

    output_layer: ChoiceEnum(OUTPUT_LAYERS) = field(  # type: ignore[valid-type]
        default="kerbs",
        metadata={
            "help": "output layer: KerBS, plain softmax, or a mixture, of softmaxes (Yang et al. "
            "2018) or of kernels (Gao et al. 2019)"
        },
    )
    mixture_components: int = field(
        default=3, metadata={"help": "softmaxes that --output-layer mos mixes"}
    )
    mixture_kernels: str = field(
        default="lin,lin,lin,log",
        metadata={"help": "kernels that --output-layer mixture mixes, one a component"},
    )
    kernel: ChoiceEnum(list(KERNELS)) = field(  # type: ignore[valid-type]
        default="kerbs", metadata={"help": "kernel that scores context vectors against senses"}
    )
    kernel_power: Optional[float] = field(  # noqa: UP045  (fairseq knows this form only)
        default=None,
        metadata={"help": "p of the kernels log and pow (2 if not given) and pol (3)"},
    )
    kernel_alpha: Optional[float] = field(  # noqa: UP045
        default=None, metadata={"help": "alpha of the kernel pol (1/12 if not given)"}
    )
    kernel_offset: Optional[float] = field(  # noqa: UP045
        default=None, metadata={"help": "c of the kernel pol (2 if not given)"}
    )
    kernel_gamma: Optional[float] = field(  # noqa: UP045
        default=None, metadata={"help": "gamma of the kernel rbf (0.01 if not given)"}
    )
    kernel_a: Optional[float] = field(  # noqa: UP045
        default=None, metadata={"help": "a of the kernel wav (100 if not given)"}
    )
    kernel_b: Optional[float] = field(  # noqa: UP045
        default=None, metadata={"help": "b of the kernel wav (100 if not given)"}
    )
    total_senses: float = field(
        default=3.0, metadata={"help": "senses in all, as a multiple of the target vocabulary"}
    )
    max_senses: int = field(default=4, metadata={"help": "most senses of one word"})
    sense_init: ChoiceEnum(SENSE_INITS) = field(  # type: ignore[valid-type]
        default="random",
        metadata={"help": "first vectors: drawn alone (the paper), or around the word's first"},
    )
    reallocation: ChoiceEnum([*POLICIES, "none"]) = field(  # type: ignore[valid-type]
        default="paper",
        metadata={
            "help": "which senses move to which words: Algorithm 1, the authors' code, or as each "
            "word's frequency leads one to expect"
        },
    )
    new_sense: ChoiceEnum(NEW_SENSES) = field(  # type: ignore[valid-type]
        default="keep",
        metadata={
            "help": "vector that a moved sense begins with: its old one, one beside its new word's "
            "most used sense, or the mean direction of badly predicted contexts"
        },
    )
    max_moves: float = field(
        default=0.005,
        metadata={"help": "released, balanced: most moves at a time, as a share of the vocabulary"},
    )
    reallocation_interval: int = field(
        default=200, metadata={"help": "updates between two reallocations (Q of Algorithm 1)"}
    )
    sense_decay: float = field(
        default=1e-5,
        metadata={"help": "decay by target token of usage and log P (beta of Eq. 12-13)"},
    )
    log_prob_threshold: float = field(
        default=-100.0,
        metadata={"help": "a word whose log P (Eq. 12) is lower takes a sense (epsilon, <= 0)"},
    )
    composition: ChoiceEnum(["posterior", "prior"]) = field(  # type: ignore[valid-type]
        default="posterior",
        metadata={"help": "weights of a word's senses in its input embedding (Eq. 6-7)"},
    )
    composition_passes: int = field(
        default=1,
        metadata={
            "help": "decoder passes that refine posteriors in parallel decoders (0: prior only; "
            "-1: the sequential recursion, as many passes as positions)"
        },
    )
    sense_bias: bool = field(
        default=False,
        metadata={
            "help": "append a constant 1 to context vectors: the last coordinate of a sense is its "
            "bias, exactly so for theta = 0 (elsewhere it is a coordinate like the others)"
        },
    )


@dataclass
class SeparableKerbsConfig(KerbsConfig):
    """Flags of decoders whose input embedding need not be composed of senses."""

    input_embedding: ChoiceEnum(INPUT_EMBEDDINGS) = field(  # type: ignore[valid-type]
        default="composed",
        metadata={
            "help": "embedding of the words that the decoder reads: composed of the output layer's "
            "senses (Eq. 6), or separate, one vector a word"
        },
    )


@dataclass
class RecurrentKerbsConfig(KerbsConfig):
    """Flags of lstm_kerbs and gru_kerbs."""

    hidden_size: int = field(default=512, metadata={"help": "units of each recurrent layer"})
    embed_dim: int = field(default=256, metadata={"help": "size of word and sense embeddings"})
    layers: int = field(default=1, metadata={"help": "layers of the encoder and of the decoder"})
    dropout: float = field(default=0.1, metadata={"help": "dropout of embeddings and outputs"})


@dataclass
class RecurrentLanguageModelConfig(KerbsConfig):
    """Flags of gru_lm_kerbs, lstm_lm_kerbs and bilstm_lm_kerbs."""

    hidden_size: int = field(
        default=512, metadata={"help": "units of each recurrent layer (and direction)"}
    )
    embed_dim: int = field(default=256, metadata={"help": "size of word and sense embeddings"})
    layers: int = field(default=1, metadata={"help": "recurrent layers (of each direction)"})
    dropout: float = field(
        default=0.3, metadata={"help": "dropout of embeddings and of each layer's output"}
    )


def fill_defaults(args: Any, config: type[FairseqDataclass]) -> None:
    """Set every field of ``config`` that ``args`` lacks to its default."""
    for item in fields(config):
        if item.default is not MISSING and getattr(args, item.name, None) is None:
            setattr(args, item.name, item.default)


def as_namespace(args: Any) -> argparse.Namespace:
    """Arguments as a plain namespace, also where fairseq-hydra-train passes a configuration."""
    if OmegaConf.is_config(args):
        container: Any = OmegaConf.to_container(args, resolve=True)
        return argparse.Namespace(**container)
    if not isinstance(args, argparse.Namespace):
        return argparse.Namespace(**vars(args))
    return args


def fail(message: str) -> NoReturn:
    """End the command with one sentence."""
    raise SystemExit(f"fairseq_kerbs: error: {message}")


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn a wrong value into one sentence and a non-zero exit, without a traceback."""
    try:
        yield
    except ValueError as error:
        fail(str(error))


@dataclass(frozen=True)
class SenseSchedule:
    """When and how the training hook updates and moves senses.

    Attributes:
        policy: name of a reallocation policy, or "none".
        interval: parameter updates between reallocations, Q.
        decay: β of Eq. 12–13.
        settings: hyper-parameters of the policy.
    """

    policy: str
    interval: int
    decay: float
    settings: ReallocationSettings


def check_sizes(args: Any) -> None:
    """Check the sizes of a recurrent model.

    Raises:
        ValueError: one is out of range; the message names the flag.
    """
    for name in ("hidden_size", "embed_dim", "layers"):
        if getattr(args, name) < 1:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} is {getattr(args, name)}, but it must be 1 or more.")
    if not 0.0 <= args.dropout <= 1.0:
        raise ValueError(f"--dropout is {args.dropout}, but it must be within [0, 1].")


def build_schedule(args: Any) -> SenseSchedule:
    """Read the schedule from flags, and check ``--composition-passes``, which all models share.

    Raises:
        ValueError: a flag is out of range; the message names it.
    """
    if int(args.composition_passes) < -1:
        raise ValueError(
            f"--composition-passes is {args.composition_passes}; use 0 or more, or -1 for the "
            "sequential recursion."
        )
    interval, decay = int(args.reallocation_interval), float(args.sense_decay)
    threshold = float(args.log_prob_threshold)
    if interval < 1:
        raise ValueError(
            f"--reallocation-interval is {interval}, but it counts updates and must be 1 or more "
            "(to switch reallocation off use --reallocation none)."
        )
    if not 0.0 <= decay < 1.0:
        raise ValueError(f"--sense-decay is {decay}, but it must be within [0, 1).")
    if not threshold <= 0.0:
        raise ValueError(
            f"--log-prob-threshold is {threshold}, but log P is never positive: use 0 or less."
        )
    most = float(args.max_moves)
    if not 0.0 < most <= 1.0:
        raise ValueError(
            f"--max-moves is {most}, but it must be greater than 0 and at most 1 "
            "(to switch reallocation off use --reallocation none)."
        )
    settings = ReallocationSettings(log_prob_threshold=threshold, max_moves=most)
    return SenseSchedule(str(args.reallocation), interval, decay, settings)


KERNEL_OPTIONS = ("power", "alpha", "offset", "gamma", "a", "b")
"""Options of kernels that are flags, ``--kernel-power`` and so on."""


def check_kernel_flags(args: Any, names: Sequence[str], reader: str) -> None:
    """Refuse a flag that no kernel reads.

    Args:
        args: the flags.
        names: kernels of the layer.
        reader: the flag that chose them, with its value.

    Raises:
        ValueError: the message names the flag, and the kernels that read it.
    """
    read = {option for name in names if name in KERNELS for option in KERNELS[name].options}
    for option in KERNEL_OPTIONS:
        if getattr(args, f"kernel_{option}", None) is not None and option not in read:
            readers = ", ".join(name for name in KERNELS if option in KERNELS[name].options)
            raise ValueError(
                f"--kernel-{option} is for the kernel {readers} and not read by {reader}: leave it "
                "out."
            )


def kernel_from_flags(args: Any, name: str | None = None) -> Kernel:
    """Kernel with the options that the flags give it, and its own defaults for the rest.

    Args:
        args: the flags.
        name: a kernel of several that share the flags, each reading its own (the caller asks
            :func:`check_kernel_flags` for all of them); by default ``--kernel``, which must read
            every flag that is given.

    Raises:
        ValueError: a flag is out of range or read by no kernel, or no kernel has that name.
    """
    if name is None:
        name = str(args.kernel)
        check_kernel_flags(args, [name], f"--kernel {name}")
    options = KERNELS[name].options if name in KERNELS else ()
    given = {option: getattr(args, f"kernel_{option}", None) for option in options}
    return build_kernel(name, **{key: value for key, value in given.items() if value is not None})


def mixture_kernels_from_flags(args: Any) -> list[Kernel]:
    """Kernel of every component of ``--output-layer mos`` or ``mixture``.

    Raises:
        ValueError: a flag is out of range or read by no kernel, or no kernel has that name.
    """
    if args.output_layer == "mos":
        count = int(args.mixture_components)
        if count < 1:
            raise ValueError(
                f"--mixture-components is {count}, but a mixture has at least 1 component."
            )
        names, reader = ["lin"] * count, "--output-layer mos"
    else:
        listed = str(args.mixture_kernels)
        names, reader = [name.strip() for name in listed.split(",")], f"--mixture-kernels {listed}"
        for name in names:
            if name not in KERNELS:
                raise ValueError(
                    f"--mixture-kernels: there is no kernel named '{name}'; give names from "
                    f"{', '.join(sorted(KERNELS))} with commas between them."
                )
    check_kernel_flags(args, names, reader)
    return [kernel_from_flags(args, name) for name in names]


def context_size(args: Any, features: int) -> int:
    """Size of context vectors: that of a decoder's features, and one more for a bias.

    Raises:
        ValueError: --sense-bias does not go with the output layer.
    """
    if not args.sense_bias:
        return features
    mixture = args.output_layer in ("mos", "mixture")
    if mixture or (args.output_layer == "kerbs" and args.kernel not in BIASED_KERNELS):
        other = f"--output-layer {args.output_layer}" if mixture else f"--kernel {args.kernel}"
        raise ValueError(
            f"--sense-bias does not go together with {other}, to which a constant coordinate is no "
            "bias: leave it out."
        )
    return features + 1


def build_output_layer(args: Any, vocab_size: int, embed_dim: int) -> OutputLayer:
    """Output layer that the flags describe.

    Raises:
        ValueError: the flags do not fit the vocabulary or each other.
    """
    if args.output_layer == "softmax":
        check_kernel_flags(args, [], "--output-layer softmax")
        return SoftmaxOutputLayer(embed_dim, vocab_size, biased=bool(args.sense_bias))
    if args.output_layer in ("mos", "mixture"):
        kernels = mixture_kernels_from_flags(args)
        return MixtureOutputLayer(embed_dim, vocab_size, kernels)
    factor = float(args.total_senses)
    if not isfinite(factor):
        raise ValueError(f"--total-senses is {factor}, but it must be a number of 1 or more.")
    return KerbsOutputLayer(
        embed_dim,
        vocab_size,
        round(factor * vocab_size),
        max_senses=int(args.max_senses),
        kernel=kernel_from_flags(args),
        sense_init=str(args.sense_init),
        new_sense=str(args.new_sense),
        biased=bool(args.sense_bias),
    )
