"""Record the calls that forward code makes in a pass, with their places in the source."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from normless.lifting.calls import followed
from normless.lifting.places import Place, Routine, running_place

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


@dataclass
class _Run:
    """A run of a module: its path, number and class, the call that runs it, the calls that it makes."""

    path: str
    number: int
    kind: type
    around: Call | None
    calls: list[Call] = field(default_factory=list)


class Recorder:
    """Record the calls of the latest pass through a network, in order, in `calls`.

    Passes are recorded inside `following`; the caller passes each torch function to `note`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.calls: list[Call] = []
        self._kinds = {path: type(module) for path, module in model.named_modules()}
        self._runs: dict[str, list[_Run]] = defaultdict(list)
        self._stack: list[_Run] = []

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow passes through the network, and find the places of their calls afterwards."""
        with followed(self.model, self._enter, self._leave):
            yield
        for path, runs in self._runs.items():
            _agree(path, runs)

    def note(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """Record the torch function that the caller's caller calls; return the index of the call in `calls`."""
        name = getattr(function, "__name__", str(function)).strip("_")
        # Tensors are dropped, since they would live as long as the calls.
        args, kwargs = tree_map_only(Tensor, lambda _: Tensor, (args, dict(kwargs)))
        is_method = "Tensor" in getattr(function, "__qualname__", "").partition(".")[0]
        return self._append(name, sys._getframe(2), is_method, function=function, args=args, kwargs=kwargs)

    def _append(self, name: str, frame: FrameType, is_method: bool = False, **properties: Any) -> int:
        run = self._stack[-1]
        place = running_place(run.kind, frame, is_method)
        call = Call(name, run.path, run.number, run.around, place, **properties)
        run.calls.append(call)
        self.calls.append(call)
        return len(self.calls) - 1

    def _enter(self, path: str, *_: Any) -> None:
        """Note that a module's forward begins."""
        if path == "":
            self.calls.clear()
            self._runs.clear()
            self._stack.clear()
        around = self.calls[self._append(path, sys._getframe(1))] if self._stack else None
        runs = self._runs[path]
        runs.append(_Run(path, len(runs), self._kinds[path], around))
        self._stack.append(runs[-1])

    def _leave(self, *_: Any) -> None:
        """Note that a module's forward ends."""
        _settle(self._stack.pop().calls)


def _settle(calls: list[Call]) -> None:
    """Set the places of the calls in one run, as seen from methods that one call runs, and their turns."""
    callers: dict[Routine, set[Place | None]] = defaultdict(set)
    for place in {call.place for call in calls if call.place is not None}:
        for step in place.chain():
            callers[step.routine].add(step.caller)

    def is_start(place: Place) -> bool:
        return place.routine.is_final and len(callers[place.routine]) == 1

    turns: dict[tuple[Place, str], list[Call]] = defaultdict(list)
    for call in calls:
        if call.place is not None:
            seen = call.place.seen_from(is_start)
            obstacle = f"its {call.place.routine.name} does it, which no method of its class calls exactly once"
            call.place, call.obstacle = seen or call.place, "" if seen else obstacle
            call.turns = turns[call.place, call.name]
        call.turns.append(call)


def _agree(path: str, runs: list[_Run]) -> None:
    """Set an obstacle for calls that two runs of a module make a different number of times."""
    counts = [Counter((call.place, call.name) for call in run.calls) for run in runs if len(runs) > 1]
    for run in runs:
        for call in run.calls:
            if any(count[call.place, call.name] not in (0, len(call.turns)) for count in counts):
                call.obstacle = f"{path or 'the network'} runs {len(runs)} times in one forward pass, in several ways"
