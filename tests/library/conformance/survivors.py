"""The converted networks that the survivals are tried on: stated and foreign, with and without lifted operators."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import timm
import torch
from conformance_cases import perturbed
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import resnet18

import normless as nl
from normless.models import resnet_cifar


class FunctionalBlock(nn.Module):
    """A post-activation block all of whose operators are functions in its forward code."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm_first, self.norm_second = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm_first(self.first(x)), inplace=True)
        y = self.norm_second(self.second(y))
        return F.relu(x + y)


class Functional(nn.Module):
    """Three such blocks between a convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(*(FunctionalBlock(8) for _ in range(3)))
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


@dataclass(frozen=True)
class Subject:
    """A network, the schemes it is converted by, and where its blocks are."""

    build: Callable[[], nn.Module]
    schemes: tuple[str, ...]
    blocks: tuple[str, ...]
    side: int = 16


SUBJECTS = {
    "resnet18": Subject(
        lambda: resnet18(num_classes=10),
        ("skipinit", "fixup", "batch_norm_sqrt2"),
        tuple(f"layer{stage}.{index}" for stage in (1, 2, 3, 4) for index in (0, 1)),
        side=32,
    ),
    "resnet_cifar_8": Subject(
        lambda: resnet_cifar(8),
        ("skipinit", "fixup", "batch_norm_sqrt2"),
        tuple(f"blocks.{index}" for index in range(3)),
    ),
    "test_vit": Subject(
        lambda: timm.create_model("test_vit", img_size=32, num_classes=10),
        ("skipinit", "rezero", "batch_norm_sqrt2"),
        tuple(f"blocks.{index}" for index in range(6)),
        side=32,
    ),
    "functional": Subject(
        Functional, ("skipinit", "fixup", "batch_norm_sqrt2"), tuple(f"blocks.{index}" for index in range(3))
    ),
}
# Large, or a kind of surgery that another pair has as well.
SLOW = {
    *(("resnet18", scheme) for scheme in SUBJECTS["resnet18"].schemes),
    *(("test_vit", scheme) for scheme in ("rezero", "batch_norm_sqrt2")),
    *(("resnet_cifar_8", scheme) for scheme in ("skipinit", "batch_norm_sqrt2")),
    ("functional", "skipinit"),
}
SURVIVORS = [(name, scheme) for name, subject in SUBJECTS.items() for scheme in subject.schemes]


def images(network: str, size: int = 4) -> Tensor:
    side = SUBJECTS[network].side
    return torch.randn(size, 3, side, side)


@cache
def _original(network: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return SUBJECTS[network].build()


@cache
def _net(network: str, scheme: str) -> nn.Module:
    return nl.convert(_original(network), scheme, images(network, 2))


def original(network: str) -> nn.Module:
    """A copy of the network before its conversion, always of the same weights."""
    return deepcopy(_original(network))


def survivor(network: str, scheme: str) -> nn.Module:
    """A copy of the converted network, in training mode, with noise on every parameter so that no branch is zero."""
    return perturbed(deepcopy(_net(network, scheme)), 0.03)
