"""Record the calls that forward code makes in a pass, with their places in the source."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from normless.recording._modules import ModuleRun, Observer
from normless.recording._places import Place, Routine, running_place

ADDITIONS = frozenset({"add", "radd", "iadd", "lerp"})
"""Names of calls that add two tensors."""


@dataclass(eq=False)
class Call:
    """A call in forward code of a torch function or of a child module.

    Attributes:
        name: the name of the function, as `relu` for `F.relu` and `x.relu_()`, or the path of the called module.
        module: the path of the module that makes the call.
        run: the number of that module's run in the pass.
        around: the call that runs the module, None for the network itself.
        place: the place of the call in the code, as seen from a method of the module's class that one call runs.
        obstacle: why the code at that place cannot be replaced; empty if it can.
        function: the called function, None for a module.
        args: its positional arguments, with tensors replaced by their class.
        kwargs: its keyword arguments, likewise.
        turns: all calls at this place in this run of the module, in order.
    """

    name: str
    module: str
    run: int
    around: Call | None = None
    place: Place | None = None
    obstacle: str = "no method of its class does it"
    function: Any = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    turns: list[Call] = field(default_factory=list, repr=False)

    @property
    def turn(self) -> int:
        """The number of this call among the calls at its place, from 0."""
        return next(turn for turn, call in enumerate(self.turns) if call is self)

    def is_at(self, place: Place) -> bool:
        """Whether the expression at a place, with all of its callers, is this call."""
        return self.place is not None and self.place.is_seen_in(place)

    @property
    def spot(self) -> tuple[str, Place | None, str, int]:
        """The properties that are equal in every run of the module: module, place, name and turn."""
        return self.module, self.place, self.name, self.turn


class Recorder(Observer):
    """Record the calls of the latest pass through a network, and the runs of its modules.

    Attributes:
        call: the call that runs now.
        calls: the calls, in order.
        runs: the runs of each module, by its path.
    """

    def __init__(self) -> None:
        super().__init__()
        self.call: Call | None = None
        self.calls: list[Call] = []
        self.runs: dict[str, list[ModuleRun]] = defaultdict(list)
        self._seen: dict[tuple[int, ...], dict[int, Place | None]] = {}

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Follow passes through a network, and find the places of their calls afterwards."""
        with super().following(model):
            yield
        for path, runs in self.runs.items():
            _agree(path, runs)

    def on_function(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call in forward code."""
        if not self.stack:
            return function(*args, **kwargs)
        is_method = "Tensor" in getattr(function, "__qualname__", "").partition(".")[0]
        given = {"function": function, "args": _bare(args), "kwargs": _bare(kwargs)}
        before, self.call = self.call, self._append(name.strip("_"), is_method, **given)
        try:
            return self.made(self.call, args, kwargs)
        finally:
            self.call = before

    def made(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a recorded call with its arguments, and return its result."""
        return call.function(*args, **kwargs)

    def on_enter(self, run: ModuleRun) -> None:
        """Record the call of a module."""
        if run.path == "":
            self.calls.clear()
            self.runs.clear()
        run.around = self._append(run.path) if self.stack else None
        self.runs[run.path].append(run)

    def on_leave(self, run: ModuleRun, output: Any) -> None:
        """Find the places of the calls of a run."""
        _settle(run.calls, self._seen)

    def _append(self, name: str, is_method: bool = False, **properties: Any) -> Call:
        run = self.stack[-1]
        place = running_place(type(run.module), sys._getframe(2), is_method)
        call = Call(name, run.path, run.number, run.around, place, **properties)
        run.calls.append(call)
        self.calls.append(call)
        return call


def _bare(value: Any) -> Any:
    """Return arguments with tensors replaced by their class, since they would live as long as the calls."""
    if isinstance(value, Tensor):
        return Tensor
    if type(value) in (list, tuple):
        return type(value)(map(_bare, value))
    return {key: _bare(part) for key, part in value.items()} if type(value) is dict else value


def _settle(calls: list[Call], known: dict[tuple[int, ...], dict[int, Place | None]]) -> None:
    """Set the places of the calls in one run, as seen from methods that one call runs, and their turns.

    Runs with the same places, which are known by their ids, see them from the same methods.
    """
    places = {id(call.place): call.place for call in calls if call.place is not None}
    key = tuple(places)
    if key not in known:
        known[key] = _seen([*places.values()])
    seen = known[key]
    turns: dict[tuple[int, str], list[Call]] = defaultdict(list)
    for call in calls:
        if call.place is not None:
            place = seen[id(call.place)]
            if place is None:
                name = call.place.routine.name
                call.obstacle = f"its {name} does it, which no method of its class calls exactly once"
            else:
                call.place, call.obstacle = place, ""
            call.turns = turns[id(call.place), call.name]
        call.turns.append(call)


def _seen(places: list[Place]) -> dict[int, Place | None]:
    """Return each place, by its id, as seen from a method that one call runs; None if there is no such method."""
    callers: dict[Routine, set[Place | None]] = defaultdict(set)
    for place in places:
        for step in place.chain():
            callers[step.routine].add(step.caller)

    def is_start(place: Place) -> bool:
        return place.routine.is_final and len(callers[place.routine]) == 1

    equal: dict[Place | None, Place | None] = {}
    seen = ((id(place), place.seen_from(is_start)) for place in places)
    return {key: equal.setdefault(place, place) for key, place in seen}


def _agree(path: str, runs: list[ModuleRun]) -> None:
    """Set an obstacle for calls that two runs of a module make a different number of times."""
    counts = [Counter((call.place, call.name) for call in run.calls) for run in runs if len(runs) > 1]
    for run in runs:
        for call in run.calls:
            if any(count[call.place, call.name] not in (0, len(call.turns)) for count in counts):
                call.obstacle = f"{path or 'the network'} runs {len(runs)} times in one forward pass, in several ways"
