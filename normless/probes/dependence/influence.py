"""Which modules carry a change of some examples of a batch over to others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normless.probes.dependence.differences import Place, changed, gap, holds_examples, noise_of, place_of
from normless.probes.dependence.reruns import replace_tensors, tensors_of

Key = tuple[str, int, bool]
"""A module's qualified name, which of its calls it is, and whether these are its inputs or its outputs."""

# In units of the last place of a tensor's largest value: what may be rounding.
_FAINT = 1024


@dataclass
class Pass:
    """The tensors at the two ends of every module call of one forward pass, and how far each strays by chance.

    `rounding` is the least such noise, in parts of a tensor's largest value.
    """

    rounding: float = 0.0
    values: dict[Key, list[Tensor]] = field(default_factory=dict)
    noise: dict[Key, list[float]] = field(default_factory=dict)

    def changes(self, key: Key, tensors: list[Tensor]) -> list[Tensor] | None:
        """Where other tensors at the same place differ, a mask for each; None where they do not correspond."""
        here = self.values.get(key, [])
        if [value.shape for value in here] != [tensor.shape for tensor in tensors]:
            return None
        noise = self.noise.get(key, [0.0] * len(here))
        return [changed(*pair) for pair in zip(here, tensors, noise, strict=True)]


class _Watch:
    """Hooks on every module of a network, which see and may replace what enters and leaves each call."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._open: list[tuple[str, int]] = []

    def __call__(self, model: nn.Module) -> None:
        for path, module in model.named_modules():
            module.register_forward_pre_hook(self._before(path), with_kwargs=True)
            module.register_forward_hook(self._behind)

    def _before(self, path: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> Any:
            self._open.append((path, self._calls[path]))
            self._calls[path] += 1
            return self.enter((*self._open[-1], True), (args, kwargs))

        return hook

    def _behind(self, _: nn.Module, _inputs: Any, output: Any) -> Any:
        return self.leave((*self._open.pop(), False), output)

    def enter(self, key: Key, inputs: Any) -> Any:
        raise NotImplementedError

    def leave(self, key: Key, output: Any) -> Any:
        raise NotImplementedError


class Recorder(_Watch):
    """Writes the tensors of a forward pass into a `Pass`, and those of a repetition as its noise."""

    def __init__(self, record: Pass) -> None:
        super().__init__()
        self._record = record
        self._repeats = bool(record.values)

    def enter(self, key: Key, inputs: Any) -> Any:
        """Keep what enters a call."""
        tensors = tensors_of(inputs)
        if not self._repeats:
            self._record.values[key] = [tensor.clone() for tensor in tensors]
        elif self._record.changes(key, tensors) is not None:
            pairs = zip(self._record.values[key], tensors, strict=True)
            self._record.noise[key] = [noise_of(*pair, self._record.rounding) for pair in pairs]
        return inputs

    def leave(self, key: Key, output: Any) -> Any:
        """Keep what leaves a call."""
        return self.enter(key, output)


@dataclass
class _Call:
    """A call under way: where the changed examples lie in its inputs; `place` is None where that is unknown."""

    path: str
    place: Place | None
    examples: frozenset[int]
    moves_inside: bool = False


class Tracker(_Watch):
    """Follows a change of some examples through a forward pass and notes the modules that carry it to others.

    A module mixes if the change is confined to the places of that many examples in its inputs and not in its
    outputs. What it carried over is taken back at its output, so that the modules behind it and the one around
    it are judged by what they do themselves. A module moves examples if the change stays confined, but to the
    places of others. `mixing` holds for every module whether what it carried over was ever more than rounding may be.
    """

    def __init__(self, record: Pass, batch: int, group: frozenset[int]) -> None:
        super().__init__()
        self._record, self._batch, self._group = record, batch, group
        self._calls_open: list[_Call] = []
        self.mixing: dict[str, bool] = {}
        self.moving: list[str] = []

    def enter(self, key: Key, inputs: Any) -> Any:
        """Find the changed examples in what enters a call; take back what the code around the call has mixed."""
        outer = self._calls_open[-1] if self._calls_open else _Call("", None, self._group)
        call = _Call(key[0], outer.place, outer.examples)
        self._calls_open.append(call)
        tensors = tensors_of(inputs)
        changes = self._record.changes(key, tensors)
        if changes is None:
            call.place = None
            return inputs
        places: list[Place | None] = []
        mixed = False
        for index, change in enumerate(changes):
            if not change.any():
                continue
            place = self._place(change, outer.examples)
            if place is None and outer.place is not None and outer.place.fits(tensors[index]):
                place, mixed = outer.place, True
                tensors[index] = self._taken_back(outer, tensors[index], self._record.values[key][index], place)
            places.append(place)
        known = [place for place in places if place is not None]
        if places:
            call.place = known[0] if len(known) == len(places) else None
            call.examples = frozenset().union(*(place.examples for place in known))
        return replace_tensors(inputs, tensors) if mixed else inputs

    def leave(self, key: Key, output: Any) -> Any:
        """Judge a call by what leaves it; take back what it carried over to other examples."""
        call = self._calls_open.pop()
        tensors = tensors_of(output)
        changes = self._record.changes(key, tensors)
        if call.place is None or changes is None:
            return output
        mixes = moves = False
        for index, change in enumerate(changes):
            # What belongs to no example, such as a loss, is judged where the code around the call uses it.
            if not change.any() or not holds_examples(change, self._batch):
                continue
            place = self._place(change, call.examples)
            if place is None:
                mixes = True
                own = self._own_place(call, tensors[index])
                tensors[index] = self._taken_back(call, tensors[index], self._record.values[key][index], own)
            elif not place.examples <= call.examples:
                moves = True
        if moves and not call.moves_inside:
            self.moving.append(call.path)
        if self._calls_open:
            self._calls_open[-1].moves_inside |= moves or call.moves_inside
        return replace_tensors(output, tensors) if mixes else output

    def _place(self, change: Tensor, expected: frozenset[int]) -> Place | None:
        return place_of(change, self._batch, len(self._group), expected)

    def _own_place(self, call: _Call, tensor: Tensor) -> Place | None:
        """Where the examples of a call's inputs belong in an output of it: on the same axis, else on the first."""
        assert call.place is not None
        place = replace(call.place, examples=call.examples)
        if place.fits(tensor):
            return place
        size = tensor.shape[0] if tensor.dim() else 1
        return None if size % self._batch else Place(0, size, size // self._batch, call.examples)

    def _taken_back(self, call: _Call, tensor: Tensor, original: Tensor, place: Place | None) -> Tensor:
        """The original with the changed examples in their place, without any where there is none; blames the call."""
        own = original.clone() if place is None else torch.where(place.mask(tensor, self._batch), tensor, original)
        clear = True
        if tensor.dtype.is_floating_point:
            rounding = noise_of(original, original, _FAINT * torch.finfo(tensor.dtype).eps)
            clear = not bool(gap(tensor, own).max() <= rounding)
        self.mixing[call.path] = clear or self.mixing.get(call.path, False)
        return own
