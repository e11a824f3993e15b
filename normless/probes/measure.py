"""A chosen set of probes measured in one pass: `nl.probe`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd
import torch.nn.functional as F
from torch import nn

from normless.arguments import arguments_of
from normless.output import jsonable
from normless.probes.backward.block_gradients import BlockGradients
from normless.probes.backward.channel_gradients import ChannelGradients
from normless.probes.backward.logits import LogitGradientMatrix, LogitGradients
from normless.probes.forward.covariance import ExampleCovariance
from normless.probes.forward.moments import ChannelMoments, GradientMoments
from normless.probes.forward.predicted import measured_tables
from normless.probes.forward.signal import Signal
from normless.probes.gammas.gamma_variance import StreamVariance
from normless.probes.hooks.observe import Loss
from normless.probes.hooks.watcher import Tables, Watcher
from normless.residual import ResidualMap, Unresolved
from normless.residual import residual_map as find_residual_map
from normless_papers.probes.channel_contributions import ChannelContributions
from normless_papers.probes.channel_pairs import ChannelPairs
from normless_papers.probes.gradient_sums import GradientSums

PROBES: MappingProxyType[str, type[Watcher]] = MappingProxyType(
    {
        "signal": Signal,
        "covariance": ExampleCovariance,
        "stream": StreamVariance,
        "backward": BlockGradients,
        "activations": ChannelMoments,
        "contributions": ChannelContributions,
        "gradients": GradientMoments,
        "channel_gradients": ChannelGradients,
        "channel_pairs": ChannelPairs,
        "gradient_sums": GradientSums,
        "logits": LogitGradients,
        "logit_matrix": LogitGradientMatrix,
    }
)
USUAL = ("signal", "activations", "gradients", "logits")


@dataclass(frozen=True)
class Measurements:
    """Tables by the name of their probe, each also an attribute: `measured.signal` is `measured["signal"]`.

    Attributes:
        tables: tidy tables, one observation a row.
        loss: of the batch, in nats; NaN where there were no targets.
        missed: what of the network the probes could not see, and why.
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
        """Plain data: the rows of every table, the loss and what was missed; what is not known is None."""
        rows = {
            name: table.astype(object).where(table.notna(), None).to_dict(orient="records")
            for name, table in self.tables.items()
        }
        missed = [{"path": item.path, "reason": item.reason} for item in self.missed]
        told: dict[str, Any] = jsonable({"loss": self.loss, "tables": rows, "missed": missed})
        return told


def probe(
    model: nn.Module,
    batch: Any,
    probes: Sequence[str | Watcher] = USUAL,
    *,
    loss: Loss = F.cross_entropy,
    residual_map: ResidualMap | None = None,
    training: bool = True,
) -> Measurements:
    """Measure a network on one batch by several probes at once: one pass forward, and one back where they need it.

    The network is left as it was: weights, `.grad`, buffers, modes, random state.

    Args:
        model: the network.
        batch: (inputs, targets), where inputs are one tensor, a tuple or a dictionary of arguments.
        probes: names in `PROBES`, or watchers.
        loss: (logits, targets) to a scalar.
        residual_map: the network's map, found where it is not given.
        training: whether the pass is made in training mode, so that norms use the batch's statistics.

    Raises:
        ValueError: a probe is unknown or named twice, the batch is no pair, or gradients cannot be measured.
    """
    inputs, targets = split_batch(batch)
    watchers = watchers_of(probes)
    positional, named = arguments_of(inputs)
    found = find_residual_map(model, *positional, **named) if residual_map is None else residual_map
    value, tables = measured_tables(
        model, watchers, inputs, targets, loss=loss, residual_map=found, training=training
    )
    missed = dict.fromkeys(item for watcher in watchers.values() for item in watcher.missed)
    return Measurements(MappingProxyType(tables), value, tuple(missed))


def watchers_of(probes: Sequence[str | Watcher]) -> dict[str, Watcher]:
    """New watchers by name; one that was made already goes by the name of its class.

    Raises:
        ValueError: a name is unknown, or comes twice.
    """
    watchers: dict[str, Watcher] = {}
    for chosen in probes:
        if isinstance(chosen, str) and chosen not in PROBES:
            raise ValueError(f"There is no probe {chosen!r}; choose among {', '.join(PROBES)}.")
        name = chosen if isinstance(chosen, str) else type(chosen).__name__
        if name in watchers:
            raise ValueError(f"The probe {name!r} is named twice.")
        watchers[name] = PROBES[chosen]() if isinstance(chosen, str) else chosen
    return watchers


def split_batch(batch: Any) -> tuple[Any, Any]:
    """A batch as inputs and targets.

    Raises:
        ValueError: it is no pair.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(
            f"Expected a batch of two, (inputs, targets), got {type(batch).__name__}"
            + (f" of {len(batch)}." if isinstance(batch, (tuple, list)) else ".")
        )
    return batch[0], batch[1]
