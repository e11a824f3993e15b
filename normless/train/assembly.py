"""From a task to a training: processes, network, optimizer and probes, set up on their devices."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.optim import Optimizer

from normless.probes import RideAlong
from normless.residual import ResidualMap, residual_map
from normless.train.config import RunConfig
from normless.train.directory import replaced
from normless.train.objective import accumulate_gradients
from normless.train.task import StepStatistics, Task


@dataclass(frozen=True)
class Training:
    """A task with its network and optimizer, as `fabric` set them up.

    Attributes:
        module: the network without the wrapper for training; map: its residual map.
        clipped: the parameters whose gradients are clipped.
        ride_along: probes along the way, if any.
    """

    task: Task[Any]
    fabric: Fabric
    network: nn.Module
    module: nn.Module
    map: ResidualMap
    optimizer: Optimizer
    clipped: tuple[nn.Parameter, ...]
    ride_along: RideAlong | None

    def gradients(self, batch: Any, step: int) -> StepStatistics:
        """Add the gradient of the batch's loss to the parameters' gradients; steps are counted from 1."""
        measured: AbstractContextManager[None] = nullcontext()
        if self.ride_along is not None:
            measured = self.ride_along.during(step, self.module, self.map, batch[-1])
        with measured:
            return accumulate_gradients(self.fabric, self.network, self.task, batch)

    def write_measurements(self, epoch: int) -> None:
        """Write what the probes measured since the last call, as `probes/NAME/epoch-0001.parquet` and so on."""
        tables = {} if self.ride_along is None else self.ride_along.take()
        for name, table in tables.items():
            path = self.task.directory.probes / name / f"epoch-{epoch:04d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            with replaced(path) as part:
                table.to_parquet(part, index=False)


def make_fabric(config: RunConfig) -> Fabric:
    """The Fabric that runs the training: one process, or those that torchrun started.

    Raises:
        ValueError: cuda is requested and not available, or the number of processes is not the configuration's.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != config.devices:
        raise ValueError(
            f"Expected {config.devices} processes for devices={config.devices}, but {started} runs this. Start it "
            f"with: torchrun --nproc-per-node {config.devices} -m normless {config.COMMAND} … "
            f"--devices {config.devices}"
        )
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' needs a CUDA device, and torch finds none; use device='cpu' or 'auto'.")
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    fabric = Fabric(
        accelerator="cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu",
        devices=local,
        num_nodes=started // local,
        strategy="ddp" if started > 1 else "auto",
        precision=config.precision,
    )
    fabric.launch()
    return fabric


def assemble(task: Task[Any], fabric: Fabric, ride_along: RideAlong | None) -> Training:
    """Build network and optimizer from the configuration; the converted network is traced once."""
    # Weights and images in channels-last order: a tenth off a step of a deep network on the CPU.
    network = task.build_network().to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    structure = residual_map(network, *(inputs.to(fabric.device) for inputs in task.example_inputs()))
    optimizer = task.build_optimizer(network, structure)
    forward: Any = torch.compile(network) if getattr(task.config, "compile", False) else network
    wrapped, wrapped_optimizer = fabric.setup(forward, optimizer)
    clipped = task.clipped_parameters(network, structure)
    return Training(task, fabric, wrapped, wrapped.module, structure, wrapped_optimizer, clipped, ride_along)


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
