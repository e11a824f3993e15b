"""How a tensor made of parameters scales with each: its degree of homogeneity, 0 where a norm divides it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isclose, isnan, nan
from typing import Any

from normless.residual.operations import NORM

Degrees = Mapping[str, float]

_SAME = {
    "expand", "broadcast_to", "select", "slice", "narrow", "split", "chunk", "unbind", "index", "index_select",
    "getitem", "sum", "mean", "norm", "linalg_vector_norm", "linalg_norm", "linalg_matrix_norm", "abs", "amax",
    "amin", "max", "min", "std", "neg", "relu", "diagonal", "tril", "triu", "flip", "roll", "cat", "stack",
    "var_mean", "matrix_H", "adjoint", "conj", "clamp", "clamp_min", "clamp_max", "maximum", "minimum",
    "repeat", "linalg_svdvals", "trace",
}  # fmt: skip
_POWERS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "var": 2.0}
_PRODUCTS = {"mul", "matmul", "mm", "bmm", "mv", "dot", "vdot", "einsum", "linear", "outer", "conv2d", "kron"}
_SUMS = {"add", "sub", "rsub", "lerp"}


def degrees_of(
    name: str, arguments: Sequence[Any], read: Callable[[Any], Degrees | None], is_layout: bool
) -> Degrees:
    """The degree of an operation's result in each parameter that it is computed from; NaN where there is none.

    A result y(w) has degree d in w where y(s·w) = s^d · y(w) for s > 0. Numbers that are added, as an ε, are taken to
    be negligible, as are bounds.

    Args:
        name: of the operation.
        arguments: its arguments.
        read: gives the degrees of an argument that is a tensor, None for what is not one.
        is_layout: whether the operation leaves values what they are.
    """
    parts = [known for known in map(read, _flat(arguments)) if known is not None]
    names = dict.fromkeys(parameter for part in parts for parameter in part)
    if not names:
        return {}

    def each(rule: Callable[[list[float]], float]) -> Degrees:
        return {parameter: rule([part.get(parameter, 0.0) for part in parts]) for parameter in names}

    if name.endswith("_as"):
        # Its second argument gives the shape alone.
        return parts[0]
    if is_layout or name in _SAME or name in _SUMS:
        return each(lambda degrees: degrees[0] if _are_equal(degrees) else nan)
    if name in _PRODUCTS:
        return each(sum)
    if name == "div":
        # 1 / w has one tensor alone, which is the divisor.
        sign = 1.0 if read(arguments[0]) is not None else -1.0
        return each(lambda degrees: sign * degrees[0] - sum(degrees[1:]))
    if name in _POWERS:
        return each(lambda degrees: degrees[0] * _POWERS[name])
    if name in NORM:
        # What it normalizes comes first, then what it reads of channels.
        return each(lambda degrees: sum(degrees[1:2]) if _are_equal(degrees[1:]) else nan)
    if name == "pow" and isinstance(arguments[1], (int, float)):
        return each(lambda degrees: degrees[0] * float(arguments[1]))
    if name in ("_weight_norm", "_weight_norm_interface") and len(parts) == 2:
        # Its first argument is the direction, its second the length.
        return each(lambda degrees: degrees[1])
    return each(lambda degrees: 0.0 if all(degree == 0 for degree in degrees) else nan)


def _are_equal(degrees: list[float]) -> bool:
    return all(isclose(degree, degrees[0], abs_tol=1e-9) and not isnan(degree) for degree in degrees)


def _flat(arguments: Sequence[Any]) -> list[Any]:
    """The arguments with those of sequences in their place."""
    flat: list[Any] = []
    for argument in arguments:
        flat += _flat(argument) if isinstance(argument, (list, tuple)) else [argument]
    return flat
