"""Batch norms of parts of a batch and of domains, as libraries and papers write them, in small residual networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from streams_of_networks import WIDTH, Trunk
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


class SubBatchNorm2d(nn.Module):
    """As SlowFast's SubBatchNorm3d: statistics of parts in training by `split_bn`, those of `bn` in evaluation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_splits, self.bn = 2, nn.BatchNorm2d(width, affine=False)
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.split_bn = nn.BatchNorm2d(width * 2, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        x = self.split_bn(x.reshape(n // 2, c * 2, h, w)).view(n, c, h, w) if self.training else self.bn(x)
        return x * self.weight.view(-1, 1, 1) + self.bias.view(-1, 1, 1)


class Halves(nn.Module):
    """An auxiliary norm of its own for the second half of a training batch; a plain module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.main, self.aux = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Any:
        clean, adversarial = x.chunk(2)
        return torch.cat([self.main(clean), self.aux(adversarial)]) if self.training else self.main(x)


class Mixed(nn.BatchNorm2d):
    """As AdvProp's MixBatchNorm2d: the kind of the batch is an attribute that the training loop sets."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.aux_bn, self.batch_type = nn.BatchNorm2d(width), "clean"

    def forward(self, x: Tensor) -> Any:
        if self.batch_type == "adv":
            return self.aux_bn(x)
        if self.batch_type == "clean":
            return super().forward(x)
        half = x.shape[0] // 2
        return torch.cat([super().forward(x[:half]), self.aux_bn(x[half:])])


class Chosen(nn.Module):
    """One norm of a list by a number that the training loop sets."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms, self.domain = nn.ModuleList([nn.BatchNorm2d(width) for _ in range(3)]), 1

    def forward(self, x: Tensor) -> Any:
        return self.norms[self.domain](x)


class Network(Trunk):
    """Two rectified residual blocks with norms of one kind, and a head."""

    def __init__(self, norm: Norm) -> None:
        super().__init__(norm=norm)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(super().forward(x))


NORMS: dict[str, Norm] = {
    "SlowFast": SubBatchNorm2d,
    "halves": Halves,
    "mixed": Mixed,
    "chosen": Chosen,
}
