"""Detect weights that are set back between the steps of an optimizer, from a sample of their elements."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
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
    """A sample of weights before and after the last step, and at the first step or the last setback.

    Attributes:
        share: the share of the movement that the last setback undid.
    """

    share: float = 0.0
    _weights: dict[str, Tensor] = field(default_factory=dict)
    _pointers: tuple[int, ...] = ()
    _views: list[Tensor] = field(default_factory=list)
    _before: Tensor | None = None
    _last: Tensor | None = None
    _anchor: Tensor | None = None
    _times: dict[str, int] = field(default_factory=dict)
    _optimizer: weakref.ref[Optimizer] | None = None

    def follow(self, parameters: Mapping[str, Tensor], is_first: bool) -> None:
        """Choose weights with enough elements, evenly spaced; before the first step, keep them."""
        known = {
            name: own
            for name, own in parameters.items()
            if own.requires_grad and own.numel() >= LEAST and own.is_contiguous() and own.is_floating_point()
        }
        kind = next(((own.device, own.dtype) for own in known.values()), None)
        alike = [name for name, own in known.items() if (own.device, own.dtype) == kind]
        self._weights = {name: known[name] for name in alike[:: -(-len(alike) // TENSORS) or 1]}
        if is_first:
            self._anchor = self._sample()

    def before(self, optimizer: Optimizer) -> dict[str, int]:
        """Compare the weights with those after the last step; return how often weights were set back, by name."""
        self._before = now = self._sample()
        last, anchor = self._last, self._anchor
        if now is None or last is None or anchor is None or not _alike(now, last) or not _alike(last, anchor):
            self._anchor = now
        elif not torch.equal(now, last):
            # A setback before a new optimizer begins another training, as in cross-validation.
            if self._optimizer is None or self._optimizer() is not optimizer:
                self._times, self._optimizer, self._anchor = {}, weakref.ref(optimizer), now
            elif shares := self._undone(now.cpu(), last.cpu(), anchor.cpu()):
                self._anchor, self.share = now, min(shares.values())
                self._times = {name: self._times.get(name, 0) + 1 for name in shares}
                return self._times
        return {}

    def after(self, optimizer: Optimizer) -> None:
        """Keep the weights after a step."""
        self._last = self._sample()
        self._optimizer = self._optimizer or weakref.ref(optimizer)

    def size(self) -> float:
        """Return the norm of the sampled part of the last step; NaN if it is not known."""
        before, last = self._before, self._last
        return nan if before is None or last is None or not _alike(before, last) else float((last - before).norm())

    def moved(self) -> bool:
        """Return whether weights differ from those at the first call, or at the last step."""
        now, before = self._sample(), self._last if self._last is not None else self._anchor
        return now is not None and before is not None and not (_alike(now, before) and torch.equal(now, before))

    def _undone(self, now: Tensor, last: Tensor, anchor: Tensor) -> dict[str, float]:
        """Return the shares of their movement that were undone, for the weights that were set back."""
        shares, start = {}, 0
        for name, view in zip(self._weights, self._views, strict=True):
            part = slice(start, start := start + len(view))
            moved, change = last[part] - anchor[part], now[part] - last[part]
            has_moved = moved != 0
            # Masks and clamps set single elements back, and leave the others as they are.
            if int(has_moved.sum()) < LEAST or not bool((change[has_moved] != 0).all()):
                continue
            share = -float((change * moved).sum() / moved.square().sum())
            is_replaced = change.norm() >= max(REPLACED * last[part].norm(), moved.norm())
            if share >= UNDONE or is_replaced:
                shares[name] = 1.0 if is_replaced else share
        return shares

    def _sample(self) -> Tensor | None:
        """Return elements of all weights in one tensor."""
        pointers = tuple(weight.data_ptr() for weight in self._weights.values())
        if pointers != self._pointers:
            flat = [weight.detach().view(-1) for weight in self._weights.values()]
            self._views = [values[:: -(-len(values) // ELEMENTS)] for values in flat]
            self._pointers = pointers
        if len({(view.device, view.dtype) for view in self._views}) != 1:
            return None
        return torch.cat(self._views)


def _alike(first: Tensor, second: Tensor) -> bool:
    return (first.shape, first.device, first.dtype) == (second.shape, second.device, second.dtype)
