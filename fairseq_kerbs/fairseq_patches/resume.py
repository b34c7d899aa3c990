"""What fairseq lacks so that an interrupted training goes on as if nothing had happened.

It restores parameters, moments, the place in the data and, seeding by the number of the update,
dropout. It looks neither at the dictionaries nor at the number of processes, although the place in
an epoch is a number of batches of each process.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils, distributed_utils
from fairseq.trainer import Trainer

from fairseq_kerbs.fairseq_patches.registry import patched
from fairseq_kerbs.utils.dictionaries import check_dictionaries
from fairseq_kerbs.utils.errors import ProgramEnd, interruption

logger = logging.getLogger(__name__)

_loading: ContextVar[tuple[Any, str] | None] = ContextVar("loading", default=None)


@patched(distributed_utils, "call_main", "Ctrl-C ends in a traceback, and nothing says what to do")
def call_main(stock: Any, cfg: Any, main: Any, **kwargs: Any) -> None:
    """Say in one line how to go on."""
    try:
        stock(cfg, main, **kwargs)
    except KeyboardInterrupt:
        last = Path(cfg.checkpoint.save_dir, "checkpoint_last.pt")
        known = main.__module__ == "fairseq_cli.train" and last.exists()
        if not cfg.distributed_training.distributed_rank:  # None where it has started the others
            print(f"fairseq_kerbs: {interruption(last if known else '')}", file=sys.stderr)
        sys.exit(130)


@patched(checkpoint_utils, "load_checkpoint", "the end of an epoch and of the training are missed")
def load_checkpoint(stock: Any, cfg: Any, trainer: Any, **arguments: Any) -> Any:
    """Do what fairseq leaves out where it begins a training from a checkpoint.

    The loss of an epoch that has just ended is not in the schedule of the learning rate yet, and
    ``--max-update`` is looked at after an update alone: a finished training would make one more.
    """
    extra_state, epoch_itr = stock(cfg, trainer, **arguments)
    made, most = trainer.get_num_updates(), trainer.cfg.optimization.max_update
    reset = cfg.reset_lr_scheduler or cfg.reset_optimizer or cfg.reset_dataloader
    if extra_state is not None and not reset and made > 0:
        place, loss = extra_state["train_iterator"], extra_state.get("val_loss")
        if place.get("iterations_in_epoch") == 0 and loss is not None:
            trainer.lr_step(place["epoch"] - 1, loss)
    if hasattr(trainer.task, "_kerbs_updates"):
        trainer.task._kerbs_updates.check(trainer.get_model(), most)
    if most and made >= most:
        logger.info(f"nothing to do: {made} updates are made and --max-update is {most}")
        trainer.cfg.optimization.max_epoch = -1  # before the first: no epoch begins
    return extra_state, epoch_itr


@patched(Trainer, "load_checkpoint", "neither dictionaries nor number of processes are looked at")
def trainer_load_checkpoint(
    stock: Any, trainer: Any, filename: str, *args: Any, **kwargs: Any
) -> Any:
    """Let :func:`look_into_checkpoint` know who is reading."""
    before = _loading.set((trainer, filename))
    try:
        return stock(trainer, filename, *args, **kwargs)
    finally:
        _loading.reset(before)


@patched(checkpoint_utils, "load_checkpoint_to_cpu", "the trainer looks at a part of it alone")
def look_into_checkpoint(stock: Any, *args: Any, **kwargs: Any) -> Any:
    """Check what a trainer has read. One process reads for all: it is the same for all."""
    state = stock(*args, **kwargs)
    if (reader := _loading.get()) is not None:
        trainer, filename = reader
        check_dictionaries(state, trainer.task)
        wanted = trainer.cfg.checkpoint
        if not wanted.reset_dataloader and filename != wanted.finetune_from_model:
            keep_the_place(state, trainer.cfg)
    return state


def keep_the_place(state: dict[str, Any], cfg: Any) -> None:
    """Count the batches that are done for the number of processes that there are now.

    Of n batches in each of N processes, N·n of the epoch's are done: ⌊N·n/N'⌋ in each of N', and of
    these a multiple of --update-freq, since fairseq never ends an epoch that it enters inside of an
    update. The place in ``state``, a checkpoint, is changed for the settings ``cfg`` of the
    training that goes on from it, and what changes is said in one sentence.
    """
    if state.get("cfg") is None:  # fairseq before 0.10
        return
    place = state["extra_state"]["train_iterator"]
    epoch, done = place["epoch"], place.get("iterations_in_epoch", 0)
    processes, frequency = _processes_and_frequency(state["cfg"], epoch)
    processes_now, frequency_now = _processes_and_frequency(cfg, epoch)
    if (processes, frequency) == (processes_now, frequency_now):
        return
    if done and processes != processes_now and cfg.dataset.grouped_shuffling:
        raise ProgramEnd(
            f"the checkpoint is from the middle of an epoch of {processes} processes, here are "
            f"{processes_now}, and --grouped-shuffling orders the batches of each number in "
            "another way: start as many processes, or give --reset-dataloader to begin the epochs "
            "anew."
        )
    batches, batches_now = processes * frequency, processes_now * frequency_now
    place["iterations_in_epoch"] = processes * done // batches_now * frequency_now
    if place["iterations_in_epoch"] == 0 and done:
        # not the end of an epoch, whose loss the learning rate's schedule would be told
        state["extra_state"]["val_loss"] = None
    keep = ""
    if batches != batches_now and batches % processes_now == 0:
        keep = f": --update-freq {batches // processes_now} would keep it"
    logger.warning(
        f"the checkpoint was written by {processes} processes with --update-freq {frequency}, here "
        f"are {processes_now} with {frequency_now}: epoch {epoch} goes on after "
        f"{processes_now * place['iterations_in_epoch']} of the {processes * done} batches done; "
        f"an update was made of {batches} batches, and is of {batches_now} now{keep}."
    )


def _processes_and_frequency(cfg: Any, epoch: int) -> tuple[int, int]:
    """Number of processes, and batches of each in one update of an epoch."""
    by_epoch = cfg.optimization.update_freq
    return int(cfg.distributed_training.distributed_world_size), int(by_epoch[:epoch][-1])
