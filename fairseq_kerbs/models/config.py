"""Flags that all architectures share, and the output layer that they describe.

What is wrong with a flag is a ValueError that names it; :func:`user_errors` makes a sentence of it.
fairseq reads the types of configuration fields as they are: annotations are not postponed here, and
an optional number is no union.
"""

# mypy: disable-error-code=valid-type
# ruff: noqa: RUF009

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import OmegaConf

from fairseq_kerbs import output_layers
from fairseq_kerbs.kernels import KERNELS, Kernel, build_kernel
from fairseq_kerbs.reallocation import POLICIES, ReallocationSettings
from fairseq_kerbs.reallocation.clusters import PLACED_KERNELS
from fairseq_kerbs.reallocation.moved_vectors import NEW_SENSES
from fairseq_kerbs.training.sense_updates import SenseSchedule
from fairseq_kerbs.utils.errors import UserError

MOS_REACH = 4.0
"""r of the contexts r tanh(C_k h / r) of --output-layer mos: Eq. 3 has 1, but see its layer."""
BIASED_KERNELS = ("kerbs", "kerbs_released", "lin")
"""Kernels to which a constant coordinate of context vectors adds a bias (the first at θ = 0)."""

INIT_SCALE = (
    "length of first vectors: drawn with deviation init-scale / sqrt(embedding size); 1 in "
    "Transformers, 3 in recurrent models of two sides, 1.73 in recurrent language models"
)


def _flag(default: Any, help: str, within: str = "") -> Any:
    """A field that is a flag; ``within`` is the interval of its values, as in "(0, 1]"."""
    return field(default=default, metadata={"help": help, "within": within})


CLUSTERS_AT = 0.2
"""Share of --max-update after which "clusters" places senses (results/README.md)."""


@dataclass
class KerbsConfig(FairseqDataclass):
    """Flags of the output layer, of composition and of reallocation."""

    output_layer: ChoiceEnum(["kerbs", "softmax", "mos", "mixture"]) = _flag(
        "kerbs", "KerBS, plain softmax, or a mixture of softmaxes (Yang 2018) or kernels (Gao 2019)"
    )
    mixture_components: int = _flag(3, "softmaxes that --output-layer mos mixes", "[1, inf)")
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
    total_senses: float = _flag(
        3.0, "senses in all, as a multiple of the target vocabulary", "[1, inf)"
    )
    max_senses: int = _flag(4, "most senses of one word", "[1, inf)")
    sense_init: Optional[ChoiceEnum(output_layers.SENSE_INITS)] = _flag(
        None,
        "first vectors: drawn alone (the paper), around the word's first, or idle until they are "
        "placed; random if not given, with --reallocation clusters spare",
    )
    init_scale: float = _flag(1.0, INIT_SCALE, "(0, inf)")
    reallocation: ChoiceEnum([*POLICIES, "clusters", "none"]) = _flag(
        "paper",
        "which senses move to which words: Algorithm 1, the authors' code, or onto the clusters of "
        "words' contexts; transformer_kerbs*, lstm_kerbs* and gru_kerbs* go by clusters, the "
        "others by",
    )
    new_sense: ChoiceEnum(NEW_SENSES) = _flag(
        "keep",
        "paper, released: vector that a moved sense begins with: its old one, or one beside its "
        "new word's most used sense",
    )
    max_moves: float = _flag(
        0.005, "released: most moves at a time, as a share of the vocabulary", "(0, 1]"
    )
    reallocation_interval: int = _flag(
        200,
        "updates between two reallocations (Q of Algorithm 1); clusters: those before a placement, "
        "whose contexts are clustered",
        "[1, inf)",
    )
    cluster_gap: float = _flag(
        1.0, "clusters: bound of how strongly senses prefer their own clusters, in nats", "(0, inf)"
    )
    sense_decay: float = _flag(
        1e-5, "decay by target token of usage and log P (beta of Eq. 12-13)", "[0, 1)"
    )
    log_prob_threshold: float = _flag(
        -100.0,
        "paper: a word whose log P (Eq. 12) is lower takes a sense (epsilon, <= 0)",
        "(-inf, 0]",
    )
    composition: ChoiceEnum(["posterior", "prior"]) = _flag(
        "posterior", "weights of a word's senses in its input embedding (Eq. 6-7)"
    )
    composition_passes: int = _flag(
        1,
        "passes that refine posteriors in parallel decoders (0: prior only; -1: all there can be, "
        "the sequential recursion, as which decoding step by step always goes but for 0)",
        "[-1, inf)",
    )
    sense_bias: bool = _flag(
        False, "append a 1 to context vectors: a sense's last coordinate is its bias (at theta = 0)"
    )


