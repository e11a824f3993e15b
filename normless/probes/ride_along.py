"""Probes of the passes that a training makes, at chosen steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from torch import nn

from normless.probes.hooks.attach import attach_hooks
from normless.probes.hooks.watcher import Setting, Watcher
from normless.probes.measure import make_watchers
from normless.residual import ResidualMap

When = Callable[[int], bool]


@dataclass
class RideAlong:
    """Probes of a training, with hooks on the network during the chosen steps only.

        ride = RideAlong(("signal", "gradients"), when=lambda step: step % 100 == 1)
        for step, (inputs, targets) in enumerate(batches, 1):
            with ride.during(step, model, residual_map, targets):
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()
            optimizer.step()
        ride.tables()["signal"]  # the probe's table with a column `step`

    Observed passes compute the same values and draw the same random numbers as others.

    Attributes:
        probes: as for `normless.probe`.
        when: whether to measure at a step.
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
        """All rows so far by probe, for probes that have any."""
        return {name: pd.concat(parts, ignore_index=True) for name, parts in self._parts.items()}

    def take(self) -> Mapping[str, pd.DataFrame]:
        """All rows since the last call, which are removed here."""
        tables = self.tables()
        self._parts.clear()
        return tables


def every(steps: int, *, start: int = 1) -> When:
    """True at step `start` and every `steps` steps after it.

    Raises:
        ValueError: `steps` is below 1.
    """
    if steps < 1:
        raise ValueError(f"Expected to measure every 1 or more steps, got {steps}.")
    return lambda step: step >= start and (step - start) % steps == 0
