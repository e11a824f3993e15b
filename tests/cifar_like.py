"""Generated images with the long-range correlations of photographs, and the networks of Understanding BN on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import normless as nl
from normless.models import resnet_cifar
from normless_lab.data.images.built_in import correlated_noise

# The paper's two networks: Xavier's weights without normalization and with it.
BARE = "xavier"
NORMALIZED = 'batch_norm(initialization="xavier")'


def images(count: int, size: int, seed: int = 0) -> Tensor:
    """Noise on several scales, standardized per channel: (count, 3, size, size)."""
    x = correlated_noise(count, (3, size, size), torch.Generator().manual_seed(seed))
    return (x - x.mean((0, 2, 3), keepdim=True)) / x.std((0, 2, 3), keepdim=True)


def batches(number: int, count: int, size: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Images and labels of ten classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (number, count), generator=generator)
    return [(images(count, size, 1000 * seed + index), labels[index]) for index in range(number)]


def resnet110(scheme: str, seed: int = 0) -> nn.Module:
    """The CIFAR ResNet-110 at initialization."""
    torch.manual_seed(seed)
    return nl.convert(resnet_cifar(110), scheme)
