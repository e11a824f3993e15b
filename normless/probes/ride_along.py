"""Probes that measure passes which training makes anyway, at the steps that an injected function chooses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from torch import nn

from normless.probes.hooks.watch import watching
from normless.probes.hooks.watcher import Setting, Watcher
from normless.probes.measure import watchers_of
from normless.residual import ResidualMap

When = Callable[[int], bool]


@dataclass
class RideAlong:
    """Probes of a training: hooks are on the network during the chosen steps and at no other time.

        ride = RideAlong(("signal", "gradients"), when=lambda step: step % 100 == 1)
        for step, (inputs, targets) in enumerate(batches, 1):
            with ride.during(step, model, found, targets):
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()
            optimizer.step()
        ride.tables()["signal"]  # as the probe's own, with a column `step`

    The training is not changed: the watched passes compute the same, and draw the same random numbers.

    Attributes:
        probes: names in `PROBES`, or watchers.
        when: whether to measure at a step.
    """

    probes: Sequence[str | Watcher]
    when: When
    _parts: dict[str, list[pd.DataFrame]] = field(default_factory=lambda: defaultdict(list), init=False, repr=False)

    def __post_init__(self) -> None:
        watchers_of(self.probes)

    @contextmanager
    def during(self, step: int, model: nn.Module, found: ResidualMap, targets: Any = None) -> Iterator[None]:
        """Measure what the body passes through the network, one batch forward and back, if this step is chosen.

        A body that raises leaves no rows of its step.

        Args:
            step: handed to `when`, and written into the tables.
            model: the network that the body runs, itself and not a wrapper of it.
            found: its residual map.
            targets: of the batch, for probes that look at them.
        """
        if not self.when(step):
            yield
            return
        watchers = watchers_of(self.probes)
        with watching(Setting(model, found, targets), list(watchers.values())):
            yield
        for name, watcher in watchers.items():
            table = watcher.table()
            table.insert(0, "step", step)
            self._parts[name].append(table)

    def tables(self) -> Mapping[str, pd.DataFrame]:
        """All rows so far, by probe; those without rows are left out."""
        return {name: pd.concat(parts, ignore_index=True) for name, parts in self._parts.items()}

    def take(self) -> Mapping[str, pd.DataFrame]:
        """All rows since the last call, which are then forgotten here."""
        tables = self.tables()
        self._parts.clear()
        return tables


def every(steps: int, *, start: int = 1) -> When:
    """At step `start` and then every so many steps.

    Raises:
        ValueError: `steps` is below 1.
    """
    if steps < 1:
        raise ValueError(f"Expected to measure every 1 or more steps, got {steps}.")
    return lambda step: step >= start and (step - start) % steps == 0
