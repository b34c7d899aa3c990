"""Read checkpoints without executing code from them.

Without ``--trust-checkpoint`` only tensors and plain settings are loaded. Settings could still
execute code: fairseq evaluates some strings when it builds a model, and opens files that others
name. Therefore a string with brackets must be a literal, as a call needs brackets, and only the
models and tasks in :data:`SAFE_MODELS` and :data:`SAFE_TASKS` are accepted, and those of this
package.

:func:`read_checkpoint` returns the content of a file. :func:`open_checkpoint` also returns the
configuration of the training, from which :mod:`.building` builds the model.
"""

from __future__ import annotations

import argparse
import ast
import json
import logging
import pickle
import re
import shlex
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_kerbs.torch_compat import load, load_plain
from fairseq_kerbs.utils.checkpoint_files import check_checkpoint, damaged, not_finite
from fairseq_kerbs.utils.errors import UserError, as_user_error

SAFE_MODELS = ("transformer", "transformer_lm", "lstm", "lstm_lm")
"""fairseq's models that are built without trust, with all of their presets, besides ours."""
SAFE_TASKS = ("translation", "language_modeling")
"""Tasks that are set up without trust. Only data of these tasks and of those derived from them can
be read."""

# in torch's message on an unsafe object
_NAMED_OBJECT = re.compile(r"(?:GLOBAL|class) ([\w.]+)")
# names of settings with a path, which may have brackets
_NAME_OF_PATH = re.compile(r".*(data|dir|file|path|from_model|continue_once)")
# values of settings that open or start something, by the end of their name
_REPLACEMENTS = {
    "embed_path": None,  # the embeddings are in the checkpoint
    "eval_bleu": False,  # would build a tokenizer from the settings
    "use_plasma_view": False,  # would start a server
    "job_logging_cfg": None,  # of fairseq-hydra-train; nothing reads it
}


# ------------------------------------------------------------------ the file


def read_checkpoint(path: Path | str, trust: bool = False) -> dict[str, Any]:
    """Read a checkpoint of fairseq-train onto the CPU, without settings that open files.

    With ``trust``, objects that can execute code are loaded, too. A UserError is raised if the file
    is missing, damaged or no checkpoint, has parameters that are not finite, or, without ``trust``,
    has content that could execute code. From then on, fairseq logs warnings alone.
    """
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # no sizes of dictionaries and the like
    path = Path(path)
    check_checkpoint(path)
    try:
        state = _load(path, trust)
        _check_content(path, state)
        if state.get("args") is not None and not trust:  # hydra would parse them
            raise refusal(path, "settings of a fairseq before 0.10,", state["args"])
        names = [name for name in ("cfg", "args") if name in state]
        return state | {name: _plain(path, name, state[name], trust) for name in names}
    except _UnsafeObjectError as error:
        raise refusal(path, "object", error) from None
    except (_UnreadableError, RecursionError):  # a pickle can have circular references
        raise damaged(path) from None


class _UnreadableError(Exception):
    """torch cannot read the file."""


class _UnsafeObjectError(Exception):
    """The file has an object of this class, which could execute code."""


def _load(path: Path, trust: bool) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about objects that are refused below
            return load(path, weights_only=False) if trust else load_plain(path, _plain_classes())
    except Exception as error:  # a damaged file can cause any error
        unsafe = _NAMED_OBJECT.search(str(error))
        if unsafe and not trust and isinstance(error, pickle.UnpicklingError):
            raise _UnsafeObjectError(unsafe[1]) from None
        raise _UnreadableError from None


def _check_content(path: Path, state: Any) -> None:
    """Raise a UserError unless a checkpoint has settings, and parameters that are finite."""
    content = state if isinstance(state, dict) else {}
    model = content.get("model")
    of_tensors = isinstance(model, dict) and all(isinstance(v, Tensor) for v in model.values())
    has_cfg = isinstance(content.get("cfg"), Mapping)
    has_args = isinstance(content.get("args"), argparse.Namespace)
    if not (model and of_tensors and (has_cfg or has_args)):
        raise UserError(f"{path} holds no model of fairseq-train; name one of its checkpoints")
    diverged = not_finite(model)
    if diverged is not None:
        raise UserError(
            f"{path}: {diverged} holds NaN or infinity, so its training had diverged; take an "
            "earlier checkpoint of that training"
        )


def _plain_classes() -> list[Any]:
    """Safe classes: settings, and arrays (of --eval-bleu) as numpy 1 and numpy 2 name them."""
    import numpy as np

    arrays = getattr(np, "_core" if hasattr(np, "_core") else "core").multiarray
    plain: list[Any] = [argparse.Namespace, np.ndarray, np.dtype]
    for name, core in product(("_reconstruct", "scalar"), ("_core", "core")):
        plain.append((getattr(arrays, name), f"numpy.{core}.multiarray.{name}"))
    kinds = ("int64", "int32", "float64", "float32", "bool")
    return plain + [type(np.dtype(kind)) for kind in kinds]


def _plain(path: Path, name: str, value: Any, trust: bool) -> Any:
    """A setting with :data:`_REPLACEMENTS` values. Without ``trust``, unsafe values are refused."""
    for end, replacement in _REPLACEMENTS.items():
        if name.endswith(end):
            return replacement
    if isinstance(value, argparse.Namespace):
        return argparse.Namespace(**_plain(path, name, vars(value), trust))
    if isinstance(value, dict):
        return {key: _plain(path, str(key), item, trust) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(path, name, item, trust) for item in value]
    if not trust and isinstance(value, str) and not _harmless(name, value):
        raise refusal(path, f"setting {name} =", value)
    return value


