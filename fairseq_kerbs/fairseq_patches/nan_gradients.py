"""A gradient that is not finite ends a training with one sentence.

fairseq repeats the update under hooks that look for where it went wrong. Its hooks for the
backward pass need a tensor in what every module returns, and a Transformer's encoder returns lists
in a dictionary: the training ends in a StopIteration that says nothing. Without them, the repeated
forward pass names the first module whose output is not finite in the log.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from fairseq import trainer as fairseq_trainer
from fairseq.nan_detector import NanDetector
from fairseq.trainer import Trainer

from fairseq_kerbs.models.config import fail

NOT_FINITE = "its gradient is not finite (NaN or infinity)"


class ForwardNanDetector(NanDetector):
    """fairseq's detector without hooks of the backward pass, and without printing all gradients."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, forward=True, backward=False)

    def __exit__(self, *_: object) -> None:
        self.close()


def end_with_a_sentence() -> None:
    """Replace what the trainer does in the running program; a second call changes nothing."""
    if fairseq_trainer.NanDetector is ForwardNanDetector:
        return
    fairseq_trainer.NanDetector = ForwardNanDetector
    stock_clip, stock_step = Trainer.clip_grad_norm, Trainer.train_step

    @functools.wraps(stock_clip)
    def clip_grad_norm(trainer: Any, clip_norm: float) -> Any:
        # an overflow of mixed precision is for its scaler to mend; on a CPU --amp has none
        # (fairseq would ask it for its scale). Several GPUs would be called inconsistent.
        amp = trainer.cfg.common.amp
        scaled = amp and trainer.optimizer.scaler.is_enabled()
        if amp and not scaled:
            norm = trainer.optimizer.fp32_optimizer.clip_grad_norm(clip_norm)
        else:
            norm = stock_clip(trainer, clip_norm)
        if not scaled and not torch.isfinite(norm).all():
            raise FloatingPointError(NOT_FINITE)
        return norm

    @functools.wraps(stock_step)
    def train_step(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return stock_step(trainer, *args, **kwargs)
        except FloatingPointError as error:  # also of a scaler that has reached its end
            # fairseq's own reasons have advice in further sentences
            reason = str(error).removeprefix("Fatal error: ").split(". ")[0]
            fail(
                f"update {trainer.get_num_updates() + 1} was not made: {reason}; try a lower --lr "
                "or --clip-norm, or look for damaged lines in the data; the checkpoints in "
                f"{trainer.cfg.checkpoint.save_dir} are as they were."
            )

    Trainer.clip_grad_norm, Trainer.train_step = clip_grad_norm, train_step
