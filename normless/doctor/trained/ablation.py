"""What the output and the loss are without a residual branch, or with a constant in place of a norm's divisor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from normless.doctor.trained.units import channel_of
from normless.nn import FreezableNorm, ResidualSum
from normless.probes.hooks.additions import intercepted
from normless.residual import ResidualBlock, ResidualMap


class Branches:
    """Removes the branch of one block after another: inside `removing`, the block named `removed` is its skip path.

    Attributes:
        removed: the name of the block, or None.
        missed: by block, why its branch could not be removed.
        seen: the names of the blocks whose branch was removed in a pass.
    """

    def __init__(self, model: nn.Module, mapped: ResidualMap) -> None:
        self.model, self.map = model, mapped
        self.removed: str | None = None
        self.missed: dict[str, str] = {}
        self.seen: set[str] = set()

    def blocks(self) -> list[ResidualBlock]:
        """Return the blocks that can be removed: not those that contain the blocks in series, nor interpolations."""
        return [block for block in self.map.walk() if not block.is_global and not block.interpolates]

    @contextmanager
    def removing(self) -> Iterator[None]:
        """Make removals possible in the passes of the body."""
        with ExitStack() as stack:
            for block in self.map.walk():
                if block.sum is not None and len(block.branches) == 1:
                    module = self.model.get_submodule(block.sum)
                    if isinstance(module, ResidualSum):
                        stack.callback(module.register_forward_pre_hook(self._of_module(block)).remove)
            if any(block.additions for block in self.map.walk()):
                stack.enter_context(intercepted(self.model, self.map, self._on_sum, self._on_missed))
            yield

    def _of_module(self, block: ResidualBlock) -> Callable[..., tuple[Tensor, Tensor] | None]:
        def hook(_: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
            if self.removed != block.name:
                return None
            self.seen.add(block.name)
            return inputs[0], torch.zeros_like(inputs[1])

        return hook

    def _on_sum(
        self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor
    ) -> Tensor | None:
        if self.removed != block.name:
            return None
        self.seen.add(block.name)
        return skip.expand_as(total)

    def _on_missed(self, block: ResidualBlock, reason: str) -> None:
        self.missed[block.name] = reason


def replaced(norm: nn.Module, frozen: FreezableNorm) -> AbstractContextManager[object]:
    """Return a context in which a norm returns what its frozen counterpart computes."""
    return norm.register_forward_hook(lambda _, inputs, __: frozen(inputs[0]))


@contextmanager
def averaged(layer: nn.Module) -> Iterator[list[float]]:
    """Let a weight layer return the mean of each output channel, and yield how far its outputs were from its inputs.

    The numbers, one for each run, are ‖y − x‖ / ‖x‖; infinite if the shapes differ.
    """
    apart: list[float] = []

    def hook(module: nn.Module, inputs: tuple[Any, ...], y: Any) -> Tensor | None:
        if not isinstance(y, Tensor) or y.dim() < 2 or not inputs or not isinstance(inputs[0], Tensor):
            return None
        x = inputs[0]
        is_like = x.shape == y.shape and x.dtype == y.dtype
        apart.append(float((y - x).norm() / x.norm().clamp_min(1e-30)) if is_like else inf)
        axis = channel_of(module, y) % y.dim()
        return y.mean([other for other in range(y.dim()) if other != axis], keepdim=True).expand_as(y).clone()

    with layer.register_forward_hook(hook):
        yield apart
