"""Updates of tiny models in memory, with the training hook, as fairseq's trainer makes them."""

from typing import Any

import torch

from fairseq_kerbs.criterions import KerbsCrossEntropyCriterion
from tests.helpers.fairseq_fixtures import make_batch, make_model, make_task

FLAGS = {"reallocation_interval": 2, "log_prob_threshold": -0.01, "sense_decay": 0.01}


Parts = tuple[Any, Any, Any, Any]  # task, model in training mode, criterion and optimizer


class PlainOptimizer:
    """As much of fairseq's optimizer wrapper as the hook and the task ask for."""

    def __init__(self, model: Any, lr: float = 1e-3) -> None:
        self.optimizer = torch.optim.Adam(model.parameters(), lr)

    def step(self) -> None:
        self.optimizer.step()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


def training(name: str = "transformer", task: Any = None, **flags: Any) -> Parts:
    task = task or make_task(model=name)
    common = dict(FLAGS)
    if flags.get("reallocation", "paper") != "paper":
        del common["log_prob_threshold"]  # Algorithm 1 alone reads it
    model = make_model(name, task, **(common | flags)).train()
    return task, model, KerbsCrossEntropyCriterion(task, False, 0.0), PlainOptimizer(model)


def one_update(parts: Parts, update: int, batches: int = 1) -> None:
    """One parameter update on ``batches`` micro-batches, as fairseq's trainer makes it."""
    task, model, criterion, optimizer = parts
    optimizer.optimizer.zero_grad()
    for number in range(batches):
        task.train_step(make_batch(seed=10 * update + number), model, criterion, optimizer, update)
    task.optimizer_step(optimizer, model=model, update_num=update)


def move(parts: Parts, updates: int) -> None:
    """What the hook does when the next update begins."""
    task, model, _, optimizer = parts
    task._kerbs_updates.before_update(optimizer, model, updates)
