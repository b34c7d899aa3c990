"""A gradient that is not finite ends a training with one sentence; --amp keeps finite ones.

fairseq repeats the update under hooks that look for where it went wrong. Those of the backward pass
stop in a StopIteration at a Transformer's encoder, which returns no tensor. Without them, the
repeated forward pass names the first module whose output is not finite in the log.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq import trainer as fairseq_trainer
from fairseq.nan_detector import NanDetector
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.trainer import Trainer

from fairseq_kerbs.fairseq_patches.registry import patched, replace
from fairseq_kerbs.utils.errors import ProgramEnd


class ForwardNanDetector(NanDetector):
    """fairseq's detector without hooks of the backward pass, and without printing all gradients."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, forward=True, backward=False)

    def __exit__(self, *_: object) -> None:
        self.close()


_REASON = "its backward hooks stop at a Transformer's encoder, which returns no tensor"
replace(fairseq_trainer, "NanDetector", ForwardNanDetector, _REASON)


@patched(Trainer, "clip_grad_norm", "a gradient that is not finite would be applied, or end badly")
def clip_grad_norm(stock: Any, trainer: Any, clip_norm: float) -> Any:
    """Refuse a norm that is not finite, unless mixed precision takes the update back itself."""
    # on a CPU --amp has no scaler, and fairseq would ask it for its scale; several GPUs would be
    # called inconsistent
    amp = trainer.cfg.common.amp
    scaled = amp and trainer.optimizer.scaler.is_enabled()
    if amp and not scaled:
        norm = trainer.optimizer.fp32_optimizer.clip_grad_norm(clip_norm)
    else:
        norm = stock(trainer, clip_norm)
    if not scaled and not torch.isfinite(norm).all():
        raise FloatingPointError("its gradient is not finite (NaN or infinity)")
    return norm


@patched(AMPOptimizer, "step", "gradients would be divided by the scale of the loss once more")
def amp_step(_: Any, optimizer: AMPOptimizer) -> None:
    """Step by torch's optimizer, for which clipping has divided them: the scaler remembers whose
    they are by the object, and fairseq's is another."""
    optimizer.scaler.step(optimizer.optimizer)
    optimizer.scaler.update()


@patched(Trainer, "train_step", "what is wrong is said in a traceback")
def train_step(stock: Any, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """End the training with one sentence where an update cannot be made."""
    try:
        return stock(trainer, *args, **kwargs)
    except FloatingPointError as error:  # also of a scaler that has reached its end
        # fairseq's own reasons have advice in further sentences
        reason = str(error).removeprefix("Fatal error: ").split(". ")[0]
        raise ProgramEnd(
            f"update {trainer.get_num_updates() + 1} was not made: {reason}; try a lower --lr "
            "or --clip-norm, or look for damaged lines in the data; the checkpoints in "
            f"{trainer.cfg.checkpoint.save_dir} are as they were."
        ) from error
