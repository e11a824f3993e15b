"""Follow the gradients of a training: around the backward passes of a step, and from a step to the next pass."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from normless.doctor.facts._tracer import tensors

# The largest numbers of parameters whose gradients are followed, and of the elements of each.
FOLLOWED, ELEMENTS = 8, 4096
# A loss that is multiplied by this or more is scaled for the range of float16.
SCALED = 256.0
# A second clipping rounds, and leaves more than this share of a gradient.
SHRUNK = 0.999
# A norm is constant if it varies by less than this share over STEPS steps, and tiny below TINY, if the median layer
# changes by less than SLOW in a step.
STEPS, CONSTANT, TINY, SLOW = 20, 1e-3, 1e-2, 1e-5
Largest = dict[str, Tensor]
"""The largest element of each followed gradient that exists, by parameter."""


@dataclass(eq=False)
class BackwardPasses:
    """The gradients of some parameters around the backward passes since their last steps.

    Attributes:
        read: the gradients after the last step.
        began: by parameter, its gradient at the beginning of each pass since then.
        ended: the gradients at the end of the last pass.
        discarded: how often gradients were zeroed without a step since the last step.
        lost: how often these were gradients of a loss that was given.
        count: the number of backward passes.
        followed: the parameters by name.
        noticed: is called at the first gradient of each pass, if the network's own passes are not seen.
        sees_forward: whether a forward pass was seen.
        is_divided: whether a loss that was given before its pass was divided, before or after it was given.
        scale: the factor with which the pass of a loss began; 1 if it is not known.
        is_running: whether a pass is running, as in steps that hooks on gradients make.
    """

    read: Largest = field(default_factory=dict)
    began: dict[str, list[Tensor | None]] = field(default_factory=dict)
    ended: Largest = field(default_factory=dict)
    discarded: int = 0
    lost: int = 0
    count: int = 0
    followed: Mapping[str, Tensor] = field(default_factory=dict)
    is_divided: bool = False
    scale: float = 1.0
    is_running: bool = False
    noticed: Callable[[], object] = lambda: None
    sees_forward: bool = False
    _arrivals: list[Any] = field(default_factory=list)
    _is_given: bool = False
    _was_given: bool = False

    def follow(self, parameters: Mapping[str, Tensor]) -> None:
        """Choose parameters: the smallest ones, of different parts of the network."""
        names, size = [*parameters], -(-len(parameters) // FOLLOWED) or 1
        parts = (names[start : start + size] for start in range(0, len(names), size))
        chosen = [min(part, key=lambda name: parameters[name].numel()) for part in parts]
        before, self.followed = self.followed, {name: parameters[name] for name in chosen}
        if not self.sees_forward and [*map(id, before.values())] != [*map(id, self.followed.values())]:
            # A hook lasts as long as the node, in which a parameter's gradient arrives.
            with torch.enable_grad():
                ends = [known.expand_as(known).grad_fn for known in self.followed.values()]
            nodes: list[Any] = [end.next_functions[0][0] for end in ends if end is not None]
            self._forget_arrivals()
            self._arrivals = [(node, node.register_prehook(_weakly(self._arrive))) for node in nodes]

    def expect(self, output: Any) -> None:
        """Prepare for the backward pass of an output."""
        self.is_running, self.sees_forward = False, True
        self._forget_arrivals()
        for node in {tensor.grad_fn for tensor in tensors(output)} - {None}:
            node.register_prehook(_weakly(self._begin))  # type: ignore[union-attr]

    def _forget_arrivals(self) -> None:
        for _, handle in self._arrivals:
            handle.remove()
        self._arrivals.clear()

    def weigh(self, loss: Any) -> None:
        """Prepare to see whether the pass of a loss begins with a factor."""
        self.scale = 1.0
        if isinstance(loss, Tensor) and loss.grad_fn is not None:
            self.is_divided |= loss.grad_fn.name().startswith(("Div", "Mul"))
            loss.grad_fn.register_prehook(_weakly(self._weighed))

    def _weighed(self, gradients: tuple[Tensor | None, ...]) -> None:
        factors = [gradient for gradient in gradients if gradient is not None and gradient.numel() == 1]
        self.scale = float(factors[0]) if factors else 1.0
        self.is_divided |= self.scale != 1.0
        self._is_given = True

    def is_scaled(self, names: Iterable[str]) -> bool:
        """Return whether a step reads the gradients of a scaled loss as the pass has left them."""
        known = [name for name in names if name in self.ended]
        if self.scale < SCALED or not known:
            return False
        now = self._largest()
        return all(name in now and torch.equal(now[name], self.ended[name]) for name in known)

    def added(self, names: Iterable[str]) -> int:
        """Return the number of passes whose gradients were added since they were last zeroed."""
        most = 0
        for began in (self.began.get(name, []) for name in names):
            zeroed = [index for index, before in enumerate(began) if not before]
            most = max(most, len(began) - zeroed[-1] if zeroed else 0)
        return most

    def kept(self, names: Iterable[str]) -> list[str]:
        """Return the parameters whose gradients are those of their last step, and were never zeroed since then.

        A pass of other outputs than those of the network may have added to a gradient before.
        """
        passes = {name: began for name in names if name in self.read and (began := self.began.get(name))}
        firsts = {name: began[0] for name, began in passes.items() if all(began)}
        return [name for name, first in firsts.items() if first is not None and first.equal(self.read[name])]

    def stepped(self, names: Iterable[str]) -> None:
        """Begin again after a step of parameters."""
        now = self._largest()
        for name in names:
            for known in (self.began, self.ended, self.read):
                known.pop(name, None)
            if name in now:
                self.read[name] = now[name]
        self.discarded = self.lost = 0

    def _arrive(self, _: Any) -> None:
        """Begin at the first gradient of a pass, whose forward pass was not seen."""
        if not self.is_running and not self.sees_forward:
            self._begin(_)
            self.noticed()

    def _begin(self, _: Any) -> None:
        """Look at the gradients before a pass adds to them; called once for each output of the pass."""
        if self.is_running:
            return
        self.is_running = True
        before = self._largest()
        self.count += 1
        if self.ended and not _any(before):
            self.discarded += 1
            self.lost += self._was_given and _any(self.ended)
        for name in self.followed:
            self.began.setdefault(name, []).append(before.get(name))
        # Called at the end of the pass.
        Variable._execution_engine.queue_callback(_weakly(self._end))

    def _end(self) -> None:
        self.is_running = False
        self._was_given, self._is_given = self._is_given, False
        self.ended = self._largest()

    @torch.no_grad()
    def _largest(self) -> Largest:
        some = {
            name: parameter.grad.detach().reshape(-1)[:ELEMENTS]
            for name, parameter in self.followed.items()
            if parameter.grad is not None and not parameter.grad.is_sparse
        }
        return dict(zip(some, torch._foreach_norm([*some.values()], torch.inf), strict=True)) if some else {}


def _any(values: Largest) -> bool:
    """Return whether a value is not zero, read from the device at once."""
    return bool(values) and bool(torch.stack([value.float() for value in values.values()]).any())


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method, and does nothing once the object is deleted."""
    known = weakref.WeakMethod(method)
    return lambda *args: None if (call := known()) is None else call(*args)


