"""Find the modules that propagate a change of some examples of a batch to others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

Key = tuple[str, int, bool]
"""A module's qualified name, the number of its call, and whether the tensors are inputs."""
ReferencePass = dict[Key, "Reference"]
"""The inputs and outputs of every module call of a forward pass."""
Hook = Callable[[Key, Any], Any]
"""Maps the inputs or the output of a call to their replacement."""

# Largest rounding error, in units of the last place of a tensor's largest value.
_ROUNDING_UNITS = 1024
# Kernels without a fixed order of summation are repeatable up to noise; only clearly larger differences count.
_ABOVE_NOISE = 8.0
# Larger numbers stand for minus infinity in attention masks and do not define a scale of rounding.
_MASKED = 1e30


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply a function to every tensor in a nested value, including those in dataclasses."""

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
    """Return the tensors in a nested value, except for sparse and nested tensors."""
    tensors: list[Tensor] = []
    map_tensors(tensors.append, value)
    return [tensor for tensor in tensors if _is_dense(tensor)]


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def gap(value: Tensor, other: Tensor) -> Tensor:
    """Return the absolute difference of two tensors of the same shape, in double precision."""
    wide = torch.complex128 if value.is_complex() else torch.float64
    return (value.to(wide) - other.to(wide)).abs()


def changed(value: Tensor, other: Tensor, noise: float = 0.0) -> Tensor:
    """Return a mask of the elements of two tensors that differ by more than the noise; NaN equals NaN."""
    # Differences between values that are not finite exceed any noise.
    return ~torch.isclose(value, other, rtol=0.0, atol=_ABOVE_NOISE * noise, equal_nan=True)


def rounding_of(value: Tensor, relative: float) -> float:
    """Return the largest rounding error of a tensor, `relative` to its largest value; 0 for integers."""
    sizes = value.abs()[value.abs() < _MASKED] if value.is_floating_point() and relative else value.new_empty(0)
    return relative * float(sizes.max()) if len(sizes) else 0.0


class Reference:
    """The tensors of a pass, each with the size of its noise."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.values = [tensor.clone() for tensor in tensors]
        self.noise = [0.0] * len(tensors)

    def repeat(self, tensors: list[Tensor], rounding: float) -> None:
        """Set the noise to the largest difference from an equal pass, or to the relative `rounding` if larger."""
        for index, mask in enumerate(self.changes(tensors) or [None] * len(self.noise)):
            value = self.values[index]
            difference = inf if mask is None else 0.0
            if mask is not None and mask.any():
                difference = float(gap(value[mask], tensors[index][mask]).max())
            self.noise[index] = max(difference, rounding_of(value, rounding))

    def changes(self, tensors: list[Tensor]) -> list[Tensor] | None:
        """Return a mask of the differences for each tensor, or None if their shapes differ."""
        if [value.shape for value in self.values] != [tensor.shape for tensor in tensors]:
            return None
        return [changed(*each) for each in zip(self.values, tensors, self.noise, strict=True)]


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

    def along_first(self, tensor: Tensor, batch: int) -> ExampleSlice:
        """Return the slice of these examples along the first axis of a tensor that could hold them."""
        axis, size = next((axis, size) for axis, size in enumerate(tensor.shape) if size % batch == 0)
        return ExampleSlice(axis, size, size // batch, self.examples)

    def mask(self, tensor: Tensor, batch: int) -> Tensor:
        """Return a mask of the examples that broadcasts to the shape of a tensor."""
        mask = torch.zeros(self.size, *[1] * (tensor.dim() - self.axis - 1), dtype=torch.bool, device=tensor.device)
        mask.view(-1, batch, self.inner)[:, list(self.examples)] = True
        return mask


def locate_change(change: Tensor, batch: int, count: int, expected: Iterable[int]) -> ExampleSlice | None:
    """Return a slice of at most `count` examples that contains a change, preferably of the expected ones, or None.

    The axis may hold the batch alone, or folded with an outer axis (heads) or an inner axis (windows).
    """
    slices: list[ExampleSlice] = []
    for axis, size in enumerate(change.shape):
        along = change.movedim(axis, 0).reshape(size, -1).any(dim=1).cpu()
        for inner in (divisor for divisor in range(1, size // batch + 1) if size % (batch * divisor) == 0):
            rows = along.view(-1, batch, inner).any(dim=2).any(dim=0)
            examples = frozenset(rows.nonzero().flatten().tolist())
            if len(examples) <= count:
                slices.append(ExampleSlice(axis, size, inner, examples))
    return next(
        (candidate for candidate in slices if candidate.examples <= set(expected)), slices[0] if slices else None
    )


def hook_calls(model: nn.Module, hook: Hook) -> None:
    """Register a function that receives and may replace the inputs and outputs of every module call."""
    calls: Counter[str] = Counter()
    running: list[tuple[str, int]] = []

    def before(path: str, _: nn.Module, args: Any, kwargs: Any) -> Any:
        running.append((path, calls[path]))
        calls[path] += 1
        return hook((*running[-1], True), (args, kwargs))

    for path, module in model.named_modules():
        module.register_forward_pre_hook(partial(before, path), with_kwargs=True)
        module.register_forward_hook(lambda _module, _inputs, output: hook((*running.pop(), False), output))


def recorder(record: ReferencePass, rounding: float) -> Hook:
    """Return a hook that stores the tensors of a pass or, in a repeated pass, their noise: see `Reference.repeat`."""
    repeats = bool(record)

    def store(key: Key, value: Any) -> Any:
        if not repeats:
            record[key] = Reference(tensors_of(value))
        elif key in record:
            record[key].repeat(tensors_of(value), rounding)
        return value

    return store


class Tracker:
    """A hook that follows a change of some examples through a pass and finds the modules that propagate it to others.

    A module mixes examples if the change is confined to a slice of that many examples in its inputs, but not in its
    outputs or in the tensors that it passes to a child; the change outside the slice is then undone. A module moves
    examples if the change is confined to the slice of other examples.

    Attributes:
        mixing: for each mixing module, whether the change it propagated was ever larger than rounding; the pass adds
            to the given dictionary.
        moving: the innermost modules that move examples.
    """

    def __init__(self, record: ReferencePass, batch: int, group: frozenset[int], mixing: dict[str, bool]) -> None:
        self._record, self._batch, self._group = record, batch, group
        # The running calls, each with the slice of the changed examples in its inputs, or None if unknown.
        self._running: list[tuple[str, ExampleSlice | None]] = [("", None)]
        self.mixing = mixing
        self.moving: list[str] = []

    def __call__(self, key: Key, value: Any) -> Any:
        """Locate the change in inputs or an output, and undo the mixing of the call that computed them."""
        path, _, enters = key
        author, known = self._running[-1] if enters else self._running.pop()
        tensors, slices = tensors_of(value), list[ExampleSlice | None]()
        changes = self._record[key].changes(tensors) if key in self._record else None
        restored = dict[int, Tensor]()
        for index, change in enumerate(changes or ()):
            if not change.any():
                continue
            here = locate_change(change, self._batch, len(self._group), known.examples if known else self._group)
            if here is None and known is not None:
                # A tensor without examples, such as a loss, is judged where the enclosing code uses it.
                if known.fits(change):
                    here = known
                elif not enters and has_example_axis(change, self._batch):
                    here = known.along_first(change, self._batch)
                if here is not None:
                    restored[index] = self._restored(author, tensors[index], self._record[key].values[index], here)
            slices.append(here)
        if enters:
            self._running.append((path, known if changes is not None and not slices else _joined(slices)))
        elif known is not None and not all(here is None or here.examples <= known.examples for here in slices):
            is_innermost = not any(inner.startswith(path and f"{path}.") for inner in self.moving)
            self.moving += [path] * is_innermost
        replacements = (restored.get(index, tensor) for index, tensor in enumerate(tensors))
        return (
            map_tensors(lambda tensor: next(replacements) if _is_dense(tensor) else tensor, value)
            if restored
            else value
        )

    def _restored(self, author: str, tensor: Tensor, original: Tensor, kept: ExampleSlice) -> Tensor:
        """A tensor with its original values outside a slice; the call that computed it is recorded as mixing."""
        own = torch.where(kept.mask(tensor, self._batch), tensor, original)
        unit = torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0
        is_clear = not bool(gap(tensor, own).max() <= rounding_of(original, _ROUNDING_UNITS * unit))
        self.mixing[author] = is_clear or self.mixing.get(author, False)
        return own


def _joined(slices: list[ExampleSlice | None]) -> ExampleSlice | None:
    """Return the first slice with the examples of all slices, or None if a slice is unknown or there is none."""
    known = [part for part in slices if part is not None]
    if not known or len(known) < len(slices):
        return None
    return replace(known[0], examples=frozenset().union(*(part.examples for part in known)))
