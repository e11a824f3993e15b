"""The hooks of a watch: on the forward of a network, and on the steps of all optimizers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import nn

Call = Callable[[tuple[Any, ...], Any], None]


class Called:
    """A hook on a network's forward; copies and pickles of the network have a hook that does nothing."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def __call__(self, _: nn.Module, args: tuple[Any, ...], other: Any) -> None:
        """Receive the arguments of a pass, and its keyword arguments or its output."""
        self.call(args, other)

    def __reduce__(self) -> tuple[Any, ...]:
        # A function of the standard library that takes any arguments, so that pickles load without this package.
        return getattr, (nullcontext(), "__exit__")


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method, and does nothing once the object is deleted."""
    known = weakref.WeakMethod(method)
    return lambda *args: None if (call := known()) is None else call(*args)
