"""Measurements with predictions beside them, from one and the same pass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch.nn.functional as F
from torch import nn

from normless.arguments import arguments_of
from normless.probes.forward.readings import Readings
from normless.probes.forward.theory import BlockMoments, moments_after
from normless.probes.hooks.block_rows import BlockRows
from normless.probes.hooks.observe import Loss, observe
from normless.probes.hooks.watch import first_tensor
from normless.probes.hooks.watcher import Watcher
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map


class PredictedRows(BlockRows):
    """A watcher in whose table some columns are what the weights alone predict, which a pass leaves empty."""

    @abstractmethod
    def add_predictions(self, table: pd.DataFrame, moments: Sequence[BlockMoments]) -> None:
        """Fill these columns in; `moments` are of the table's rows."""


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
    """The loss of a batch, and what each watcher measured in the pass, predictions filled in.

    Arguments and errors are those of `observe`.
    """
    predicted = any(isinstance(watcher, PredictedRows) for watcher in watchers.values())
    readings = Readings(first_tensor(arguments_of(inputs)))
    told = [*watchers.values(), *([readings] if predicted else [])]
    value = observe(model, told, inputs, targets, loss=loss, residual_map=residual_map, training=training)
    tables = {name: watcher.table() for name, watcher in watchers.items()}
    moments = moments_after(model, residual_map, readings, training=training) if predicted else []
    for name, watcher in watchers.items():
        if isinstance(watcher, PredictedRows):
            watcher.add_predictions(tables[name], moments)
    return value, tables


def measured_by_block(
    watcher: PredictedRows, model: nn.Module, inputs: Any, residual_map: ResidualMap | None, *, training: bool
) -> pd.DataFrame:
    """The table of one watcher, the map found where it is not given; arguments are those of `observe`.

    Raises:
        ValueError: the network has no residual block.
    """
    positional, named = arguments_of(inputs)
    found = find_residual_map(model, *positional, **named) if residual_map is None else residual_map
    if not found.blocks:
        raise ValueError(
            f"{type(watcher).__name__} is measured at residual sums, and in this {type(model).__name__} there is no "
            "residual block."
        )
    return measured_tables(model, {"table": watcher}, inputs, residual_map=found, training=training)[1]["table"]
