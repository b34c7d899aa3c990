"""Flags with which fairseq-train goes on with a converted model."""

from __future__ import annotations

import argparse
from enum import Enum
from pathlib import Path
from typing import Any

from fairseq_kerbs.configurations import Flags, flag_arguments
from fairseq_kerbs.utils.errors import UserError

_KEPT = {
    "task": (
        *("source_lang", "target_lang", "left_pad_source", "left_pad_target", "truncate_source"),
        *("max_source_positions", "max_target_positions"),
        *("tokens_per_sample", "sample_break_mode", "add_bos_token", "self_target"),
    ),
    "optimization": ("lr", "clip_norm", "update_freq", "sentence_avg"),
    "dataset": ("max_tokens", "batch_size"),
    "criterion": ("label_smoothing",),
}
"""Settings that are kept, by part of the configuration; of the optimizer and schedule all are."""

# of an optimizer or schedule, but said elsewhere; the length of training is for the user to say
_ELSEWHERE = ("_name", "lr", "tpu", "max_update", "total_num_update")
# the first is for --input-embedding to say, the second for models that are refused
_REPLACED = ("share_decoder_input_output_embed", "base_shuffle")


def finetuning_flags(config: Any, settings: argparse.Namespace, out: Path) -> Flags:
    """Flags of the model, its task and its training, those that differ from the defaults, by all
    settings of the softmax model (``config``), and ``settings`` and file of the converted one.
    Raises a UserError if a setting of the model cannot be given on a command line."""
    import fairseq.optim  # noqa: F401  (registers)
    from fairseq import options

    from fairseq_kerbs.models.config import as_namespace

    task = getattr(config.task, "_name", None) or getattr(config.task, "task", "translation")
    flags: Flags = {"finetune-from-model": str(out.resolve()), "task": str(task)}
    flags |= {"arch": str(settings.arch), "criterion": "kerbs_cross_entropy"}
    wanted: dict[str, Any] = {}
    for part, names in _KEPT.items():
        wanted |= {name: getattr(getattr(config, part), name, None) for name in names}
    for part in ("optimizer", "lr_scheduler"):
        chosen = vars(as_namespace(getattr(config, part, None) or argparse.Namespace()))
        if chosen.get("_name"):
            flags[part.replace("_", "-")] = str(chosen["_name"])
            wanted |= {name: value for name, value in chosen.items() if name not in _ELSEWHERE}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    settings_of_arch, defaults = _model_flags(str(settings.arch))
    wanted |= {name: value for name, value in vars(settings).items() if name in settings_of_arch}
    while True:  # again: a size that is set may be the default of others
        parser = options.get_training_parser()
        given = options.parse_args_and_arch(parser, ["DATA", *flag_arguments(flags)])
        values = defaults | vars(given)
        differing = [
            action
            for action in parser._actions
            if action.dest in wanted and not _same(wanted[action.dest], values.get(action.dest))
        ]
        if not differing:
            return flags
        before = len(flags)
        for action in differing:
            flag, value = action.option_strings[0][2:], wanted[action.dest]
            # a switch that is on by another flag's default goes off with that flag
            if flag not in flags and value is not None and (action.nargs != 0 or value):
                flags[flag] = True if action.nargs == 0 else _written(value)
        if len(flags) == before:
            setting = differing[0].dest
            raise UserError(
                f"--arch {settings.arch} has no flag for {setting}={wanted[setting]}, which this "
                "model was trained with; it cannot be converted"
            )


def _model_flags(arch: str) -> tuple[set[str], dict[str, Any]]:
    """Names of an architecture's settings; defaults of fairseq's Transformers, by dataclass."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.transformer import TransformerConfig
    from fairseq.models.transformer_lm import TransformerLanguageModelConfig

    parser, stock = (argparse.ArgumentParser(allow_abbrev=False) for _ in range(2))
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    config = TransformerLanguageModelConfig() if "_lm" in arch else TransformerConfig()
    gen_parser_from_dataclass(stock, config, with_prefix="")
    return {action.dest for action in parser._actions} - {*_REPLACED}, vars(stock.parse_args([]))


def _same(value: Any, given: Any) -> bool:
    """Whether two settings mean the same; a switch that is off may also be absent."""
    off = (None, False)
    return _written(value) == _written(given) or (value in off and given in off)


def _written(value: Any) -> str:
    """A value as it stands on a command line."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return str(value)
    return ",".join(map(str, value))
