"""Checkpoints of fairseq-train, read without running anything that they hold.

A checkpoint is a pickle, and to load a pickle is to run whatever program its maker put into it.
Commands that only look at a model therefore load tensors and plain settings alone, and refuse a
file with anything else unless its owner says that it is to be trusted.
"""

from __future__ import annotations

import argparse
import logging
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from textwrap import shorten
from typing import Any

from fairseq_kerbs.fairseq_patches.trust import TRUST_FLAG, check_buildable, check_form, set_aside
from fairseq_kerbs.utils.errors import UserError, refused_by_system, system_refusal

_OBJECT = re.compile(r"(?:GLOBAL|class) ([\w.]+)")  # in torch's message on what it refuses


def _plain_types() -> list[Any]:
    """What fairseq's checkpoints hold besides tensors and built-in types; none of it runs code."""
    import numpy as np

    # validation figures of --eval-bleu are arrays; numpy 2 has moved what rebuilds them
    arrays = np._core.multiarray  # type: ignore[attr-defined]
    rebuilding = [
        (getattr(arrays, name), f"numpy.{core}.multiarray.{name}")
        for name in ("_reconstruct", "scalar")
        for core in ("_core", "core")
    ]
    numbers = [type(np.dtype(kind)) for kind in ("int64", "int32", "float64", "float32", "bool")]
    return [argparse.Namespace, np.ndarray, np.dtype, *rebuilding, *numbers]


