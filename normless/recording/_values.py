"""A number that forward code has read from an activation, which notes when it decides something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_DECIDING = ("__bool__", "__int__", "__trunc__", "__round__", "__floor__", "__ceil__", "__hash__")
_COMPARING = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__")
_COMPUTING = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


class ReadNumber(float):
    """A floating-point number that calls `decides` when it is compared, rounded or used as a truth value.

    Numbers that are computed from it are such numbers too. Printing, logging or scaling by it decides nothing.
    """

    decides: Callable[[], None]

    @classmethod
    def of(cls, value: float, decides: Callable[[], None]) -> ReadNumber:
        """Return the number with what to call."""
        number = cls(value)
        number.decides = decides
        return number


def _noted(name: str) -> Any:
    plain = getattr(float, name)

    def method(self: ReadNumber, *others: Any) -> Any:
        self.decides()
        return plain(self, *others)

    return method


def _followed(name: str) -> Any:
    plain = getattr(float, name)

    def method(self: ReadNumber, *others: Any) -> Any:
        result = plain(self, *others)
        return ReadNumber.of(result, self.decides) if isinstance(result, float) else result

    return method


for _name in (*_DECIDING, *_COMPARING):
    setattr(ReadNumber, _name, _noted(_name))
for _name in ("__neg__", "__abs__", *(f"__{side}{name}__" for name in _COMPUTING for side in ("", "r"))):
    setattr(ReadNumber, _name, _followed(_name))
