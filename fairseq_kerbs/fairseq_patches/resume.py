"""What fairseq's training program lacks so that an interrupted training ends as any other does.

fairseq restores parameters, moments, the place in the data and, seeding by the number of the
update, dropout. Two things it leaves open, for every model; they are closed here for trainings
of ours, whichever way fairseq was installed.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

from fairseq import checkpoint_utils

logger = logging.getLogger(__name__)

PROGRAM = "fairseq_cli.train"
_DONE = "_resumes_exactly"  # marks what has been replaced


def resume_exactly() -> None:
    """Close the gaps in the running program; a second call changes nothing.

    - ``--max-update`` is looked at before an update as well: a finished training that is started
      again makes no update and writes no file.
    - A checkpoint is written at the end of an epoch before the learning rate hears of its
      validation loss: when training goes on from there, it is told (reduce_lr_on_plateau).
    """
    if not hasattr(checkpoint_utils.load_checkpoint, _DONE):
        _tell_the_schedule()
    for module in _programs():
        if not hasattr(module.train, _DONE):
            _stop_before_another_update(module)


def _programs() -> list[Any]:
    """The training program as fairseq's commands import it, and as ``python -m`` runs it."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    found = [main] if spec is not None and spec.name == PROGRAM else []
    return [module for module in [*found, sys.modules.get(PROGRAM)] if hasattr(module, "train")]


def _tell_the_schedule() -> None:
    stock = checkpoint_utils.load_checkpoint

    @functools.wraps(stock)
    def load_checkpoint(cfg: Any, trainer: Any, **arguments: Any) -> Any:
        extra_state, epoch_itr = stock(cfg, trainer, **arguments)
        reset = cfg.reset_lr_scheduler or cfg.reset_optimizer or cfg.reset_dataloader
        if extra_state is not None and not reset and trainer.get_num_updates() > 0:
            place, loss = extra_state["train_iterator"], extra_state.get("val_loss")
            if place.get("iterations_in_epoch") == 0 and loss is not None:
                trainer.lr_step(place["epoch"] - 1, loss)
        return extra_state, epoch_itr

    setattr(load_checkpoint, _DONE, True)
    checkpoint_utils.load_checkpoint = load_checkpoint


def _stop_before_another_update(module: Any) -> None:
    stock = module.train

    @functools.wraps(stock)
    def train(cfg: Any, trainer: Any, task: Any, epoch_itr: Any) -> tuple[list[Any], bool]:
        most, made = cfg.optimization.max_update, trainer.get_num_updates()
        if most and made >= most:
            logger.info(f"nothing to do: {made} updates are made and --max-update is {most}")
            return [None], True
        result: tuple[list[Any], bool] = stock(cfg, trainer, task, epoch_itr)
        return result

    setattr(train, _DONE, True)
    module.train = train
