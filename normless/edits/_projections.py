"""The weights that make the queries and keys of attentions, found in the dataflow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from normless.residual import _operations as ops
from normless.residual._graph import Dataflow, Fixed, Operand, Operation

Use = Literal["query", "key", "value", "other"]

# Between the product of queries and keys and the softmax; "linear" mixes heads.
_LOGITS = ops.BEFORE_SOFTMAX | {"linear", "conv2d"}
_SHARES = ops.LAYOUT | ops.DROPOUT | {"expand"}
_JOINING = {"cat", "stack"}
# The numbers of outputs that are not known.
_UNKNOWN = torch.empty(0, dtype=torch.long)


class _Axes(NamedTuple):
    """The axes of a weight in an operation: those of a batch of matrices, of outputs, and of inputs.

    `result` has for each axis of the result that of the weight, a batch's or an output's, or None.
    """

    batch: tuple[int, ...]
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    result: tuple[int | None, ...]


class Projections:
    """The parts of a network's weights that make queries, keys, and what lies beside these.

    Args:
        flow: the dataflow of the network.
        ends: the operations that are residual sums, where the search for the weights ends.
    """

    def __init__(self, flow: Dataflow, ends: frozenset[int] = frozenset()) -> None:
        self.flow, self.ends = flow, ends

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """The operations of each parameter that do more with it than adding it."""
        readers: dict[str, list[int]] = defaultdict(list)
        for at, operation in enumerate(self.flow.operations):
            for name in operation.factors:
                readers[name].append(at)
        return readers

    def products(self) -> Iterator[int]:
        """Find the operations that read queries and keys: fused attentions, and products before a softmax."""
        for index, operation in enumerate(self.flow.operations):
            if operation.name in ops.ATTENTION:
                yield index
            if operation.name in ops.SOFTMAX:
                yield from self._before_softmax(operation.parents[0])

    def _before_softmax(self, start: int) -> Iterator[int]:
        seen, left = {start}, [start]
        while left:
            at = left.pop()
            operation = self.flow[at]
            if operation.name in ops.PRODUCT and not operation.parameters and len({*operation.parents}) == 2:
                if not any(self._is_share(parent) for parent in operation.parents):
                    yield at
            elif operation.name in _LOGITS:
                left += [parent for parent in operation.parents if parent not in seen]
                seen.update(operation.parents)

    def _is_share(self, index: int) -> bool:
        """Whether a value is what a softmax returned, so that its product is with values."""
        at = self.flow.source(index, lambda at: self.flow[at].name in _SHARES)
        return self.flow[at].name in ops.SOFTMAX

    def weights_before(self, index: int) -> list[int]:
        """Return the nearest operations with weights on all paths to an operation, which may be one itself."""
        found, seen, left = list[int](), {index}, [index]
        while left:
            at = left.pop()
            if at in self.ends or self.flow[at].name == "embedding":
                continue
            if self.flow[at].name in ops.WEIGHT and self.flow[at].factors:
                found.append(at)
                continue
            left += [parent for parent in self.flow[at].parents if parent not in seen]
            seen.update(self.flow[at].parents)
        return found

    @cached_property
    def uses(self) -> dict[str, list[tuple[Use, int, Tensor | None]]]:
        """For each weight of queries or keys by name: the use, the weight's operation, the numbers of its outputs.

        None are all outputs, and no number means that they are not known.
        """
        found: dict[str, list[tuple[Use, int, Tensor | None]]] = defaultdict(list)
        for product in dict.fromkeys(self.products()):
            operands = self.flow[product].operands or list(self.flow[product].parents)
            names: tuple[Use, Use] = ("query", "key")
            for use, operand in zip(names, operands, strict=False):
                for at in self.weights_before(operand):
                    rows = None if self._is_alone(at, product) else self._rows(at, operand)
                    for name in self.flow[at].factors:
                        found[name].append((use, at, rows))
        return found

    def parts(self, name: str, shape: tuple[int, ...]) -> list[tuple[Use, list[Tensor] | None]]:
        """Return the uses of a weight, each with the elements of its matrices (outputs, inputs) by their numbers.

        None in place of matrices is a whole linear or convolutional weight.

        Raises:
            ValueError: what the axes of the weight are, or how its uses lie in it, is not known.
        """
        uses, readers = sorted(self.uses.get(name, ()), reverse=True), self.readers.get(name, [])
        kinds = {self.flow[at].name for at in readers}
        is_plain = kinds <= {"linear"} | ops.CONVOLUTION and all(self._fixed(at, name).is_parameter for at in readers)
        if (len(shape) == 2 and kinds <= ops.RECURRENT) or (is_plain and all(rows is None for *_, rows in uses)):
            return [(uses[0][0] if uses else "other", None)]
        if any(rows is not None and not rows.numel() for *_, rows in uses):
            raise ValueError(f"how queries, keys and values lie in {name} is not known")
        taken, parts = torch.zeros(prod(shape), dtype=torch.bool), dict[Use, list[Tensor]]()
        rest: Use = "value" if uses else "other"
        for use, at, rows in (*uses, *((rest, at, None) for at in readers)):
            for number, matrix in enumerate(self._matrices(at, name, shape)):
                chosen = matrix if rows is None else matrix[rows[rows // len(matrix) == number] % len(matrix)]
                chosen = chosen[~taken[chosen[:, 0]]]
                if chosen.numel():
                    taken[chosen] = True
                    parts.setdefault(use, []).append(chosen)
        return [*parts.items()]

    def _fixed(self, at: int, name: str) -> Fixed:
        """Return the argument of an operation that is computed from a parameter."""
        return next((fixed for fixed in self.flow[at].fixed if name in fixed.parameters), Fixed())

    def _matrices(self, at: int, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the numbers of the elements of a weight as an operation reads them, (batch, outputs, inputs)."""
        elements: Any = torch.arange(prod(shape)).reshape(shape)
        for move in self._fixed(at, name).moves or ():
            elements = moved(move, elements)
        axes = _axes(self.flow[at], name, elements.dim())
        if axes is None:
            raise ValueError(f"how its outputs lie in {name} is not known")
        sizes = [prod(elements.shape[axis] for axis in group) for group in axes[:3]]
        matrices: Tensor = elements.permute([axis for group in axes[:3] for axis in group]).reshape(sizes)
        return matrices

    def _is_alone(self, start: int, product: int) -> bool:
        """Whether all that a weight's operation returns goes to a product, without a split on the way."""
        at = start
        while at != product:
            readers = self.flow.consumers[at]
            if len(readers) != 1 or self.flow[at].name in ops.PART | ops.SPLIT:
                return False
            at = readers[0]
        return True

    def _rows(self, start: int, end: int) -> Tensor:
        """Return the numbers of the outputs of the weight's operation `start` that reach the operation `end`."""
        numbers = _numbers(self.flow[start])
        if numbers is None:
            return _UNKNOWN
        values: dict[int, list[Any]] = {start: [numbers]}
        for at in self.flow.between(start, end):
            made = self._followed(self.flow[at], values)
            if made is None:
                return _UNKNOWN
            values[at] = made
        rows: Tensor = torch.unique(torch.cat([_UNKNOWN, *(value.reshape(-1) for value in values[end])]))
        return rows[rows >= 0].long()

    def _followed(self, operation: Operation, values: dict[int, list[Any]]) -> list[Any] | None:
        """Apply an operation to numbers of outputs, each of several possible; None if it mixes them otherwise."""
        read = [parent for parent in operation.parents if parent in values]
        if operation.name in ops.MOVING and len(read) == 1:
            return [moved(operation, value) for value in values[read[0]]]
        if operation.name in _JOINING:
            most = max(len(values[parent]) for parent in read)
            return [moved(operation, self._members(operation, values, number)) for number in range(most)]
        if operation.name in ops.REDUCTION | ops.LENGTHS:
            return []  # as the length of a query, which divides it
        several = [value for parent in read for value in values[parent]]
        same = [value for value in several if isinstance(value, Tensor) and tuple(value.shape) == operation.shape]
        return same if same or not several else None

    def _members(self, operation: Operation, values: dict[int, list[Any]], number: int) -> list[Tensor]:
        """Return the tensors that an operation joins, of the possible ones that of a number; -1 is no output."""
        joined, shape = operation.arguments[0], list(operation.shape or ())
        axis = operation.arguments[1] if len(operation.arguments) > 1 else 0
        shapes = [self.flow[member.index].shape if isinstance(member, Operand) else None for member in joined]
        if operation.name == "stack":
            del shape[axis]
        else:  # What tensors without a known shape, such as a parameter or an empty cache, leave.
            rest = shape[axis] - sum(
                known[axis] for known in shapes if known is not None and len(known) == len(shape)
            )
            shape[axis] = rest // max(1, shapes.count(None))
        members = []
        for member, own in zip(joined, shapes, strict=True):
            known = values.get(member.index) if isinstance(member, Operand) else None
            filled = torch.full(tuple(shape) if own is None else own, -1, dtype=torch.int32)
            members.append(known[min(number, len(known) - 1)] if known else filled)
        return members


