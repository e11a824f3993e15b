"""The modules that propagate a change of some examples of a batch to others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normless.probes.dependence.differences import (
    ExampleSlice,
    changed,
    gap,
    has_example_axis,
    locate_change,
    noise_of,
)
from normless.probes.dependence.reruns import replace_tensors, tensors_of

Key = tuple[str, int, bool]
"""A module's qualified name, the number of its call, and whether the tensors are inputs."""

# Largest rounding error, in units of the last place of a tensor's largest value.
_ROUNDING_UNITS = 1024


@dataclass
class Pass:
    """The inputs and outputs of every module call of one forward pass, and the noise of each, relative `rounding`."""

    rounding: float = 0.0
    values: dict[Key, list[Tensor]] = field(default_factory=dict)
    noise: dict[Key, list[float]] = field(default_factory=dict)

    def changes(self, key: Key, tensors: list[Tensor]) -> list[Tensor] | None:
        """A mask of the differences for each tensor; None if their shapes differ."""
        values = self.values.get(key, [])
        if [value.shape for value in values] != [tensor.shape for tensor in tensors]:
            return None
        noise = self.noise.get(key, [0.0] * len(values))
        return [changed(*pair) for pair in zip(values, tensors, noise, strict=True)]


class _CallHooks:
    """Hooks on all modules of a network that see and may replace the inputs and outputs of each call."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._running: list[tuple[str, int]] = []

    def __call__(self, model: nn.Module) -> None:
        for path, module in model.named_modules():
            module.register_forward_pre_hook(self._pre_hook(path), with_kwargs=True)
            module.register_forward_hook(self._hook)

    def _pre_hook(self, path: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> Any:
            self._running.append((path, self._calls[path]))
            self._calls[path] += 1
            return self.enter((*self._running[-1], True), (args, kwargs))

        return hook

    def _hook(self, _: nn.Module, _inputs: Any, output: Any) -> Any:
        return self.leave((*self._running.pop(), False), output)

    def enter(self, key: Key, inputs: Any) -> Any:
        raise NotImplementedError

    def leave(self, key: Key, output: Any) -> Any:
        """By default, outputs are treated as inputs are."""
        return self.enter(key, output)


class Recorder(_CallHooks):
    """Stores the tensors of a forward pass in a `Pass`, and the differences of a repetition as its noise."""

    def __init__(self, record: Pass) -> None:
        super().__init__()
        self._record = record
        self._repeats = bool(record.values)

    def enter(self, key: Key, inputs: Any) -> Any:
        """Store the inputs or outputs of a call."""
        tensors = tensors_of(inputs)
        if not self._repeats:
            self._record.values[key] = [tensor.clone() for tensor in tensors]
        elif self._record.changes(key, tensors) is not None:
            pairs = zip(self._record.values[key], tensors, strict=True)
            self._record.noise[key] = [noise_of(*pair, self._record.rounding) for pair in pairs]
        return inputs


@dataclass
class _Call:
    """A running call, and the slice of the changed examples in its inputs, None if unknown."""

    path: str
    slice: ExampleSlice | None
    examples: frozenset[int]
    moves_inside: bool = False


class Tracker(_CallHooks):
    """Follows a change of some examples through a forward pass and finds the modules that propagate it to others.

    A module mixes if the change is confined to a slice of that many examples in its inputs and not in its outputs.
    The change of other examples is then undone, so that each later and each enclosing module is judged by itself. A
    module moves examples if the change stays confined, but to the slice of other examples. `mixing` holds for every
    mixing module whether the change it propagated was ever larger than rounding.
    """

    def __init__(self, record: Pass, batch: int, group: frozenset[int]) -> None:
        super().__init__()
        self._record, self._batch, self._group = record, batch, group
        self._stack: list[_Call] = []
        self.mixing: dict[str, bool] = {}
        self.moving: list[str] = []

    def enter(self, key: Key, inputs: Any) -> Any:
        """Locate the change in the inputs of a call; undo what the enclosing module's own code has mixed."""
        outer = self._stack[-1] if self._stack else _Call("", None, self._group)
        call = _Call(key[0], outer.slice, outer.examples)
        self._stack.append(call)
        tensors = tensors_of(inputs)
        changes = self._record.changes(key, tensors)
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
                tensors[index] = self._undone(outer, tensors[index], self._record.values[key][index], here)
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
        changes = self._record.changes(key, tensors)
        if call.slice is None or changes is None:
            return output
        mixes = moves = False
        for index, change in enumerate(changes):
            # A tensor without examples, such as a loss, is judged where the enclosing code uses it.
            if not change.any() or not has_example_axis(change, self._batch):
                continue
            here = self._locate(change, call.examples)
            if here is None:
                mixes = True
                own = self._slice_in(call, tensors[index])
                tensors[index] = self._undone(call, tensors[index], self._record.values[key][index], own)
            elif not here.examples <= call.examples:
                moves = True
        if moves and not call.moves_inside:
            self.moving.append(call.path)
        if self._stack:
            self._stack[-1].moves_inside |= moves or call.moves_inside
        return replace_tensors(output, tensors) if mixes else output

    def _locate(self, change: Tensor, expected: frozenset[int]) -> ExampleSlice | None:
        return locate_change(change, self._batch, len(self._group), expected)

    def _slice_in(self, call: _Call, tensor: Tensor) -> ExampleSlice | None:
        """The slice of a call's examples in one of its outputs: on the same axis, else on the first."""
        assert call.slice is not None
        own = replace(call.slice, examples=call.examples)
        if own.fits(tensor):
            return own
        size = tensor.shape[0] if tensor.dim() else 1
        return None if size % self._batch else ExampleSlice(0, size, size // self._batch, call.examples)

    def _undone(self, call: _Call, tensor: Tensor, original: Tensor, region: ExampleSlice | None) -> Tensor:
        """The original tensor, with the changed values in the slice to keep; the call is recorded as mixing."""
        own = original.clone() if region is None else torch.where(region.mask(tensor, self._batch), tensor, original)
        clear = True
        if tensor.dtype.is_floating_point:
            rounding = noise_of(original, original, _ROUNDING_UNITS * torch.finfo(tensor.dtype).eps)
            clear = not bool(gap(tensor, own).max() <= rounding)
        self.mixing[call.path] = clear or self.mixing.get(call.path, False)
        return own
