"""Flags that all architectures share, and the output layer that they describe.

fairseq reads the types of configuration fields as they are: annotations are not postponed here, and
an optional number is no union.
"""

# mypy: disable-error-code=valid-type
# ruff: noqa: RUF009, UP045

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from math import isfinite
from typing import Any, Optional

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
from fairseq_kerbs.training.sense_updates import SenseSchedule
from fairseq_kerbs.utils.errors import ProgramEnd

OUTPUT_LAYERS = ("kerbs", "softmax", "mos", "mixture")
BIASED_KERNELS = ("kerbs", "kerbs_released", "lin")
"""Kernels to which a constant coordinate of context vectors adds a bias (the first at θ = 0)."""
INPUT_EMBEDDINGS = ("composed", "separate")


def _flag(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass
class KerbsConfig(FairseqDataclass):
    """Flags of the output layer, of composition and of reallocation."""

    output_layer: ChoiceEnum(OUTPUT_LAYERS) = _flag(
        "kerbs",
        "output layer: KerBS, plain softmax, or a mixture, of softmaxes (Yang et al. "
        "2018) or of kernels (Gao et al. 2019)",
    )
    mixture_components: int = _flag(3, "softmaxes that --output-layer mos mixes")
    mixture_kernels: str = _flag(
        "lin,lin,lin,log", "kernels that --output-layer mixture mixes, one a component"
    )
    kernel: ChoiceEnum(list(KERNELS)) = _flag(
        "kerbs", "kernel that scores context vectors against senses"
    )
    kernel_power: Optional[float] = _flag(
        None, "p of the kernels log and pow (2 if not given) and pol (3)"
    )
    kernel_alpha: Optional[float] = _flag(None, "alpha of the kernel pol (1/12 if not given)")
    kernel_offset: Optional[float] = _flag(None, "c of the kernel pol (2 if not given)")
    kernel_gamma: Optional[float] = _flag(None, "gamma of the kernel rbf (0.01 if not given)")
    kernel_a: Optional[float] = _flag(None, "a of the kernel wav (100 if not given)")
    kernel_b: Optional[float] = _flag(None, "b of the kernel wav (100 if not given)")
    total_senses: float = _flag(3.0, "senses in all, as a multiple of the target vocabulary")
    max_senses: int = _flag(4, "most senses of one word")
    sense_init: ChoiceEnum(SENSE_INITS) = _flag(
        "random", "first vectors: drawn alone (the paper), or around the word's first"
    )
    init_scale: float = _flag(
        1.0, "length of first vectors: drawn with deviation init-scale / sqrt(embedding size)"
    )
    reallocation: ChoiceEnum([*POLICIES, "none"]) = _flag(
        "paper",
        "which senses move to which words: Algorithm 1, the authors' code, as each word's "
        "frequency leads one to expect, or beside senses whose contexts fall into clusters",
    )
    new_sense: ChoiceEnum(NEW_SENSES) = _flag(
        "keep",
        "vector that a moved sense begins with: its old one, one beside its new word's "
        "most used sense, or the mean direction of badly predicted contexts",
    )
    max_moves: float = _flag(
        0.005, "released, balanced: most moves at a time, as a share of the vocabulary"
    )
    reallocation_interval: int = _flag(200, "updates between two reallocations (Q of Algorithm 1)")
    sense_decay: float = _flag(1e-5, "decay by target token of usage and log P (beta of Eq. 12-13)")
    log_prob_threshold: float = _flag(
        -100.0, "a word whose log P (Eq. 12) is lower takes a sense (epsilon, <= 0)"
    )
    composition: ChoiceEnum(["posterior", "prior"]) = _flag(
        "posterior", "weights of a word's senses in its input embedding (Eq. 6-7)"
    )
    composition_passes: int = _flag(
        1,
        "decoder passes that refine posteriors in parallel decoders (0: prior only; -1: "
        "the sequential recursion, as many passes as positions)",
    )
    sense_bias: bool = _flag(
        False,
        "append a constant 1 to context vectors: the last coordinate of a sense is its "
        "bias, exactly so for theta = 0 (elsewhere it is a coordinate like the others)",
    )


@dataclass
class SeparableKerbsConfig(KerbsConfig):
    """Flags of decoders whose input embedding need not be composed of senses."""

    input_embedding: ChoiceEnum(INPUT_EMBEDDINGS) = _flag(
        "composed",
        "embedding of the words that the decoder reads: composed of the output layer's "
        "senses (Eq. 6), or separate, one vector a word",
    )


@dataclass
class RecurrentKerbsConfig(KerbsConfig):
    """Flags of lstm_kerbs and gru_kerbs."""

    hidden_size: int = _flag(
        512, "units of each recurrent layer (and direction of bilstm_lm_kerbs)"
    )
    embed_dim: int = _flag(256, "size of word and sense embeddings")
    layers: int = _flag(1, "recurrent layers (of each side)")
    dropout: float = _flag(0.1, "dropout of embeddings and outputs")


@dataclass
class RecurrentLanguageModelConfig(RecurrentKerbsConfig):
    """Flags of gru_lm_kerbs, lstm_lm_kerbs and bilstm_lm_kerbs."""

    dropout: float = _flag(0.3, "dropout of embeddings and of each layer's output")


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


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn a wrong value into one sentence about a flag, and a non-zero exit without a traceback.

    Raises:
        ProgramEnd: a ValueError was raised; parameters in backticks are named by their flags.
    """
    try:
        yield
    except ValueError as error:
        raise ProgramEnd(in_flags(str(error))) from None


def in_flags(sentence: str) -> str:
    """A sentence of the mathematics, with flags in place of `parameters` in backticks."""
    return re.sub(r"`(\w+)`", lambda name: FLAGS.get(name[1], name[0]), sentence)


def flag(name: str) -> str:
    """The flag that sets an argument of that name."""
    return "--" + name.replace("_", "-")


KERNEL_OPTIONS = ("power", "alpha", "offset", "gamma", "a", "b")
"""Options of kernels that are flags, ``--kernel-power`` and so on."""
FLAGS = {
    **{item.name: flag(item.name) for item in fields(RecurrentKerbsConfig)},
    **{item.name: flag(item.name) for item in fields(SeparableKerbsConfig)},
    **{option: flag(f"kernel_{option}") for option in KERNEL_OPTIONS},
    "policy": "--reallocation",
    "interval": "--reallocation-interval",
    "decay": "--sense-decay",
    "passes": "--composition-passes",
    "components": "--mixture-components",
    "kernels": "--mixture-kernels",
}
"""The flag of each parameter that the mathematics name."""


_OFF = "(to switch reallocation off use --reallocation none)"
_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "composition_passes": (lambda x: x >= -1, "use 0 or more, or -1 for the sequential recursion"),
    "reallocation_interval": (lambda x: x >= 1, f"it counts updates and must be 1 or more {_OFF}"),
    "sense_decay": (lambda x: 0.0 <= x < 1.0, "it must be within [0, 1)"),
    "log_prob_threshold": (lambda x: x <= 0.0, "log P is never positive: use 0 or less"),
    "max_moves": (lambda x: 0.0 < x <= 1.0, f"it must be greater than 0 and at most 1 {_OFF}"),
    "init_scale": (lambda x: 0.0 < x < float("inf"), "it must be greater than 0"),
    "dropout": (lambda x: 0.0 <= x <= 1.0, "it must be within [0, 1]"),
}


def check_ranges(args: Any, *names: str) -> None:
    """Check flags that are numbers; those without a range of their own are sizes, 1 or more.

    Raises:
        ValueError: one is out of range; the message names the flag.
    """
    for name in names:
        fits, range_ = _RANGES.get(name, (lambda x: x >= 1, "it must be 1 or more"))
        if not fits(value := getattr(args, name, 1)):
            raise ValueError(f"{flag(name)} is {value}, but {range_}.")


def build_schedule(args: Any) -> SenseSchedule:
    """Read the schedule from flags, and check those that all models share.

    Raises:
        ValueError: a flag is out of range; the message names it.
    """
    check_ranges(args, *_RANGES)
    settings = ReallocationSettings(
        log_prob_threshold=float(args.log_prob_threshold), max_moves=float(args.max_moves)
    )
    interval, decay = int(args.reallocation_interval), float(args.sense_decay)
    return SenseSchedule(str(args.reallocation), interval, decay, settings)


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
        check_ranges(args, "mixture_components")
        names, reader = ["lin"] * int(args.mixture_components), "--output-layer mos"
    else:
        listed = str(args.mixture_kernels)
        names, reader = [name.strip() for name in listed.split(",")], f"--mixture-kernels {listed}"
    if unknown := set(names) - set(KERNELS):
        raise ValueError(
            f"--mixture-kernels: there is no kernel named '{min(unknown)}'; give names from "
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
        return SoftmaxOutputLayer(
            embed_dim, vocab_size, biased=bool(args.sense_bias), init_scale=float(args.init_scale)
        )
    if args.output_layer in ("mos", "mixture"):
        kernels = mixture_kernels_from_flags(args)
        return MixtureOutputLayer(embed_dim, vocab_size, kernels, init_scale=float(args.init_scale))
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
        init_scale=float(args.init_scale),
        follow_clusters=args.reallocation == "clusters",
    )
