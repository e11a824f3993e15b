"""Degrees of homogeneity of tensors that are computed from parameters: 0 if the tensor is normalized."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isclose, isnan, nan
from typing import Any

from normless.residual._operations import NORM, SAME_DEGREE, SUM_OF_DEGREES

Degrees = Mapping[str, float]

_POWERS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "var": 2.0}


def degrees_of(
    name: str, arguments: Sequence[Any], read: Callable[[Any], Degrees | None], is_layout: bool
) -> Degrees:
    """Return the degree of an operation's result in each parameter that it is computed from; NaN if not homogeneous.

    A result y(w) has degree d in w if y(s·w) = s^d · y(w) for s > 0. Constants that are added, such as ε, and bounds
    are neglected.

    Args:
        name: the name of the operation.
        arguments: its arguments.
        read: returns the degrees of a tensor argument, None for any other argument.
        is_layout: whether the operation keeps the values.
    """
    parts = [known for known in map(read, _flat(arguments)) if known is not None]
    names = dict.fromkeys(parameter for part in parts for parameter in part)
    if not names:
        return {}

    def each(rule: Callable[[list[float]], float]) -> Degrees:
        return {parameter: rule([part.get(parameter, 0.0) for part in parts]) for parameter in names}

    if name.endswith("_as"):
        # The second argument only gives the shape.
        return parts[0]
    if is_layout or name in SAME_DEGREE:
        return each(lambda degrees: degrees[0] if _are_equal(degrees) else nan)
    if name in SUM_OF_DEGREES:
        return each(sum)
    if name == "div":
        # In 1 / w the only tensor is the divisor.
        sign = 1.0 if read(arguments[0]) is not None else -1.0
        return each(lambda degrees: sign * degrees[0] - sum(degrees[1:]))
    if name in _POWERS:
        return each(lambda degrees: degrees[0] * _POWERS[name])
    if name in NORM:
        # The normalized tensor comes first, then the parameters of the channels.
        return each(lambda degrees: sum(degrees[1:2]) if _are_equal(degrees[1:]) else nan)
    if name == "pow" and isinstance(arguments[1], (int, float)):
        return each(lambda degrees: degrees[0] * float(arguments[1]))
    if name in ("_weight_norm", "_weight_norm_interface") and len(parts) == 2:
        # The first argument is the direction, the second the length.
        return each(lambda degrees: degrees[1])
    return each(lambda degrees: 0.0 if all(degree == 0 for degree in degrees) else nan)


def _are_equal(degrees: list[float]) -> bool:
    return all(isclose(degree, degrees[0], abs_tol=1e-9) and not isnan(degree) for degree in degrees)


def _flat(arguments: Sequence[Any]) -> list[Any]:
    """Flatten sequences among the arguments."""
    flat: list[Any] = []
    for argument in arguments:
        flat += _flat(argument) if isinstance(argument, (list, tuple)) else [argument]
    return flat
