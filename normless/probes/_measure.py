"""Measure a selection of probes in one pass (`nl.probe`) or during a training (`RideAlong`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import Any

import pandas as pd
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from normless._internal.calling import Call, with_call
from normless.exclusive import exclusive
from normless.probes._gammas import GammaNorms
from normless.probes._moments import ChannelMoments, GradientMoments, LogitGradients
from normless.probes._signal import BlockGradients, PredictedRows, Signal, predicted_moments
from normless.probes.hooks._observe import Loss, observe
from normless.probes.hooks._watcher import PROBES as PROBES, Setting, Tables, Watcher, attach_hooks
from normless.residual import ResidualMap, Unresolved, residual_map as find_residual_map
from normless.spec import jsonable, parse_call

When = Callable[[int], bool]

# Imported to be registered.
REGISTERED = (Signal, BlockGradients, ChannelMoments, GradientMoments, LogitGradients, GammaNorms)
DEFAULT_PROBES = ("signal", "activations", "gradients", "logits")


@dataclass(frozen=True)
class Measurements:
    """Tidy tables by the name of their probe, which are attributes too: `measured.signal` is `measured["signal"]`.

    Attributes:
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

    def __repr__(self) -> str:
        tables = ", ".join(f"{name}: {len(table)} rows" for name, table in self.tables.items())
        return f"Measurements(loss {self.loss:.4g}, {tables})"

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape(name)}</p>{table.to_html(max_rows=8)}" for name, table in self.tables.items()]
        return f"<p>{escape(repr(self))}</p>{''.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the rows of all tables, the loss and the missed parts as data for JSON; missing values are None."""
        rows = {
            name: table.astype(object).where(table.notna(), None).to_dict(orient="records")
            for name, table in self.tables.items()
        }
        missed = [{"path": item.path, "reason": item.reason} for item in self.missed]
        result: dict[str, Any] = jsonable({"loss": self.loss, "tables": rows, "missed": missed})
        return result


@exclusive
@with_call
def probe(
    model: nn.Module,
    batch: Any,
    probes: str | Sequence[str | Watcher] = DEFAULT_PROBES,
    *,
    loss: Loss = F.cross_entropy,
    residual_map: ResidualMap | None = None,
    training: bool = True,
    call: Call | None = None,
) -> Measurements:
    """Measure a network on one batch with several probes in one forward pass, and one backward pass if any needs it.

    Weights, `.grad`, buffers, modes and random states are restored.

    Args:
        batch: (inputs, targets); inputs are one tensor, a tuple or a dictionary of arguments. A single tensor or a
            dictionary is inputs without targets, for probes that need no gradients.
        probes: names in `PROBES`, with arguments as in ``"activations(kind='activation')"``; `FILE.py:NAME`;
            `MODULE:NAME`; or watchers.
        residual_map: the network's map; computed if None.
        training: whether the pass is made in training mode, in which batch norms use the batch's statistics.
        call: as in `residual_map`.

    Raises:
        ValueError: a probe is unknown or named twice, the batch is not a pair, or gradients cannot be measured.
    """
    inputs, targets = split_batch(batch)
    watchers = make_watchers(probes)
    residual_map = residual_map or find_residual_map(model, example_inputs=inputs)
    predicted = {name: watcher for name, watcher in watchers.items() if isinstance(watcher, PredictedRows)}
    value = observe(
        model, [*watchers.values()], inputs, targets, loss=loss, residual_map=residual_map, training=training
    )
    tables = {name: watcher.table() for name, watcher in watchers.items()}
    if predicted:
        moments = predicted_moments(model, residual_map, inputs, training=training)
        for name, watcher in predicted.items():
            watcher.add_predictions(tables[name], moments)
    missed = dict.fromkeys(item for watcher in watchers.values() for item in watcher.missed)
    return Measurements(MappingProxyType(tables), value, tuple(missed))


def make_watchers(probes: str | Sequence[str | Watcher]) -> dict[str, Watcher]:
    """Create watchers by the name of their probe, or of the class of a given watcher; ValueError as from `probe`."""
    watchers: dict[str, Watcher] = {}
    for probe in [probes] if isinstance(probes, str) else probes:
        name = parse_call(probe)[0].rpartition(":")[2] if isinstance(probe, str) else type(probe).__name__
        if name in watchers:
            raise ValueError(f"The probe {name!r} is named twice; measure the second in a separate call.")
        watcher = PROBES.make(probe) if isinstance(probe, str) else probe
        if not isinstance(watcher, Watcher):
            raise ValueError(f"Expected {probe} to be a normless.probes.Watcher, got {type(watcher).__name__}.")
        watchers[name] = watcher
    return watchers


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Split a batch into inputs and targets; those of a tensor or dictionary, alone or in a list, are None."""
    if isinstance(batch, (Tensor, Mapping)):
        return batch, None
    is_sequence = isinstance(batch, (tuple, list))
    if is_sequence and len(batch) == 1:
        return batch[0], None
    if not is_sequence or len(batch) != 2:
        given = type(batch).__name__ + (f" of {len(batch)}" if is_sequence else "")
        one = "; give one batch of it, next(iter(loader))" if isinstance(batch, DataLoader) else ""
        raise ValueError(f"Expected a batch of two, (inputs, targets), got {given}{one}.")
    return batch[0], batch[1]


@dataclass
class RideAlong:
    """Probes of a training, with hooks on the network at the steps for which `when` is true only.

        ride = RideAlong(("signal", "gradients"), when=lambda step: step % 100 == 1)
        for step, (inputs, targets) in enumerate(batches, 1):
            with ride.during(step, model, residual_map, targets):
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()
            optimizer.step()
        ride.tables()["signal"]  # the probe's table with a column `step`

    Probes are given as for `normless.probe`. Observed passes compute the same values and draw the same random numbers
    as others.
    """

    probes: Sequence[str | Watcher]
    when: When
    _parts: dict[str, list[pd.DataFrame]] = field(default_factory=lambda: defaultdict(list), init=False, repr=False)

    def __post_init__(self) -> None:
        make_watchers(self.probes)

    @contextmanager
    def during(self, step: int, model: nn.Module, residual_map: ResidualMap, targets: Any = None) -> Iterator[None]:
        """Measure the passes through `model`, not a wrapper of it, that the body makes, if the step is chosen.

        A body that raises leaves no rows. `targets` are those of the batch, for probes that use them.
        """
        if not self.when(step):
            yield
            return
        watchers = make_watchers(self.probes)
        with attach_hooks(Setting(model, residual_map, targets), list(watchers.values())):
            yield
        for name, watcher in watchers.items():
            table = watcher.table()
            table.insert(0, "step", step)
            self._parts[name].append(table)

    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Return all rows so far by probe, for probes that have rows."""
        return {name: pd.concat(parts, ignore_index=True) for name, parts in self._parts.items()}

    def take(self) -> Mapping[str, pd.DataFrame]:
        """Return and remove all rows since the last call."""
        tables = self.tables()
        self._parts.clear()
        return tables


def every(steps: int, *, start: int = 1) -> When:
    """True at step `start` and every `steps` steps after it; ValueError for `steps` below 1."""
    if steps < 1:
        raise ValueError(f"Expected to measure every 1 or more steps, got {steps}.")
    return lambda step: step >= start and (step - start) % steps == 0
