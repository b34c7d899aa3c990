"""Moves of senses between words: what policies read and return, and how moves are applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, build_kernel
from fairseq_kerbs.reallocation.context_sample import ContextSample
from fairseq_kerbs.reallocation.placement import Progress, no_progress
from fairseq_kerbs.senses import SenseInventory


@dataclass(frozen=True)
class SenseState:
    """Senses of an output layer: what a policy reads, and what moves change."""

    inventory: SenseInventory  # allocation of M senses to V words, and statistics of their use
    weight: Tensor  # embeddings, [M, d]. If ``biased`` the last column has the biases
    theta: Tensor  # kernel parameters, [M]
    kernel: Kernel
    biased: bool = False  # the last coordinate of context vectors is 1
    contexts: ContextSample | None = None  # sampled contexts of words, without that 1
    progress: Progress = no_progress  # wrapper of loops that take long

    @classmethod
    def of_inventory(cls, inventory: SenseInventory) -> SenseState:
        """Senses without an output layer, whose embeddings have size 0."""
        weight = inventory.usage.new_empty(inventory.total_senses, 0)
        theta = torch.zeros_like(inventory.usage)
        return cls(inventory, weight, theta, build_kernel("lin"))


@dataclass(frozen=True)
class Moves:
    """K moves in order of execution. All tensors are on the CPU, but for ``vectors``."""

    senses: Tensor  # [K] moved senses, including senses that restart at the same word
    sources: Tensor  # [K] words that lose them
    words: Tensor  # [K] words that receive them
    usage: Tensor  # [K] their usage after the move
    reset_theta: bool = True  # set their θ to Kernel.moved_theta
    # restart the optimizer's moments of their embeddings and θ; those of values that are replaced
    # restart in any case
    reset_moments: bool = True
    vectors: Tensor | None = None  # [K, d] their embeddings after the move [unchanged]

    def __len__(self) -> int:
        return self.senses.numel()

    @property
    def moved(self) -> int:
        """Number of moves to another word."""
        return int((self.sources != self.words).sum())


@torch.no_grad()
def apply_moves(senses: SenseState, moves: Moves) -> list[tuple[Tensor, Tensor | None]]:
    """Apply moves to allocation, usage, embeddings and θ, and start a new interval.

    Returns:
        all parameters of senses, with the new values of the moved rows, [K, ...], or None for those
        that do not change.

    Raises:
        ValueError: a word would have no sense or too many, a tensor of the moves has another shape
            than it must have, or parameters are sharded (FSDP2). Nothing has changed then.
    """
    if hasattr(senses.weight, "full_tensor"):
        raise ValueError(
            "The senses of a layer whose parameters are sharded by `fully_shard` cannot move: "
            "leave the layer out of it, or reallocate no senses."
        )
    _check_shapes(senses, moves)
    inventory = senses.inventory
    inventory.move(moves.senses, moves.words)  # raises before anything has changed
    inventory.start_interval()
    # of several moves of a sense the last one counts, so all of them get its values
    numbers = moves.senses.tolist()
    places = {sense: place for place, sense in enumerate(numbers)}
    last = [places[sense] for sense in numbers]
    usage = inventory.usage
    usage[moves.senses.to(usage.device)] = moves.usage[last].to(usage)

    vectors = None if moves.vectors is None else moves.vectors[last]
    written: list[tuple[Tensor, Tensor | None]] = [(senses.weight, vectors)]
    if senses.kernel.has_theta:
        theta = torch.full((len(moves),), senses.kernel.moved_theta)
        written.append((senses.theta, theta if moves.reset_theta else None))
    for parameter, values in written:
        if values is not None:
            parameter[moves.senses.to(parameter.device)] = values.to(parameter)
    return written


def _check_shapes(senses: SenseState, moves: Moves) -> None:
    """Raise a ValueError unless there is a word, a usage and a new vector for each moved sense."""
    count = (len(moves),)
    shapes = {
        "senses": (moves.senses, count),
        "sources": (moves.sources, count),
        "words": (moves.words, count),
        "usage": (moves.usage, count),
        "vectors": (moves.vectors, (*count, senses.weight.shape[1])),
    }
    for name, (value, shape) in shapes.items():
        if value is not None and value.shape != shape:
            raise ValueError(
                f"`Moves.{name}` has shape {tuple(value.shape)}; for {len(moves)} moves of senses "
                f"of size {senses.weight.shape[1]} it must be {shape}."
            )


@torch.no_grad()
def reset_moments(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], rows: Tensor
) -> None:
    """Set an optimizer's moments to zero in some rows of parameters.

    Step sizes of Rprop become the learning rate, and averages of ASGD the present rows. After moves
    of the policy ``released`` the moments stay (``Moves.reset_moments`` is False).

    Args:
        optimizer: any torch optimizer. Only state with the shape of its parameter is reset.
        parameters: parameters of shape [M, ...].
        rows: [K] sense numbers.
    """
    for parameter in parameters:
        for name, value in optimizer.state.get(parameter, {}).items():
            if not torch.is_tensor(value) or value.shape != parameter.shape:
                continue
            where = rows.to(value.device)
            if name == "step_size":
                value[where] = _learning_rate(optimizer, parameter)
            elif name == "ax":
                value[where] = parameter.detach()[where].to(value)
            else:
                value[where] = 0.0


def _learning_rate(optimizer: torch.optim.Optimizer, parameter: Tensor) -> float | Tensor:
    """Learning rate of a parameter of an optimizer."""
    for group in optimizer.param_groups:
        if any(one is parameter for one in group["params"]):
            rate: float | Tensor = group["lr"]
            return rate
    raise ValueError("The optimizer has state of a parameter that is in none of its groups.")
