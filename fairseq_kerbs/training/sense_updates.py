"""Training hook: update the statistics after every update, and move senses on a schedule.

The hook wraps ``optimizer_step`` and ``train_step`` of the task instance, so it works with every
task. fairseq calls ``optimizer_step`` once per update, also with ``--update-freq``. Senses move at
the start of the next update. Validation and checkpoints between the two therefore never contain
senses that have just moved and are untrained.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from fairseq import metrics
from fairseq.distributed import utils as distributed_utils
from torch import Tensor, nn

from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import Moves, Policy, apply_moves, propose_moves, reset_moments
from fairseq_kerbs.torch_compat import OUT_OF_MEMORY
from fairseq_kerbs.utils.dictionaries import remember_dictionaries
from fairseq_kerbs.utils.failures import note_update
from fairseq_kerbs.utils.progress import progress

logger = logging.getLogger(__name__)

QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class SenseSchedule:
    """When and how the training hook updates and moves senses."""

    policy: Policy | None  # with its settings. None moves no sense
    interval: int  # updates between reallocations, Q, or those in which contexts are sampled
    decay: float  # β of Eq. 12–13
    at: frozenset[int] = frozenset()  # updates after which senses move. Default: every interval

    def moves_after(self, updates: int) -> bool:
        """Whether senses move after this number of updates."""
        return updates in self.at if self.at else updates % self.interval == 0

    def samples_after(self, updates: int) -> bool:
        """Whether the contexts of the next update are sampled."""
        if self.policy is None or not self.policy.needs_contexts:
            return False
        near = range(updates + 1, updates + self.interval + 1)
        return any(map(self.moves_after, near))


def install_hook(task: Any, schedule: SenseSchedule) -> None:
    """Make a task run :class:`SenseUpdates` around its updates.

    A task is wrapped once. If it builds another model, it uses the schedule of that model.
    """
    remember_dictionaries(task)
    wrapped = hasattr(task, "_kerbs_updates")
    task._kerbs_updates = SenseUpdates(schedule, task.target_dictionary)
    if wrapped:
        return
    stock_step = task.optimizer_step
    stock_train = task.train_step

    def optimizer_step(optimizer: Any, model: nn.Module, update_num: int) -> None:
        stock_step(optimizer, model=model, update_num=update_num)
        task._kerbs_updates.after_update(model, update_num)

    def train_step(
        sample: Any,
        model: nn.Module,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
        **kwargs: Any,
    ) -> Any:
        updates = task._kerbs_updates
        updates.before_update(optimizer, model, update_num)
        # a process that has run out of data repeats an old batch with zero gradient, and mixed
        # precision repeats an update that overflowed: no batch must count twice in the statistics
        inventories = [layer.inventory for layer in kerbs_layers(model)]
        for inventory in inventories:
            inventory.recording = not (ignore_grad or updates.has(update_num))
        try:
            return stock_train(
                sample, model, criterion, optimizer, update_num, ignore_grad=ignore_grad, **kwargs
            )
        finally:
            for inventory in inventories:
                inventory.recording = True

    task.optimizer_step = optimizer_step
    task.train_step = train_step


def kerbs_layers(model: nn.Module) -> Iterator[KerbsOutputLayer]:
    """All KerBS output layers of a (possibly wrapped) model."""
    return (module for module in model.modules() if isinstance(module, KerbsOutputLayer))


class SenseUpdates:
    """Statistics, reallocation and their logging for one training."""

    def __init__(self, schedule: SenseSchedule, dictionary: Any) -> None:
        self.schedule = schedule
        self._special = dictionary.nspecial
        counts = torch.tensor(dictionary.count)
        # all are 1 in a dictionary without counts
        self._counts: Tensor | None = counts if counts.max() > 1 else None
        self._last_update = -1
        self._last_begun = -1
        self._summary: dict[str, float] = {}
        self._warned = False

    def check(self, model: nn.Module, max_update: int) -> None:
        """Warn of a training that ends before a policy that reads contexts can move a sense."""
        policy = self.schedule.policy
        if policy is None or not policy.needs_contexts or not any(kerbs_layers(model)):
            return
        first = min(self.schedule.at, default=self.schedule.interval)
        if 0 < max_update <= first:
            logger.warning(
                f"--reallocation {policy.name} moves no sense before update {first}, and "
                f"--max-update is {max_update}: give --reallocation-at 0.2, or a longer training."
            )

    def before_update(self, optimizer: Any, model: nn.Module, update_num: int) -> None:
        """Move senses if the schedule says so after ``update_num`` updates."""
        # already done by an earlier micro-batch, or before mixed precision repeated the update
        if update_num == self._last_begun:
            return
        self._last_begun = update_num
        for layer in kerbs_layers(model):
            if update_num == 0 and self._last_update < 0:  # drop statistics of another training
                layer.sample = None
                layer.inventory.start_interval()
                layer.inventory.log_prob.zero_()  # U stays: it is the prior of the composition
            elif update_num > 0 and self.schedule.moves_after(update_num):
                try:
                    moved = self._reallocate(optimizer, layer, update_num)
                except OUT_OF_MEMORY as error:  # fairseq would continue after incomplete moves
                    raise MemoryError(
                        "the accelerator has no memory left to move senses."
                    ) from error
                metrics.log_scalar_sum("senses_moved", moved, priority=1500)
                self._summary = {}
            first = distributed_utils.get_global_rank() == 0
            if not (first and self.schedule.samples_after(update_num)):
                layer.sample = None
            elif layer.sample is None:
                layer.start_sampling(self._counts, self._special)

    def has(self, update_num: int) -> bool:
        """Whether the statistics include update ``update_num``, counted from 0."""
        return update_num <= self._last_update

    def after_update(self, model: nn.Module, update_num: int) -> None:
        """Add update ``update_num``, counted from 0, to the statistics."""
        note_update()
        if self.has(update_num):
            return
        self._last_update = update_num
        for layer in kerbs_layers(model):
            if distributed_utils.get_data_parallel_world_size() > 1:
                group = distributed_utils.get_data_parallel_group()
                distributed_utils.all_reduce(layer.inventory.pending, group=group)
            layer.update_statistics(self.schedule.decay)
            if not self._summary or update_num % self.schedule.interval == 0:
                self._summary = summarize(layer)
            for name, value in self._summary.items():
                metrics.log_scalar(name, value, priority=1510, round=3)

    def _reallocate(self, optimizer: Any, layer: KerbsOutputLayer, updates: int) -> int:
        """Move senses in model and optimizer, and return the number of moved senses."""
        policy = self.schedule.policy
        if policy is None:
            return 0
        if not layer.inventory.interval_count.any():
            if self._last_update >= 0 and not self._warned:
                self._warned = True
                logger.warning(
                    "no sense statistics were recorded, so no sense can move: reallocation needs "
                    "--criterion kerbs_cross_entropy."
                )
            return 0
        moves = self._propose(layer, policy)
        if moves is None:
            return 0
        if not len(moves):
            layer.inventory.start_interval()  # as it would if senses had moved
            if policy.needs_contexts:
                reason = policy.describe_none()
                logger.warning(f"reallocation after {updates} updates: {reason}.")
            return 0
        for parameter, values in apply_moves(layer.sense_state(), moves):
            master, rows = master_copy(optimizer, parameter, moves.senses)
            if moves.reset_moments or values is not None:
                reset_moments(getattr(optimizer, "optimizer", optimizer), [master], rows)
            if values is not None and master is not parameter:
                shape = (len(rows), *master.shape[1:])
                master.data[rows.to(master.device)] = values.to(master).reshape(shape)
        done = policy.describe(moves, layer.senses_per_word())
        logger.info(f"reallocation after {updates} updates: {done}")
        return moves.moved

    def _propose(self, layer: KerbsOutputLayer, policy: Policy) -> Moves | None:
        """Moves that a policy proposes, or None if it reads contexts and none were sampled."""
        moves = None
        if not policy.needs_contexts or layer.sample is not None:
            bar = partial(progress, title=policy.name, unit=" batches")
            moves = propose_moves(layer.sense_state(bar), policy)
        if policy.needs_contexts:
            layer.sample = None
            # only the first process has contexts
            if distributed_utils.get_data_parallel_world_size() > 1:
                group = distributed_utils.get_data_parallel_group()
                moves = distributed_utils.broadcast_object(moves, 0, group, layer.weight.device)
        return moves


def summarize(layer: KerbsOutputLayer) -> dict[str, float]:
    """Numbers of words by number of senses, and quantiles of θ, by their names in logs."""
    counts = torch.bincount(layer.senses_per_word().cpu(), minlength=layer.max_senses + 1)
    summary = {f"words_with_{n}": float(counts[n]) for n in range(1, len(counts))}
    if layer.has_theta:
        # torch.quantile is limited to 16 million values
        theta = layer.kernel.theta_of(layer.theta.detach().float().cpu()).sort().values
        for quantile in QUANTILES:
            place = round(quantile * (len(theta) - 1))
            summary[f"theta_q{round(100 * quantile):02d}"] = float(theta[place])
    return summary


def master_copy(optimizer: Any, parameter: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The tensor that an optimizer updates in place of a parameter, and its rows [K'].

    That is the parameter itself with ``rows`` [K], or a float32 copy.

    fairseq's FP16 optimizers update this copy and write it over the parameters. It is one flat
    tensor per device, of which a row is a single number, or with ``--fp16-no-flatten-grads`` one
    tensor per parameter. It keeps a θ of 1e-8, which underflows in a float16 parameter.
    """
    masters = getattr(optimizer, "fp32_params", None)
    if isinstance(masters, dict):
        flat = [copied for copied in optimizer.fp16_params if copied.device == parameter.device]
        number = next(n for n, copied in enumerate(flat) if copied is parameter)
        before = sum(copied.numel() for copied in flat[:number])
        width = parameter[0].numel()
        rows = (before + rows.cpu().unsqueeze(1) * width + torch.arange(width)).flatten()
        return masters[parameter.device.index], rows
    if masters is not None:
        pairs = zip(optimizer.fp16_params, masters)
        return next(master for copied, master in pairs if copied is parameter), rows
    return parameter, rows
