"""Flags with which fairseq-train goes on with a converted model."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from fairseq_kerbs.tables.experiments import Flags, flag_arguments
from fairseq_kerbs.utils.errors import UserError

_NAMES: dict[str, tuple[str, ...]] = {
    "task": (
        *("source_lang", "target_lang", "left_pad_source", "left_pad_target", "truncate_source"),
        *("max_source_positions", "max_target_positions"),
        *("tokens_per_sample", "sample_break_mode", "add_bos_token", "self_target"),
    ),
    "optimization": ("lr", "clip_norm", "update_freq", "sentence_avg"),
    "dataset": ("max_tokens", "batch_size"),
}
"""Settings that are kept, by part of the configuration; of other parts all are."""

# the first is for --input-embedding to say, the second for models that are refused
_REPLACED = ("share_decoder_input_output_embed", "base_shuffle")


def finetuning_flags(config: Any, settings: argparse.Namespace, out: Path) -> Flags:
    """Flags of the model, its task and its training, those that differ from fairseq's defaults.

    Args:
        config: all settings of the softmax model.
        settings: those of the converted model.
        out: its file.

    Raises:
        UserError: a setting of the model cannot be given on a command line.
    """
    import fairseq.optim  # noqa: F401  (registers)
    from fairseq.dataclass.configs import DatasetConfig, OptimizationConfig
    from fairseq.optim import OPTIMIZER_DATACLASS_REGISTRY
    from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    task = getattr(config.task, "_name", None) or getattr(config.task, "task", "translation")
    flags: Flags = {"finetune-from-model": str(out.resolve()), "task": str(task)}
    flags |= _differing(config, "task", TASK_DATACLASS_REGISTRY.get(task))
    flags |= {"arch": str(settings.arch)} | model_flags(settings)
    flags["criterion"] = "kerbs_cross_entropy"
    if smoothing := getattr(config.criterion, "label_smoothing", None):
        flags["label-smoothing"] = str(smoothing)
    for part, registry in (
        ("optimizer", OPTIMIZER_DATACLASS_REGISTRY),
        ("lr_scheduler", LR_SCHEDULER_DATACLASS_REGISTRY),
    ):
        name = getattr(getattr(config, part, None), "_name", None)
        if name in registry:
            flags[part.replace("_", "-")] = str(name)
            flags |= _differing(config, part, registry[name])
    flags |= _differing(config, "optimization", OptimizationConfig)
    return flags | _differing(config, "dataset", DatasetConfig)


def model_flags(settings: argparse.Namespace) -> Flags:
    """Flags that make an architecture have these settings.

    Raises:
        UserError: there is no flag for one of them.
    """
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    arch = str(settings.arch)
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS, allow_abbrev=False)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    actions = [
        action
        for action in parser._actions
        if hasattr(settings, action.dest) and action.dest not in _REPLACED
    ]
    defaults = _dataclass_defaults(arch)
    flags: Flags = {}
    while True:  # one at a time: a size that is set may be the default of others
        found = parser.parse_args(flag_arguments(flags))
        ARCH_CONFIG_REGISTRY[arch](found)
        values = defaults | vars(found)
        for action in actions:
            value = getattr(settings, action.dest)
            if not _same(value, values.get(action.dest)):
                break
        else:
            return flags
        flag = action.option_strings[0][2:]
        if flag in flags or value is None or (action.nargs == 0 and value != action.const):
            raise UserError(
                f"--arch {arch} has no flag for {action.dest}={value}, which this model was "
                "trained with; it cannot be converted"
            )
        flags[flag] = True if action.nargs == 0 else _written(value)


def _dataclass_defaults(arch: str) -> dict[str, Any]:
    """What fairseq's dataclasses give a Transformer whose architecture does not say otherwise."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY
    from fairseq.models.transformer import TransformerConfig
    from fairseq.models.transformer_lm import TransformerLanguageModelConfig

    model = ARCH_MODEL_NAME_REGISTRY[arch]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    if model == "transformer_lm_kerbs":
        gen_parser_from_dataclass(parser, TransformerLanguageModelConfig())
    elif model == "transformer_kerbs":
        gen_parser_from_dataclass(parser, TransformerConfig(), with_prefix="")
    return vars(parser.parse_args([]))


def _same(value: Any, found: Any) -> bool:
    """Whether two settings mean the same; a switch that is off may also be absent."""
    # fairseq gives some sizes no type, so that they are text on the command line
    return str(value) == str(found) or (value in (None, False) and found in (None, False))


def _differing(config: Any, part: str, kind: Any) -> Flags:
    """Flags of a part of the settings whose values are not the defaults of its dataclass."""
    flags: Flags = {}
    for item in fields(kind) if kind is not None else ():
        default = item.default
        if item.default_factory is not MISSING:
            default = item.default_factory()
        if item.name not in _NAMES.get(part, (item.name,)) or item.name == "_name":
            continue
        if default is MISSING or (isinstance(default, str) and default.startswith("${")):
            continue  # required, or another part's
        value = getattr(getattr(config, part, None), item.name, None)
        if value is not None and _written(value) != _written(default):
            flags[item.name.replace("_", "-")] = (
                True if isinstance(default, bool) else _written(value)
            )
    return flags


def _written(value: Any) -> str:
    """A value as it stands on a command line."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return str(value)
    return ",".join(str(one) for one in value)


def configuration(flags: Flags, checkpoint: Path) -> str:
    """Flags as a file for ``fairseq-kerbs train``."""
    content = {"description": f"going on with {checkpoint.name} as a KerBS model", "train": flags}
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
    return text
