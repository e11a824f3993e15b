"""Batch norms of parts of a batch and of domains, as libraries and papers write them, in small residual networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import Tensor, nn

WIDTH = 8
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


class Chunked(nn.Module):
    """As TabNet's ghost norm: one norm after the other over the chunks of a batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.bn(one) for one in x.chunk(2)])


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
    """One norm of a list by a number that the training loop sets, or by an argument."""

    def __init__(self, width: int, domain: int | None = 1) -> None:
        super().__init__()
        self.norms, self.domain = nn.ModuleList([nn.BatchNorm2d(width) for _ in range(3)]), domain

    def forward(self, x: Tensor, domain: int | None = None) -> Any:
        return self.norms[self.domain if domain is None else domain](x)  # type: ignore[index]


class Block(nn.Module):
    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), norm(WIDTH)
        self.conv2, self.norm2 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), norm(WIDTH)

    def forward(self, x: Tensor, *domain: Any) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x), *domain))
        return torch.relu(x + self.norm2(self.conv2(y), *domain))


class Beside(Block):
    """The norm for adversarial examples is an attribute of the block itself."""

    def __init__(self, norm: Norm) -> None:
        super().__init__(norm)
        self.norm1_adv, self.norm2_adv, self.is_target = norm(WIDTH), norm(WIDTH), False

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        first, second = (self.norm1_adv, self.norm2_adv) if self.is_target else (self.norm1, self.norm2)
        return torch.relu(x + second(self.conv2(torch.relu(first(self.conv1(x))))))


class Network(nn.Module):
    """Two residual blocks with norms of one kind."""

    def __init__(self, norm: Norm, block: Callable[[Norm], nn.Module] = Block) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, WIDTH, 3, padding=1, bias=False), norm(WIDTH)
        self.blocks, self.head = nn.ModuleList([block(norm), block(norm)]), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, *domain: Any) -> Any:
        x = torch.relu(self.norm(self.conv(x), *domain))
        for block in self.blocks:
            x = block(x, *domain)
        return self.head(x.mean((2, 3)))


NORMS: dict[str, Norm] = {
    "SlowFast": SubBatchNorm2d,
    "TabNet": Chunked,
    "timm's split": timm.layers.SplitBatchNorm2d,  # type: ignore[attr-defined]
    "halves": Halves,
    "mixed": Mixed,
    "chosen": Chosen,
    "passed": lambda width: Chosen(width, None),
}
PARTS = ["SlowFast", "TabNet", "timm's split", "halves"]