def _axes(operation: Operation, parameter: str, dim: int) -> _Axes | None:
    """Return what the axes of a weight are for the operation that reads it; None if that is not known."""
    name, axes = operation.name, tuple(range(dim))
    others: tuple[int | None, ...] = (None,) * (len(operation.shape or ()) - 1)
    if name == "einsum":
        return _axes_in_einsum(operation, parameter, dim)
    if name == "linear" and dim == 2:
        return _Axes((), (0,), (1,), (*others, 0))
    if name in ops.CONVOLUTION and "transpose" not in name:
        return _Axes((), (0,), axes[1:], (*others[:1], 0, *others[1:]))
    if name in ops.PLAIN_PRODUCT | {"addmm"} and dim > 1:
        first = operation.arguments[name == "addmm"]
        if isinstance(first, Fixed) and parameter in first.parameters:
            return _Axes(axes[:-2], (dim - 2,), (dim - 1,), (*others[1:], dim - 2, None))
        return _Axes(axes[:-2], (dim - 1,), (dim - 2,), (*others, dim - 1))
    return None


def _axes_in_einsum(operation: Operation, parameter: str, dim: int) -> _Axes | None:
    letters, result, members = einsum_of(operation)
    at = [k for k, member in enumerate(members) if isinstance(member, Fixed) and parameter in member.parameters]
    if len(at) != 1 or not result.isalpha() or len(letters[at[0]]) != dim:
        return None
    own, others = letters[at[0]], "".join(letters[: at[0]] + letters[at[0] + 1 :])
    inputs = tuple(k for k, letter in enumerate(own) if letter not in result)
    batch = tuple(k for k, letter in enumerate(own) if letter in result and letter in others)
    outputs = tuple(k for k in range(dim) if k not in inputs + batch)
    return _Axes(batch, outputs, inputs, tuple(own.index(letter) if letter in own else None for letter in result))


