"""Probes that ride along a run, and the files their tables go to."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from normless.probes import RideAlong
from normless.residual import ResidualMap, residual_map
from normless.train.atomic_write import replaced
from normless.train.config import TrainConfig
from normless.train.settings import ClassificationSettings


@dataclass(frozen=True)
class Measuring:
    """What of a run's network is measured, and where that is written.

    Attributes:
        ride: the probes and when they measure.
        network: the network itself, not what wraps it; map: its residual map.
        folder: of the run; tables go to `probes/NAME/epoch-0001.parquet` and so on in it.
    """

    ride: RideAlong
    network: nn.Module
    map: ResidualMap
    folder: Path

    def during(self, step: int, targets: Any) -> AbstractContextManager[None]:
        """Measure the pass in the body, if the step is chosen."""
        return self.ride.during(step, self.network, self.map, targets)

    def write(self, epoch: int) -> None:
        """Write what was measured since the last call as that of an epoch, counted from 1."""
        for name, table in self.ride.take().items():
            path = self.folder / name / f"epoch-{epoch:04d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(path) as part:
                table.to_parquet(part, index=False)


def measuring_of(
    ride_along: RideAlong | None, network: nn.Module, inputs: tuple[Tensor, ...], folder: Path
) -> Measuring | None:
    """What rides along the training of a network that takes such inputs, with its map; None where nothing does."""
    if ride_along is None:
        return None
    return Measuring(ride_along, network, residual_map(network, *inputs), folder)


def check_measurable(config: TrainConfig) -> None:
    """See that probes can watch the passes of an image run.

    Raises:
        ValueError: its batches are passed in parts, or its network is compiled.
    """
    check_whole_batches(config)
    if config.compile:
        raise ValueError("Probes watch the network as it is written; leave compile out for a run that is measured.")


def check_whole_batches(config: ClassificationSettings) -> None:
    """See that a run passes its batches as they are.

    Raises:
        ValueError: it passes them in parts.
    """
    if config.micro_batch_size is not None and config.micro_batch_size < config.batch_size:
        raise ValueError(
            f"Probes measure whole batches, but micro_batch_size={config.micro_batch_size} passes them in parts; "
            "leave it out for a run that is measured."
        )
