"""Flags that all architectures share, and the output layer that they describe.

What is wrong with a flag is a ValueError that names it; :func:`user_errors` makes a sentence of it.
fairseq reads the types of configuration fields as they are: annotations are not postponed here, and
an optional number is no union.
"""

# mypy: disable-error-code=valid-type
# ruff: noqa: RUF009

import argparse
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, make_dataclass
from fractions import Fraction
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import OmegaConf

from fairseq_kerbs import output_layers
from fairseq_kerbs.configurations import flag_of
from fairseq_kerbs.kernels import KERNELS, Kernel, KernelOption, build_kernel, kernel_options
from fairseq_kerbs.models.attention import ATTENTIONS
from fairseq_kerbs.reallocation import POLICIES, Policy
from fairseq_kerbs.reallocation.policy import DefaultSchedule, all_settings, readers_of
from fairseq_kerbs.senses import ALLOCATIONS
from fairseq_kerbs.training.sense_updates import SenseSchedule
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.intervals import within

logger = logging.getLogger(__name__)

INTERVAL = DefaultSchedule().interval
"""Default of --reallocation-interval, if the policy has no other."""

INIT_SCALE_HELP = (
    "initialization scale of sense embeddings, whose standard deviation is init-scale / "
    "sqrt(embedding size). The papers give none. By short trainings of ours, Transformers use 1, "
    "recurrent encoder-decoder models 3, and recurrent language models 1.73"
)


def _flag(default: Any, help: str, within: str = "") -> Any:
    """A field that is a flag; ``within`` is the interval of its values, as in "(0, 1]"."""
    return field(default=default, metadata={"help": help, "within": within})


_WITH_CONTEXTS = [name for name, policy in POLICIES.items() if policy.needs_contexts]


def _enumerate(names: Sequence[str]) -> str:
    """Names in a sentence: "a", "a and b", "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _with_policies(default: Any, of_policy: Callable[[type[Policy]], Any]) -> str:
    """A default for a help text, and where policies have another one: "[200; 100 with …]"."""
    others = [
        f"{of_policy(policy)} with --reallocation {name}"
        for name, policy in POLICIES.items()
        if of_policy(policy) != default
    ]
    return f"[{'; '.join([str(default), *others])}]"


def _times_of_moves(policy: type[Policy]) -> str:
    """When senses move by default, for a help text."""
    shares = policy.default_schedule.at
    return " ".join(f"{share:g}" for share in shares) or "every interval"


def _reallocation_help() -> str:
    policies = [f"{name} ({policy.summary})" for name, policy in POLICIES.items()]
    return f"policy that moves senses between words: {', '.join(policies)}, or none"


@dataclass
class ScoringConfig(FairseqDataclass):
    """Flags of the output layer's kind, its components and its kernel."""

    output_layer: ChoiceEnum(["kerbs", "softmax", "mos", "mixture"]) = _flag(
        "kerbs",
        "output layer: KerBS, softmax, mixture of softmaxes (mos, Yang et al. 2018) or mixture of "
        "kernels (mixture, Gao et al. 2019)",
    )
    mixture_components: int = _flag(3, "number of softmaxes in --output-layer mos", "[1, inf)")
    mixture_kernels: str = _flag(
        "lin,lin,lin,log", "kernels of --output-layer mixture, separated by commas"
    )
    mixture_tanh_scale: Optional[float] = _flag(
        None,
        "r in the contexts r tanh(. / r) of --output-layer mos and mixture. The papers have 1 [1]",
    )
    kernel: ChoiceEnum(list(KERNELS)) = _flag(
        "kerbs", "kernel between context vectors and sense embeddings"
    )


def _kernel_option_flag(described: dict[str, KernelOption]) -> Any:
    """A field that is the flag of a kernel option; ``described`` has it for each kernel by name."""
    kernels_by_help: dict[str, list[str]] = {}
    kernels_by_default: dict[str, list[str]] = {}
    for kernel, option in described.items():
        kernels_by_help.setdefault(option.help, []).append(kernel)
        kernels_by_default.setdefault(_as_text(option.default), []).append(kernel)
    meanings = [f"{help} of the {_kernels(names)}" for help, names in kernels_by_help.items()]
    meaning = "; ".join(meanings)
    if len(kernels_by_default) == 1:
        (default,) = kernels_by_default  # all kernels have the same one
        return _flag(None, f"{meaning} [{default}]")
    values = [f"{_enumerate(names)} {value}" for value, names in kernels_by_default.items()]
    return _flag(None, f"{meaning} [{', '.join(values)}]")


