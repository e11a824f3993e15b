"""Small networks whose norms have statistics, γ and β as after training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from normless.models import resnet_cifar, wide_resnet


def images(count: int = 24) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(count)) * 2 + 1


def with_statistics(model: nn.Module, make: Callable[[int], Tensor] = images) -> nn.Module:
    """Give norms random γ and β, and the running statistics of batches."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.affine:
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    model.train()
    with torch.no_grad():
        for size in range(16, 28):
            model(make(size))
    return model.eval()


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, self.layers(x))


def small(norm: Callable[[int], nn.Module] = nn.BatchNorm2d, channels: int = 8) -> nn.Module:
    """A stem, a block whose branch ends in a norm, and a classifier."""

    def convolution(inputs: int) -> nn.Module:
        return nn.Conv2d(inputs, channels, 3, padding=1, bias=False)

    branch = (convolution(channels), norm(channels), nn.ReLU(), convolution(channels), norm(channels))
    pooled = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))
    return nn.Sequential(convolution(3), norm(channels), nn.ReLU(), Residual(*branch), *pooled)


def post_activation() -> nn.Module:
    return with_statistics(resnet_cifar(8))


def pre_activation() -> nn.Module:
    return with_statistics(wide_resnet(10, 1))


class Tokens(nn.Module):
    """A layer norm before a linear branch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.hidden, self.back = nn.Linear(8, 16), nn.Linear(16, 8)
        self.last, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.uniform_(self.norm.weight, 0.5, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        x = x + self.back(F.gelu(self.hidden(self.norm(x))))
        return torch.as_tensor(self.head(self.last(x)))


def far(made: Tensor, expected: Tensor) -> float:
    """‖y' − y‖ / ‖y‖."""
    return ((made - expected).norm() / expected.norm()).item()