def einsum_of(operation: Operation) -> tuple[list[str], str, tuple[Any, ...]]:
    """Return the letters of each operand of an einsum, those of the result, and the operands."""
    equation, *operands = operation.arguments
    terms, _, result = str(equation).replace(" ", "").partition("->")
    members: tuple[Any, ...] = operands[0] if isinstance(operands[0], tuple) else tuple(operands)
    return terms.split(","), result, members


def _numbers(operation: Operation) -> Tensor | None:
    """Return the result of a weight's operation with the number of the output in place of each element."""
    weight = next(fixed for fixed in operation.fixed if {*fixed.parameters} - {*operation.added})
    dim = len(operation.shape or ()) if operation.name in ops.CONVOLUTION else 2
    if operation.name == "einsum":
        letters, _, members = einsum_of(operation)
        dim = len(letters[members.index(weight)])
    axes = _axes(operation, weight.parameters[0], dim)
    if axes is None or operation.shape is None:
        return None
    sizes = {axis: size for axis, size in zip(axes.result, operation.shape, strict=True) if axis is not None}
    kept = [axis for axis in axes.batch + axes.outputs if axis in sizes]
    lengths = [sizes[axis] for axis in kept]
    numbers = torch.arange(prod(lengths), dtype=torch.int32).reshape(lengths)
    numbers = numbers.permute([kept.index(axis) for axis in axes.result if axis is not None])
    shape = [1 if axis is None else size for axis, size in zip(axes.result, operation.shape, strict=True)]
    return numbers.reshape(shape).expand(operation.shape)


def moved(operation: Operation, value: Any) -> Any:
    """Apply an operation that moves elements to another first argument."""
    name, arguments = operation.name, operation.arguments[1:]
    if name == "getitem":
        return value[arguments[0]]
    if name == "slice":
        axis, start, end, step = [*arguments, None, None, None][:4]
        return value.movedim(axis, 0)[slice(start, end, step)].movedim(0, axis)
    if name in ops.RESHAPE_AS | {"view", "_unsafe_view"}:
        return value.reshape(operation.shape)
    if name in ("contiguous", "alias", "detach", "clone"):
        return value
    if name in ("mT", "numpy_T", "t"):
        return value.mT
    if name in ("expand", "repeat"):
        return getattr(value, name)(*arguments)
    return getattr(torch, name)(value, *arguments)
