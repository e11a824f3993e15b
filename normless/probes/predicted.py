"""Measurements with predictions beside them, from one and the same pass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless.arguments import arguments_of
from normless.probes.hooks.attach import first_tensor
from normless.probes.hooks.observe import Loss, observe
from normless.probes.hooks.preserve_state import preserve_state
from normless.probes.hooks.watcher import BlockWatcher, Setting, Watcher
from normless.residual import Layer, ResidualMap
from normless.signal import BlockMoments as BlockMoments
from normless.signal import block_moments


class PredictedRows(BlockWatcher):
    """A watcher whose table has columns that are predicted from the weights; a pass leaves them empty."""

    @abstractmethod
    def add_predictions(self, table: pd.DataFrame, moments: Sequence[BlockMoments]) -> None:
        """Fill these columns in; `moments` are of the table's rows."""


@dataclass
class Shapes(Watcher):
    """The shapes of what layers read in a pass.

    Attributes:
        seen: by path and call.
        examples: the size of the batch.
    """

    seen: dict[tuple[str, int], torch.Size] = field(default_factory=dict, init=False)
    examples: int = field(default=0, init=False)

    def on_start(self, setting: Setting) -> None:
        """Forget an earlier pass."""
        self.seen.clear()
        self.examples = 0

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Note the shape of what a layer reads."""
        self.examples = self.examples or x.shape[0]
        self.seen[layer.path, layer.call] = x.shape

    def moments(
        self, model: nn.Module, residual_map: ResidualMap, inputs: Any, *, training: bool
    ) -> list[BlockMoments]:
        """The predictions for the pass."""
        first = first_tensor(arguments_of(inputs))
        examples = first.shape[0] if first is not None and first.dim() else self.examples
        with preserve_state(model, training=training):
            return block_moments(model, residual_map, first, self.seen, max(examples, 1))


def predicted_moments(
    model: nn.Module, residual_map: ResidualMap, inputs: Any, *, training: bool = True
) -> list[BlockMoments]:
    """Predict the moments on the skip path, at the branch end and after the sum of every block: `block_moments`.

    One pass shows the shapes of what layers read. The network is left as it was.

    Args:
        model: any network.
        residual_map: its map.
        inputs: a batch, shape (B, …), or a tuple or dictionary of arguments.
        training: whether norms use the batch's statistics and dropout drops.

    Returns:
        One entry per block in execution order; NaN where there is no theory, with the reason in `unknown`.
    """
    shapes = Shapes()
    observe(model, [shapes], inputs, residual_map=residual_map, training=training)
    return shapes.moments(model, residual_map, inputs, training=training)


def measured_tables(
    model: nn.Module,
    watchers: Mapping[str, Watcher],
    inputs: Any,
    targets: Any = None,
    *,
    residual_map: ResidualMap,
    loss: Loss = F.cross_entropy,
    training: bool = True,
) -> tuple[float, dict[str, pd.DataFrame]]:
    """The loss of a batch, and the table of each watcher, predictions included.

    Arguments and errors are those of `observe`.
    """
    predicted = any(isinstance(watcher, PredictedRows) for watcher in watchers.values())
    shapes = Shapes()
    every = [*watchers.values(), *([shapes] if predicted else [])]
    value = observe(model, every, inputs, targets, loss=loss, residual_map=residual_map, training=training)
    tables = {name: watcher.table() for name, watcher in watchers.items()}
    moments = shapes.moments(model, residual_map, inputs, training=training) if predicted else []
    for name, watcher in watchers.items():
        if isinstance(watcher, PredictedRows):
            watcher.add_predictions(tables[name], moments)
    return value, tables
