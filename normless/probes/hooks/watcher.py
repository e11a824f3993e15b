"""What a measurement is told of a pass through a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from torch import Tensor, nn

from normless.residual import Layer, ResidualBlock, ResidualMap, Unresolved


@dataclass(frozen=True)
class Setting:
    """What a pass is made on: the network, its map, the targets of the batch."""

    model: nn.Module
    map: ResidualMap
    targets: Any = None


@dataclass
class Watcher:
    """Is told the tensors of a pass at the places of a residual map; override what is of interest, and `table`.

    All tensors are detached; they are the network's own and must be neither changed nor kept beyond the pass.
    Only what a subclass overrides costs anything; overriding one of the `…_gradient` methods makes the pass go back.
    """

    missed: list[Unresolved] = field(default_factory=list, init=False, repr=False, compare=False)

    def on_start(self, setting: Setting) -> None:
        """A pass begins; what an earlier one told is forgotten."""

    def wants(self, layer: Layer) -> bool:
        """Whether `on_layer` and `on_layer_gradient` are to be called for a layer."""
        return True

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """A layer has run: its input and output."""

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """The gradient of the loss with respect to a layer's output, and the layer's input."""

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """A residual sum was made: its summands as they enter it, multipliers applied, and what it gave."""

    def on_sum_gradient(self, block: ResidualBlock, gradient: Tensor) -> None:
        """The gradient of the loss with respect to a residual sum."""

    def on_logits(self, logits: Tensor) -> None:
        """The network's output."""

    def on_logits_gradient(self, logits: Tensor, gradient: Tensor) -> None:
        """The gradient of the loss with respect to the logits."""

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        """The whole gradient of the loss with respect to a parameter; `name` is its qualified name."""

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        """What was told of a block's sum may have been another addition, and must be forgotten."""
        self.missed.append(Unresolved(block.name, reason))

    def table(self) -> pd.DataFrame:
        """What was measured, one observation a row."""
        raise NotImplementedError


def overrides(watcher: Watcher, method: str) -> bool:
    """Whether a watcher does something with what this method tells."""
    return getattr(type(watcher), method) is not getattr(Watcher, method)


def goes_back(watcher: Watcher) -> bool:
    """Whether a watcher needs gradients."""
    return any(overrides(watcher, method) for method in GRADIENTS)


GRADIENTS = ("on_layer_gradient", "on_sum_gradient", "on_logits_gradient", "on_parameter_gradient")

Tables = Mapping[str, pd.DataFrame]
