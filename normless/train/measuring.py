"""Probes along a run, and the files of their tables."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from normless.probes import RideAlong
from normless.residual import ResidualMap
from normless.train.atomic_write import replaced
from normless.train.config import RunConfig


@dataclass(frozen=True)
class Measuring:
    """What is measured of a run's network, and where the tables go.

    Attributes:
        ride: the probes and when they measure.
        network: the network itself, without wrappers; map: its residual map.
        folder: of the tables, `NAME/epoch-0001.parquet` and so on.
    """

    ride: RideAlong
    network: nn.Module
    map: ResidualMap
    folder: Path

    def during(self, step: int, targets: Any) -> AbstractContextManager[None]:
        """Measure the pass in the body, if the step is chosen."""
        return self.ride.during(step, self.network, self.map, targets)

    def write(self, epoch: int) -> None:
        """Write the measurements since the last call as those of an epoch, counted from 1."""
        for name, table in self.ride.take().items():
            path = self.folder / name / f"epoch-{epoch:04d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(path) as part:
                table.to_parquet(part, index=False)


def check_measurable(config: RunConfig) -> None:
    """Check that probes can watch the passes of a run.

    Raises:
        ValueError: its batches are passed in parts, or its network is compiled.
    """
    micro = config.micro_batch_limit
    if micro is not None and micro < config.batch_limit:
        raise ValueError(
            f"Probes measure whole batches, but {config.MICRO_BATCH}={micro} passes them in parts; leave it out for "
            "a run that is measured."
        )
    if getattr(config, "compile", False):
        raise ValueError("Probes cannot watch a compiled network; leave compile out for a run that is measured.")
