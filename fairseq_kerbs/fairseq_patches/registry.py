"""One way to change what fairseq does in a running program: each change with its reason."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class Patch(NamedTuple):
    """A change of a name in a module or class, and why fairseq's own does not do."""

    owner: Any
    name: str
    reason: str


PATCHES: list[Patch] = []
"""All changes, in the order in which they were made."""


def replace(owner: Any, name: str, value: Any, reason: str) -> None:
    """Put a value in the place of ``owner.name``, which need not be there."""
    static = isinstance(inspect.getattr_static(owner, name, None), staticmethod)
    setattr(owner, name, staticmethod(value) if static else value)
    PATCHES.append(Patch(owner, name, reason))


def patched(owner: Any, name: str, reason: str) -> Callable[[Function], Function]:
    """Decorator of a function that runs in place of ``owner.name``.

    It is called with the function that it replaces, and then with that one's arguments.
    """

    def register(function: Function) -> Function:
        stock = getattr(owner, name)

        @functools.wraps(stock)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return function(stock, *args, **kwargs)

        replace(owner, name, replacement, reason)
        return function

    return register
