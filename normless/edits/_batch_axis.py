"""Follow the examples of a batch through a dataflow: along which axis of each activation they lie."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch

from normless.edits._projections import einsum_of, moved
from normless.residual import _operations as ops
from normless.residual._graph import Dataflow, Operand, Operation

_ORDER = {"permute", "transpose", "t", "mT", "numpy_T", "movedim", "moveaxis", "swapaxes", "swapdims"}
_LISTS = ops.SPLIT - {"unbind"}


@dataclass(frozen=True)
class Along:
    """Examples along an axis, whose indices are (outer, example, inner) in row-major order."""

    axis: int
    outer: int = 1
    inner: int = 1


Where = Along | Literal["free", "unknown"]
"""Where the examples lie; `free` is what does not depend on them."""


class BatchAxis:
    """Where the examples lie in each activation, if the first axis of the network's inputs is the batch.

    Attributes:
        size: the number of examples.
    """

    def __init__(self, flow: Dataflow) -> None:
        inputs = [operation.shape for operation in flow.operations if operation.name == "input"]
        self.size = next((shape[0] for shape in inputs if shape), 1)
        self.flow = flow
        self._found: list[Where] = []
        for operation in flow.operations:
            try:
                self._found.append(self._of(operation))
            except (IndexError, ValueError, TypeError, AttributeError, RuntimeError):  # arguments of another form
                self._found.append("unknown")

    def __getitem__(self, index: int) -> Where:
        return self._found[index]

    def _of(self, operation: Operation) -> Where:
        name, shape = operation.name, operation.shape
        if name in ("input", "parameter"):
            return Along(0) if name == "input" and shape and shape[0] == self.size else "free"
        reads = [(self._found[parent], self.flow[parent].shape) for parent in operation.parents]
        known = [(where, given) for where, given in reads if isinstance(where, Along)]
        if any(where == "unknown" for where, _ in reads):
            return "unknown"
        if not known:
            return "free"
        where, given = known[0]
        made: Where = "unknown"
        if given is None or shape is None:  # a list, as of chunk, or one of its members
            made = self._listed(operation, where, given)
        elif name in ops.RESHAPE | ops.RESHAPE_AS:
            made = self._reshaped(where, given, shape)
        elif name in _ORDER:
            sizes = torch.empty(tuple(range(2, 2 + len(given))), device="meta")
            made = replace(where, axis=[*moved(operation, sizes).shape].index(where.axis + 2))
        elif name == "select":
            axis = operation.arguments[1] % len(given)
            made = "unknown" if axis == where.axis else replace(where, axis=where.axis - (axis < where.axis))
        elif name in ("cat", "stack"):
            made = self._joined(operation, [axis for axis, _ in known], len(given))
        elif name in ops.REDUCTION and len(shape) < len(given):
            made = _reduced(operation, where, given)
        elif name == "einsum":
            made = _in_einsum(operation, self._found)
        else:
            made = self._kept(operation, known)
        is_there = isinstance(made, str) or shape is None or self._fits(made, shape)
        return made if is_there else "unknown"

    def _fits(self, where: Along, shape: tuple[int, ...]) -> bool:
        return where.axis < len(shape) and shape[where.axis] == where.outer * self.size * where.inner

    def _listed(self, operation: Operation, where: Along, given: tuple[int, ...] | None) -> Where:
        """Return where the examples lie in a list of parts, or in one of the parts."""
        if operation.name == "unbind" and given is not None:
            axis = (operation.arguments[1] if len(operation.arguments) > 1 else 0) % len(given)
            return "unknown" if axis == where.axis else replace(where, axis=where.axis - (axis < where.axis))
        if operation.name in _LISTS and given is not None and len(operation.arguments) > 2:
            return "unknown" if operation.arguments[2] % len(given) == where.axis else where
        return where if operation.name not in _LISTS or where.axis else "unknown"

    def _reshaped(self, where: Along, given: tuple[int, ...], shape: tuple[int, ...]) -> Where:
        """Return where the examples lie after a change of shape that keeps the elements in their order."""
        outer = prod(given[: where.axis]) * where.outer
        inner = prod(given[where.axis + 1 :]) * where.inner
        found: list[Along] = []
        for axis, size in enumerate(shape):
            before, after = prod(shape[:axis]), prod(shape[axis + 1 :])
            if outer % before == 0 and inner % after == 0:
                own = Along(axis, outer // before, inner // after)
                found += [own] if own.outer * self.size * own.inner == size else []
        # Of several axes of one element, that of the examples alone.
        found.sort(key=lambda own: (own.outer * own.inner, abs(own.axis - where.axis)))
        return found[0] if found else "unknown"

    def _joined(self, operation: Operation, known: list[Along], dims: int) -> Where:
        axis = operation.arguments[1] if len(operation.arguments) > 1 else 0
        where = known[0]
        if len({*known}) > 1:
            return "unknown"
        if operation.name == "stack":
            return replace(where, axis=where.axis + (axis % (dims + 1) <= where.axis))
        if axis % dims != where.axis:
            return where
        members = len(operation.arguments[0])
        return replace(where, outer=where.outer * members) if where.outer == 1 == members // len(known) else "unknown"

    def _kept(self, operation: Operation, known: list[tuple[Along, tuple[int, ...] | None]]) -> Where:
        """Return where the examples lie after an operation that keeps the axis, counted from the last one."""
        assert operation.shape is not None
        places = {
            replace(where, axis=where.axis + len(operation.shape) - len(given))
            for where, given in known
            if given is not None
        }
        if operation.name == "embedding":
            places = {where for where, _ in known}
        if len(places) > 1:
            return "unknown"
        (where,) = places
        is_mixed = operation.name in ops.CONVOLUTION and where.axis != 0
        is_mixed |= operation.name == "linear" and where.axis == len(operation.shape) - 1
        return "unknown" if is_mixed else where


def _reduced(operation: Operation, where: Along, given: tuple[int, ...]) -> Where:
    axes = operation.arguments[1] if len(operation.arguments) > 1 else None
    if not isinstance(axes, (int, tuple)):
        return "unknown"
    gone = {axis % len(given) for axis in ((axes,) if isinstance(axes, int) else axes)}
    return (
        "unknown" if where.axis in gone else replace(where, axis=where.axis - sum(axis < where.axis for axis in gone))
    )


def _in_einsum(operation: Operation, found: list[Where]) -> Where:
    letters, result, members = einsum_of(operation)
    places: set[Along] = set()
    for own, member in zip(letters, members, strict=True):
        where = found[member.index] if isinstance(member, Operand) else "free"
        if isinstance(where, Along):
            letter = own[where.axis] if "." not in own and where.axis < len(own) else ""
            if not letter or letter not in result:
                return "unknown"
            places.add(replace(where, axis=result.index(letter)))
    return places.pop() if len(places) == 1 else "unknown"