def add_reallocation_at(parser: Any) -> None:
    """Add the flag that takes several values, which fairseq makes of no dataclass."""
    parser.add_argument(
        "--reallocation-at", type=float, nargs="+", metavar="SHARE",
        help="shares of --max-update (or numbers of updates) after which senses move, in place of "
        "every interval; with clusters 0.2 if not given",
    )  # fmt: skip


@dataclass
class SeparableKerbsConfig(KerbsConfig):
    """Flags of decoders whose input embedding need not be composed of senses."""

    input_embedding: ChoiceEnum(["composed", "separate"]) = _flag(
        "composed", "what the decoder reads: words composed of senses (Eq. 6), or one vector a word"
    )


@dataclass
class RecurrentKerbsConfig(KerbsConfig):
    """Flags of lstm_kerbs, gru_kerbs and the recurrent language models."""

    hidden_size: int = _flag(
        512, "units of each recurrent layer (and direction of bilstm_lm_kerbs)", "[1, inf)"
    )
    embed_dim: int = _flag(256, "size of word and sense embeddings", "[1, inf)")
    layers: int = _flag(1, "recurrent layers (of each side)", "[1, inf)")
    dropout: float = _flag(0.1, "dropout (language models have a default of their own)", "[0, 1]")
    init_scale: float = _flag(3.0, INIT_SCALE, "(0, inf)")


@dataclass
class RecurrentLanguageModelConfig(RecurrentKerbsConfig):
    """Flags of gru_lm_kerbs, lstm_lm_kerbs and bilstm_lm_kerbs."""

    dropout: float = _flag(0.3, "dropout of embeddings and of each layer's output", "[0, 1]")
    init_scale: float = _flag(1.73, INIT_SCALE, "(0, inf)")


def fill_for_clusters(args: Any, preset: bool) -> None:
    """Complete filled flags by what the policy "clusters" needs. Where it is a ``preset`` of the
    architecture, and not asked for, a kernel with which senses cannot be placed has another."""
    clusters = args.output_layer == "kerbs" and args.reallocation == "clusters"
    if clusters and preset and args.kernel not in PLACED_KERNELS:
        args.reallocation = "paper"
    elif clusters and float(args.total_senses) > 1.0:
        args.sense_bias = True
        args.sense_init = args.sense_init or "spare"
    args.sense_init = args.sense_init or "random"


def as_namespace(args: Any) -> argparse.Namespace:
    """Arguments as a plain namespace, also where fairseq-hydra-train passes a configuration."""
    if isinstance(args, argparse.Namespace):
        return args
    values: Any = (
        OmegaConf.to_container(args, resolve=True) if OmegaConf.is_config(args) else vars(args)
    )
    return argparse.Namespace(**values)


def settings_of_program(args: Any) -> dict[str, Any]:
    """All settings by name: ``args``, by which fairseq builds a model, are those of the whole
    command line, but a configuration of Hydra's is a part of all."""
    if not OmegaConf.is_config(args):
        return vars(args)
    parts = [args._get_root().get(name) or {} for name in ("checkpoint", "optimization", "ema")]
    return {name: value for part in parts for name, value in part.items()}


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn a ValueError into one sentence about a flag, and a non-zero exit without a traceback."""
    try:
        yield
    except ValueError as error:
        raise UserError(in_flags(str(error))) from None


def in_flags(sentence: str) -> str:
    """A sentence of the mathematics, with flags in place of `parameters` in backticks."""
    return re.sub(r"`(\w+)`", lambda name: FLAGS.get(name[1], name[0]), sentence)


def flag(name: str) -> str:
    """The flag that sets an argument of that name."""
    return "--" + name.replace("_", "-")


def refuse_flags(args: Any, arch: str, *names: str) -> None:
    """Refuse flags of fairseq's that an output layer of ours has no use for."""
    for name in names:
        if getattr(args, name, None):
            raise ValueError(
                f"{flag(name)} does not go together with --arch {arch}, whose output layer is the "
                "one of --output-layer: leave it out."
            )


KERNEL_OPTIONS = ("power", "alpha", "offset", "gamma", "a", "b")
"""Options of kernels that are flags, ``--kernel-power`` and so on."""
FLAGS = {
    **{item.name: flag(item.name) for item in fields(RecurrentKerbsConfig)},
    **{item.name: flag(item.name) for item in fields(SeparableKerbsConfig)},
    **{option: flag(f"kernel_{option}") for option in KERNEL_OPTIONS},
    "label_smoothing": flag("label_smoothing"),
    "policy": "--reallocation",
    "decay": "--sense-decay",
    "kernels": "--mixture-kernels",
}
"""The flag of each parameter that the mathematics name."""


