"""What is measured of a network before anything is judged: one pass, forward and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from normless.arguments import arguments_of
from normless.conversion import plan, scheme_of
from normless.errors import NormlessError
from normless.probes.backward.block_gradients import BlockGradients
from normless.probes.backward.logits import LogitGradients
from normless.probes.forward.moments import GradientMoments
from normless.probes.forward.predicted import measured_tables
from normless.probes.forward.signal import Signal
from normless.probes.hooks.channels import channel_axis
from normless.probes.hooks.observe import Loss
from normless.probes.hooks.watcher import Watcher
from normless.residual import Layer, ResidualMap, Unresolved
from normless.residual import residual_map as find_residual_map


@dataclass
class StatisticsSizes(Watcher):
    """How many values, and of how many examples, each statistic of a batch norm is taken over, by its path."""

    values: dict[str, int] = field(default_factory=dict, init=False)
    examples: dict[str, int] = field(default_factory=dict, init=False)

    def wants(self, layer: Layer) -> bool:
        """All norms; which of them look at the batch shows when they run."""
        return layer.kind == "norm"

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Count, of a batch norm."""
        if isinstance(module, _BatchNorm):
            self.examples[layer.path] = min(getattr(module, "ghost_size", len(x)), len(x))
            self.values[layer.path] = (
                self.examples[layer.path] * x.numel() // len(x) // x.shape[channel_axis(module, x)]
            )

    def table(self) -> pd.DataFrame:
        """A row per batch norm."""
        counts = {"examples": list(self.examples.values()), "values": list(self.values.values())}
        return pd.DataFrame({"path": list(self.values), **counts})


@dataclass(frozen=True)
class Examination:
    """What the checks look at.

    Attributes:
        model, map, inputs, targets, loss, optimizer: what was examined, and how.
        value: the loss of the batch, in nats.
        signal, backward, classes: the tables of `Signal`, `BlockGradients` and `LogitGradients`.
        gradients: norms of the parameters' gradients by name.
        statistics: of the batch norms.
        missed: what could not be seen.
    """

    model: nn.Module
    map: ResidualMap
    inputs: Any
    targets: Any
    loss: Loss
    optimizer: Optimizer | None
    value: float
    signal: pd.DataFrame
    backward: pd.DataFrame
    classes: pd.DataFrame
    gradients: dict[str, float]
    statistics: StatisticsSizes
    missed: tuple[Unresolved, ...]

    @property
    def examples(self) -> int:
        """How many examples the batch has: the length of axis 0 of its first tensor."""
        return next(len(leaf) for leaf in tree_leaves(self.inputs) if isinstance(leaf, Tensor))

    def seen(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of the blocks whose sums could be measured; what is NaN there is a number that was measured."""
        return table[~table["name"].isin([item.path for item in self.missed])]

    def possible(self, schemes: Sequence[str]) -> tuple[str, ...]:
        """Those of some schemes that the network offers places for; all, where it carries a scheme already."""
        if scheme_of(self.model) is not None:
            return tuple(schemes)
        positional, named = arguments_of(self.inputs)
        found = []
        for scheme in schemes:
            try:
                plan(self.model, scheme, *positional, residual_map=self.map, **named)
            except NormlessError:
                continue
            found.append(scheme)
        return tuple(found)


def examine(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    loss: Loss = F.cross_entropy,
    optimizer: Optimizer | None = None,
    residual_map: ResidualMap | None = None,
) -> Examination:
    """Measure a network on one batch in training mode; it is left as it was. Errors are those of `observe`."""
    positional, named = arguments_of(inputs)
    found = find_residual_map(model, *positional, **named) if residual_map is None else residual_map
    signal, backward, classes = Signal(), BlockGradients(), LogitGradients()
    gradients, statistics = GradientMoments(), StatisticsSizes()
    watchers: dict[str, Watcher] = {"signal": signal, "backward": backward, "classes": classes}
    watchers |= {"gradients": gradients, "statistics": statistics}
    value, tables = measured_tables(model, watchers, inputs, targets, loss=loss, residual_map=found)
    return Examination(
        model,
        found,
        inputs,
        targets,
        loss,
        optimizer,
        value,
        tables["signal"],
        tables["backward"],
        tables["classes"],
        gradient_norms(tables["gradients"]),
        statistics,
        tuple(dict.fromkeys(item for watcher in watchers.values() for item in watcher.missed)),
    )


def gradient_norms(moments: pd.DataFrame) -> dict[str, float]:
    """The norm of every parameter's gradient by qualified name, of the table of `GradientMoments`."""
    return dict(zip(moments["parameter"], moments["norm"], strict=True))
