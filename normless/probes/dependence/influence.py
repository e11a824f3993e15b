"""The modules that propagate a change of some examples of a batch to others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

Key = tuple[str, int, bool]
"""A module's qualified name, the number of its call, and whether the tensors are inputs."""
Pass = dict[Key, "Reference"]
"""The inputs and outputs of every module call of a forward pass."""
Hook = Callable[[Key, Any], Any]
"""From the inputs or the output of a call to what takes their place."""

# Largest rounding error, in units of the last place of a tensor's largest value.
_ROUNDING_UNITS = 1024
# Kernels without a fixed order of summation are repeatable up to noise; only clearly larger differences count.
_ABOVE_NOISE = 8.0
# Larger numbers stand for minus infinity in attention masks and do not define a scale of rounding.
_MASKED = 1e30


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """A nested value with a function applied to every tensor in it, including those in dataclasses."""

    def at_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return function(leaf)
        if is_dataclass(leaf) and not isinstance(leaf, type) and hasattr(leaf, "__dict__"):
            mapped = copy(leaf)
            vars(mapped).update({name: map_tensors(function, item) for name, item in vars(leaf).items()})
            return mapped
        return leaf

    return tree_map(at_leaf, value)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a nested value, except for sparse and nested ones."""
    tensors: list[Tensor] = []
    map_tensors(tensors.append, value)
    return [tensor for tensor in tensors if _is_dense(tensor)]


def replace_tensors(value: Any, tensors: list[Tensor]) -> Any:
    """A nested value with its tensors replaced, in the order of `tensors_of`."""
    replacements = iter(tensors)
    return map_tensors(lambda tensor: next(replacements) if _is_dense(tensor) else tensor, value)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def changed(value: Tensor, other: Tensor, noise: float = 0.0) -> Tensor:
    """Where two tensors of one shape differ by more than the noise; NaN equals NaN."""
    differs = (value != other) & ~((value != value) & (other != other))
    # Differences of values that are not finite are not below any noise.
    return differs & ~(gap(value, other) <= _ABOVE_NOISE * noise) if noise else differs


def gap(value: Tensor, other: Tensor) -> Tensor:
    """The absolute difference of two tensors of one shape, in double precision."""
    wide = torch.complex128 if value.is_complex() else torch.float64
    return (value.to(wide) - other.to(wide)).abs()


def rounding_of(value: Tensor, relative: float) -> float:
    """The largest rounding error of a tensor, `relative` to its largest value; 0 for integers."""
    if not value.is_floating_point():
        return 0.0
    sizes = value.abs()[value.abs() < _MASKED]
    return relative * float(sizes.max()) if len(sizes) else 0.0


@dataclass
class Reference:
    """Tensors of a pass, and for each the differences that are noise."""

    values: list[Tensor]
    noise: list[float] = field(default_factory=list)

    def repeat(self, tensors: list[Tensor], rounding: float) -> None:
        """Take as noise the largest difference to those of an equal pass, or a relative `rounding` if it is more."""
        masks = self.changes(tensors)
        if masks is None:
            self.noise = [inf] * len(self.values)
            return
        for value, other, mask in zip(self.values, tensors, masks, strict=True):
            difference = float(gap(value[mask], other[mask]).max()) if mask.any() else 0.0
            self.noise.append(max(difference, rounding_of(value, rounding) if rounding else 0.0))

    def changes(self, tensors: list[Tensor]) -> list[Tensor] | None:
        """A mask of the differences for each tensor; None if their shapes differ."""
        if [value.shape for value in self.values] != [tensor.shape for tensor in tensors]:
            return None
        noise = self.noise or [0.0] * len(tensors)
        return [changed(*pair) for pair in zip(self.values, tensors, noise, strict=True)]


def has_example_axis(tensor: Tensor, batch: int) -> bool:
    """Whether a tensor has an axis that could hold the examples, alone or folded with another axis."""
    return tensor.numel() > 0 and any(size % batch == 0 for size in tensor.shape)


@dataclass(frozen=True)
class ExampleSlice:
    """The elements of some examples in a tensor: (·, b, ·) for example b along one axis of size a·B·inner."""

    axis: int
    size: int
    inner: int
    examples: frozenset[int]

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor has that axis."""
        return tensor.dim() > self.axis and tensor.shape[self.axis] == self.size

    def mask(self, tensor: Tensor, batch: int) -> Tensor:
        """True at the examples, in a shape that broadcasts to the tensor's."""
        rows = torch.zeros(batch, dtype=torch.bool, device=tensor.device)
        rows[list(self.examples)] = True
        along = rows.repeat_interleave(self.inner).repeat(self.size // (batch * self.inner))
        return along.view(-1, *[1] * (tensor.dim() - self.axis - 1))


def locate_change(change: Tensor, batch: int, count: int, expected: Iterable[int]) -> ExampleSlice | None:
    """The slice of at most `count` examples that contains a change, preferably of expected ones; None without one.

    The axis may hold the batch alone, folded with an outer axis (heads) or an inner one (windows).
    """
    slices: list[ExampleSlice] = []
    for axis, size in enumerate(change.shape):
        if size % batch:
            continue
        along = change.movedim(axis, 0).reshape(size, -1).any(dim=1).cpu()
        for inner in range(1, size // batch + 1):
            if (size // batch) % inner == 0:
                rows = along.view(-1, batch, inner).any(dim=2).any(dim=0)
                examples = frozenset(rows.nonzero().flatten().tolist())
                if len(examples) <= count:
                    slices.append(ExampleSlice(axis, size, inner, examples))
    return next((one for one in slices if one.examples <= set(expected)), slices[0] if slices else None)


def hook_calls(model: nn.Module, enter: Hook, leave: Hook) -> None:
    """Let functions see and replace the inputs and outputs of every module call in a network."""
    calls: Counter[str] = Counter()
    running: list[tuple[str, int]] = []

    def before(path: str, _: nn.Module, args: Any, kwargs: Any) -> Any:
        running.append((path, calls[path]))
        calls[path] += 1
        return enter((*running[-1], True), (args, kwargs))

    def after(_: nn.Module, _inputs: Any, output: Any) -> Any:
        return leave((*running.pop(), False), output)

    for path, module in model.named_modules():
        module.register_forward_pre_hook(partial(before, path), with_kwargs=True)
        module.register_forward_hook(after)


def recorder(record: Pass, rounding: float) -> Hook:
    """A hook that stores the tensors of a pass or, where they are stored, their noise: see `Reference.repeat`."""
    repeats = bool(record)

    def store(key: Key, value: Any) -> Any:
        tensors = tensors_of(value)
        if not repeats:
            record[key] = Reference([tensor.clone() for tensor in tensors])
        elif key in record:
            record[key].repeat(tensors, rounding)
        return value

    return store


@dataclass
class _Call:
    """A running call, and the slice of the changed examples in its inputs, None if unknown."""

    path: str
    slice: ExampleSlice | None
    examples: frozenset[int]
    moves_inside: bool = False


class Tracker:
    """Follows a change of some examples through a forward pass and finds the modules that propagate it to others.

    A module mixes if the change is confined to a slice of that many examples in its inputs and not in its outputs,
    where it is then undone; it moves examples if the change is confined to the slice of others. `mixing` tells of
    every mixing module whether the change it propagated was ever larger than rounding.
    """

    def __init__(self, record: Pass, batch: int, group: frozenset[int]) -> None:
        self._record, self._batch, self._group = record, batch, group
        self._stack = [_Call("", None, group)]
        self.mixing: dict[str, bool] = {}
        self.moving: list[str] = []

    def _changes(self, key: Key, tensors: list[Tensor]) -> list[Tensor] | None:
        return self._record[key].changes(tensors) if key in self._record else None

    def enter(self, key: Key, inputs: Any) -> Any:
        """Locate the change in the inputs of a call; undo what the enclosing module's own code has mixed."""
        outer = self._stack[-1]
        call = _Call(key[0], outer.slice, outer.examples)
        self._stack.append(call)
        tensors = tensors_of(inputs)
        changes = self._changes(key, tensors)
        if changes is None:
            call.slice = None
            return inputs
        slices: list[ExampleSlice | None] = []
        mixed = False
        for index, change in enumerate(changes):
            if not change.any():
                continue
            here = self._locate(change, outer.examples)
            if here is None and outer.slice is not None and outer.slice.fits(tensors[index]):
                here, mixed = outer.slice, True
                self._undo(outer, key, tensors, index, here)
            slices.append(here)
        known = [one for one in slices if one is not None]
        if slices:
            call.slice = known[0] if len(known) == len(slices) else None
            call.examples = frozenset().union(*(one.examples for one in known))
        return replace_tensors(inputs, tensors) if mixed else inputs

    def leave(self, key: Key, output: Any) -> Any:
        """Judge a call by its outputs; undo the change of other examples."""
        call = self._stack.pop()
        tensors = tensors_of(output)
        changes = self._changes(key, tensors)
        if call.slice is None or changes is None:
            return output
        mixes = moves = False
        for index, change in enumerate(changes):
            # A tensor without examples, such as a loss, is judged where the enclosing code uses it.
            if not change.any() or not has_example_axis(change, self._batch):
                continue
            here = self._locate(change, call.examples)
            if here is None:
                mixes, tensor = True, tensors[index]
                # On the same axis, else on the first.
                own: ExampleSlice | None = replace(call.slice, examples=call.examples)
                if not call.slice.fits(tensor):
                    size = tensor.shape[0] if tensor.dim() else 1
                    count, rest = divmod(size, self._batch)
                    own = None if rest else ExampleSlice(0, size, count, call.examples)
                self._undo(call, key, tensors, index, own)
            elif not here.examples <= call.examples:
                moves = True
        if moves and not call.moves_inside:
            self.moving.append(call.path)
        self._stack[-1].moves_inside |= moves or call.moves_inside
        return replace_tensors(output, tensors) if mixes else output

    def _locate(self, change: Tensor, expected: frozenset[int]) -> ExampleSlice | None:
        return locate_change(change, self._batch, len(self._group), expected)

    def _undo(self, call: _Call, key: Key, tensors: list[Tensor], index: int, region: ExampleSlice | None) -> None:
        """Restore a tensor outside the slice to keep; the call is recorded as mixing."""
        tensor, original = tensors[index], self._record[key].values[index]
        own = original.clone() if region is None else torch.where(region.mask(tensor, self._batch), tensor, original)
        clear = True
        if tensor.dtype.is_floating_point:
            rounding = rounding_of(original, _ROUNDING_UNITS * torch.finfo(tensor.dtype).eps)
            clear = not bool(gap(tensor, own).max() <= rounding)
        self.mixing[call.path] = clear or self.mixing.get(call.path, False)
        tensors[index] = own
