"""The operations and calls that the forward code of each module makes, with their places in its source."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from dis import get_instructions
from functools import cache
from inspect import unwrap
from itertools import islice, pairwise
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from normless.lifting.calls import followed

ADDITIONS = {"add", "add_", "__add__", "__radd__", "__iadd__", "lerp", "lerp_"}


@dataclass(frozen=True)
class Routine:
    """A function: its name, its code, and whether a module's call of that name runs it as its method.

    `owner` is the class that has it as a method, None for a function that is none.
    """

    name: str
    code: CodeType
    owner: type | None = None
    is_final: bool = False


@dataclass(frozen=True)
class Place:
    """An expression in the source of a function: first line, last line, first column, last column.

    `caller` is the call that runs the function, None where the module itself does, or torch. `is_method` says that it
    calls a tensor's method.
    """

    routine: Routine
    position: tuple[int, int, int, int]
    caller: Place | None = None
    is_method: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Event:
    """An operation, or the call of a child module, in one run of a module's own forward code.

    Attributes:
        name: of the function, as `relu` for `F.relu` and `x.relu_()`; of a called module, its path.
        place: where the code does it, from a method of the module's class that runs once; None where none does.
        obstacle: why there is no place.
        run: of a called module, the number of its run; None of an operation.
        is_addition: whether two tensors are added that both depend on the network's inputs.
        function, args, kwargs: what is called and with what, tensors as their class.
        running: the functions that run it, each with a number that differs between runs.
    """

    name: str
    place: Place | None
    obstacle: str = "no method of its class does it"
    run: int | None = None
    is_addition: bool = False
    function: Any = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    running: tuple[tuple[Routine, int], ...] = ()


def recorded(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, list[list[Event]]]:
    """Run a network once and return what its modules did: by path, a list of events for every call."""
    recorder = _Recorder(model)
    with followed(model, recorder.enter, recorder.leave), recorder:
        model(*inputs, **kwargs)
    return dict(recorder.calls)


class _Recorder(TorchFunctionMode):
    """Notes the events of every call of a module; `stack` has the calls under way."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.calls: dict[str, list[list[Event]]] = defaultdict(list)
        self.stack: list[tuple[nn.Module, list[Event]]] = []
        # Frames, and tensors that do not depend on the inputs; kept alive, so that their identity stays theirs.
        self.frames: list[FrameType] = []
        self.fixed: dict[int, Tensor] = {id(one): one for one in (*model.parameters(), *model.buffers())}
        self.own = {*self.fixed}

    def enter(self, path: str, module: nn.Module, _: Any) -> None:
        """A module's forward begins."""
        if self.stack:
            self._note(path, run=len(self.calls[path]))
        self.calls[path].append([])
        self.stack.append((module, self.calls[path][-1]))

    def leave(self, *_: Any) -> None:
        """It ends."""
        events = self.stack.pop()[1]
        events[:] = _from_methods(events)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        given = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor)]
        if all(id(one) in self.fixed for one in given):
            self.fixed.update((id(one), one) for one in tree_leaves(result) if isinstance(one, Tensor))
        elif name == "__setitem__" and id(args[0]) not in self.own:
            # What activations are written into holds them from here on.
            self.fixed.pop(id(args[0]), None)
        elif self.stack and isinstance(result, Tensor) and name != "__get__":
            added = {id(one) for one in args[:2] if isinstance(one, Tensor)} - self.fixed.keys()
            is_addition = name in ADDITIONS and len(added) == 2
            # Without the tensors, which would live as long as the events.
            args, kwargs = tree_map_only(Tensor, lambda _: Tensor, (args, dict(kwargs)))
            self._note(name.strip("_"), is_addition=is_addition, function=func, args=args, kwargs=kwargs)
        return result

    def _note(self, name: str, **properties: Any) -> None:
        module, events = self.stack[-1]
        place, frames = _place(type(module), sys._getframe(1))
        place = place and replace(place, is_method=_is_method(properties.get("function")))
        self.frames += frames.values()
        running = tuple((routine, id(frame)) for routine, frame in frames.items())
        events.append(Event(name, place, running=running, **properties))


