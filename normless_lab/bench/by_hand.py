"""Networks written by hand: bare convolutions, a lower bound of the time of every scheme, and Fixup."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from normless.models import BasicBlock


class BareBlock(nn.Module):
    """relu(shortcut(x) + conv2(relu(conv1(x)))), in place where possible, without norms and scalars."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2, self.shortcut = map(block.get_submodule, ("conv1", "conv2", "shortcut"))

    def forward(self, x: Tensor) -> Tensor:
        """Shapes as `BasicBlock`."""
        h: Tensor = self.conv2(self.conv1(x).relu_())
        return h.add_(self.shortcut(x)).relu_()


class BareWideBlock(BareBlock):
    """shortcut(·) + conv2(relu(conv1(relu(x)))), where a convolution as shortcut reads relu(x), and an identity x."""

    def forward(self, x: Tensor) -> Tensor:
        """Shapes as `WideBlock`."""
        projects = isinstance(self.shortcut, nn.Conv2d)
        h = x.relu_() if projects else torch.relu(x)
        skip: Tensor = self.shortcut(h if projects else x)
        branch: Tensor = self.conv2(self.conv1(h).relu_())
        return branch.add_(skip)


class Bare(nn.Module):
    """The convolutions, ReLUs and sums of a `ResNetCifar` or `WideResNet`, on copies of its weights."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        network = deepcopy(network)
        self.stem, self.pool, self.classifier = network.stem, network.pool, network.classifier
        kinds = [BareBlock if isinstance(block, BasicBlock) else BareWideBlock for block in network.blocks]
        self.blocks = nn.Sequential(*(kind(block) for kind, block in zip(kinds, network.blocks, strict=True)))
        self.is_wide = BareWideBlock in kinds

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of images."""
        h: Tensor = self.stem(x)
        h = self.blocks(h if self.is_wide else h.relu_())
        logits: Tensor = self.classifier(self.pool(h.relu_() if self.is_wide else h))
        return logits


class HandWrittenFixupBlock(nn.Module):
    """Fixup's basic block as usually written: scalars are added to activations and multiply them."""

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

    def __init__(self, network: Any) -> None:
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
