"""The hooks of a watch: on the forward of a network, and on the steps of all optimizers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from normless._internal.exclusive import exclusive

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


class OfSteps:
    """Calls methods before and after every optimizer's steps, until it is removed or their object is deleted.

    Steps of which `is_foreign` is true are left out. torch iterates over its tables of hooks in each step, and a step
    in another thread fails if one changes meanwhile. So they get one entry each, once, which stays.
    """

    def __init__(
        self, before: Callable[..., Any], after: Callable[..., Any], is_foreign: Callable[[Optimizer], bool]
    ) -> None:
        self._before, self._after, self._is_foreign = map(weakly, (before, after, is_foreign))
        _in_tables()
        OF_STEPS[id(self)] = self

    def remove(self) -> None:
        """Call the methods no longer."""
        OF_STEPS.pop(id(self), None)

    @staticmethod
    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Return the arguments for the step if a method returned others, else None."""
        given = args, kwargs
        for known in _concerned(optimizer):
            args, kwargs = known._before(optimizer, args, kwargs) or (args, kwargs)
        return None if args is given[0] and kwargs is given[1] else (args, kwargs)

    @staticmethod
    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Report a step that was taken."""
        for known in _concerned(optimizer):
            known._after(optimizer, args, kwargs)


# In the order of their creation.
OF_STEPS: dict[int, OfSteps] = {}


def _concerned(optimizer: Optimizer) -> list[OfSteps]:
    # Other threads may make and remove some meanwhile.
    return [known for known in [*OF_STEPS.values()] if not known._is_foreign(optimizer)]


@exclusive
@cache
def _in_tables() -> None:
    register_optimizer_step_pre_hook(OfSteps.before_step)
    register_optimizer_step_post_hook(OfSteps.after_step)