@cache
def reads(kind: type, name: str, attribute: str) -> bool:
    """Whether a method of a module's class reads an attribute of what has this name, as `self.norm.weight`."""
    # Instructions are slow to read, and few methods of a large class name the attribute.
    codes = [code for code in _methods(kind) if attribute in (*code.co_names, *code.co_consts)]
    return any((name, attribute) in pairwise(one.argval for one in get_instructions(code)) for code in codes)


def running_place(function: Any) -> Place | None:
    """The expression that runs now and calls a function, as seen from the innermost method of a module around it."""
    place = _seen_from(_place(None, sys._getframe(2))[0], lambda routine: routine.is_final)
    return place and replace(place, is_method=_is_method(function))


def _seen_from(place: Place | None, is_start: Callable[[Routine], bool]) -> Place | None:
    """A place with its callers up to the first function that is a start; None where none is."""
    if place is None or is_start(place.routine):
        return place and replace(place, caller=None)
    caller = _seen_from(place.caller, is_start)
    return caller and replace(place, caller=caller)


def _from_methods(events: list[Event]) -> list[Event]:
    """The events of one call of a module with their places as seen from methods that run once in it."""
    runs: dict[Routine, set[int]] = defaultdict(set)
    for event in events:
        for routine, number in event.running:
            runs[routine].add(number)

    def runs_once(routine: Routine) -> bool:
        return routine.is_final and len(runs[routine]) == 1

    obstacle = "its {} does it, which no method of its class that runs once calls by itself"
    return [
        replace(event, place=_seen_from(event.place, runs_once), obstacle=obstacle.format(event.place.routine.name))
        if event.place
        else event
        for event in events
    ]


def _place(kind: type | None, frame: FrameType | None) -> tuple[Place | None, dict[Routine, FrameType]]:
    """The innermost running expression outside torch, with its callers up to the next in torch, and their frames.

    Methods are those of a class, for None of the class of any module.
    """
    steps: list[tuple[Routine, Any]] = []
    frames: dict[Routine, FrameType] = {}
    while frame is not None:
        routine = _methods(kind or _module_of(frame)).get(frame.f_code)
        module = frame.f_globals.get("__name__", "")
        if routine is None and (module == __name__ or module.partition(".")[0] == "torch"):
            if steps:
                break
        else:
            routine = routine or Routine(frame.f_code.co_name, frame.f_code)
            position = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
            # A function inside a method stands in the method's source.
            while frame is not None and frame.f_code is not routine.code:
                frame = frame.f_back
            if frame is None or None in position:
                break
            steps.append((routine, position))
            frames.setdefault(routine, frame)
        frame = frame.f_back
    place: Place | None = None
    for routine, position in reversed(steps):
        place = Place(routine, position, place)
    return place, frames


def _is_method(function: Any) -> bool:
    return "Tensor" in getattr(function, "__qualname__", "").partition(".")[0]


def _module_of(frame: FrameType) -> type:
    """The class of the module whose method a frame may run."""
    owner = next((frame.f_locals.get(name) for name in frame.f_code.co_varnames[:1]), None)
    kind: type = type(owner) if isinstance(owner, nn.Module) else nn.Module
    return getattr(kind, "normless_original", kind)


@cache
def _methods(kind: type) -> dict[CodeType, Routine]:
    """The methods of a class by their code and by the code of the functions inside them."""
    methods: dict[CodeType, Routine] = {}
    seen: set[str] = set()
    for owner in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for name, member in vars(owner).items():
            is_bound = not isinstance(member, (staticmethod, classmethod))
            function = member if is_bound else member.__func__
            code = getattr(unwrap(function), "__code__", None) if callable(function) else None
            if isinstance(code, CodeType):
                routine = Routine(name, code, owner, is_bound and name not in seen)
                methods = dict.fromkeys(_inside(code), routine) | methods
        seen |= {*vars(owner)}
    return methods


def _inside(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _inside(constant)
