"""What the checks of a diagnosis read: the arguments, one recorded pass, and outputs in evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normless.diagnosis.tape import Event, recorded
from normless.probes import Loss, Setting, attach_hooks, compute_logits, make_watchers, preserve_state
from normless.residual import ResidualBlock, ResidualMap, Unresolved


@dataclass(frozen=True)
class Passed:
    """A pass through a network in training mode, forward and back.

    Attributes:
        loss: NaN if it could not be computed.
        error: that of the loss, which the targets do not fit.
        is_broadcast: whether torch warned that the loss compares tensors of different shapes.
        joins: the number of concatenations.
        gradients: the norm of each parameter's gradient, by name; None if none arrived.
        tables: of the probes `signal`, `backward` and `logits`; without rows of blocks where there is no map.
        missed: blocks that these could not observe.
    """

    events: list[Event]
    joins: int
    logits: Tensor
    loss: float = nan
    error: Exception | None = None
    is_broadcast: bool = False
    gradients: Mapping[str, float | None] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    missed: tuple[Unresolved, ...] = ()


@dataclass
class Examination:
    """The arguments of a diagnosis, and the pass; a network without a map has none for the reason `unmapped`."""

    model: nn.Module
    inputs: Any
    targets: Any
    loss: Loss
    optimizer: Optimizer | None
    map: ResidualMap | None = None
    unmapped: str = ""

    @cached_property
    def passed(self) -> Passed:
        """The recorded pass, which is made when it is first read."""
        return pass_through(self.model, self.inputs, self.targets, self.loss, self.map)

    @cached_property
    def evaluated(self) -> Tensor:
        """The outputs in evaluation mode."""
        return self.evaluate(self.inputs)

    def evaluate(self, inputs: Any) -> Tensor:
        """The outputs for other inputs in evaluation mode, in float64."""
        with preserve_state(self.model, training=False), torch.no_grad():
            return compute_logits(self.model, inputs).double()

    @property
    def depth(self) -> int:
        """The number of outermost residual blocks."""
        return len(self.blocks)

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
        table = self.passed.tables[probe]
        return table[~table["name"].isin([item.path for item in self.passed.missed])]


def pass_through(model: nn.Module, inputs: Any, targets: Any, loss: Loss, mapped: ResidualMap | None) -> Passed:
    """Run a network forward and back on a batch in training mode; it is left as it was."""
    watchers = make_watchers(("signal", "backward", "logits"))
    setting = Setting(model, mapped or ResidualMap(()), targets)
    with preserve_state(model, training=True), torch.enable_grad():
        # The tape outside, so that the watchers do not count what it adds.
        with recorded(model, inputs) as tape, attach_hooks(setting, list(watchers.values())):
            logits = compute_logits(model, inputs)
        try:
            # On the CPU, an index out of range is an error and not the end of the process.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loss(logits.detach().cpu(), targets.cpu() if isinstance(targets, Tensor) else targets)
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            return Passed(tape.events, tape.joins, logits, error=error)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            value = loss(logits, targets)
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        gradients = {
            name: None if one.grad is None else float(one.grad.to_dense().double().norm())
            for name, one in model.named_parameters()
        }
    is_broadcast = any("target size" in str(one.message) for one in caught)
    tables = {name: watcher.table() for name, watcher in watchers.items()}
    has_blocks = mapped is not None and mapped.depth > 0
    missed = dict.fromkeys(item for watcher in watchers.values() if has_blocks for item in watcher.missed)
    return Passed(
        tape.events, tape.joins, logits, float(value.detach()), None, is_broadcast, gradients, tables, tuple(missed)
    )
