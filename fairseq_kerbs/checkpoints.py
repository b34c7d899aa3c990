"""Checkpoints of fairseq-train as models, in commands that only read them.

A file of tensors and strings alone (see :mod:`.utils.checkpoint_file`) could still run a program:
fairseq evaluates some of the strings when it builds a model, and opens files that others name. So
the edited fairseq reads literals in place of all evaluation, and without trust only
those architectures and tasks are built whose settings are known to do nothing else.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.checkpoint_file import TRUST_FLAG, read_file
from fairseq_kerbs.utils.errors import ProgramEnd, UserError, reason_of

MODELS = ("transformer", "transformer_lm", "lstm", "lstm_lm")
"""fairseq's models that are built without trust, each with all of its presets, besides ours."""
TASKS = ("translation", "language_modeling")
"""Tasks that are set up without trust."""
WRITTEN = "take the file that fairseq-train wrote"

# by the end of a setting's name: its value in a model that is only read
_SET_ASIDE = {
    "embed_path": None,  # the vectors from there were trained on: they are in the checkpoint
    "eval_bleu": False,  # would build a tokenizer that the settings describe
    "use_plasma_view": False,  # would start a server
}
_PLAIN = re.compile(r"[\w.-]*")


def read_checkpoint(path: Path, trust: bool = False) -> dict[str, Any]:
    """The content of a checkpoint of fairseq-train, on the CPU; with ``trust`` also of one that
    holds objects that run code when they are loaded. Raises a UserError if the file cannot be read
    (see :func:`.checkpoint_file.read_file`), holds no model, or settings of a form that no fairseq
    writes."""
    import torch

    logging.getLogger("fairseq").setLevel(logging.WARNING)  # no sizes of dictionaries and the like
    state = read_file(path, trust)
    settings = isinstance(state, dict) and (state.get("cfg") or state.get("args"))
    model = state.get("model") if settings else None
    whole = isinstance(model, dict) and all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in model.items()
    )
    if not (model and whole):
        raise UserError(f"{path} holds no model of fairseq-train; name one of its checkpoints")
    if not trust:
        _check_form(path, state)
    return state


def load_model_and_task(
    path: Path, data: Path, *, trust: bool = False, any_model: bool = False
) -> tuple[Any, Any]:
    """The model of a checkpoint in evaluation mode, and its task, by fairseq's own functions.

    ``data`` is a folder of binarized data with the dictionaries that the model was trained with;
    with ``any_model`` it may be none of fairseq_kerbs. Raises what :func:`read_checkpoint` does; a
    UserError if there are no such data, or the model is none of ours, could do more than its
    settings say, or does not fit the data or its own settings.
    """
    state = read_checkpoint(path, trust)
    if not any(data.glob("dict*.txt")):
        raise UserError(
            f"--data {data} is no folder with a dict.*.txt; name the folder that "
            "fairseq-preprocess wrote"
        )
    from fairseq import checkpoint_utils

    overrides = {"data": str(data)}
    set_aside(state.get("cfg"), state.get("args"))
    wrong = f"does not go with --data {data}"
    with one_sentence(path, wrong, "use the data that the model was trained on"):
        state = upgraded(state, overrides)
        if not (any_model or registered_model(state["cfg"].model)[1]):
            raise UserError(
                f"{path} holds no model of fairseq_kerbs; name a checkpoint of one of its "
                "architectures"
            )
        if not trust:
            _check_buildable(path, state["cfg"])
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(path)], arg_overrides=overrides, state=state
        )
    return models[0].eval(), task


@contextmanager
def one_sentence(path: Path, wrong: str, advice: str) -> Iterator[None]:
    """Turn what fairseq raises about settings and sizes, errors of every kind, into a UserError."""
    try:
        yield
    except UserError:
        raise
    except ProgramEnd as error:  # of our own models' check
        raise UserError(f"{path}: {error.sentence}") from None
    except Exception as error:
        raise UserError(f"{path} {wrong} ({reason_of(error)}); {advice}") from error


def settings_of(path: Path, state: dict[str, Any]) -> Any:
    """Settings of what :func:`read_checkpoint` gave, as a configuration of fairseq; a UserError if
    what the file has in their place is none."""
    with one_sentence(path, "has no settings of fairseq", WRITTEN):
        config = upgraded(state, {})["cfg"]
        for part in (config.model, config.task):  # which all that follows takes for granted
            vars(part) if isinstance(part, argparse.Namespace) else part.keys()
    return config


