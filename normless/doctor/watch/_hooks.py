"""The hooks of a watch: on the forward of a network, and on the steps of all optimizers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from normless._internal.calling import methods_of
from normless.exclusive import exclusive


class Called:
    """A hook on the passes of a network with gradients; copies and pickles of it have a hook that does nothing."""

    def __init__(self, call: Callable[[tuple[Any, ...], Any], None]) -> None:
        self.call = call

    def __call__(self, _: nn.Module, args: tuple[Any, ...], other: Any) -> None:
        """Receive the arguments of a pass, and its keyword arguments or its output."""
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.call(args, other)

    def __reduce__(self) -> tuple[Any, ...]:
        # A function of the standard library that takes any arguments, so that pickles load without this package.
        return getattr, (nullcontext(), "__exit__")


class CalledMethod:
    """Stands for a method of a network, and calls hooks with its arguments and its result."""

    def __init__(self, model: nn.Module, name: str, begins: Called, ends: Called) -> None:
        method = getattr(type(model), name, None) if isinstance(name, str) else None
        if not callable(method):
            raise ValueError(
                f"Expected call= to be the name of a method of {type(model).__name__}{methods_of(model)}, which the "
                f"loop calls, got {name!r}."
            )
        self.model, self.name, self.method, self.begins, self.ends = model, name, method, begins, ends
        vars(model)[name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method."""
        self.begins(self.model, args, kwargs)
        result = self.method(self.model, *args, **kwargs)
        self.ends(self.model, args, result)
        return result

    def remove(self) -> None:
        """Give the network its method back."""
        vars(self.model).pop(self.name, None)

    def __reduce__(self) -> tuple[Any, ...]:
        # The method of the copied network.
        return getattr, (self.model, self.name)


def after_first_run(closure: Callable[[], Any], look: Callable[[Any], object]) -> Callable[[], Any]:
    """Return a closure that calls `look` with the result of its first run."""
    runs = count()

    def watched() -> Any:
        result = closure()
        if next(runs) == 0:
            look(result)
        return result

    return watched


# The watches that are told of the steps of all optimizers, by identity, in the order of their creation. torch's own
# tables are read in each step, and a step in another thread fails if one changes meanwhile; so each gets one entry,
# once, which stays.
OF_STEPS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


@exclusive
@cache
def enter_tables() -> None:
    """Enter the functions below into torch's tables of hooks."""
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    """Return the arguments for the step if a watch returned others, else None."""
    given = args, kwargs
    for watch in _concerned(optimizer):
        args, kwargs = watch._before_step(optimizer, args, kwargs) or (args, kwargs)
    return None if args is given[0] and kwargs is given[1] else (args, kwargs)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for watch in _concerned(optimizer):
        watch._after_step(optimizer)


def _concerned(optimizer: Optimizer) -> list[Any]:
    # Other threads may make and delete some meanwhile.
    watches = [known() for known in OF_STEPS.valuerefs()]
    return [watch for watch in watches if watch is not None and not watch._is_elsewhere(optimizer)]
