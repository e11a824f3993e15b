"""What rewritten code asks of the arguments that are fixed in it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from normless.errors import FixedArgumentError


def require(kind: str, name: str, value: Any, expected: Any) -> None:
    """Raise `FixedArgumentError` unless an argument of a `kind` of module has the value its code was traced with.

    A value of another type that equals it, as True equals 1, is refused too.
    """
    if not _equal(value, expected):
        raise FixedArgumentError(
            f"The forward code of this {kind} was rewritten for {name}={expected!r} and got {_shown(value)}. Call it "
            "as it was converted, or convert the original network with example inputs that give it this value."
        )


def require_tensors(kind: str, name: str, value: Any) -> None:
    """Raise `FixedArgumentError` if an argument that was or contained a tensor is None, a number or a text now."""
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        raise FixedArgumentError(
            f"The forward code of this {kind} was rewritten for a tensor as {name} and got {_shown(value)}. Call it "
            "as it was converted, or convert the original network with example inputs that leave it out."
        )


def _equal(value: Any, expected: Any) -> bool:
    if expected is None or value is None:
        return value is expected
    if not isinstance(value, type(expected)) or isinstance(value, bool) != isinstance(expected, bool):
        return False
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(_equal(value[key], one) for key, one in expected.items())
    if isinstance(expected, (tuple, list)):
        return len(value) == len(expected) and all(map(_equal, value, expected))
    # A number that is none differs from itself.
    return bool(value == expected) or (expected != expected and value != value)


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, Tensor) or len(repr(value)) > 80 else repr(value)
