"""Taking out norms keeps the order in memory of what the other layers read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normless as nl


class ImageNorm(nn.LayerNorm):
    """A layer norm of the channels of images (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class CopyingNorm(ImageNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).contiguous()


class Block(nn.Module):
    """As ConvNeXt's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Any:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.down(nn.functional.gelu(self.up(y))).permute(0, 3, 1, 2)


def orders_read(net: nn.Module, x: Tensor) -> dict[str, tuple[int, ...]]:
    """The strides of the tensors that the weight layers read, by path."""
    read: dict[str, tuple[int, ...]] = {}
    for path, module in net.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_forward_pre_hook(lambda _, args, path=path: read.update({path: args[0].stride()}))
    net(x)
    return read


@pytest.mark.parametrize("norm", [ImageNorm, CopyingNorm])
@pytest.mark.parametrize("scheme", ["skipinit", "fixup", "dyt", "only_final_norm"])
def test_weight_layers_read_the_order_that_they_read_before(scheme: str, norm: type[nn.LayerNorm]) -> None:
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    net, x = nn.Sequential(nn.Conv2d(3, 8, 2, 2), norm(8), Block(), Block(), *pooled), torch.randn(4, 3, 8, 6)
    converted = nl.convert(net, scheme, x)
    for order in (torch.contiguous_format, torch.channels_last):
        assert orders_read(converted, x.to(memory_format=order)) == orders_read(net, x.to(memory_format=order))
