"""Taking out norms keeps the order in memory of what the other layers read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import normless as nl
from normless.nn.memory_order import MemoryOrder, in_order, order_of
from normless.residual.memory_order import output_order


class ImageNorm(nn.LayerNorm):
    """A layer norm of the channels of images (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class CopyingNorm(ImageNorm):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x).contiguous()


class VolumeNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.act, self.down = nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + self.down(self.act(self.up(y))).permute(0, 3, 1, 2)


class Network(nn.Module):
    def __init__(self, width: int = 8, stem_norm: type[nn.LayerNorm] = ImageNorm) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 2, 2), stem_norm(width))
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def orders_read(net: nn.Module, x: Tensor) -> dict[str, tuple[int, ...]]:
    """Return the strides of the tensors that the weight layers read, by path."""
    read: dict[str, tuple[int, ...]] = {}
    for path, module in net.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.register_forward_pre_hook(lambda _, args, path=path: read.update({path: args[0].stride()}))
    net(x)
    return read


@pytest.mark.parametrize("stem_norm", [ImageNorm, CopyingNorm])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("scheme", ["skipinit", "fixup", "dyt", "only_final_norm"])
def test_weight_layers_read_the_order_that_they_read_before(
    scheme: str, order: torch.memory_format, stem_norm: type[nn.LayerNorm]
) -> None:
    net, x = Network(stem_norm=stem_norm), torch.randn(4, 3, 8, 6)
    converted = nl.convert(net, scheme, x)
    assert orders_read(converted, x.to(memory_format=order)) == orders_read(net, x.to(memory_format=order))


@pytest.mark.parametrize(
    ("norm", "shape", "expected"),
    [
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
    ],
)
def test_the_order_of_a_norms_output_is_found(
    norm: nn.Module, shape: tuple[int, ...] | None, expected: str | None
) -> None:
    assert output_order(norm, shape) == expected


def test_a_norm_that_does_not_run_has_no_order() -> None:
    class Conditional(nn.LayerNorm):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x) * scale

    assert output_order(Conditional(4), (2, 5, 4)) is None


def test_the_order_changes_no_value_and_no_gradient() -> None:
    x = torch.randn(2, 4, 5, 3, dtype=torch.float64, requires_grad=True)
    for order in ("contiguous", "channels_last", "channels_last_3d"):
        module = MemoryOrder(order)  # type: ignore[arg-type]
        assert torch.equal(module(x.transpose(2, 3)), x.transpose(2, 3))
        assert torch.autograd.gradcheck(module, (x,))
    assert order_of(MemoryOrder("channels_last")(x)) == "channels_last"
    assert in_order(x, "contiguous") is x
    assert in_order(x[0], "channels_last").shape == x[0].shape


def test_batch_norms_leave_plain_identities() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.norm(self.conv(x))

    net = nn.Sequential(Residual(), Residual(), nn.Flatten(), nn.Linear(4 * 36, 3))
    converted = nl.convert(net, "skipinit", torch.randn(2, 4, 6, 6))
    assert type(converted.get_submodule("0.norm")) is nn.Identity
