"""Flags of fairseq-train to train a converted model on, as the softmax model was trained.

A flag is given where a setting of the model's training differs from the default. Defaults of sizes
depend on each other: ``--decoder-embed-dim`` follows ``--encoder-embed-dim``. Therefore the
architecture is asked for its defaults twice: with none of the flags, and with those that differ.
"""

from __future__ import annotations

import argparse
from argparse import Action, Namespace
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_kerbs.checkpoints.reading import plain_settings
from fairseq_kerbs.configurations import Flags, flag_arguments
from fairseq_kerbs.programs import TRAIN, actions_of, long_form, parser_of
from fairseq_kerbs.utils.errors import UserError

_GENERAL_SETTINGS = {
    "optimization": ("lr", "clip_norm", "update_freq", "sentence_avg"),
    "dataset": ("max_tokens", "batch_size"),
    "criterion": ("label_smoothing",),
}
"""Settings of any training that are kept, by section of the configuration."""

_SET_ELSEWHERE = ("lr", "tpu", "max_update")
"""Settings that an optimizer or a schedule reads from other sections. The user sets the last."""

_NOT_OF_OUR_MODELS = ("share_decoder_input_output_embed", "base_shuffle")
"""Settings of fairseq's models that are not kept: ``--input-embedding`` replaces the first, and
models with the second cannot be converted."""


def finetuning_flags(config: Any, settings: Namespace, checkpoint: Path) -> Flags:
    """Flags of fairseq-train to train a converted model on, where they are not the defaults.

    The length of the training and its folder are left to the user.

    Args:
        config: configuration of the softmax model's training.
        settings: settings of the converted model.
        checkpoint: file of the converted model.

    Raises:
        UserError: fairseq has no flag for one of the settings, or not the optimizer or schedule.
    """
    parts = _parts_of(config)
    chosen: Flags = {
        "finetune-from-model": str(checkpoint.resolve()),
        "task": parts["task"].name,
        "arch": str(settings.arch),
        "criterion": "kerbs_cross_entropy",
    }
    chosen |= {section.replace("_", "-"): part.name for section, part in parts.items()}
    architecture = _Architecture(str(settings.arch))
    wanted = _trained_settings(config, parts)
    wanted |= {name: getattr(settings, name) for name in architecture.names & vars(settings).keys()}

    parser = parser_of(TRAIN, flag_arguments(chosen))
    actions = [action for action in parser._actions if action.dest in wanted]
    defaults = {action.dest: action.default for action in actions}
    first = _differing(actions, wanted, defaults | architecture.defaults({}))
    given = {action.dest: wanted[action.dest] for action in actions if _flag(action) in first}
    others = [action for action in actions if action.dest not in given]
    second = _differing(others, wanted, defaults | architecture.defaults(given))
    flags = chosen | first | second
    _check(flags, wanted, architecture)
    return flags


# ------------------------------------------------------------------ how the model was trained


class _Part(NamedTuple):
    """A task, an optimizer or a schedule of the training."""

    name: str
    registered: Any  # fairseq's class of that name


def _parts_of(config: Any) -> dict[str, _Part]:
    """Task, optimizer and schedule of a training, by section.

    A UserError is raised if fairseq has none of such a name.
    """
    from fairseq.optim import OPTIMIZER_REGISTRY
    from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY
    from fairseq.tasks import TASK_REGISTRY

    parts: dict[str, _Part] = {}
    for section, registry in (
        ("task", TASK_REGISTRY),
        ("optimizer", OPTIMIZER_REGISTRY),
        ("lr_scheduler", LR_SCHEDULER_REGISTRY),
    ):
        settings = _settings_of(config, section)
        name = settings.get("_name")
        if section == "task":
            name = name or settings.get("task") or "translation"
        if not name:
            continue
        if name not in registry:
            raise UserError(f"fairseq has no {section} {name}, which this model was trained with")
        parts[section] = _Part(str(name), registry[name])
    return parts


