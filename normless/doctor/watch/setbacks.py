"""Detect weights that are set back between the steps of an optimizer, from a sample of their elements."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import nan

import torch
from torch import Tensor
from torch.optim import Optimizer

# The largest numbers of sampled weights and of elements of each, and the least number of elements to judge.
TENSORS, ELEMENTS, LEAST = 32, 64, 8
# Weights are set back if this share of their movement is undone between two steps; that of Lookahead is 0.5 at most.
# They are replaced, as by another initialization, if they change by this share of their norm and by more than before.
UNDONE, REPLACED = 0.8, 0.5


@dataclass
class Setbacks:
    """A sample of weights after the last step, and at the first step or the last setback.

    Attributes:
        share: the share of the movement that the last setback undid.
    """

    share: float = 0.0
    _pointers: tuple[int, ...] = ()
    _views: list[Tensor] = field(default_factory=list)
    _last: Tensor | None = None
    _anchor: Tensor | None = None
    _before: Tensor | None = None
    _times: dict[str, int] = field(default_factory=dict)
    _optimizer: weakref.ref[Optimizer] | None = None

    def begin(self, parameters: Mapping[str, Tensor]) -> None:
        """Keep the weights before the first step."""
        self._anchor = self._sample(parameters.values())

    def before(self, parameters: Mapping[str, Tensor], optimizer: Optimizer) -> dict[str, int]:
        """Compare the weights with those after the last step; return how often weights were set back, by name."""
        now, last, anchor = self._sample(parameters.values()), self._last, self._anchor
        self._before = now
        if now is None or last is None or anchor is None or not (_alike(now, last) and _alike(last, anchor)):
            self._anchor = now
            return {}
        if torch.equal(now, last):
            return {}
        # A setback before a new optimizer begins another training, as in cross-validation.
        if self._optimizer is None or self._optimizer() is not optimizer:
            self._times, self._optimizer = {}, weakref.ref(optimizer)
            self._anchor = now
            return {}
        back, undone = self._compare([*parameters], now.cpu(), last.cpu(), anchor.cpu())
        if not back:
            return {}
        self._anchor, self.share = now, undone
        self._times = {name: self._times.get(name, 0) + 1 for name in back}
        return self._times

    def after(self, parameters: Mapping[str, Tensor], optimizer: Optimizer) -> None:
        """Keep the weights after a step."""
        self._last = self._sample(parameters.values())
        if self._optimizer is None:
            self._optimizer = weakref.ref(optimizer)

    def size(self) -> float:
        """Return the norm of the sampled part of the last step; NaN if it is not known."""
        before, last = self._before, self._last
        is_known = before is not None and last is not None and _alike(before, last)
        return float((last - before).norm()) if is_known else nan  # type: ignore[operator]

    def moved(self, parameters: Mapping[str, Tensor]) -> bool:
        """Return whether weights differ from those at the first call, or at the last step."""
        now = self._sample(parameters.values())
        before = self._last if self._last is not None else self._anchor
        return now is not None and before is not None and not (_alike(now, before) and torch.equal(now, before))

    def _compare(self, names: list[str], now: Tensor, last: Tensor, anchor: Tensor) -> tuple[list[str], float]:
        """Return the weights that were set back, and the least share of their movement that was undone."""
        back, shares, start = [], [], 0
        for name, view in zip(names, self._views, strict=True):
            part = slice(start, start := start + len(view))
            moved, change = last[part] - anchor[part], now[part] - last[part]
            has_moved = moved != 0
            # Masks and clamps set single elements back, and leave the others as they are.
            if int(has_moved.sum()) >= LEAST and bool((change[has_moved] != 0).all()):
                share = -float((change * moved).sum() / moved.square().sum())
                is_replaced = change.norm() >= max(REPLACED * last[part].norm(), moved.norm())
                if share >= UNDONE or is_replaced:
                    back.append(name)
                    shares.append(1.0 if is_replaced else share)
        return back, min(shares, default=0.0)

    def _sample(self, parameters: Iterable[Tensor]) -> Tensor | None:
        """Return elements of all weights in one tensor."""
        weights = [*parameters]
        pointers = tuple(weight.data_ptr() for weight in weights)
        if pointers != self._pointers:
            self._views = [_elements(weight.detach()) for weight in weights]
            self._pointers = pointers
        if len({(view.device, view.dtype) for view in self._views}) != 1:
            return None
        return torch.cat(self._views)


def sampled(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return at most `TENSORS` weights of one device and dtype with enough elements, evenly spaced."""
    chosen = {
        name: weight
        for name, weight in parameters.items()
        if weight.requires_grad and weight.numel() >= LEAST and weight.is_contiguous() and weight.is_floating_point()
    }
    first = next(iter(chosen.values()), None)
    alike = [
        name
        for name, weight in chosen.items()
        if first is not None and (weight.device, weight.dtype) == (first.device, first.dtype)
    ]
    return {name: chosen[name] for name in alike[:: -(-len(alike) // TENSORS) or 1]}


def _elements(weight: Tensor) -> Tensor:
    return weight.view(-1)[:: -(-weight.numel() // ELEMENTS)]


def _alike(first: Tensor, second: Tensor) -> bool:
    return (first.shape, first.device, first.dtype) == (second.shape, second.device, second.dtype)
