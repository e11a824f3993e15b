"""Taking out norms keeps the order in memory of what the other layers read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gallery import ROWS
from torch import Tensor, nn

import normless as nl
from normless.nn.memory_order import MemoryOrder, in_order, order_of
from normless.residual.memory_order import output_order


class ImageNorm(nn.LayerNorm):
    """A layer norm of the channels of images (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class CopyingNorm(ImageNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).contiguous()


class VolumeNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class ScaledNorm(nn.LayerNorm):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x) * scale


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


NORMS: list[tuple[nn.Module, tuple[int, ...] | None, str | None]] = [
    (nn.LayerNorm(4), (2, 5, 3, 4), "contiguous"),
    (nn.RMSNorm(4), (2, 5, 4), "contiguous"),
    (ImageNorm(4), (2, 4, 5, 3), "channels_last"),
    (CopyingNorm(4), (2, 4, 5, 3), "contiguous"),
    (VolumeNorm(4), (2, 4, 5, 3, 2), "channels_last_3d"),
    (nn.BatchNorm2d(4), (2, 4, 5, 3), None),
    (nn.BatchNorm2d(4), (2, 4, 1, 1), None),
    (nn.GroupNorm(2, 4), (2, 4, 5, 3), None),
    (nn.LayerNorm(4), (2, 4), None),
    (ImageNorm(4), None, "channels_last"),
    (ScaledNorm(4), (2, 5, 4), None),
]


def test_the_order_of_a_norms_output_is_found_or_unknown() -> None:
    assert [output_order(norm, shape) for norm, shape, _ in NORMS] == [order for *_, order in NORMS]


def test_the_order_changes_no_value_and_no_gradient() -> None:
    x = torch.randn(2, 4, 5, 3, dtype=torch.float64, requires_grad=True)
    for order in ("contiguous", "channels_last", "channels_last_3d"):
        module = MemoryOrder(order)
        assert torch.equal(module(x.transpose(2, 3)), x.transpose(2, 3))
        assert torch.autograd.gradcheck(module, (x,))
    assert order_of(MemoryOrder("channels_last")(x)) == "channels_last"
    assert in_order(x, "contiguous") is x
    assert in_order(x[0], "channels_last").shape == x[0].shape


def test_batch_norms_leave_plain_identities() -> None:
    row = ROWS["weight norm"]
    net = nl.convert(row.network(), "skipinit", *row.example()[0])
    assert type(net.get_submodule("1.norm2")) is nn.Identity
