"""Small residual networks in which two streams share layers or exchange what they have."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 8
IMAGES = torch.randn(4, 3, 8, 8)


def conv(inputs: int = WIDTH, outputs: int = WIDTH, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)


class Block(nn.Module):
    """x + norm(conv(relu(norm(conv(x))))), its convolutions wrapped."""

    def __init__(
        self,
        wrap: Callable[[nn.Conv2d], nn.Module] = lambda layer: layer,
        norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.conv1, self.conv2 = wrap(conv()), wrap(conv())
        self.norm1, self.norm2 = norm(WIDTH), norm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))


class Network(nn.Module):
    """A stem, two blocks, a classifier."""

    def __init__(self, wrap: Callable[[nn.Conv2d], nn.Module] = lambda layer: layer) -> None:
        super().__init__()
        self.stem, self.blocks = conv(3), nn.Sequential(Block(wrap), Block(wrap))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Siamese(Network):
    """The same network on two images."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return super().forward(x) - super().forward(x.flip(3) if y is None else y)


class RectifiedBlock(Block):
    """relu(x + f(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x))


class Trunk(nn.Module):
    """A stem with its norm, rectified blocks, and the mean over positions."""

    def __init__(self, blocks: int = 2, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, WIDTH, 3), norm(WIDTH)
        self.blocks = nn.Sequential(*(RectifiedBlock(norm=norm) for _ in range(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3))
