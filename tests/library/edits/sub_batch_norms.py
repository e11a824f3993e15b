"""Batch norms of parts of a batch and of domains, as libraries and papers write them, in small residual networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import Tensor, nn

WIDTH = 8


class SubBatchNorm2d(nn.Module):
    """As SlowFast's SubBatchNorm3d: statistics of parts in training by `split_bn`, those of `bn` in evaluation."""

    def __init__(self, width: int, num_splits: int = 2) -> None:
        super().__init__()
        self.num_splits = num_splits
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.bn = nn.BatchNorm2d(width, affine=False)
        self.split_bn = nn.BatchNorm2d(width * num_splits, affine=False)

    @torch.no_grad()
    def aggregate_stats(self) -> None:
        mean, var = (one.view(self.num_splits, -1) for one in (self.split_bn.running_mean, self.split_bn.running_var))
        self.bn.running_mean.copy_(mean.mean(0))
        self.bn.running_var.copy_(var.mean(0) + (mean - mean.mean(0)).square().mean(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            n, c, h, w = x.shape
            x = self.split_bn(x.reshape(n // self.num_splits, c * self.num_splits, h, w)).view(n, c, h, w)
        else:
            x = self.bn(x)
        return x * self.weight.view(-1, 1, 1) + self.bias.view(-1, 1, 1)


class Chunked(nn.Module):
    """As TabNet's ghost norm: one norm after the other over the chunks of a batch."""

    def __init__(self, width: int, chunks: int = 2) -> None:
        super().__init__()
        self.chunks, self.bn = chunks, nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.bn(one) for one in x.chunk(self.chunks)])


class Halves(nn.Module):
    """An auxiliary norm of its own for the second half of a training batch; a plain module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.main, self.aux = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.main(x)
        clean, adversarial = x.chunk(2)
        return torch.cat([self.main(clean), self.aux(adversarial)])


class Mixed(nn.BatchNorm2d):
    """As AdvProp's MixBatchNorm2d: the kind of the batch is an attribute that the training loop sets."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.aux_bn, self.batch_type = nn.BatchNorm2d(width), "clean"

    def forward(self, x: Tensor) -> Tensor:
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

    def forward(self, x: Tensor) -> Tensor:
        return self.norms[self.domain](x)


class Passed(nn.Module):
    """One norm of a list by an argument."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bns = nn.ModuleList([nn.BatchNorm2d(width) for _ in range(2)])

    def forward(self, x: Tensor, domain: int) -> Tensor:
        return self.bns[domain](x)


class Block(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), norm(WIDTH)
        self.conv2, self.norm2 = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), norm(WIDTH)

    def forward(self, x: Tensor, *domain: Any) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x), *domain))
        return torch.relu(x + self.norm2(self.conv2(y), *domain))


class Network(nn.Module):
    """Two residual blocks with norms of one kind."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, WIDTH, 3, padding=1, bias=False), norm(WIDTH)
        self.blocks = nn.ModuleList([Block(norm), Block(norm)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, *domain: Any) -> Tensor:
        x = torch.relu(self.norm(self.conv(x), *domain))
        for block in self.blocks:
            x = block(x, *domain)
        return self.head(x.mean((2, 3)))


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "SlowFast": SubBatchNorm2d,
    "TabNet": Chunked,
    "timm's split": timm.layers.SplitBatchNorm2d,
    "halves": Halves,
    "mixed": Mixed,
    "chosen": Chosen,
    "passed": Passed,
}


def given(name: str, x: Tensor) -> tuple[Any, ...]:
    """The arguments of the network with norms of this name."""
    return (x, 1) if name == "passed" else (x,)


def trained(name: str) -> Network:
    """A network whose norms have γ, β and statistics that differ, in evaluation mode."""
    torch.manual_seed(0)
    net = Network(NORMS[name])
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if isinstance(weight, nn.Parameter) and weight.dim() == 1 and bias is not None:
            nn.init.uniform_(weight, 0.5, 2)
            nn.init.normal_(bias)
    return net.eval()