def _harmless(name: str, value: str) -> bool:
    """Whether the evaluation of a setting calls nothing, and it has no reference (``${…}``)."""
    if "${" in value:
        return False
    if _NAME_OF_PATH.fullmatch(name) or not set(value) & set("([{"):
        return True
    for read in (ast.literal_eval, json.loads):
        try:
            read(value)
            return True
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            pass
    return False


def refusal(path: Path, kind: str, value: Any) -> UserError:
    """The error for content of a checkpoint that could execute code."""
    return UserError(
        f"{path} has the {kind} {str(value)[:60]!r}, which could execute code when it is read; if "
        "you trust its source, add --trust-checkpoint"
    )


# ------------------------------------------------------------------ the training


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of fairseq-train, with a model and a task that may be built."""

    path: Path
    state: dict[str, Any]  # content of the file
    config: Any  # configuration of the training, as fairseq has it
    name: str  # of the model in fairseq's registry
    ours: bool  # whether the model belongs to fairseq_kerbs


def open_checkpoint(
    path: Path,
    data: Path | None = None,
    *,
    trust: bool = False,
    others: Collection[str] | None = (),
) -> Checkpoint:
    """Read a checkpoint and the configuration of its training.

    Args:
        path: path of the file.
        data: folder that replaces the data of the training.
        trust: whether the checkpoint may execute code.
        others: names of fairseq's models that are accepted, besides those of fairseq_kerbs. None
            accepts all, as far as they are trusted.

    Raises:
        UserError: see :func:`read_checkpoint`, or the model or the task are refused, or the task is
            one whose ``data`` cannot be read.
    """
    state = read_checkpoint(path, trust)
    config = _training_config(path, state, data)
    name, ours = _registered_model(config.model)
    if not ours:
        _check_model(path, name, trust, others)
    _check_task(path, config.task, trust, data)
    return Checkpoint(path, state, config, name, ours)


def _training_config(path: Path, state: dict[str, Any], data: Path | None) -> Any:
    """Configuration of the training of a checkpoint (:func:`read_checkpoint`), as fairseq has it.

    ``data`` replaces the folder of the training. A UserError is raised if there are no settings.
    """
    from fairseq import checkpoint_utils
    from fairseq.dataclass.utils import omegaconf_no_object_check, overwrite_args_by_name
    from omegaconf import OmegaConf

    import fairseq_kerbs.criterions
    import fairseq_kerbs.models  # noqa: F401  (both register)

    with as_user_error(
        path, "has no settings of fairseq", "take the file that fairseq-train wrote"
    ):
        state = dict(state)
        if state.get("cfg") is not None:
            with omegaconf_no_object_check():  # it contains namespaces
                state["cfg"] = OmegaConf.create(state["cfg"])
        config = checkpoint_utils._upgrade_state_dict(state)["cfg"]
        for section in (config.model, config.task):
            plain_settings(section)  # raises unless both have settings
        if data is not None:
            overwrite_args_by_name(config, {"data": str(data)})
    return config


def plain_settings(section: Any) -> dict[str, Any]:
    """Settings in a section of a configuration, which fairseq keeps as a namespace or by hydra."""
    from omegaconf import OmegaConf

    if isinstance(section, argparse.Namespace):
        return dict(vars(section))
    settings = section
    if OmegaConf.is_config(section):
        settings = OmegaConf.to_container(section, resolve=True)
    return dict(settings)


def _registered_model(settings: Any) -> tuple[Any, bool]:
    """Name of a model in fairseq's registry, and whether it belongs to fairseq_kerbs."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY

    arch = getattr(settings, "_name", None) or getattr(settings, "arch", None)
    if not isinstance(arch, str):
        return str(arch), False
    name = ARCH_MODEL_NAME_REGISTRY.get(arch, arch)
    module = str(getattr(MODEL_REGISTRY.get(name), "__module__", ""))
    return name, module.startswith("fairseq_kerbs.")


def _check_model(path: Path, name: str, trust: bool, others: Collection[str] | None) -> None:
    """Raise a UserError if a model of fairseq is refused."""
    if others is not None and not others:
        remedy = "name a checkpoint of one of its architectures"
        if name in SAFE_MODELS:
            remedy = convert_first(path)
        raise UserError(f"{path} holds no model of fairseq_kerbs; {remedy}")
    if others is not None and name not in others:
        raise UserError(
            f"{path} has the architecture '{name}'; take one of {', '.join(others)}, or a model of "
            "fairseq_kerbs"
        )
    if not (trust or name in SAFE_MODELS):
        raise refusal(path, "architecture", name)


def convert_first(path: Path) -> str:
    """The advice to give a softmax model senses, with the command."""
    command = ["fairseq-kerbs", "convert", str(path), "-o", str(path.with_name("kerbs.pt"))]
    return f"give it senses first: {shlex.join(command)} --data BIN"


def _check_task(path: Path, settings: Any, trust: bool, data: Path | None) -> None:
    """Raise a UserError if the kind of task is refused, or its ``data`` cannot be read."""
    from fairseq.tasks import TASK_REGISTRY

    name = getattr(settings, "_name", None) or getattr(settings, "task", None)
    registered = TASK_REGISTRY.get(name)
    readable = tuple(TASK_REGISTRY[task] for task in SAFE_TASKS)
    unreadable = trust  # without trust, an unknown task is refused below
    if registered is not None:
        # other tasks make batches in another way, so that trust does not help
        unreadable = not issubclass(registered, readable)
    if data is not None and unreadable:
        raise UserError(
            f"{path} was trained with --task {name}, whose data cannot be read; only those of "
            f"{' and '.join(SAFE_TASKS)} can"
        )
    for setting in ("_name", "task"):
        named = getattr(settings, setting, None)
        if not (trust or named is None or named in SAFE_TASKS):
            raise refusal(path, "task", named)
