"""Places of expressions in forward code, and the expression that runs now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from dis import get_instructions
from functools import cache
from inspect import unwrap
from itertools import islice, pairwise
from types import CodeType, FrameType
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Routine:
    """A function or method in forward code.

    Attributes:
        name: its name.
        code: its code.
        owner: the class of which it is a method, None for a function.
        is_final: whether a module's call of this name runs it, rather than an override.
    """

    name: str
    # Hashing would read all of the code.
    code: CodeType = field(hash=False)
    owner: type | None = None
    is_final: bool = False


@dataclass(frozen=True)
class Place:
    """An expression in the source of a function.

    Attributes:
        routine: the function.
        position: first line, last line, first column, last column.
        caller: the call that runs the function; None if the module or torch does.
        is_method: whether the expression calls a method of a tensor.
    """

    routine: Routine
    position: tuple[int, int, int, int]
    caller: Place | None = None
    is_method: bool = field(default=False, compare=False)

    def chain(self) -> Iterator[Place]:
        """Iterate over the place, the call of its function, the call around that, and so on."""
        place: Place | None = self
        while place is not None:
            yield place
            place = place.caller

    def is_seen_in(self, place: Place) -> bool:
        """Whether another place is the same expression, possibly with further callers."""
        others = place.chain()
        return all(
            (outer := next(others, None)) and (own.routine, own.position) == (outer.routine, outer.position)
            for own in self.chain()
        )

    def seen_from(self, is_start: Callable[[Place], bool]) -> Place | None:
        """Return the place with its callers up to the first that `is_start` accepts, or None."""
        if is_start(self):
            return replace(self, caller=None)
        caller = self.caller and self.caller.seen_from(is_start)
        return caller and replace(self, caller=caller)


def running_place(kind: type, frame: FrameType | None, is_method: bool = False) -> Place | None:
    """Return the place of the innermost running expression outside torch, with its callers up to the next in torch.

    Args:
        kind: the module's class; its methods count even if torch defines them.
        frame: the frame at which to start.
        is_method: whether the expression calls a method of a tensor.
    """
    # Equal expressions have the same place, which is found once.
    known: list[Any] = [kind]
    steps: list[tuple[Routine, CodeType, int]] = []
    methods = _methods(kind)
    while frame is not None:
        code = frame.f_code
        routine = methods.get(code)
        if routine is None and _is_between(module := frame.f_globals.get("__name__", "")):
            if steps:
                break
            # A function such as F.sigmoid calls the method, not the expression.
            is_method = is_method and (module in _OF_TENSORS or module.startswith(str(__package__)))
        else:
            routine = routine or Routine(code.co_name, code)
            instruction = frame.f_lasti
            # A nested function is part of the method's source.
            while frame is not None and frame.f_code is not routine.code:
                frame = frame.f_back
            if frame is None:
                break
            steps.append((routine, code, instruction))
            known += (id(code), instruction)
        frame = frame.f_back
    key = (is_method, *known)
    if key not in _PLACES:
        _PLACES[key] = _place_of(steps, is_method), steps
    return _PLACES[key][0]


# Modules of torch through which methods of tensors pass.
_OF_TENSORS = {"torch._tensor", "torch.overrides"}
# By class and instructions; the code is kept, since another could get its id.
_PLACES: dict[tuple[Any, ...], tuple[Place | None, Any]] = {}


def _place_of(steps: list[tuple[Routine, CodeType, int]], is_method: bool) -> Place | None:
    """Return the place of the innermost of several expressions, each of which the next calls."""
    positions: list[Any] = [
        next(islice(code.co_positions(), instruction // 2, None)) for _, code, instruction in steps
    ]
    count = next((at for at, position in enumerate(positions) if None in position), len(steps))
    place: Place | None = None
    for (routine, _, _), position in reversed([*zip(steps, positions, strict=True)][:count]):
        place = Place(routine, position, place)
    return place and replace(place, is_method=is_method)


def _is_between(module: str) -> bool:
    """Whether code only passes calls on: that of torch, and that of this recorder."""
    return module.partition(".")[0] == "torch" or module.startswith(str(__package__))


@cache
def reads(kind: type, name: str, attribute: str) -> bool:
    """Whether a method of a class reads `attribute` of something called `name`, as `self.norm.weight`."""
    # Reading instructions is slow, and few methods of a large class contain the attribute's name.
    codes = [code for code in _methods(kind) if attribute in (*code.co_names, *code.co_consts)]
    return any(
        (name, attribute) in pairwise(instruction.argval for instruction in get_instructions(code)) for code in codes
    )


@cache
def _methods(kind: type) -> dict[CodeType, Routine]:
    """Return the methods of a class by their code and by the code of the functions nested in them."""
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