def check_ranges(args: Any, flags: type[FairseqDataclass]) -> None:
    """Check the flags of a dataclass that have an interval."""
    for item in fields(flags):
        if interval := item.metadata.get("within"):
            low, high = map(float, interval[1:-1].split(","))
            value = float(getattr(args, item.name))
            if not (
                (low < value or (low == value and interval[0] == "["))
                and (value < high or (value == high and interval[-1] == "]"))
            ):
                raise ValueError(f"{flag(item.name)} is {value}, but must be within {interval}.")


def build_schedule(args: Any) -> SenseSchedule:
    """Read the schedule from flags."""
    settings = ReallocationSettings(
        log_prob_threshold=float(args.log_prob_threshold),
        max_moves=float(args.max_moves),
        gap=float(args.cluster_gap),
    )
    interval, decay = int(args.reallocation_interval), float(args.sense_decay)
    return SenseSchedule(str(args.reallocation), interval, decay, settings, _moments(args))


def _moments(args: Any) -> frozenset[int]:
    """The numbers of updates after which senses move; empty for every interval. "clusters" places
    them once if nothing else is asked for: what a placement costs a training has to make good."""
    given = [float(share) for share in args.reallocation_at or ()]
    updates = int(getattr(args, "max_update", None) or 0)
    if args.reallocation == "clusters" and not given:
        given = [CLUSTERS_AT if updates else float(args.reallocation_interval)]
    for share in given:
        if not (0.0 < share < 1.0 or (share.is_integer() and share >= 1.0)):
            raise ValueError(
                f"--reallocation-at {share:g}: give a share of --max-update, between 0 and 1, or a "
                "number of updates."
            )
        if share < 1.0 and not updates:
            raise ValueError("--reallocation-at takes shares of --max-update: give that, too.")
    return frozenset(max(1, round(share * updates if share < 1.0 else share)) for share in given)


def kernels_from_flags(args: Any) -> list[Kernel]:
    """Kernel of every component of the output layer, with the options that the flags give it."""
    if args.output_layer == "mixture":
        names = [name.strip() for name in str(args.mixture_kernels).split(",")]
        reader = f"--mixture-kernels {args.mixture_kernels}"
    elif args.output_layer == "kerbs":
        names, reader = [str(args.kernel)], f"--kernel {args.kernel}"
    else:
        components = int(args.mixture_components) if args.output_layer == "mos" else 0
        names, reader = ["lin"] * components, f"--output-layer {args.output_layer}"
    if unknown := set(names) - set(KERNELS):
        raise ValueError(
            f"{reader}: there is no kernel named '{min(unknown)}'; give names from "
            f"{', '.join(sorted(KERNELS))} with commas between them."
        )
    options = {option: getattr(args, f"kernel_{option}", None) for option in KERNEL_OPTIONS}
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        readers = [name for name, kernel in KERNELS.items() if option in kernel.options]
        if not set(readers) & set(names):
            raise ValueError(
                f"--kernel-{option} is for the kernel {', '.join(readers)} and not read by "
                f"{reader}: leave it out."
            )
    read = ({key: given[key] for key in KERNELS[name].options if key in given} for name in names)
    return [build_kernel(name, **options_of) for name, options_of in zip(names, read)]


def build_output_layer(args: Any, vocab_size: int, embed_dim: int) -> output_layers.OutputLayer:
    """Output layer that the flags describe; ``embed_dim`` includes the bias of ``--sense-bias``."""
    kernels, biased, kind = kernels_from_flags(args), bool(args.sense_bias), args.output_layer
    placed = kind == "kerbs" and args.reallocation == "clusters" and float(args.total_senses) > 1.0
    if placed and args.kernel not in PLACED_KERNELS:
        raise ValueError(
            f"--reallocation clusters places senses of --kernel {' or '.join(PLACED_KERNELS)}, not "
            f"of {args.kernel}: give --reallocation paper, or another kernel."
        )
    mixture = kind in ("mos", "mixture")
    if biased and (mixture or any(kernel.name not in BIASED_KERNELS for kernel in kernels)):
        other = f"--output-layer {kind}" if mixture else f"--kernel {args.kernel}"
        raise ValueError(
            f"--sense-bias does not go together with {other}, to which a constant coordinate is no "
            "bias: leave it out."
        )
    shape: Any = {"init_scale": float(args.init_scale)}
    if mixture:
        reach = MOS_REACH if kind == "mos" else 1.0
        return output_layers.MixtureOutputLayer(
            embed_dim, vocab_size, kernels, reach=reach, **shape
        )
    shape |= {"biased": biased}
    if kind == "softmax":
        return output_layers.SoftmaxOutputLayer(embed_dim, vocab_size, **shape)
    return output_layers.KerbsOutputLayer(
        embed_dim,
        vocab_size,
        round(float(args.total_senses) * vocab_size),
        max_senses=int(args.max_senses),
        kernel=kernels[0],
        sense_init=str(args.sense_init),
        new_sense=str(args.new_sense),
        **shape,
    )
