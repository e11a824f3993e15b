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
from normless.probes.hooks.attach import first_tensor
from normless.probes.hooks.observe import Loss, observe
from normless.probes.hooks.watcher import BlockWatcher, Watcher
from normless.residual import ResidualMap


class PredictedRows(BlockWatcher):
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