def upgraded(state: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The state as fairseq's own reader hands it on: settings as a configuration, overridden."""
    from fairseq import checkpoint_utils
    from fairseq.dataclass.utils import overwrite_args_by_name
    from omegaconf import OmegaConf

    import fairseq_kerbs.criterions
    import fairseq_kerbs.models  # noqa: F401  (both register)

    if state.get("args") is not None:  # fairseq before 0.10
        vars(state["args"]).update(overrides)
    if state.get("cfg") is not None:
        state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
        overwrite_args_by_name(state["cfg"], overrides)
    return checkpoint_utils._upgrade_state_dict(state)


def registered_model(settings: Any) -> tuple[Any, bool]:
    """The name of a model in fairseq's registry by its settings, and whether it is one of ours."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY

    given = getattr(settings, "_name", None) or getattr(settings, "arch", None)
    if not isinstance(given, str):
        return str(given), False
    name = ARCH_MODEL_NAME_REGISTRY.get(given, given)
    module = str(getattr(MODEL_REGISTRY.get(name), "__module__", ""))
    return name, module.startswith("fairseq_kerbs.")


def set_aside(*found: Any) -> None:
    """Leave out the settings that open files, where a model is only read and not trained.

    Settings are changed in mappings and namespaces, within one another or in lists.
    """
    for settings in _parts(*found):
        for name in settings if isinstance(settings, Mapping) else ():
            for end, plain in _SET_ASIDE.items():
                if str(name).endswith(end):
                    settings[name] = plain


def _parts(*found: Any) -> Iterator[Any]:
    """All values within mappings (namespaces as such) and lists, the outer before the inner."""
    left, seen = list(found), set()
    while left:
        value = left.pop()
        value = vars(value) if isinstance(value, argparse.Namespace) else value
        if id(value) in seen:
            continue
        yield value
        if isinstance(value, Mapping | list | tuple):
            seen.add(id(value))  # a pickle can hold circles
            left += value.values() if isinstance(value, Mapping) else value


def _check_form(path: Path, state: Mapping[str, Any]) -> None:
    """Refuse settings of a form that no fairseq writes, before fairseq sees them.

    A string would be read as YAML, an interpolation could make settings that :func:`set_aside` has
    not seen, and some names would have hydra look for a file outside fairseq's own configuration.
    """
    config, args = state.get("cfg"), state.get("args")
    if not isinstance(config, Mapping | None) or not isinstance(args, argparse.Namespace | None):
        raise UserError(f"{path} has no settings of fairseq; name a file that fairseq-train wrote")
    for part in ("model", "task"):
        if isinstance((config or {}).get(part), str):
            raise UserError(
                f"{path} has no settings in '{part}'; name a file that fairseq-train wrote"
            )
    for value in _parts(config, args):
        if isinstance(value, str) and "${" in value:
            raise _refusal(path, "setting", value)
    from fairseq.registry import REGISTRIES

    for name in (*REGISTRIES, "task", "arch"):
        value = getattr(args, name, None)
        if not (value is None or (isinstance(value, str) and _PLAIN.fullmatch(value))):
            raise _refusal(path, f"setting {name} =", value)


def _check_buildable(path: Path, config: Any) -> None:
    """Refuse to build a model or task whose settings could do more than describe it."""
    name, own = registered_model(config.model)
    if not (own or name in MODELS):
        raise _refusal(path, "architecture", name)
    task = getattr(config.task, "task", None)
    task = task if isinstance(task, str) else getattr(config.task, "_name", None)
    if task not in TASKS:
        raise _refusal(path, "task", task)
    for side in ("source_lang", "target_lang"):  # a part of a file's name
        language = getattr(config.task, side, None)
        if not _PLAIN.fullmatch(str(language)):
            raise _refusal(path, "language", language)


def _refusal(path: Path, what: str, value: Any) -> UserError:
    return UserError(
        f"{path} has the {what} {str(value)[:60]!r}, which is none of those that are known to run "
        f"no program when a model is built; if you trust its maker, add {TRUST_FLAG}"
    )