def _kernels(names: Sequence[str]) -> str:
    """Kernels in a sentence: "kernel a", "kernels a and b"."""
    noun = "kernels" if len(names) > 1 else "kernel"
    return f"{noun} {_enumerate(names)}"


def _as_text(value: Any) -> str:
    """A default as in the formula of a kernel: a number that has no short decimal is a fraction."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    if float(short) == value:
        return short
    return str(Fraction(value).limit_denominator(1000))


def _kernel_option_type(described: dict[str, KernelOption]) -> Any:
    """Type of a flag, whose kernels convert its value: a number is a float if it is one of any."""
    types = {option.type for option in described.values()}
    kind = float if float in types else types.pop()
    return Optional[kind]


KernelConfig = make_dataclass(
    "KernelConfig",
    [
        (f"kernel_{name}", _kernel_option_type(described), _kernel_option_flag(described))
        for name, described in kernel_options().items()
    ],
    bases=(ScoringConfig,),
    namespace={"__doc__": "Flags of the options of all kernels.", "__module__": __name__},
)


@dataclass
class _LayerConfig(KernelConfig):  # type: ignore[misc]
    """Flags that do not depend on the policies."""

    total_senses: float = _flag(
        3.0, "number of senses, as a multiple of the target vocabulary size", "[1, inf)"
    )
    max_senses: int = _flag(4, "maximum number of senses of a word", "[1, inf)")
    sense_allocation: Optional[ChoiceEnum(list(ALLOCATIONS))] = _flag(
        None,
        "initial numbers of senses: drawn at random for each word (random), or equal for all words "
        f"(equal) {_with_policies('random', lambda policy: policy.sense_allocation)}",
    )
    init_scale: float = _flag(1.0, INIT_SCALE_HELP, "(0, inf)")
    reallocation: ChoiceEnum([*POLICIES, "none"]) = _flag("paper", _reallocation_help())
    reallocation_interval: Optional[int] = _flag(
        None,
        "updates between reallocations (Q of Algorithm 1). With --reallocation "
        f"{_enumerate(_WITH_CONTEXTS)}, contexts are sampled for this many updates before senses "
        f"are placed {_with_policies(INTERVAL, lambda policy: policy.default_schedule.interval)}",
        "[1, inf)",
    )
    sense_decay: float = _flag(
        1e-5, "decay per target token of usage and log P (beta of Eq. 12-13)", "[0, 1)"
    )
    composition: ChoiceEnum(["posterior", "prior"]) = _flag(
        "posterior", "weights of a word's senses in its composed input embedding (Eq. 6-7)"
    )
    composition_passes: int = _flag(
        1,
        "passes that refine the posteriors in Transformer training. 0 uses the prior only, -1 runs "
        "the exact sequential recursion. Incremental decoding is sequential unless this is 0",
        "[-1, inf)",
    )
    sense_bias: bool = _flag(
        False,
        "append a constant 1 to context vectors. The last coordinate of a sense is then its bias, "
        "exactly so at theta = 0",
    )


def _policy_flag(name: str) -> tuple[str, type, Any]:
    """Field of a policy's setting, as the standard library's ``make_dataclass`` takes it."""
    setting = all_settings()[name]
    help_text = f"for --reallocation {_enumerate(readers_of(name))}: {setting.help}"
    return name, setting.kind, _flag(setting.default, help_text, setting.within)


KerbsConfig: Any = make_dataclass(
    "KerbsConfig",
    [_policy_flag(name) for name in all_settings()],
    bases=(_LayerConfig,),
    namespace={
        "__doc__": "Flags of the output layer, the input composition and the reallocation.",
        "__module__": __name__,
    },
)


def add_reallocation_at(parser: Any) -> None:
    """Add --reallocation-at. fairseq's dataclasses have no flags with several values."""
    parser.add_argument(
        "--reallocation-at",
        type=float,
        nargs="+",
        metavar="SHARE",
        help="when senses move, as fractions of --max-update or as numbers of updates. Replaces "
        f"--reallocation-interval {_with_policies('every interval', _times_of_moves)}",
    )


