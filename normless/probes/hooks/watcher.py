"""Watchers: measurements that receive the tensors of a pass through a network, and the registry of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pandas as pd
from torch import Tensor, nn

from normless.registry import Registry
from normless.residual import Layer, ResidualBlock, ResidualMap, Unresolved

Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Setting:
    """The network of a pass, its residual map, and the targets of the batch."""

    model: nn.Module
    map: ResidualMap
    targets: Any = None


@dataclass
class Watcher:
    """Base class of probes: receives the tensors of a pass at the locations of a residual map.

    A subclass overrides the methods it needs, and `table`; only overridden methods cost anything, and a backward
    pass is made if a `…_gradient` method is among them. Tensors are detached. They are the network's own: they must
    not be changed, nor stored beyond the pass.
    """

    missed: list[Unresolved] = field(default_factory=list, init=False, repr=False, compare=False)

    def on_start(self, setting: Setting) -> None:
        """Called before a pass; discards the results of earlier passes."""

    def wants(self, layer: Layer) -> bool:
        """Whether `on_layer` and `on_layer_gradient` are called for a layer."""
        return True

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Receive a layer's input and output."""

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """Receive a layer's input and the gradient of the loss with respect to its output."""

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Receive the summands of a residual sum, multipliers applied, and their total."""

    def on_sum_gradient(self, block: ResidualBlock, gradient: Tensor) -> None:
        """Receive the gradient of the loss with respect to a residual sum."""

    def on_logits(self, logits: Tensor) -> None:
        """Receive the network's output."""

    def on_logits_gradient(self, logits: Tensor, gradient: Tensor) -> None:
        """Receive the network's output and the gradient of the loss with respect to it."""

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        """Receive a parameter, by its qualified name, and the gradient of the loss with respect to it."""

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        """Called if a block's sum could not be identified; discards what `on_sum` received for it."""
        self.missed.append(Unresolved(block.name, reason))

    def table(self) -> pd.DataFrame:
        """The measurements, one observation a row."""
        raise NotImplementedError


PROBES: Registry[type[Watcher]] = Registry("probe")
"""Watchers by name; filled when `normless.probes` provides it, with ours and those of entry points."""


@dataclass
class BlockWatcher(Watcher):
    """A watcher with a row for every outermost block, filled in by its methods with `add`.

    Attributes:
        columns: of the table; cells that no method fills in are NaN.
        independent: the columns that do not depend on the block's sum.
        rows: by the name of the block.
    """

    columns: ClassVar[tuple[str, ...]] = ("block", "name")
    independent: ClassVar[tuple[str, ...]] = ()
    rows: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Create an empty row per block."""
        blocks = setting.map.blocks
        if not blocks:
            self.missed.append(Unresolved("the network", "it has no residual block"))
        self.rows = {block.name: {"block": index, "name": block.name} for index, block in enumerate(blocks, 1)}

    def add(self, name: str, values: Mapping[str, float]) -> None:
        """Fill in columns of a block's row; blocks inside others have none."""
        if name in self.rows:
            self.rows[name] |= values

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        """Empty the columns of the block's row that depend on its sum."""
        super().on_missed(block, reason)
        if block.name in self.rows:
            unchanged = ("block", "name", *self.independent)
            self.rows[block.name] = {key: value for key, value in self.rows[block.name].items() if key in unchanged}

    def table(self) -> pd.DataFrame:
        """A row per block in execution order; `block` counts from 1."""
        return pd.DataFrame(list(self.rows.values()), columns=list(self.columns))


def overrides(watcher: Watcher, method: str) -> bool:
    """Whether a watcher overrides a method of `Watcher`."""
    return getattr(type(watcher), method) is not getattr(Watcher, method)


def needs_gradients(watcher: Watcher) -> bool:
    """Whether a watcher needs a backward pass."""
    methods = ("on_layer_gradient", "on_sum_gradient", "on_logits_gradient", "on_parameter_gradient")
    return any(overrides(watcher, method) for method in methods)
