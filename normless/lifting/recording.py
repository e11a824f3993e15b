"""The operations and calls that the forward code of each module makes, with their places in its source."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import unwrap
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from normless.lifting.calls import followed

ADDITIONS = {"add", "add_", "__add__", "__radd__", "__iadd__"}


@dataclass(frozen=True)
class Method:
    """A function of a module's class: its name, the class that defines it, whether no other class overrides it."""

    name: str
    owner: type
    is_final: bool


@dataclass(frozen=True)
class Place:
    """An expression in the source of a method: first line, last line, first column, last column.

    `is_method` says that it calls a tensor's method; `through` names a function that acts in the method's place.
    """

    method: Method
    position: tuple[int, int, int, int]
    is_method: bool = field(default=False, compare=False)
    through: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Event:
    """An operation, or the call of a child module, in one run of a module's own forward code.

    Attributes:
        name: of the function, as `relu` for `F.relu` and `x.relu_()`; of a child, its name in the module.
        place: where the code does it, None where no method of the module's class does.
        through: the function that does it in the place of the method itself, None for none.
        activation: differs between the runs of the method.
        is_child: whether a child module is called.
        is_addition: whether two tensors are added that both depend on the network's inputs.
        function, args, kwargs: what is called and with what, tensors as their class.
    """

    name: str
    place: Place | None
    through: str | None
    activation: int
    is_child: bool = False
    is_addition: bool = False
    function: Any = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_method(self) -> bool:
        """Whether what is called is a tensor's method."""
        return _is_method(self.function)


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
        self.frames: list[FrameType | None] = []
        self.fixed: dict[int, Tensor] = {id(one): one for one in (*model.parameters(), *model.buffers())}

    def enter(self, path: str, module: nn.Module, _: Any) -> None:
        """A module's forward begins."""
        if self.stack:
            names = (name for name, child in self.stack[-1][0].named_children() if child is module)
            self._note(next(names, ""), is_child=True)
        self.calls[path].append([])
        self.stack.append((module, self.calls[path][-1]))

    def leave(self, *_: Any) -> None:
        """It ends."""
        self.stack.pop()

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", str(func))
        given = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor)]
        if all(id(one) in self.fixed for one in given):
            self.fixed.update((id(one), one) for one in tree_leaves(result) if isinstance(one, Tensor))
        elif self.stack and isinstance(result, Tensor) and name != "__get__":
            added = {id(one) for one in args[:2] if isinstance(one, Tensor)} - self.fixed.keys()
            is_addition = name in ADDITIONS and len(added) == 2
            # Without the tensors, which would live as long as the events.
            args, kwargs = tree_map_only(Tensor, lambda _: Tensor, (args, dict(kwargs)))
            self._note(name.strip("_"), is_addition=is_addition, function=func, args=args, kwargs=kwargs)
        return result

    def _note(self, name: str, **properties: Any) -> None:
        module, events = self.stack[-1]
        place, through, frame = _place(type(module), sys._getframe(1))
        self.frames.append(frame)
        events.append(Event(name, place, through, id(frame), **properties))


def running_place(function: Any) -> Place | None:
    """The innermost expression of a method of a module that runs now, in which a function is called."""
    place, through, _ = _place(None, sys._getframe(2))
    return place and replace(place, is_method=_is_method(function), through=through)


def _place(kind: type | None, frame: FrameType | None) -> tuple[Place | None, str | None, FrameType | None]:
    """The innermost running expression of a method of a class, or of a module's, and a function that runs in it."""
    through = None
    while frame is not None:
        method = _methods(kind or _module_of(frame)).get(frame.f_code)
        if method is not None:
            position = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
            if None in position:
                return None, through, frame
            return Place(method, position), through, frame  # type: ignore[arg-type]
        if not _is_torch(frame.f_globals.get("__name__", "")):
            through = through or frame.f_code.co_name
        frame = frame.f_back
    return None, through, None


def _is_method(function: Any) -> bool:
    return "Tensor" in getattr(function, "__qualname__", "").partition(".")[0]


def _module_of(frame: FrameType) -> type:
    """The class of the module whose method a frame may run."""
    owner = next((frame.f_locals.get(name) for name in frame.f_code.co_varnames[:1]), None)
    kind: type = type(owner) if isinstance(owner, nn.Module) else nn.Module
    return getattr(kind, "normless_original", kind)


def _is_torch(module: str) -> bool:
    return module == __name__ or module.partition(".")[0] == "torch"


@cache
def _methods(kind: type) -> dict[CodeType, Method]:
    """The functions of a class by their code, those inside them too."""
    methods: dict[CodeType, Method] = {}
    seen: set[str] = set()
    for owner in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        for name, member in vars(owner).items():
            function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            code = getattr(unwrap(function), "__code__", None) if callable(function) else None
            for one in () if code is None else _inside(code):
                methods.setdefault(one, Method(name, owner, name not in seen))
        seen |= {*vars(owner)}
    return methods


def _inside(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _inside(constant)
