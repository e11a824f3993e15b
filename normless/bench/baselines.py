"""What a claim is measured against: the usual hand-written form of a method."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from normless.models import BasicBlock, ResNetCifar


class HandWrittenFixupBlock(nn.Module):
    """Fixup's basic block as it is usually written: scalars added to and multiplied with the activations."""

    def __init__(self, block: BasicBlock) -> None:
        super().__init__()
        self.conv1, self.conv2 = block.conv1, block.conv2
        self.shortcut = block.shortcut
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
