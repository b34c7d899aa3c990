"""What keeps a training, and what it has learned, from harm, in places that fairseq calls.

fairseq has no check of its own for any of this. It builds a model by ``build_model``, and begins
each update, of a training alone, by the task's ``train_step``: before the first one nothing has
been written, so a refusal there leaves everything as it was.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

from fairseq.data.iterators import BackgroundConsumer
from fairseq.distributed import utils as distributed_utils
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from omegaconf import OmegaConf
from torch import nn

from fairseq_kerbs import torch_compat
from fairseq_kerbs.utils.dictionaries import check_dictionaries
from fairseq_kerbs.utils.errors import ProgramEnd, UserError
from fairseq_kerbs.utils.files import check_whole, lock_folder

logger = logging.getLogger(__name__)

SCORING = ("output_layer", "kernel", "mixture_kernels", "kernel_power", "kernel_alpha",
           "kernel_offset", "kernel_gamma", "kernel_a", "kernel_b")  # fmt: skip
"""Settings that change what parameters of the same names and shapes mean."""

_COPIES = [f"{name}_{kind}" for name in ("in_proj", "out_proj", "fc1", "fc2")
           for kind in ("weight", "bias")]  # fmt: skip


def settings_of_program(args: Any) -> dict[str, Any]:
    """All settings by name, of the ``args`` that fairseq builds a model by: a namespace has those
    of the whole command line, a configuration of Hydra's is a part of all."""
    if not OmegaConf.is_config(args):
        return vars(args)
    root = args._get_root()
    parts = [root.get(name) or {} for name in ("checkpoint", "optimization", "ema")]
    return {name: value for part in parts for name, value in part.items()}


def check_named_checkpoints() -> None:
    """Refuse a damaged file that ``--path`` of a program of fairseq's names: torch reads flipped
    bits as they are, for it was built without its check of the archive's sums."""
    program = Path(sys.argv[0])
    if program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli":
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--path", default="")
        for path in parser.parse_known_args()[0].path.split(os.pathsep):
            _check_file(Path(path))


def _check_file(path: Path) -> None:
    with _as_program_end():
        if path.is_file():
            check_whole(path)


@contextmanager
def _as_program_end() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise ProgramEnd(f"{error}.") from None


def leave_out_copies(model: nn.Module) -> None:
    """Keep encoders to the computation that training uses. An unedited fairseq has another one for
    decoding, which fails on padded batches with a current torch; its untrained copies of all
    weights stop distributed training."""
    for layer in model.modules():
        if isinstance(layer, TransformerEncoderLayerBase) and hasattr(layer, "load_to_BT"):
            for name in _COPIES:
                delattr(layer, name)
            # the loader of fairseq's fills the copies, and switches the other computation on
            layer._load_from_state_dict = partial(nn.Module._load_from_state_dict, layer)


def guard_training(task: Any, settings: dict[str, Any], args: Any) -> None:
    """Have a task look at its training before the first update, as :func:`begin` says."""
    if settings.get("store_ema"):
        raise ProgramEnd("--store-ema would average senses that move to other words: leave it out.")
    train_step = task.train_step
    held: list[Any] = []

    def guarded(sample: Any, model: Any, criterion: Any, optimizer: Any, update_num: int,
                *more: Any, **options: Any) -> Any:  # fmt: skip
        if not held:
            try:
                held.append(begin(task, model, update_num, settings, args))
            except SystemExit:
                stop_reading()
                raise
        return train_step(sample, model, criterion, optimizer, update_num, *more, **options)

    task.train_step = guarded


def stop_reading() -> None:
    """End the threads in which fairseq reads batches ahead: the interpreter aborts (SIGABRT) if one
    of them is at work when it ends."""
    for thread in threading.enumerate():
        while isinstance(thread, BackgroundConsumer) and thread.is_alive():
            thread._max_len = 0  # the next batch is the last
            with suppress(Empty):
                thread._queue.get_nowait()
            thread.join(0.01)


def begin(task: Any, model: Any, made: int, settings: dict[str, Any], args: Any) -> Any:
    """Before the first update of a process, when ``made`` have been made: what is held until its
    end, the lock of its folder. A SystemExit if there is nothing to do, or nothing may be done."""
    most, folder = settings.get("max_update") or 0, settings.get("save_dir")
    first = folder is not None and distributed_utils.get_global_rank() == 0
    if first:
        check_resumed(settings, task, made, args)
    if 0 < most <= made:  # fairseq looks at it after an update alone
        logger.info(f"nothing to do: {made} updates are made and --max-update is {most}")
        raise SystemExit(0)
    task._kerbs_updates.check(model, most)
    # fairseq-train has made the folder; a trainer that others drive may have none
    writes = first and not settings.get("no_save") and Path(str(folder)).is_dir()
    return take_folder(Path(str(folder))) if writes else None


def take_folder(folder: Path) -> Any:
    """The open lock of a save folder; a ProgramEnd if another training has it."""
    with _as_program_end():
        return lock_folder(
            folder,
            f"--save-dir {folder} is in use by another training: wait for its end, or name another "
            "folder",
        )


def check_resumed(settings: dict[str, Any], task: Any, made: int, args: Any) -> None:
    """Refuse, with a ProgramEnd, a checkpoint that is damaged, or whose words or scores are others
    than those of the training that goes on from it; say what begins anew where it has no state of
    the optimizer."""
    file = Path(settings.get("restore_file") or "checkpoint_last.pt")
    if file == Path("checkpoint_last.pt"):  # another name is not one in the save folder
        file = Path(settings["save_dir"], file)
    if not file.is_file() and settings.get("finetune_from_model"):
        file = Path(settings["finetune_from_model"])
    if not file.is_file():
        return
    _check_file(file)
    state = torch_compat.load(file, weights_only=False, mmap=zipfile.is_zipfile(file))
    check_dictionaries(state, task)
    trained = (state.get("cfg") or {}).get("model") or {}
    trained = trained if isinstance(trained, dict) else vars(trained)
    for name in SCORING:
        if name in trained and trained[name] != getattr(args, name, None):
            flag = f"--{name.replace('_', '-')}"
            raise ProgramEnd(
                f"{file} was trained with {flag} {trained[name]}, this training has "
                f"{getattr(args, name, None)}: give the {flag} that it was trained with."
            )
    updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates", 0)
    if made < updates and state.get("last_optimizer_state") is None:
        logger.warning(
            f"{file} has no state of the optimizer (--no-save-optimizer-state): parameters and the "
            f"place in the data are its own, the count of updates ({updates}) and the schedule of "
            "the learning rate begin anew"
        )
