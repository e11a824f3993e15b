"""The cost of a training step under each scheme, relative to the network without norms and scalars."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.bench.timing import ratio_table, seconds_in_turns
from normless.conversion import convert
from normless.models import BasicBlock, ResNetCifar, resnet_cifar

REFERENCE = "none"


@dataclass(frozen=True)
class ImageBench:
    """What to measure of a CIFAR ResNet on random images: variants that take turns for some rounds.

    `image_size` is the height and width of an image in pixels.
    """

    depth: int = 110
    batch_size: int = 128
    image_size: int = 32
    rounds: int = 5

    def batch(self) -> tuple[Tensor, Tensor]:
        """Random images and classes."""
        images = torch.randn(self.batch_size, 3, self.image_size, self.image_size)
        return images, torch.randint(10, (self.batch_size,))


@dataclass(frozen=True)
class StepBench(ImageBench):
    """Which `schemes` to compare with the network without norms, in addition to the hand-written Fixup."""

    rounds: int = 10
    schemes: tuple[str, ...] = ("skipinit(alpha=1)", "fixup", "batch_norm")


def measure_step(bench: StepBench) -> pd.DataFrame:
    """Time a step of every network in turn: a row each, see `ratio_table`; ratios are to that without norms."""
    torch.manual_seed(0)
    network = resnet_cifar(bench.depth)
    images, labels = bench.batch()
    networks: dict[str, nn.Module] = {scheme: convert(network, scheme) for scheme in (REFERENCE, *bench.schemes)}
    networks["hand-written fixup"] = HandWrittenFixup(network)
    steps = {name: training_step(net, images, labels) for name, net in networks.items()}
    seconds = seconds_in_turns(steps, bench.rounds)
    return ratio_table("network", seconds, seconds.div(seconds[REFERENCE], axis=0))


def training_step(network: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """Forward, backward and a step of SGD with momentum, of a network on one batch; synchronized on CUDA."""
    # So small a learning rate that no network moves far: the arithmetic is the same at any.
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if images.is_cuda:
            torch.cuda.synchronize(images.device)

    return step


class HandWrittenFixupBlock(nn.Module):
    """Fixup's basic block as it is usually written: scalars added to and multiplied with the activations."""

    def __init__(self, block: BasicBlock) -> None:
        super().__init__()
        self.conv1, self.conv2, self.shortcut = map(block.get_submodule, ("conv1", "conv2", "shortcut"))
        self.bias1a, self.bias1b, self.bias2a, self.bias2b = (nn.Parameter(torch.zeros(1)) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """relu(skip(x) + scale · conv2(relu(conv1(x + bias1a) + bias1b) + bias2a) + bias2b)."""
        h = torch.relu(self.conv1(x + self.bias1a) + self.bias1b)
        h = self.conv2(h + self.bias2a) * self.scale + self.bias2b
        return torch.relu(h + self.shortcut(x))


class HandWrittenFixup(nn.Module):
    """A CIFAR ResNet with hand-written Fixup blocks; shapes as `ResNetCifar`."""

    def __init__(self, network: ResNetCifar) -> None:
        super().__init__()
        network = deepcopy(network)
        self.stem, self.pool, self.classifier = network.stem, network.pool, network.classifier
        self.blocks = nn.Sequential(
            *(HandWrittenFixupBlock(block) for block in network.blocks if isinstance(block, BasicBlock))
        )
        self.bias1, self.bias2 = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        h = self.blocks(torch.relu(self.stem(x) + self.bias1))
        logits: Tensor = self.classifier(self.pool(h) + self.bias2)
        return logits