@dataclass
class SeparableKerbsConfig(KerbsConfig):
    """Flags that Transformers and fairseq's LSTMs share."""

    input_embedding: ChoiceEnum(["composed", "separate"]) = _flag(
        "composed",
        "input embeddings of the decoder: composed of the word's senses (Eq. 6), or separate, one "
        "vector for each word",
    )


@dataclass
class TransformerKerbsConfig(SeparableKerbsConfig):
    """Flags of Transformers."""

    composition_from: float = _flag(
        0.0,
        "share of --max-update from which on the passes run in training. Before, the prior is "
        "used, which saves their time (ours)",
        "[0, 1)",
    )


@dataclass
class RecurrentKerbsConfig(KerbsConfig):
    """Flags of lstm_kerbs, gru_kerbs and the recurrent language models."""

    hidden_size: int = _flag(
        512, "units of each recurrent layer, and of each direction of bilstm_lm_kerbs", "[1, inf)"
    )
    embed_dim: int = _flag(256, "dimension of word and sense embeddings", "[1, inf)")
    layers: int = _flag(1, "number of recurrent layers in each of encoder and decoder", "[1, inf)")
    dropout: float = _flag(0.1, "dropout probability", "[0, 1]")
    init_scale: float = _flag(3.0, INIT_SCALE_HELP, "(0, inf)")


@dataclass
class RecurrentAttentionConfig(RecurrentKerbsConfig):
    """Flags of lstm_kerbs and gru_kerbs alone."""

    attention: ChoiceEnum(list(ATTENTIONS)) = _flag(
        "bahdanau",
        "attention to the source: scored by a layer of tanh units before the recurrent step "
        "(bahdanau, Bahdanau et al. 2015), or by a bilinear form after it, with input feeding "
        "(luong, Luong et al. 2015)",
    )


@dataclass
class RecurrentLanguageModelConfig(RecurrentKerbsConfig):
    """Flags of gru_lm_kerbs, lstm_lm_kerbs and bilstm_lm_kerbs."""

    dropout: float = _flag(0.3, "dropout probability of embeddings and of layer outputs", "[0, 1]")
    init_scale: float = _flag(1.73, INIT_SCALE_HELP, "(0, inf)")


def policy_class(args: Any) -> Optional[type[Policy]]:
    """The policy that moves senses, or None without KerBS and with --reallocation none."""
    return POLICIES.get(args.reallocation) if args.output_layer == "kerbs" else None


def fill_for_policy(args: Any) -> None:
    """Set the flags that depend on the policy and were not given.

    A policy brings its interval and its allocation of senses, and --sense-bias if it needs biases.
    One that reads contexts has nothing to place with one sense per word, and becomes "none".
    """
    policy = policy_class(args)
    if policy is not None and policy.needs_contexts and float(args.total_senses) <= 1.0:
        logger.info(
            f"--reallocation {args.reallocation} has nothing to place with --total-senses 1: no "
            "sense will move, as with --reallocation none"
        )
        args.reallocation = "none"
        policy = None
    if policy is not None and policy.needs_bias:
        args.sense_bias = True
    if args.sense_allocation is None:
        args.sense_allocation = "random" if policy is None else policy.sense_allocation
    if args.reallocation_interval is None:
        schedule = DefaultSchedule() if policy is None else policy.default_schedule
        args.reallocation_interval = schedule.interval


def as_namespace(args: Any) -> argparse.Namespace:
    """Arguments as a plain namespace, also where fairseq-hydra-train passes a configuration."""
    if OmegaConf.is_config(args):
        args = argparse.Namespace(**OmegaConf.to_container(args, resolve=True))
    return args


