"""`call=`: follow a method of a network, or a function of it, in place of its forward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from inspect import signature
from types import MethodType
from typing import Any, ParamSpec, TypeVar

from torch import nn

from normless.exclusive import borrowing

P = ParamSpec("P")
T = TypeVar("T")

Call = str | Callable[..., Any]
"""The name of a method, or a function of a network and its inputs."""


class _Entry:
    """Stands for the forward of a network, and calls a function of it, which sees the network's own forward.

    A copy of the network has an entry of its own.
    """

    def __init__(self, model: nn.Module, function: Callable[..., Any], own: dict[str, Any]) -> None:
        self.model, self.function, self.own = model, function, own
        with suppress(TypeError, ValueError):
            self.__signature__ = signature(MethodType(function, model))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.leave(self.model)
        try:
            return self.function(self.model, *args, **kwargs)
        finally:
            vars(self.model)["forward"] = self

    def leave(self, model: nn.Module) -> None:
        """Give a network its own forward back."""
        vars(model).pop("forward", None)
        vars(model).update(self.own)


@borrowing
def in_place_of_forward(model: nn.Module, call: Call | None) -> Iterator[None]:
    """Let `model(…)` run a method, by its name, or a function in the body; None changes nothing.

    Raises:
        ValueError: the network has no such method.
    """
    if call is None:
        yield
        return
    function = call if callable(call) else getattr(type(model), call, None)
    if not callable(function):
        raise ValueError(
            f"Expected call= to be the name of a method of {type(model).__name__}{methods_of(model)}, or a function "
            f"of the network and its inputs, got {call!r}."
        )
    entry = _Entry(model, function, {name: own for name, own in vars(model).items() if name == "forward"})
    vars(model)["forward"] = entry
    try:
        yield
    finally:
        entry.leave(model)


def with_call(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function of a network follow what its `call` says; networks that it returns have their own forward."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        call: Any = kwargs.get("call")
        if call is None:
            return function(*args, **kwargs)
        model: Any = args[0] if args else kwargs["model"]
        with in_place_of_forward(model, call):
            result = function(*args, **kwargs)
            for part in result if isinstance(result, tuple) else (result,):
                if isinstance(part, nn.Module) and isinstance(entry := vars(part).get("forward"), _Entry):
                    entry.leave(part)
        return result

    return called


def methods_of(model: nn.Module) -> str:
    """Return the names of the public methods of a network's own classes in brackets, or "" if there are none."""
    own = [kind for kind in type(model).__mro__ if kind.__module__.partition(".")[0] != "torch"]
    names = {name for kind in own for name, value in vars(kind).items() if callable(value) and name[0] != "_"}
    names -= {*dir(nn.Module)}
    return f" ({', '.join(sorted(names))})" if names else ""


def missing_forward(model: nn.Module, error: BaseException | None) -> str:
    """Return what to do about a network whose forward is not written, or "" for other errors."""
    if not isinstance(error, NotImplementedError):
        return ""
    return (
        f"This {type(model).__name__} has no forward that runs; pass the method to follow by its name"
        f"{methods_of(model)}, or a function of the network and its inputs, as call=…"
    )
