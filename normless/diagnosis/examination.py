"""What the checks of a diagnosis read: the arguments, one recorded pass, and the measurements by the residual map."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normless.diagnosis.tape import Event, recorded
from normless.probes import Loss, Measurements, compute_logits, preserve_state
from normless.residual import ResidualBlock, ResidualMap


@dataclass(frozen=True)
class Passed:
    """A pass through a network in training mode, forward and back.

    Attributes:
        loss: NaN if it could not be computed.
        error: that of the loss, which the targets do not fit.
        is_broadcast: whether torch warned that the loss compares tensors of different shapes.
        joins: the number of concatenations.
        gradients: the norm of each parameter's gradient, by name; None if none arrived.
    """

    events: list[Event]
    logits: Tensor | None
    loss: float
    error: Exception | None = None
    gradients: Mapping[str, float | None] = field(default_factory=dict)
    is_broadcast: bool = False
    joins: int = 0


@dataclass
class Examination:
    """The arguments of a diagnosis, and what was measured.

    Attributes:
        passed: the recorded pass.
        map: None where the network has no map, for the reason `unmapped`.
        measured: by the probes at the blocks and layers of the map.
    """

    model: nn.Module
    inputs: Any
    targets: Any
    loss: Loss
    optimizer: Optimizer | None
    map: ResidualMap | None = None
    unmapped: str = ""
    _passed: Passed | None = None
    _measured: Measurements | None = None

    @property
    def passed(self) -> Passed:
        """The recorded pass."""
        assert self._passed is not None
        return self._passed

    @property
    def measured(self) -> Measurements:
        """The tables of the probes."""
        assert self._measured is not None
        return self._measured

    @property
    def depth(self) -> int:
        """The number of outermost residual blocks."""
        return 0 if self.map is None else self.map.depth

    @property
    def blocks(self) -> tuple[ResidualBlock, ...]:
        """The outermost residual blocks."""
        return () if self.map is None else self.map.blocks

    @property
    def classifier(self) -> str | None:
        """The classifier by its qualified name."""
        return None if self.map is None else self.map.classifier

    @property
    def norms_placed(self) -> str:
        """`post` for norms after residual sums, `pre` for norms first on branches, else empty."""
        if any(layer.kind == "norm" for block in self.blocks for layer in block.after_sum):
            return "post"
        return "pre" if any(layer.kind == "norm" for one in self.blocks for layer in one.branch_layers[:1]) else ""

    def observed(self, probe: str) -> pd.DataFrame:
        """The rows of a probe for the blocks with a measured sum; NaN in them is a measured value."""
        table = self.measured[probe]
        return table[~table["name"].isin([item.path for item in self.measured.missed])]


def pass_through(model: nn.Module, inputs: Any, targets: Any, loss: Loss) -> Passed:
    """Run a network forward and back on a batch in training mode; it is left as it was."""
    with preserve_state(model, training=True), torch.enable_grad():
        with recorded(model, inputs) as tape:
            logits = compute_logits(model, inputs)
        try:
            # On the CPU, an index out of range is an error and not the end of the process.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loss(logits.detach().cpu(), targets.cpu() if isinstance(targets, Tensor) else targets)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            return Passed(tape.events, logits, nan, error)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = loss(logits, targets)
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        is_broadcast = any("target size" in str(one.message) for one in caught)
        gradients = {
            name: None if one.grad is None else float(one.grad.to_dense().double().norm())
            for name, one in model.named_parameters()
        }
        return Passed(tape.events, logits, float(value.detach()), None, gradients, is_broadcast, tape.joins)