def settings_of_program(args: Any) -> dict[str, Any]:
    """Settings of checkpoint, optimization, ema and criterion by name.

    A namespace ``args`` has the whole command line. A Hydra configuration has only the model, so
    the other groups are read from its root.
    """
    if not OmegaConf.is_config(args):
        return vars(args)
    groups = ("checkpoint", "optimization", "ema", "criterion")
    parts = [args._get_root().get(name) or {} for name in groups]
    return {name: value for part in parts for name, value in part.items()}


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn a ValueError into a UserError that names flags instead of parameters."""
    try:
        yield
    except ValueError as error:
        raise UserError(in_flags(str(error))) from None


def in_flags(sentence: str) -> str:
    """Replace `parameters` in backticks by the flags that set them."""
    return re.sub(r"`(\w+)`", lambda name: FLAGS.get(name[1], name[0]), sentence)


def refuse_flags(args: Any, arch: str, *names: str) -> None:
    """Raise a ValueError for flags of fairseq that our output layers do not support."""
    for name in names:
        if getattr(args, name, None):
            raise ValueError(
                f"{flag_of(name)} does not go together with --arch {arch}, whose output layer is "
                "the one of --output-layer: leave it out."
            )


FLAGS = {
    **{item.name: flag_of(item.name) for item in fields(RecurrentAttentionConfig)},
    **{item.name: flag_of(item.name) for item in fields(TransformerKerbsConfig)},
    **{option: flag_of(f"kernel_{option}") for option in kernel_options()},
    "label_smoothing": flag_of("label_smoothing"),
    "policy": "--reallocation",
    "biased": "--sense-bias",
    "decay": "--sense-decay",
    "kernels": "--mixture-kernels",
    "tanh_scale": "--mixture-tanh-scale",
}
"""The flag of each parameter that an error of kernels, likelihood or reallocation may name."""


def check_ranges(args: Any, flags: type[FairseqDataclass]) -> None:
    """Check the flags of a dataclass that have an interval."""
    for item in fields(flags):
        interval = item.metadata.get("within")
        if interval:
            value = float(getattr(args, item.name))
            if not within(value, interval):
                raise ValueError(f"{flag_of(item.name)} is {value}, but must be within {interval}.")


MIXTURE_FLAGS: dict[str, tuple[str, ...]] = {
    "mixture_components": ("mos",),
    "mixture_kernels": ("mixture",),
    "mixture_tanh_scale": ("mos", "mixture"),
}
"""The output layers that read a flag, by the flag. Other output layers refuse it."""


def check_read(args: Any) -> None:
    """Raise a ValueError for a flag that only another output layer or policy reads.

    Values that equal the default pass, because a checkpoint has the values of all flags. Flags of
    policies pass without KerBS or moves, and ``--kernel`` passes with a softmax, so that one flag
    makes a baseline of a configuration.
    """
    checked = [("output_layer", name, layers) for name, layers in MIXTURE_FLAGS.items()]
    if args.output_layer == "kerbs" and args.reallocation != "none":
        checked += [("reallocation", name, readers_of(name)) for name in all_settings()]
    for chooser, name, readers in checked:
        chosen = getattr(args, chooser)
        default = KerbsConfig.__dataclass_fields__[name].default
        if chosen not in readers and getattr(args, name) != default:
            raise ValueError(
                f"{flag_of(name)} is for {flag_of(chooser)} {' and '.join(readers)} and not read "
                f"by {flag_of(chooser)} {chosen}: leave it out."
            )
    if args.output_layer == "mixture" and args.kernel != "kerbs":
        raise ValueError(
            f"--kernel {args.kernel} is not read by --output-layer mixture: name its kernels by "
            "--mixture-kernels."
        )


def check_criterion(args: Any, settings: dict[str, Any]) -> None:
    """Raise a ValueError for a flag of the criterion that the output layer has no use for.

    Args:
        args: flags of the model.
        settings: result of :func:`settings_of_program`.
    """
    rho = settings.get("mixture_regularization")
    if rho and args.output_layer not in ("mos", "mixture"):
        raise ValueError(
            f"--mixture-regularization {rho} is for --output-layer mos and mixture, and not read "
            f"by --output-layer {args.output_layer}: leave it out."
        )


def output_layer_flags(args: Any) -> dict[str, Any]:
    """The flags that describe KerBS in ``args``, by name, without those that it does not read.

    Flags of mixtures and of other policies than the one of ``args`` are left out, and so are flags
    without a value. The model's flags for choices that the paper makes, too, are included.
    """
    names = [item.name for item in fields(KerbsConfig)] + ["attention", "input_embedding"]
    unread = {name for name in all_settings() if args.reallocation not in readers_of(name)}
    unread |= {name for name in names if name.startswith("mixture")}
    values = {name: getattr(args, name, None) for name in names if name not in unread}
    return {name: value for name, value in values.items() if value is not None}


def policies_with_bias() -> str:
    """Names of the policies that turn on --sense-bias."""
    return " or ".join(name for name, policy in POLICIES.items() if policy.needs_bias)


def policy_from_flags(args: Any) -> Optional[Policy]:
    """The policy with its settings, or None if senses do not move."""
    policy = policy_class(args)
    if policy is None:
        return None
    values = {}
    for name, setting in policy.settings().items():
        values[name] = getattr(args, name)
        if setting.kind in (int, float):
            values[name] = setting.kind(values[name])
    return policy(**values)


def build_schedule(args: Any) -> SenseSchedule:
    """Read the schedule from flags."""
    policy = policy_from_flags(args)
    interval = int(args.reallocation_interval)
    given = [float(time) for time in args.reallocation_at or ()]
    updates = int(getattr(args, "max_update", None) or 0)
    if policy is not None and policy.default_schedule.at and not given:
        # without --max-update a fraction of it is unknown
        given = list(policy.default_schedule.at) if updates else [float(interval)]
    at = frozenset(_update_of(time, updates) for time in given)
    return SenseSchedule(policy, interval, float(args.sense_decay), at)


def _update_of(time: float, updates: int) -> int:
    """The update that ``time`` of --reallocation-at names: a number, or a share of all updates."""
    if time >= 1.0 and time.is_integer():
        return int(time)
    if not 0.0 < time < 1.0:
        raise ValueError(
            f"--reallocation-at {time:g}: give a share of --max-update, between 0 and 1, or a "
            "number of updates."
        )
    if not updates:
        raise ValueError("--reallocation-at takes shares of --max-update: give that, too.")
    return max(1, round(time * updates))


def kernels_from_flags(args: Any) -> list[Kernel]:
    """Kernel of every component of the output layer, with the options that the flags give it."""
    if args.output_layer == "mixture":
        names = [name.strip() for name in str(args.mixture_kernels).split(",")]
        reader = f"--mixture-kernels {args.mixture_kernels}"
    elif args.output_layer == "kerbs":
        names = [str(args.kernel)]
        reader = f"--kernel {args.kernel}"
    else:
        components = int(args.mixture_components) if args.output_layer == "mos" else 0
        names = ["lin"] * components
        reader = f"--output-layer {args.output_layer}"
    unknown = set(names) - set(KERNELS)
    if unknown:
        raise ValueError(
            f"{reader}: there is no kernel named '{min(unknown)}'; give names from "
            f"{', '.join(sorted(KERNELS))} with commas between them."
        )
    options = {option: getattr(args, f"kernel_{option}", None) for option in kernel_options()}
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        readers = list(kernel_options()[option])
        if not set(readers) & set(names):
            raise ValueError(
                f"{flag_of(f'kernel_{option}')} is for the {_kernels(readers)}, and is not read by "
                f"{reader}: leave it out."
            )
    kernels = []
    for name in names:
        its_options = {key: given[key] for key in KERNELS[name].options if key in given}
        kernels.append(build_kernel(name, **its_options))
    return kernels


def build_output_layer(args: Any, vocab_size: int, embed_dim: int) -> output_layers.OutputLayer:
    """Output layer that the flags describe; ``embed_dim`` includes the bias of ``--sense-bias``."""
    kernels = kernels_from_flags(args)
    biased = bool(args.sense_bias)
    kind = args.output_layer
    policy = policy_from_flags(args)
    if policy is not None:
        policy.check_layer(kernels[0], biased)
    mixture = kind in ("mos", "mixture")
    if biased and (mixture or not all(kernel.constant_is_bias for kernel in kernels)):
        other = f"--output-layer {kind}" if mixture else f"--kernel {args.kernel}"
        reason = "has a bias already" if kind == "mos" else "gets no bias by a constant coordinate"
        raise ValueError(
            f"--sense-bias does not go together with {other}, which {reason}: leave it out."
        )
    init_scale = float(args.init_scale)
    if mixture:
        tanh_scale = 1.0
        if args.mixture_tanh_scale is not None:
            tanh_scale = float(args.mixture_tanh_scale)
        return output_layers.MixtureOutputLayer(
            embed_dim,
            vocab_size,
            kernels,
            biases=kind == "mos",
            init_scale=init_scale,
            tanh_scale=tanh_scale,
        )
    if kind == "softmax":
        return output_layers.SoftmaxOutputLayer(
            embed_dim, vocab_size, init_scale=init_scale, biased=biased
        )
    return output_layers.KerbsOutputLayer(
        embed_dim,
        vocab_size,
        round(float(args.total_senses) * vocab_size),
        max_senses=int(args.max_senses),
        kernel=kernels[0],
        policy=policy,
        sense_allocation=str(args.sense_allocation),
        init_scale=init_scale,
        biased=biased,
    )
