"""A small network to fit, its images, and how its health is read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl


def images(count: int = 4, size: int = 32, channels: int = 2) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    shape = (size, channels, 6, 6)
    return [(torch.randn(shape, generator=generator), torch.arange(size) % 5) for _ in range(count)]


def inputs() -> list[Tensor]:
    """Without labels: a network that was not trained is no better than guessing."""
    return [x for x, _ in images()]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, padding=1, bias=False)

    def branch(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))
        return y

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Network(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, width, 3, padding=1), nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))
        return y


def fitted() -> Network:
    """A network whose running statistics are those of the data."""
    torch.manual_seed(0)
    net = Network().train()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    with torch.no_grad():
        for x, _ in images():
            net(x)
    return net.eval()


def kinds(report: nl.doctor.Health) -> list[str]:
    return [found.kind for found in report.findings]


def row(report: nl.doctor.Health, layer: str) -> dict[str, Any]:
    (found,) = report.table[report.table["layer"] == layer].to_dict("records")
    return {str(name): value for name, value in found.items()}


def quick(net: nn.Module, batches: Any, **options: Any) -> nl.doctor.Health:
    return nl.diagnose_trained(net, batches, remove=False, **options)


class Normed(nn.Module):
    """Tokens, a norm over features, and a head."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(8, 12), norm, nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.inner(x)))
        return y
