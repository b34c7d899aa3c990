"""Checks before a training starts: checkpoints, dictionaries, flags and the save folder.

fairseq has none of these checks. They run when the model is built and at the start of the first
epoch. At that point nothing has been written, so a refusal changes no file.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

from fairseq.distributed import utils as distributed_utils
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import nn

from fairseq_kerbs import torch_compat
from fairseq_kerbs.configurations import flag_of
from fairseq_kerbs.kernels import kernel_options
from fairseq_kerbs.likelihood import compilation
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.checkpoint_files import (
    LAST,
    NO_FILE,
    check_checkpoint,
    check_whole,
    is_remote,
    with_suffix,
)
from fairseq_kerbs.utils.dictionaries import check_dictionaries
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import lock_folder

logger = logging.getLogger(__name__)
SCORING = (
    "kernel",
    "mixture_kernels",
    "mixture_tanh_scale",
    *(f"kernel_{option}" for option in kernel_options()),
)
"""Settings that change scores without changing the names and shapes of parameters."""


def check_named_checkpoints() -> None:
    """Raise a UserError if a file of ``--path`` is damaged. torch itself verifies no checksum."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--path", default="")
    parser.add_argument("--checkpoint-suffix", default="")
    program = Path(sys.argv[0])
    if program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli":
        given, _ = parser.parse_known_args()
        named = with_suffix(given.path, given.checkpoint_suffix)
        for path in map(Path, named.split(os.pathsep)):
            if path.is_file():
                check_whole(path)


def leave_out_copies(model: nn.Module) -> list[str]:
    """Remove the fast path of an unedited fairseq's encoders, and return its parameters' names.

    It fails on padded batches since torch 1.13. Its untrained copies stop distributed training.
    """
    removed = []
    for prefix, layer in model.named_modules():
        if isinstance(layer, TransformerEncoderLayerBase) and hasattr(layer, "load_to_BT"):
            for name, _ in [*layer.named_parameters(recurse=False)]:
                delattr(layer, name)
                removed.append(f"{prefix}.{name}")
            # fairseq's loader fills the copies, and turns the other computation on
            layer._load_from_state_dict = partial(nn.Module._load_from_state_dict, layer)
    return removed


def guard_training(task: Any, settings: dict[str, Any], args: Any) -> None:
    """Check the training before the first epoch, and lock its save folder.

    Without the lock two trainings could overwrite each other's checkpoints.
    """
    if settings.get("store_ema"):
        raise UserError("--store-ema would average senses that move to other words: leave it out.")
    begin_epoch = task.begin_epoch
    locks: list[Any] = []

    def guarded(epoch: int, model: Any) -> None:
        if not locks:
            locks.append(begin(task, model, settings, args))
        begin_epoch(epoch, model)

    task.begin_epoch = guarded


def begin(task: Any, model: Any, settings: dict[str, Any], args: Any) -> Any:
    """Check the training and return the lock of its save folder, or None if nothing is saved.

    Raises a SystemExit with status 0 if all updates are done.
    """
    max_update = settings.get("max_update") or 0
    folder = settings.get("save_dir")
    updates = check_resumed(settings, task, args) if folder else 0
    if 0 < max_update <= updates:  # fairseq checks this only after an update
        logger.info(f"nothing to do: {updates} updates are done and --max-update is {max_update}")
        raise SystemExit(0)
    task._kerbs_updates.check(model, max_update)
    expect_updates(model, max_update)
    if not folder or settings.get("no_save") or distributed_utils.get_global_rank() > 0:
        return None
    refusal = f"--save-dir {folder} is in use by another training: wait for it, or name another."
    return lock_folder(Path(str(folder)), refusal)


def expect_updates(model: nn.Module, max_update: int) -> None:
    """Tell the likelihood how long the training is, which decides whether it compiles.

    ``max_update`` is the number of all updates, also those before an interruption. 0 is unknown.
    """
    compilation.expect_updates(max_update or None)
    if not max_update or distributed_utils.get_global_rank() > 0:
        return
    for layer in model.modules():
        if isinstance(layer, OutputLayer) and layer.may_compile:
            logger.info(compilation.describe(layer.total_senses, layer.vocab_size))


def check_resumed(settings: dict[str, Any], task: Any, args: Any) -> int:
    """Check the checkpoint that a training resumes from, and return its number of updates.

    Raises a UserError if it is damaged, or was trained with other dictionaries, another output
    layer or another kernel, or in the other direction.
    """
    file, reset = _file_to_resume(settings)
    if not file.is_file():
        return 0
    check_whole(file)
    state = torch_compat.load(file, weights_only=False, mmap=zipfile.is_zipfile(file))
    check_dictionaries(state, task, direction=not reset)
    settings_then = state.get("cfg") or {}
    trained = settings_then.get("model") or {}
    if not isinstance(trained, dict):
        trained = vars(trained)
    _check_scoring(file, trained, args)
    if not reset:
        check_policy(file, trained, args)
    history = state.get("optimizer_history")
    updates = int(history[-1].get("num_updates", 0)) if history else 0
    if updates and state.get("last_optimizer_state") is None:
        reset = True
        logger.warning(
            f"{file} has no state of the optimizer (--no-save-optimizer-state): the schedule and "
            f"the number of updates ({updates}) are reset"
        )
    return 0 if reset else updates


def _file_to_resume(settings: dict[str, Any]) -> tuple[Path, bool]:
    """The checkpoint that a training begins with, and whether it counts its updates anew.

    There need not be such a file. Raises a UserError if a flag names one that is not there, with
    which fairseq would begin a new training, or one that is damaged.
    """
    named = settings.get("restore_file") or LAST
    file = Path(with_suffix(named, settings.get("checkpoint_suffix")))
    if named == LAST:  # other names are not relative to the save folder
        file = Path(settings["save_dir"], file)
        if not file.is_file() and settings.get("continue_once"):
            file = Path(settings["continue_once"])
            if not file.is_file():
                raise UserError(f"--continue-once {file}: there is no such file.")
    elif named != NO_FILE and not is_remote(named):
        check_checkpoint(file, "--restore-file")
    if not file.is_file() and settings.get("finetune_from_model"):
        file = Path(settings["finetune_from_model"])
        if not is_remote(str(file)):
            check_checkpoint(file, "--finetune-from-model")
        return file, True
    return file, bool(settings.get("reset_optimizer"))


def _check_scoring(file: Path, trained: dict[str, Any], args: Any) -> None:
    """Raise a UserError if a training goes on with another output layer or kernel.

    ``trained`` are the flags of the checkpoint ``file``.
    """
    for name in SCORING:
        value = getattr(args, name, None)
        flag = flag_of(name)
        if name not in trained or trained[name] == value:
            continue
        if trained[name] is None:
            raise UserError(f"{file} was trained without {flag}: leave it out.")
        flag = f"{flag} {trained[name]}"
        other = "without it" if value is None else value
        raise UserError(f"{file} was trained with {flag}, not {other}: give {flag}.")


def check_policy(file: Path, trained: dict[str, Any], args: Any) -> None:
    """Raise a UserError if a training goes on under another reallocation policy.

    Args:
        file: the checkpoint.
        trained: its flags.
        args: the flags of this training. A policy of "none", which ends all moves, is accepted.
    """
    former = trained.get("reallocation")
    policy = args.reallocation
    if args.output_layer == "kerbs" and former not in (None, policy) and policy != "none":
        stopping = "" if former == "none" else ", or --reallocation none, which moves no sense"
        raise UserError(
            f"{file} was trained with --reallocation {former}, not {policy}: give --reallocation "
            f"{former}{stopping}."
        )
