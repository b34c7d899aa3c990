"""What fairseq's trainer does not look at in a checkpoint: dictionaries and number of processes.

The place in an epoch's data is kept as a number of batches of each process. fairseq takes it as it
is when there are more or fewer processes: two that become one silently go back to half of the way,
one that becomes two jumps ahead, or ends in a traceback about a mismatch.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from fairseq_kerbs.fairseq_patches.dictionaries import check_dictionaries
from fairseq_kerbs.models.config import fail

logger = logging.getLogger(__name__)

_DONE = "_looks_into_checkpoints"  # marks what has been replaced


def look_into_checkpoints() -> None:
    """Replace the trainer's reading in the running program; a second call changes nothing."""
    stock = Trainer.load_checkpoint
    if hasattr(stock, _DONE):
        return

    @functools.wraps(stock)
    def load_checkpoint(trainer: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
        # one process reads and sends the others what it has read: here it is the same for all
        read = checkpoint_utils.load_checkpoint_to_cpu

        @functools.wraps(read)
        def read_and_look(*read_args: Any, **read_kwargs: Any) -> Any:
            state = read(*read_args, **read_kwargs)
            check_dictionaries(state, trainer.task)
            wanted = trainer.cfg.checkpoint
            if not wanted.reset_dataloader and filename != wanted.finetune_from_model:
                keep_the_place(state, trainer.cfg)
            return state

        checkpoint_utils.load_checkpoint_to_cpu = read_and_look
        try:
            return stock(trainer, filename, *args, **kwargs)
        finally:
            checkpoint_utils.load_checkpoint_to_cpu = read

    setattr(load_checkpoint, _DONE, True)
    Trainer.load_checkpoint = load_checkpoint


def keep_the_place(state: dict[str, Any], cfg: Any) -> None:
    """Count the batches that are done for the number of processes that there are now.

    Of n batches in each of N processes, N·n of the epoch's are done: ⌊N·n/N'⌋ in each of N'. What
    changes is said in one sentence.

    Args:
        state: a checkpoint; its place is changed.
        cfg: settings of the training that goes on from it.
    """
    before_cfg = state.get("cfg")
    if before_cfg is None:  # fairseq before 0.10
        return
    before, now = (
        int(each.distributed_training.distributed_world_size) for each in (before_cfg, cfg)
    )
    place = state["extra_state"]["train_iterator"]
    if before == now:
        return
    batches, epoch = before * place.get("iterations_in_epoch", 0), place["epoch"]
    if batches and cfg.dataset.grouped_shuffling:
        fail(
            f"the checkpoint is from the middle of an epoch of {before} processes, here are {now}, "
            "and --grouped-shuffling orders the batches of each number in another way: start as "
            "many processes, or give --reset-dataloader to begin the epochs anew."
        )
    place["iterations_in_epoch"], again = divmod(batches, now)
    if place["iterations_in_epoch"] == 0 and batches:
        # not the end of an epoch, whose loss the learning rate's schedule would be told
        state["extra_state"]["val_loss"] = None
    sentence = f"the checkpoint was written by {before} processes, here are {now}: epoch {epoch} "
    sentence += f"goes on after its first {batches - again} batches" if batches else "begins"
    if again:
        sentence += f", the last {again} of those done come again"
    old, new = (_update_freq(each, epoch) for each in (before_cfg, cfg))
    if before * old != now * new:
        sentence += (
            f"; an update was made of {before * old} batches and is of {now * new} now (processes "
            "times --update-freq)"
        )
        if before * old % now == 0:
            sentence += f": --update-freq {before * old // now} would keep it"
    logger.warning(f"{sentence}.")


def _update_freq(cfg: Any, epoch: int) -> int:
    """Batches of each process in one update."""
    by_epoch = cfg.optimization.update_freq
    return int(by_epoch[min(epoch, len(by_epoch)) - 1])
