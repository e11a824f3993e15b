"""Follow the backward passes of a training: gradients before the first and after the last pass of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from normless.doctor.facts.flow import tensors
from normless.doctor.watch.hooks import weakly

# The largest numbers of parameters whose gradients are followed, and of the elements of each.
FOLLOWED, ELEMENTS = 8, 4096
# A loss that is multiplied by this or more is scaled for the range of float16.
SCALED = 256.0


@dataclass(eq=False)
class BackwardPasses:
    """The gradients of some parameters around the backward passes since their last steps.

    Attributes:
        read: the largest element of the gradient after the last step, by parameter.
        began: the same at the beginning of each pass since then.
        ended: the largest element of the gradient at the end of the last pass, by parameter.
        discarded: how often gradients were zeroed without a step since the last step.
        lost: how often these were gradients of a loss that was given.
        count: the number of backward passes.
        followed: the parameters by name.
        is_divided: whether a loss that was given before its pass was divided, before or after it was given.
        scale: the factor with which the pass of a loss began; 1 if it is not known.
        is_running: whether a pass is running, as in steps that hooks on gradients make.
    """

    read: dict[str, Tensor] = field(default_factory=dict)
    began: dict[str, list[Tensor | None]] = field(default_factory=dict)
    ended: dict[str, Tensor] = field(default_factory=dict)
    discarded: int = 0
    lost: int = 0
    count: int = 0
    followed: dict[str, Tensor] = field(default_factory=dict)
    is_divided: bool = False
    scale: float = 1.0
    is_running: bool = False
    _is_given: bool = False
    _was_given: bool = False

    def follow(self, parameters: Mapping[str, Tensor]) -> None:
        """Choose parameters: the smallest ones, of different parts of the network."""
        trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
        size = -(-len(trained) // FOLLOWED) or 1
        parts = [trained[start : start + size] for start in range(0, len(trained), size)]
        chosen = [min(part, key=lambda name: parameters[name].numel()) for part in parts]
        self.followed = {name: parameters[name] for name in chosen}

    def expect(self, output: Any) -> None:
        """Prepare for the backward pass of an output."""
        self.is_running = False
        for node in {tensor.grad_fn for tensor in tensors(output)}:
            if node is not None:
                node.register_prehook(weakly(self._begin))

    def weigh(self, loss: Any) -> None:
        """Prepare to see whether the pass of a loss begins with a factor."""
        self.scale = 1.0
        if isinstance(loss, Tensor) and loss.grad_fn is not None:
            self.is_divided |= loss.grad_fn.name().startswith(("Div", "Mul"))
            loss.grad_fn.register_prehook(weakly(self._weighed))

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
        return all(name in now and bool(torch.equal(now[name], self.ended[name])) for name in known)

    def added(self, names: Iterable[str]) -> int:
        """Return the number of passes whose gradients were added since they were last zeroed."""
        most = 0
        for name in names:
            began = self.began.get(name, [])
            zeroed = [index for index, before in enumerate(began) if before is None or not bool(before)]
            most = max(most, len(began) - zeroed[-1] if zeroed else 0)
        return most

    def _begin(self, _: Any) -> None:
        """Look at the gradients before a pass adds to them; called once for each output of the pass."""
        if self.is_running:
            return
        self.is_running = True
        before = self._largest()
        self.count += 1
        if self.ended and not _any(before.values()):
            self.discarded += 1
            self.lost += self._was_given and _any(self.ended.values())
        for name in self.followed:
            self.began.setdefault(name, []).append(before.get(name))
        # Called at the end of the pass.
        Variable._execution_engine.queue_callback(weakly(self._end))

    def _end(self) -> None:
        self.is_running = False
        self._was_given, self._is_given = self._is_given, False
        self.ended = self._largest()

    @torch.no_grad()
    def _largest(self) -> dict[str, Tensor]:
        """Return the largest element of each gradient that exists."""
        some = {
            name: _elements(parameter.grad)
            for name, parameter in self.followed.items()
            if parameter.grad is not None and not parameter.grad.is_sparse
        }
        return dict(zip(some, torch._foreach_norm([*some.values()], torch.inf), strict=True)) if some else {}

    def kept(self, names: Iterable[str]) -> list[str]:
        """Return the parameters whose gradients are those of their last step, and were never zeroed since then.

        A pass of other outputs than those of the network may have added to a gradient before.
        """
        return [name for name in names if self._is_kept(name)]

    def _is_kept(self, name: str) -> bool:
        passes = [before for before in self.began.get(name, []) if before is not None]
        if not passes or len(passes) < len(self.began[name]) or name not in self.read:
            return False
        return bool(torch.equal(passes[0], self.read[name])) and all(map(bool, passes))

    def stepped(self, names: Iterable[str]) -> None:
        """Begin again after a step of parameters."""
        now = self._largest()
        for name in names:
            self.began.pop(name, None)
            self.ended.pop(name, None)
            self.read.pop(name, None)
            if name in now:
                self.read[name] = now[name]
        self.discarded = self.lost = 0


def _elements(gradient: Tensor) -> Tensor:
    return gradient.detach().reshape(-1)[:ELEMENTS]


def _any(values: Iterable[Tensor]) -> bool:
    """Return whether a value is not zero, read from the device at once."""
    read = [*values]
    return bool(read) and bool(torch.stack([value.float() for value in read]).any())
