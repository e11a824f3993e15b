"""Small networks whose norms have statistics, γ and β as after training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from written_networks import Written

from normless.models import resnet_cifar, wide_resnet


def images(count: int = 24) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(count)) * 2 + 1


def with_statistics(model: nn.Module) -> Any:
    """Give norms random γ and β, and the running statistics of batches."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.affine:
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    model.train()
    with torch.no_grad():
        for size in range(16, 28):
            model(images(size))
    return model.eval()


def plus(m: Any, x: Tensor) -> Tensor:
    """x + f(x)."""
    return torch.add(x, m.layers(x))


def small(norm: Callable[[int], nn.Module] = nn.BatchNorm2d, channels: int = 8) -> nn.Module:
    """A stem, a block whose branch ends in a norm, and a classifier."""
    first, second, third = (nn.Conv2d(size, channels, 3, padding=1, bias=False) for size in (3, channels, channels))
    branch = nn.Sequential(second, norm(channels), nn.ReLU(), third, norm(channels))
    pooled = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))
    return nn.Sequential(first, norm(channels), nn.ReLU(), Written(plus, layers=branch), *pooled)


def post_activation() -> Any:
    return with_statistics(resnet_cifar(8))


def pre_activation() -> Any:
    return with_statistics(wide_resnet(10, 1))


def far(made: Tensor, expected: Tensor) -> float:
    """‖y' − y‖ / ‖y‖."""
    return float((made - expected).norm().detach() / expected.norm().detach())
