"""`nl.probe`: a selection of probes measured in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd
import torch.nn.functional as F
from torch import Tensor, nn

from normless.output import jsonable
from normless.probes.hooks.observe import Loss
from normless.probes.hooks.watcher import PROBES as PROBES
from normless.probes.hooks.watcher import Tables, Watcher
from normless.probes.logits import LogitGradients
from normless.probes.moments import ChannelMoments, GradientMoments
from normless.probes.predicted import measured_tables
from normless.probes.signal import BlockGradients, Signal
from normless.residual import ResidualMap, Unresolved
from normless.residual import residual_map as find_residual_map
from normless.spec import parse_call

# Imported because they register themselves.
REGISTERED = (Signal, BlockGradients, ChannelMoments, GradientMoments, LogitGradients)
DEFAULT_PROBES = ("signal", "activations", "gradients", "logits")


@dataclass(frozen=True)
class Measurements:
    """Tables by the name of their probe, which are attributes too: `measured.signal` is `measured["signal"]`.

    Attributes:
        tables: tidy tables, one observation a row.
        loss: of the batch, in nats; NaN without targets.
        missed: the parts of the network that the probes could not observe, and why.
    """

    tables: Tables
    loss: float
    missed: tuple[Unresolved, ...]

    def __getitem__(self, name: str) -> pd.DataFrame:
        return self.tables[name]

    def __getattr__(self, name: str) -> pd.DataFrame:
        if name.startswith("_") or name not in self.tables:
            raise AttributeError(f"No probe {name!r} was measured, but {', '.join(self.tables)}.")
        return self.tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def to_dict(self) -> dict[str, Any]:
        """The rows of all tables, the loss and the missed parts, ready for JSON; missing values are None."""
        rows = {
            name: table.astype(object).where(table.notna(), None).to_dict(orient="records")
            for name, table in self.tables.items()
        }
        missed = [{"path": item.path, "reason": item.reason} for item in self.missed]
        result: dict[str, Any] = jsonable({"loss": self.loss, "tables": rows, "missed": missed})
        return result


def probe(
    model: nn.Module,
    batch: Any,
    probes: Sequence[str | Watcher] = DEFAULT_PROBES,
    *,
    loss: Loss = F.cross_entropy,
    residual_map: ResidualMap | None = None,
    training: bool = True,
) -> Measurements:
    """Measure a network on one batch with several probes in one forward pass, and one backward pass if any needs it.

    Weights, `.grad`, buffers, modes and random states are restored.

    Args:
        model: the network.
        batch: (inputs, targets); inputs are one tensor, a tuple or a dictionary of arguments. A single tensor or a
            dictionary is inputs without targets, for probes that need no gradients.
        probes: names in `PROBES`, with arguments as in ``"activations(kind='activation')"``; `FILE.py:NAME`;
            `MODULE:NAME`; or watchers.
        loss: (logits, targets) to a scalar in nats.
        residual_map: the network's map; computed if None.
        training: whether the pass is made in training mode, in which batch norms use the batch's statistics.

    Raises:
        ValueError: a probe is unknown or named twice, the batch is no pair, or gradients cannot be measured.
    """
    inputs, targets = split_batch(batch)
    watchers = make_watchers(probes)
    residual_map = residual_map or find_residual_map(model, example_inputs=inputs)
    value, tables = measured_tables(
        model, watchers, inputs, targets, loss=loss, residual_map=residual_map, training=training
    )
    missed = dict.fromkeys(item for watcher in watchers.values() for item in watcher.missed)
    return Measurements(MappingProxyType(tables), value, tuple(missed))


def make_watchers(probes: Sequence[str | Watcher]) -> dict[str, Watcher]:
    """New watchers by the name of their probe; a given watcher has the name of its class.

    Raises:
        ValueError: a probe is unknown, no watcher, does not take its arguments, or is named twice.
    """
    watchers: dict[str, Watcher] = {}
    for one in probes:
        name = parse_call(one)[0].rpartition(":")[2] if isinstance(one, str) else type(one).__name__
        if name in watchers:
            raise ValueError(f"The probe {name!r} is named twice; measure the second in a call of its own.")
        watcher = PROBES.make(one) if isinstance(one, str) else one
        if not isinstance(watcher, Watcher):
            raise ValueError(f"Expected {one} to be a normless.probes.Watcher, got {type(watcher).__name__}.")
        watchers[name] = watcher
    return watchers


def split_batch(batch: Any) -> tuple[Any, Any]:
    """A batch as inputs and targets; the targets of a single tensor or a dictionary are None.

    Raises:
        ValueError: it is neither that nor a pair.
    """
    if isinstance(batch, (Tensor, Mapping)):
        return batch, None
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(
            f"Expected a batch of two, (inputs, targets), got {type(batch).__name__}"
            + (f" of {len(batch)}." if isinstance(batch, (tuple, list)) else ".")
        )
    return batch[0], batch[1]
