"""What the checks of a diagnosis read: its arguments and the measurements of one forward and backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from normless.arguments import arguments_of
from normless.conversion import plan, scheme_of
from normless.diagnosis.finding import Cure
from normless.errors import NormlessError
from normless.probes import Loss, Measurements, Watcher, channel_axis
from normless.residual import Layer, ResidualMap


@dataclass
class BatchNormSizes(Watcher):
    """The number of values, and of examples, that each batch norm's statistics are computed from."""

    rows: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)

    def wants(self, layer: Layer) -> bool:
        """All norms."""
        return layer.kind == "norm"

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Count the values of a batch norm."""
        if isinstance(module, _BatchNorm):
            examples = min(getattr(module, "ghost_size", len(x)), len(x))
            self.rows[layer.path] = examples, examples * x.numel() // len(x) // x.shape[channel_axis(module, x)]

    def table(self) -> pd.DataFrame:
        """A row per batch norm: its path as index, `examples` and `values`."""
        return pd.DataFrame.from_dict(self.rows, orient="index", columns=["examples", "values"])


PROBES = ("signal", "backward", "logits", "gradients")


@dataclass(frozen=True)
class Examination:
    """The arguments of a diagnosis, and the measurements of one pass in training mode by `PROBES`."""

    model: nn.Module
    map: ResidualMap
    inputs: Any
    targets: Any
    loss: Loss
    optimizer: Optimizer | None
    measured: Measurements

    def observed(self, probe: str) -> pd.DataFrame:
        """The rows of a probe for the blocks with a measured sum; NaN in them is a measured value."""
        table = self.measured[probe]
        return table[~table["name"].isin([item.path for item in self.measured.missed])]

    def cure(self, words: str, *schemes: str) -> Cure:
        """A cure with those of its schemes that fit the network; with all if it carries a scheme already."""
        return Cure(words, self.fitting(schemes))

    def fitting(self, schemes: Sequence[str]) -> tuple[str, ...]:
        """The schemes that fit the network; all if it carries a scheme already."""
        return tuple(scheme for scheme in schemes if scheme_of(self.model) is not None or self._fits(scheme))

    def _fits(self, scheme: str) -> bool:
        positional, named = arguments_of(self.inputs)
        try:
            plan(self.model, scheme, *positional, residual_map=self.map, **named)
        except NormlessError:
            return False
        return True


def gradient_norms(measured: Measurements) -> dict[str, float]:
    """The norm of every parameter's gradient by qualified name, from the probe `gradients`."""
    return dict(zip(measured.gradients["parameter"], measured.gradients["norm"], strict=True))