def _trained_settings(config: Any, parts: dict[str, _Part]) -> dict[str, Any]:
    """Settings of a training that do not belong to the model, except those without a value."""
    trained: dict[str, Any] = {}
    for section, names in _GENERAL_SETTINGS.items():
        trained |= _selected(_settings_of(config, section), set(names))
    for section, part in parts.items():
        # a section without a dataclass, as that of SGD, has the settings of all sections
        defined = {
            action.dest
            for action in actions_of(part.registered)
            # 'data' is an argument, and settings of other sections are set there
            if action.option_strings and not (section == "task" and _is_reference(action.default))
        }
        trained |= _selected(_settings_of(config, section), defined - {*_SET_ELSEWHERE})
    return {name: value for name, value in trained.items() if value is not None}


def _settings_of(config: Any, section: str) -> dict[str, Any]:
    """Settings in a section of a configuration, which can be missing."""
    settings = getattr(config, section, None)
    return plain_settings(settings) if settings else {}


def _selected(settings: dict[str, Any], names: set[str]) -> dict[str, Any]:
    # settings of the evaluation by BLEU would build a tokenizer
    return {
        name: value
        for name, value in settings.items()
        if name in names and not name.startswith("eval_")
    }


# ------------------------------------------------------------------ what fairseq defines


class _Architecture:
    """Settings of one of our architectures, and their defaults."""

    def __init__(self, arch: str) -> None:
        from fairseq.dataclass.utils import gen_parser_from_dataclass
        from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
        from fairseq.models.transformer import TransformerConfig
        from fairseq.models.transformer_lm import TransformerLanguageModelConfig

        self.arch = arch
        self._preset = ARCH_CONFIG_REGISTRY[arch]
        # without the defaults of the parser, as fairseq has it
        parser = argparse.ArgumentParser(
            add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
        )
        ARCH_MODEL_REGISTRY[arch].add_args(parser)
        self.names = {action.dest for action in parser._actions} - {*_NOT_OF_OUR_MODELS}
        self._own_defaults = vars(parser.parse_args([]))
        stock = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        config = TransformerLanguageModelConfig() if "_lm" in arch else TransformerConfig()
        gen_parser_from_dataclass(stock, config, with_prefix="")
        self._stock_defaults = vars(stock.parse_args([]))  # where the architecture has none

    def defaults(self, given: dict[str, Any]) -> dict[str, Any]:
        """Values of the settings if these are given."""
        settings = Namespace(**self._own_defaults | given)
        self._preset(settings)
        return self._stock_defaults | vars(settings)


def _differing(
    actions: Iterable[Action], wanted: dict[str, Any], defaults: dict[str, Any]
) -> Flags:
    """Flags for the settings whose wanted value is not the default."""
    flags: Flags = {}
    for action in actions:
        value = wanted[action.dest]
        if value is None or _same(value, defaults.get(action.dest)):
            continue
        if action.nargs != 0:
            flags[_flag(action)] = _written(value)
        elif value == action.const:  # no flag turns a switch off
            flags[_flag(action)] = True
    return flags


def _check(flags: Flags, wanted: dict[str, Any], architecture: _Architecture) -> None:
    """Raise a UserError if fairseq-train would read other settings from the flags."""
    from fairseq import options

    parser = options.get_training_parser()
    parsed = options.parse_args_and_arch(parser, ["DATA", *flag_arguments(flags)])
    values = architecture.defaults({}) | vars(parsed)
    for action in parser._actions:
        name = action.dest
        if name in wanted and not _same(wanted[name], values.get(name)):
            raise UserError(
                f"--arch {architecture.arch} has no flag for {name}={wanted[name]}, which this "
                "model was trained with; take another model"
            )


# ------------------------------------------------------------------ values


def _flag(action: Action) -> str:
    """Name of a flag without dashes, in its long form."""
    return long_form(action).removeprefix("--")


def _is_reference(default: Any) -> bool:
    """Whether the value of a setting is by default that of another section."""
    return isinstance(default, str) and default.startswith("${")


def _same(value: Any, other: Any) -> bool:
    """Whether two values of a setting are equal, as 2 and 2.0 are. None is equal to False."""
    if all(one is None or one is False for one in (value, other)):
        return True
    numbers = not isinstance(value, bool) and not isinstance(other, bool)
    return (numbers and value == other) or _written(value) == _written(other)


def _written(value: Any) -> str:
    """Text of a value on the command line."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, (str, dict)) or not hasattr(value, "__iter__"):
        return str(value)
    return ",".join(map(str, value))
