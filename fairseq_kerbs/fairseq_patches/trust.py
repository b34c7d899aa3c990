"""What the settings of a checkpoint may make fairseq do in a command that only reads a model.

A file of tensors and strings alone could still run a program: fairseq evaluates some of the strings
when it builds a model, and opens files that others name. Here literals are read in place of all
evaluation, for every command of a process that loads this plugin, and only those architectures and
tasks are built whose settings are known to do nothing else.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.literals import read_literal

TRUST_FLAG = "--trust-checkpoint"

MODELS = ("transformer", "transformer_lm", "lstm", "lstm_lm")
"""fairseq's models that are built without trust, each with all of its presets, besides ours."""
TASKS = ("translation", "language_modeling")
"""Tasks that are set up without trust."""

EVALUATING = (
    "utils",
    "criterions.ctc",
    "data.audio.raw_audio_dataset",
    "data.codedataset",
    "models.fconv",
    "models.fconv_lm",
    "models.fconv_self_att",
    "models.hubert.hubert",
    "models.lightconv_lm",
    "models.speech_to_text.s2t_wav_transformer",
    "models.transformer_lm",
    "models.wav2vec.wav2vec",
    "models.wav2vec.wav2vec2",
    "optim.adafactor",
    "optim.adam",
    "optim.adamax",
    "optim.cpu_adam",
    "optim.fused_lamb",
)
"""Modules of fairseq 0.12.2 that call ``eval``."""

# by the end of a setting's name: its value in a model that is only read
_SET_ASIDE = {
    "embed_path": None,  # the vectors from there were trained on: they are in the checkpoint
    "eval_bleu": False,  # would build a tokenizer that the settings describe
    "use_plasma_view": False,  # would start a server
}
_PLAIN = re.compile(r"[\w.-]*")


def read_literals_only() -> None:
    """Have fairseq read literals in place of evaluating strings; a second call changes nothing."""
    for name in EVALUATING:
        # a module's own name is found before the built-in function
        vars(import_module(f"fairseq.{name}"))["eval"] = read_literal


def check_form(path: Path, state: Mapping[str, Any]) -> None:
    """Refuse settings of a form that no fairseq writes, before fairseq sees them.

    Raises:
        UserError: the settings are no mapping (a string would be read as YAML), or would have hydra
            look for a file outside fairseq's own configuration.
    """
    config, args = state.get("cfg"), state.get("args")
    if not isinstance(config, Mapping | None) or not isinstance(args, argparse.Namespace | None):
        raise UserError(f"{path} has no settings of fairseq; name a file that fairseq-train wrote")
    from fairseq.registry import REGISTRIES

    for name in (*REGISTRIES, "task", "arch"):
        value = getattr(args, name, None)
        if not (value is None or (isinstance(value, str) and _PLAIN.fullmatch(value))):
            raise _refusal(path, f"the setting {name} = {str(value)[:60]!r}")


def set_aside(*found: Any) -> None:
    """Leave out the settings that open files, where a model is only read and not trained.

    Args:
        found: settings in mappings and namespaces, within one another; they are changed.
    """
    for settings in _all_settings(list(found)):
        for name in settings:
            for end, value in _SET_ASIDE.items():
                if str(name).endswith(end):
                    settings[name] = value


def _all_settings(found: list[Any]) -> Iterator[Any]:
    """Every mapping of settings within, as something that can be changed."""
    seen = set()
    while found:
        value = found.pop()
        value = vars(value) if isinstance(value, argparse.Namespace) else value
        if isinstance(value, Mapping) and id(value) not in seen:  # a pickle can hold circles
            seen.add(id(value))
            yield value
            found += value.values()


def check_buildable(path: Path, config: Any) -> None:
    """Refuse to build a model or task whose settings could do more than describe it.

    Args:
        path: the checkpoint, for the message.
        config: its settings, as fairseq's reader hands them on.

    Raises:
        UserError: the architecture or task is none of those that are built without trust, or a
            language is no plain name.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY

    # both names are found as fairseq finds them
    model = getattr(config.model, "_name", None) or getattr(config.model, "arch", None)
    name = ARCH_MODEL_NAME_REGISTRY.get(model, model)
    own = str(getattr(MODEL_REGISTRY.get(name), "__module__", "")).startswith("fairseq_kerbs.")
    if not (own or name in MODELS):
        raise _refusal(path, f"the architecture {str(model)[:60]!r}")
    task = getattr(config.task, "task", None)
    task = task if isinstance(task, str) else getattr(config.task, "_name", None)
    if task not in TASKS:
        raise _refusal(path, f"the task {str(task)[:60]!r}")
    for side in ("source_lang", "target_lang"):
        language = getattr(config.task, side, None)
        if not _PLAIN.fullmatch(str(language)):  # is a part of a file's name
            raise _refusal(path, f"the language {str(language)[:60]!r}")


def _refusal(path: Path, what: str) -> UserError:
    return UserError(
        f"{path} has {what}, which is none of those that are known to run no program when a model "
        f"is built; if you trust its maker, add {TRUST_FLAG}"
    )
