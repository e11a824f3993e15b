"""From a task to a training: processes, network, optimizer and probes, set up on their devices."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from normless.probes import RideAlong
from normless.residual import residual_map
from normless.train.config import RunConfig
from normless.train.measuring import Measuring
from normless.train.objective import accumulate_gradients
from normless.train.task import StepStatistics, Task


@dataclass(frozen=True)
class Training:
    """A task with its network and optimizer, as `fabric` set them up.

    Attributes:
        clipped: the parameters whose gradients are clipped.
        measuring: probes along the way, if any.
    """

    task: Task[Any]
    fabric: Fabric
    network: nn.Module
    optimizer: Optimizer
    clipped: tuple[nn.Parameter, ...]
    measuring: Measuring | None

    @property
    def module(self) -> nn.Module:
        """The network without the wrapper for training."""
        module: nn.Module = self.network.module  # type: ignore[assignment]
        return module

    def gradients(self, batch: Any, step: int) -> StepStatistics:
        """Add the gradient of the batch's loss to the parameters' gradients; steps are counted from 1."""
        with self._measured(step, batch[-1]):
            return accumulate_gradients(self.fabric, self.network, self.task, batch)

    def _measured(self, step: int, targets: Tensor) -> AbstractContextManager[None]:
        return nullcontext() if self.measuring is None else self.measuring.during(step, targets)


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
    found = residual_map(network, *(inputs.to(fabric.device) for inputs in task.example_inputs()))
    optimizer = task.build_optimizer(network, found)
    forward: Any = torch.compile(network) if getattr(task.config, "compile", False) else network
    wrapped, wrapped_optimizer = fabric.setup(forward, optimizer)
    return Training(
        task,
        fabric,
        wrapped,
        wrapped_optimizer,
        task.clipped_parameters(network, found),
        None if ride_along is None else Measuring(ride_along, network, found, task.directory.probes),
    )
