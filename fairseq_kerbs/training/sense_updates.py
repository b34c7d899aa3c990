"""Training hook: statistics after every update, reallocation after every Q-th (Algorithm 1).

fairseq calls ``task.optimizer_step`` once per update, whatever ``--update-freq`` is, with the
optimizer at hand. Wrapping it on the task's instance keeps ``--task translation`` and all other
tasks as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from fairseq import metrics
from fairseq.distributed import utils as distributed_utils
from torch import Tensor, nn

from fairseq_kerbs.models.config import SenseSchedule
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import MOVED_THETA, Moves, reset_moments
from fairseq_kerbs.utils.dictionaries import remember_dictionaries

logger = logging.getLogger(__name__)

QUANTILES = (0.05, 0.5, 0.95)


def install_hook(task: Any, schedule: SenseSchedule) -> None:
    """Make a task run :class:`SenseUpdates` around its updates.

    A task that builds another model is wrapped only once, and goes by that model's schedule.
    """
    remember_dictionaries(task)
    wrapped = hasattr(task, "_kerbs_updates")
    task._kerbs_updates = SenseUpdates(schedule)
    if wrapped:
        return
    stock_step, stock_train = task.optimizer_step, task.train_step

    def optimizer_step(optimizer: Any, model: nn.Module, update_num: int) -> None:
        stock_step(optimizer, model=model, update_num=update_num)
        task._kerbs_updates.after_update(optimizer, model, update_num)

    def train_step(
        sample: Any, model: nn.Module, *args: Any, ignore_grad: bool = False, **kwargs: Any
    ) -> Any:
        # a process that has run out of data repeats an old batch with zero gradient: it must not
        # count twice in the statistics
        with _not_recording(model) if ignore_grad else nullcontext():
            return stock_train(sample, model, *args, ignore_grad=ignore_grad, **kwargs)

    task.optimizer_step, task.train_step = optimizer_step, train_step


@contextmanager
def _not_recording(model: nn.Module) -> Iterator[None]:
    before = [(layer.inventory, layer.inventory.recording) for layer in kerbs_layers(model)]
    try:
        for inventory, _ in before:
            inventory.recording = False
        yield
    finally:
        for inventory, recording in before:
            inventory.recording = recording


def kerbs_layers(model: nn.Module) -> Iterator[KerbsOutputLayer]:
    """All KerBS output layers of a (possibly wrapped) model."""
    return (module for module in model.modules() if isinstance(module, KerbsOutputLayer))


class SenseUpdates:
    """Statistics, reallocation and their logging for one training.

    Args:
        schedule: when and how.
    """

    def __init__(self, schedule: SenseSchedule) -> None:
        self.schedule = schedule
        self._last_update = -1
        self._summary: dict[str, float] = {}
        self._warned = False

    def after_update(self, optimizer: Any, model: nn.Module, update_num: int) -> None:
        """Act after parameter update number ``update_num`` (from 0) has been made."""
        repeated = update_num <= self._last_update  # mixed precision repeats an overflown update
        self._last_update = update_num
        for layer in kerbs_layers(model):
            if repeated:
                layer.inventory.pending.zero_()
                continue
            self._update_layer(optimizer, layer, update_num)

    def _update_layer(self, optimizer: Any, layer: KerbsOutputLayer, update_num: int) -> None:
        add_across_processes(layer.inventory.pending)
        layer.update_statistics(self.schedule.decay)
        due = (update_num + 1) % self.schedule.interval == 0
        moved = 0
        if due and self.schedule.policy != "none":
            moved = self._reallocate(optimizer, layer, update_num)
        if due or not self._summary:
            self._summary = summarize(layer)
        if due:
            metrics.log_scalar_sum("senses_moved", moved, priority=1500)
        for name, value in self._summary.items():
            metrics.log_scalar(name, value, priority=1510, round=3)

    def _reallocate(self, optimizer: Any, layer: KerbsOutputLayer, update_num: int) -> int:
        if float(layer.inventory.interval_count.sum()) == 0.0 and not self._warned:
            self._warned = True
            logger.warning(
                "no sense statistics were recorded, so no sense can move: reallocation needs "
                "--criterion kerbs_cross_entropy."
            )
        moves = layer.reallocate(self.schedule.policy, self.schedule.settings)
        if len(moves):
            forget_moments(optimizer, layer, moves)
            logger.info(
                f"reallocation after {update_num + 1} updates: {len(moves)} senses moved to "
                f"{moves.words.unique().numel()} words"
            )
        return len(moves)


def add_across_processes(values: Tensor) -> None:
    """Sum a tensor over all data-parallel processes, in place."""
    if dist.is_available() and dist.is_initialized():
        group = distributed_utils.get_data_parallel_group()
        if distributed_utils.get_world_size(group) > 1:
            distributed_utils.all_reduce(values, group=group)


def summarize(layer: KerbsOutputLayer) -> dict[str, float]:
    """Words by number of senses and quantiles of θ, by the names they have in the logs."""
    counts = torch.bincount(layer.inventory.senses_per_word().cpu())
    summary = {
        f"words_with_{number}": float(words)
        for number, words in enumerate(counts.tolist())
        if number > 0
    }
    for number in range(len(counts), layer.inventory.max_senses + 1):
        summary[f"words_with_{number}"] = 0.0
    if layer.kernel.has_theta:
        theta = layer.theta.detach().float().cpu().sort().values
        for quantile in QUANTILES:
            # sorted, not torch.quantile: that refuses more than 16 million values
            position = round(quantile * (len(theta) - 1))
            summary[f"theta_q{round(100 * quantile):02d}"] = float(theta[position])
    return summary


# --------------------------------------------------------- optimizers and their master copies


@torch.no_grad()
def forget_moments(optimizer: Any, layer: KerbsOutputLayer, moves: Moves) -> None:
    """Zero the optimizer's moments of moved rows, and carry what is new to a float32 master copy.

    With ``--fp16`` fairseq keeps parameters in float32 beside the model and copies them over the
    model's after each step: what moves only in the model would be undone.

    Args:
        optimizer: fairseq's optimizer.
        layer: layer whose rows moved.
        moves: the moves.
    """
    parameters = layer.sense_parameters()
    masters = getattr(optimizer, "fp32_params", None)
    if masters is None:
        reset_moments(optimizer.optimizer, parameters, moves.senses)
    elif isinstance(masters, dict):
        for parameter in parameters:
            _in_flat_master(optimizer, parameter, lambda rows: _forget(rows, moves.senses))
    else:
        master_of = dict(zip(map(id, optimizer.fp16_params), masters, strict=True))
        own = [master_of[id(parameter)] for parameter in parameters]
        reset_moments(optimizer.optimizer, own, moves.senses)
    if masters is None:
        return
    if moves.vectors is not None:
        _set_master_rows(optimizer, layer.weight, moves.senses, moves.vectors)
    if moves.reset_theta and isinstance(layer.theta, nn.Parameter):
        # not the model's own rows: float16 has no 1e-8
        new = torch.full((len(moves),), MOVED_THETA, device=layer.theta.device)
        _set_master_rows(optimizer, layer.theta, moves.senses, new)


def _forget(rows: Tensor, senses: Tensor) -> None:
    rows[senses.to(rows.device)] = 0.0


def _in_flat_master(
    optimizer: Any, parameter: nn.Parameter, act: Callable[[Tensor], None], moments: bool = True
) -> None:
    """Apply ``act`` to views of a parameter's place in the flat master copy or its moments."""
    offset = 0
    for other in optimizer.fp16_params:
        if other.device != parameter.device:
            continue
        if other is parameter:
            break
        offset += other.numel()
    master = optimizer.fp32_params[parameter.device.index]
    if moments:
        state = optimizer.optimizer.state.get(master, {}).values()
        tensors = [value for value in state if torch.is_tensor(value)]
    else:
        tensors = [master.data]
    for tensor in tensors:
        if tensor.shape == master.shape:
            act(tensor[offset : offset + parameter.numel()].view(parameter.shape))


def _set_master_rows(
    optimizer: Any, parameter: nn.Parameter, senses: Tensor, values: Tensor
) -> None:
    """Write rows [K, ...] of a parameter's place in the float32 master copy."""

    def assign(rows: Tensor) -> None:
        rows[senses.to(rows.device)] = values.to(rows)

    if isinstance(optimizer.fp32_params, dict):
        _in_flat_master(optimizer, parameter, assign, moments=False)
        return
    for own, master in zip(optimizer.fp16_params, optimizer.fp32_params, strict=True):
        if own is parameter:
            assign(master.data)