def read_checkpoint(path: Path, trust: bool = False) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU.

    Args:
        path: a file of fairseq-train.
        trust: load it even if it holds objects that run code when they are loaded.

    Raises:
        UserError: the file is missing, damaged, no checkpoint with a model, or holds more than
            tensors and plain settings; see also :func:`.trust.check_form`.
    """
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}; name a file that fairseq-train wrote")
    import torch
    from torch.serialization import safe_globals

    quiet_fairseq()
    check_whole(path)
    try:
        with safe_globals(_plain_types()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what is refused below
            state = torch.load(path, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError as error:
        found = _OBJECT.search(str(error))
        if trust or not (found or zipfile.is_zipfile(path)):
            raise damaged(path) from None
        raise UserError(
            f"{path} holds more than tensors and settings ({found[1] if found else 'objects'}), "
            f"which could run a program when loaded; if you trust its maker, add {TRUST_FLAG}"
        ) from None
    except Exception:  # whatever a damaged file, or another program's, makes of the reader
        raise damaged(path) from None
    settings = isinstance(state, dict) and (state.get("cfg") or state.get("args"))
    model = state.get("model") if settings else None
    whole = isinstance(model, dict) and all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in model.items()
    )
    if not (model and whole):
        raise UserError(f"{path} holds no model of fairseq-train; name one of its checkpoints")
    if not trust:
        check_form(path, state)
    return state


def quiet_fairseq() -> None:
    """Keep what fairseq says about itself off the terminal of a command that only reads a model."""
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # sizes of dictionaries and the like
    # what it asks of torch: pinned memory on a CPU, too, and masks of two types
    for message in ("'pin_memory'", "Support for mismatched key_padding_mask"):
        warnings.filterwarnings("ignore", message=message)


def check_whole(path: Path) -> None:
    """Refuse a checkpoint that was cut off or damaged, without loading it.

    Raises:
        UserError: its archive is not whole, or one of its checksums is wrong.
    """
    try:
        with path.open("rb") as stream:
            if stream.read(1) == b"\x80":  # pickle of a torch before 1.6: has no checksums
                return
        with zipfile.ZipFile(path) as archive:
            # torch reads nothing of an entry that is marked as a folder (0x10)
            folders = any(entry.external_attr & 0x10 for entry in archive.infolist())
            sound = not folders and archive.testzip() is None
    except Exception as error:  # of every kind, where the archive's list of contents is damaged
        if refused_by_system(error):
            raise system_refusal(error, path, "read") from None
        sound = False
    if not sound:
        raise damaged(path)


def damaged(path: Path | str) -> UserError:
    """What is said of a checkpoint that cannot be read."""
    return UserError(
        f"{path} is no whole checkpoint of fairseq-train (cut off, damaged, or another kind of "
        "file); take another copy or another checkpoint"
    )


def load_model_and_task(
    path: Path, data: Path, *, trust: bool = False, any_model: bool = False
) -> tuple[Any, Any]:
    """Build the model of a checkpoint, and its task, by fairseq's own functions.

    Args:
        path: a file of fairseq-train.
        data: folder of binarized data with the dictionaries that the model was trained with.
        trust: see :func:`read_checkpoint`.
        any_model: also one that is none of fairseq_kerbs.

    Returns:
        model in evaluation mode, and task.

    Raises:
        UserError: see :func:`read_checkpoint` and :func:`.trust.check_buildable`; there are no such
            data, or the model is none of ours, does not fit the data or its own settings.
    """
    state = read_checkpoint(path, trust)
    if not any(data.glob("dict*.txt")):
        raise UserError(
            f"--data {data} is no folder with a dict.*.txt; name the folder that "
            "fairseq-preprocess wrote"
        )
    from fairseq import checkpoint_utils

    import fairseq_kerbs.criterions
    import fairseq_kerbs.models  # noqa: F401  (both register)

    overrides = {"data": str(data)}
    set_aside(state.get("cfg"), state.get("args"))
    try:
        state = upgraded(state, overrides)
        if not (any_model or _is_ours(state)):
            raise UserError(
                f"{path} holds no model of fairseq_kerbs; name a checkpoint of one of its "
                "architectures"
            )
        if not trust:
            check_buildable(path, state["cfg"])
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(path)], arg_overrides=overrides, state=state
        )
    except UserError:
        raise
    except SystemExit as error:  # the sentence of our own models' check
        raise UserError(f"{path}: {sentence_of(error)}") from None
    except Exception as error:  # what fairseq raises about settings and sizes is of every kind
        raise UserError(
            f"{path} does not go with --data {data} ({reason_of(error)}); use the data that "
            "the model was trained on"
        ) from error
    return models[0].eval(), task


def settings_of(path: Path, state: dict[str, Any]) -> Any:
    """Settings of what :func:`read_checkpoint` gave, as a configuration of fairseq.

    Raises:
        UserError: what the file has in their place is none.
    """
    import fairseq_kerbs.criterions
    import fairseq_kerbs.models  # noqa: F401  (both register)

    try:
        config = upgraded(state, {})["cfg"]
        for part in (config.model, config.task):  # which all that follows takes for granted
            vars(part) if isinstance(part, argparse.Namespace) else part.keys()
    except Exception as error:  # of every kind, in a file that something else wrote
        raise UserError(
            f"{path} has no settings of fairseq ({reason_of(error)}); take the file that "
            "fairseq-train wrote"
        ) from error
    return config


def sentence_of(error: SystemExit) -> str:
    """What our own models say when they end a command, without its beginning."""
    return str(error).removeprefix("fairseq_kerbs: error: ").rstrip(".")


def reason_of(error: BaseException) -> str:
    """One line of an error of fairseq's or torch's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # the first line of torch's list says only that there is one
    return shorten(lines[1 if len(lines) > 1 else 0], 200) if lines else type(error).__name__


def upgraded(state: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The state as fairseq's own reader hands it on: settings as a configuration, overridden."""
    from fairseq import checkpoint_utils
    from fairseq.dataclass.utils import overwrite_args_by_name
    from omegaconf import OmegaConf

    if state.get("args") is not None:  # fairseq before 0.10
        for name, value in overrides.items():
            setattr(state["args"], name, value)
    if state.get("cfg") is not None:
        state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
        overwrite_args_by_name(state["cfg"], overrides)
    upgraded: dict[str, Any] = checkpoint_utils._upgrade_state_dict(state)
    return upgraded


def _is_ours(state: dict[str, Any]) -> bool:
    """Whether the settings name an architecture of this package; nothing is built to find out."""
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY

    settings = state["cfg"].model if state.get("cfg") is not None else state["args"]
    for name in (getattr(settings, "_name", None), getattr(settings, "arch", None)):
        model = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name)
        if model is not None:
            return str(model.__module__).startswith("fairseq_kerbs.")
    return False
