"""A Fabric of one process on the simulated card."""

from __future__ import annotations

import torch
from lightning_fabric import Fabric
from lightning_fabric.accelerators import CPUAccelerator
from lightning_fabric.plugins import DoublePrecision, Precision
from lightning_fabric.strategies import SingleDeviceStrategy
from simulated_card import register

from normless_lab.train._config import RunConfig


class CardAccelerator(CPUAccelerator):
    """Takes the card for the processor."""

    def setup_device(self, device: torch.device) -> None:
        """See `CPUAccelerator.setup_device`, which refuses any other device."""


def make_card_fabric(config: RunConfig) -> Fabric:
    """See `normless_lab.train._loop.make_fabric`, whose accelerators are those of Fabric."""
    precision = DoublePrecision() if config.precision == "64-true" else Precision()
    strategy = SingleDeviceStrategy(device=register())
    fabric = Fabric(accelerator=CardAccelerator(), strategy=strategy, plugins=[precision])
    fabric.launch()
    return fabric
