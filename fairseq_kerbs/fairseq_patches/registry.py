"""One way to change what fairseq does in a running program: each change once, with its reason."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class Patch:
    """A change of one name."""

    owner: Any  # module or class that has the name
    name: str  # of a function, a method or a class
    reason: str  # why fairseq's own does not do
    make: Callable[[Any], Any]  # what stands there from now on, of what did before (None: nothing)
    applied: bool = False

    def apply(self) -> None:
        """Make the change; a second call changes nothing."""
        if self.applied:
            return
        static = isinstance(inspect.getattr_static(self.owner, self.name, None), staticmethod)
        new = self.make(getattr(self.owner, self.name, None))
        setattr(self.owner, self.name, staticmethod(new) if static else new)
        self.applied = True


PATCHES: list[Patch] = []
"""All changes, in the order in which they are made."""


def replace(owner: Any, name: str, value: Any, reason: str) -> Patch:
    """Register a value that takes the place of ``owner.name``."""
    PATCHES.append(Patch(owner, name, reason, lambda _: value))
    return PATCHES[-1]


def patched(owner: Any, name: str, reason: str) -> Callable[[Function], Function]:
    """Decorator that registers a function to run in place of ``owner.name``. It is called with the
    function that it replaces, and then with that one's arguments."""

    def register(function: Function) -> Function:
        def make(stock: Any) -> Any:
            @functools.wraps(stock)
            def replacement(*args: Any, **kwargs: Any) -> Any:
                return function(stock, *args, **kwargs)

            return replacement

        PATCHES.append(Patch(owner, name, reason, make))
        return function

    return register