@dataclass(eq=False)
class Clipping:
    """The gradient of a parameter after its last step, and the norms of the last steps."""

    _read: tuple[Tensor, int, Tensor] | None = None
    _norms: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))

    def stepped(self, parameters: Iterable[Tensor]) -> None:
        """Keep the gradient that the step read."""
        gradient = next((known.grad for known in parameters if known.grad is not None), None)
        self._read = None
        if gradient is not None and not gradient.is_sparse and gradient.is_floating_point():
            self._read = gradient, gradient._version, gradient.detach().clone()

    def is_late(self) -> bool | None:
        """Return, in the first pass after a step, whether the gradient has shrunk since the step; None in others.

        Zeroing deletes or replaces it.
        """
        if self._read is None:
            return None
        (gradient, version, before), self._read = self._read, None
        if gradient._version == version:
            return False
        now = gradient.detach()
        # No element grew or changed its sign, as it does where a pass added to the gradient.
        is_part = (now * before >= 0) & (now.abs() <= before.abs())
        return bool(is_part.all() & (now.abs() < SHRUNK * before.abs()).any() & now.any())

    def tiny(self, norms: Mapping[str, float], updates: Mapping[str, float]) -> float | None:
        """Return the norm to which gradients are clipped if it is tiny; `updates` are the last measured ‖Δw‖/‖w‖."""
        total = sum(norm**2 for norm in norms.values()) ** 0.5
        self._norms.append(total)
        largest = max(self._norms)
        if len(self._norms) < STEPS or not isfinite(largest) or not 0 < largest < TINY:
            return None
        is_constant = largest - min(self._norms) <= CONSTANT * largest
        return total if is_constant and updates and median(updates.values()) < SLOW else None
