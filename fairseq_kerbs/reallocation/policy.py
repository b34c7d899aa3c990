"""Interface and registry of the policies that move senses between words.

A policy is a frozen dataclass. Its fields are its settings, and its class attributes say what it
needs. A policy that is registered in :mod:`fairseq_kerbs.reallocation` is a value of
``--reallocation``. The flags of its settings, their help, the default schedule, the sampling of
contexts and the initial senses follow from the class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, get_type_hints

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel
from fairseq_kerbs.reallocation.moves import Moves, SenseState, apply_moves
from fairseq_kerbs.senses import SenseInventory
from fairseq_kerbs.utils.intervals import within


@dataclass(frozen=True)
class DefaultSchedule:
    """When senses move in a training whose flags do not say it."""

    interval: int = 200
    """Updates between reallocations. A policy that reads contexts samples them for so many."""

    at: tuple[float, ...] = ()
    """Fractions of the training after which senses move. Default: every interval."""


@dataclass(frozen=True)
class Setting:
    """A setting of a policy. Its flag has the same name."""

    kind: type  # of the value, such as float
    default: Any
    help: str
    within: str  # interval of the values, such as "(0, 1]", or "" for all


def setting(default: Any, help: str, within: str = "") -> Any:
    """A field of a :class:`Policy` that is a flag.

    Args:
        default: its default.
        help: what the flag is for, without the name of the policy.
        within: interval of its values, such as "(0, 1]" [all].
    """
    return field(default=default, metadata={"help": help, "within": within})


@dataclass(frozen=True)
class Policy(ABC):
    """A policy proposes moves of senses.

    A subclass is a frozen dataclass with :meth:`propose`, and overrides what differs from Algorithm
    1. A policy is deterministic: all processes of a parallel training compute the same moves from
    the same statistics. One that reads contexts runs in the first process only, which sends its
    moves to the others.
    """

    name: ClassVar[str]  # key in POLICIES and value of --reallocation
    summary: ClassVar[str]  # for the help of --reallocation
    needs_contexts: ClassVar[bool] = False  # SenseState.contexts has contexts of the last interval
    needs_bias: ClassVar[bool] = False  # senses have biases; sets --sense-bias
    sense_allocation: ClassVar[str] = "random"  # default of --sense-allocation
    default_schedule: ClassVar[DefaultSchedule] = DefaultSchedule()

    def __post_init__(self) -> None:
        """Raise a ValueError if a setting is outside its interval."""
        for name, known in self.settings().items():
            value = getattr(self, name)
            if known.within and not within(value, known.within):
                raise ValueError(f"`{name}` is {value}, but must be within {known.within}.")

    @abstractmethod
    def propose(self, senses: SenseState) -> Moves:
        """Moves for senses in this state, without changing anything.

        Autograd is off. ``senses.contexts`` is not None if the policy needs contexts.
        """

    def initialize(self, senses: SenseState) -> None:  # noqa: B027  (some policies override it)
        """Change the senses of a new layer in place. They have been drawn at random (Section 4.2).

        By default they stay as they are. Autograd is off.
        """

    def check_layer(self, kernel: Kernel, biased: bool) -> None:
        """Raise a ValueError if the policy cannot move senses of a layer of this kind.

        ``biased`` says whether senses have biases.
        """
        if self.needs_bias and not biased:
            raise ValueError(f"Senses under `policy` {self.name} need biases: give `biased`.")

    def describe(self, moves: Moves, senses_per_word: Tensor) -> str:
        """What the log says of moves.

        Args:
            moves: the moves.
            senses_per_word: number of senses of each word after them, without spare ones, [V].
        """
        return f"{moves.moved} senses moved to {moves.words.unique().numel()} words"

    def describe_none(self) -> str:
        """What the log says if a policy that reads contexts moves no sense."""
        return "no sense moved; contexts are sampled for --reallocation-interval updates"

    @classmethod
    def settings(cls) -> dict[str, Setting]:
        """Settings that are flags, by name."""
        kinds = get_type_hints(cls)
        return {
            item.name: Setting(kinds[item.name], item.default, **item.metadata)
            for item in fields(cls)
            if "help" in item.metadata
        }


POLICIES: dict[str, type[Policy]] = {}
"""Policies by name. ``--reallocation`` also takes "none", which moves no sense."""


def register(policy: type[Policy]) -> type[Policy]:
    """Add a policy to :data:`POLICIES`.

    Raises:
        ValueError: the name is taken, or another policy has a setting of the same name with another
            type, default, help or interval. Both would be one flag.
    """
    if policy.name in {*POLICIES, "none"}:
        raise ValueError(f"There is a policy '{policy.name}' already: choose another name.")
    known = all_settings()
    for name, of_policy in policy.settings().items():
        if known.get(name, of_policy) != of_policy:
            raise ValueError(
                f"The policy '{policy.name}' has a setting '{name}' that differs from the one of "
                "another policy: choose another name, or make both the same."
            )
    POLICIES[policy.name] = policy
    return policy


def all_settings() -> dict[str, Setting]:
    """Settings of all policies, by name."""
    return {
        name: of_policy
        for policy in POLICIES.values()
        for name, of_policy in policy.settings().items()
    }


def readers_of(name: str) -> tuple[str, ...]:
    """Names of the policies that have a setting of this name."""
    return tuple(policy.name for policy in POLICIES.values() if name in policy.settings())


class ReallocationSettings:
    """Settings by name, such as ``ReallocationSettings(log_prob_threshold=-120.0)``.

    A policy reads its own settings, and takes its defaults for those that are not given.

    Raises:
        ValueError: no policy has a setting of that name.
    """

    def __init__(self, **values: Any) -> None:
        known = all_settings()
        for name in values:
            if name not in known:
                raise ValueError(
                    f"`settings`: no policy has a setting '{name}'; choose from {', '.join(known)}."
                )
        self.values: Mapping[str, Any] = values

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self.values.items())
        return f"{type(self).__name__}({values})"


def build_policy(policy: str | Policy, settings: ReallocationSettings | None = None) -> Policy:
    """Build the policy of that name with its settings.

    Of a :class:`Policy` the given settings are replaced, and without settings it is returned as it
    is. Raises a ValueError if no policy has that name, or a setting is outside its interval.
    """
    if isinstance(policy, Policy):
        built = policy
    elif policy in POLICIES:
        built = POLICIES[policy]()
    else:
        raise ValueError(f"`policy`: there is no '{policy}'; choose one of {', '.join(POLICIES)}.")
    values = {} if settings is None else settings.values
    own = {name: value for name, value in values.items() if name in built.settings()}
    return replace(built, **own) if own else built


@torch.no_grad()
def propose_moves(
    senses: SenseState | SenseInventory,
    policy: str | Policy,
    settings: ReallocationSettings | None = None,
) -> Moves:
    """The moves that a policy proposes. Nothing changes.

    Args:
        senses: senses of a layer, or an inventory alone for policies that read nothing else.
        policy: a policy, or its name in :data:`POLICIES`.
        settings: settings of the policy. Default: its own.

    Raises:
        ValueError: no policy has that name, the policy cannot move senses of such a layer, or it
            reads contexts and there are none.
    """
    built = build_policy(policy, settings)
    state = SenseState.of_inventory(senses) if isinstance(senses, SenseInventory) else senses
    if built.needs_contexts and state.contexts is None:
        raise ValueError(f"`policy` {built.name} reads contexts: call start_sampling() before.")
    built.check_layer(state.kernel, state.biased)
    return built.propose(state)


def reallocate(
    senses: SenseState | SenseInventory,
    policy: str | Policy,
    settings: ReallocationSettings | None = None,
) -> Moves:
    """Move senses between words: apply the moves of :func:`propose_moves`, and return them.

    With an inventory alone, allocation and usage change. Users of an output layer call its method
    :meth:`~fairseq_kerbs.output_layers.KerbsOutputLayer.reallocate`, which also moves embeddings
    and θ.
    """
    state = SenseState.of_inventory(senses) if isinstance(senses, SenseInventory) else senses
    moves = propose_moves(state, policy, settings)
    apply_moves(state, moves)
    return moves
