"""Networks whose output is an image, several scales or two heads, a few channels wide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from streams_of_networks import Siamese
from torch import Tensor, nn
from torch.nn.utils import spectral_norm

from gallery.images import IMAGES, Basic, Classifier, PreAct, W, conv, conv_bn
from gallery.row import row


@row(IMAGES, ["layer1: conv1 conv2 | shortcut.0", "layer2: conv1 conv2 | shortcut.0"], stem="stem.0")
class FeaturePyramid(nn.Module):
    """The sums of its top-down path merge streams that are outputs too: no blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer1, self.layer2 = conv_bn(3, W), Basic(W, 12, 2), Basic(12, 16, 2)
        self.lateral = nn.ModuleList([nn.Conv2d(width, W, 1) for width in (W, 12, 16)])
        self.smooth = nn.ModuleList([nn.Conv2d(W, W, 3, padding=1) for _ in range(3)])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        c1 = self.stem(x)
        c2 = self.layer1(c1)
        p3 = self.lateral[2](self.layer2(c2))
        p2 = self.lateral[1](c2) + F.interpolate(p3, scale_factor=2.0)
        p1 = self.lateral[0](c1) + F.interpolate(p2, scale_factor=2.0)
        return {
            str(level): smooth(p) for level, (smooth, p) in enumerate(zip(self.smooth, (p1, p2, p3), strict=True))
        }


@row(IMAGES, ["down: conv1 conv2 | shortcut.0", "middle: conv1 conv2", "up: conv1 conv2 | shortcut.0"], stem="stem")
class UNet(nn.Module):
    """Its long skip concatenates: no block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down, self.middle = conv(3), Basic(W, 16, 2), Basic(16, 16)
        self.raise_, self.up, self.out = nn.ConvTranspose2d(16, W, 2, 2), Basic(16, W), nn.Conv2d(W, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        inside = self.raise_(self.middle(self.down(x)))
        return self.out(self.up(torch.cat([x, inside], 1)))


INSIDE = ["down: conv1 conv2 | shortcut.0", "middle: conv1 conv2"]


@row(
    IMAGES,
    [("down.conv1 down.conv2 down.shortcut.0 middle.conv1 middle.conv2 raise_", INSIDE), "up: conv1 conv2"],
    stem="stem",
)
class AddingUNet(UNet):
    """Its long skip adds, as LinkNet's: a block around those of the lower resolution."""

    def __init__(self) -> None:
        super().__init__()
        self.up = Basic()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.out(self.up(x + self.raise_(self.middle(self.down(x)))))


class TimeBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time, self.norm2 = nn.Linear(16, outputs), nn.GroupNorm(4, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class PixelAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = (
            nn.GroupNorm(4, width),
            nn.Conv1d(width, 3 * width, 1),
            nn.Conv1d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x).flatten(2)).chunk(3, 1)
        weights = torch.softmax(q.transpose(1, 2) @ k / q.shape[1] ** 0.5, -1)
        return x + self.proj(v @ weights.transpose(1, 2)).reshape(x.shape)


@row(
    "(randn(2, 3, 8, 8), tensor([3.0, 7.0]))",
    [
        "down: conv1 time conv2",
        "middle: conv1 time conv2 | skip",
        "attention: qkv proj",
        "up: conv1 time conv2 | skip",
    ],
    stem="embed.0 embed.2 stem",
)
class DiffusionUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16))
        self.stem, self.down, self.lower = nn.Conv2d(3, W, 3, padding=1), TimeBlock(W, W), nn.Conv2d(W, W, 3, 2, 1)
        self.middle, self.attention, self.up = TimeBlock(W, 16), PixelAttention(16), TimeBlock(24, W)
        self.out = nn.Sequential(nn.GroupNorm(4, W), nn.SiLU(), nn.Conv2d(W, 3, 3, padding=1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=t.dtype)
        t = self.embed(torch.cat([angles.sin(), angles.cos()], 1))
        h = self.down(self.stem(x), t)
        inside = F.interpolate(self.attention(self.middle(self.lower(h), t)), scale_factor=2.0)
        return self.out(self.up(torch.cat([inside, h], 1), t))


class VolumeUnit(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for one, step in ((inputs, stride), (outputs, 1)):
            parts += [nn.Conv3d(one, outputs, 3, step, 1), nn.InstanceNorm3d(outputs, affine=True), nn.PReLU()]
        self.conv = nn.Sequential(*parts)
        self.residual = nn.Conv3d(inputs, outputs, 3, stride, 1) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        residual = self.residual(x)
        return self.conv(x) + residual


@row("randn(2, 1, 8, 8, 8)", [f"{unit}: conv.0 conv.3 | residual" for unit in ("down", "bottom", "up")], stem="")
class MedicalUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom, self.up = VolumeUnit(1, 4, 1), VolumeUnit(4, 8, 2), VolumeUnit(8, 2, 1)
        self.transposed = nn.Sequential(nn.ConvTranspose3d(8, 4, 2, 2), nn.InstanceNorm3d(4), nn.PReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return self.up(torch.cat([x, self.transposed(self.bottom(x))], 1))


class SRBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv_bn(W, W, act=nn.PReLU), *conv_bn(W, W, act=None))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


@row(
    IMAGES,
    [("body.0.body.0 body.0.body.3 body.1.body.0 body.1.body.3 body.2", [f"body.{b}.body: 0 3" for b in range(2)])],
    stem="head.0",
)
class SRResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(3, W, 9, padding=4), nn.PReLU())
        self.body = nn.Sequential(SRBlock(), SRBlock(), *conv_bn(W, W, act=None))
        self.tail = nn.Sequential(conv(W, 4 * W), nn.PixelShuffle(2), nn.PReLU(), conv(W, 3, 9))

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x)
        return torch.tanh(self.tail(x + self.body(x)))


class GeneratorBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b1, self.c1, self.b2, self.c2 = nn.BatchNorm2d(W), conv(), nn.BatchNorm2d(W), conv()
        self.c_sc = conv(W, W, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.c1(F.interpolate(F.relu(self.b1(x)), scale_factor=2))
        return self.c2(F.relu(self.b2(h))) + self.c_sc(F.interpolate(x, scale_factor=2))


@row("randn(2, 6)", [f"blocks.{b}: c1 c2 | c_sc" for b in range(2)], stem="l1")
class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l1, self.blocks = nn.Linear(6, W * 16), nn.Sequential(GeneratorBlock(), GeneratorBlock())
        self.b5, self.c5 = nn.BatchNorm2d(W), conv(W, 3)

    def forward(self, z: Tensor) -> Tensor:
        h = self.blocks(self.l1(z).view(-1, W, 4, 4))
        return torch.tanh(self.c5(F.relu(self.b5(h))))


class DiscriminatorBlock(nn.Module):
    def __init__(self, inputs: int, down: bool) -> None:
        super().__init__()
        sn: Callable[..., Any] = spectral_norm
        self.c1, self.c2, self.c_sc = sn(conv(inputs)), sn(conv()), sn(conv(inputs, W, 1))
        self.down = nn.AvgPool2d(2) if down else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.c2(F.relu(self.c1(F.relu(x))))) + self.down(self.c_sc(x))


@row(
    IMAGES,
    [f"blocks.{b}: c1 c2 | c_sc" for b in range(2)],
    stem="stem",
    odd="spectral norms of weights",
    refused={"fixup": "divided by its own norm"},
)
class Discriminator(Classifier):
    def __init__(self) -> None:
        super().__init__(spectral_norm(conv(3)), DiscriminatorBlock(W, True), DiscriminatorBlock(W, False))


class GlobalPoolingBlock(nn.Module):
    """Some channels, pooled over the board, become a bias of the others (KataGo)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.regular, self.pooled = nn.BatchNorm2d(W), conv(W, 6), conv(W, 4)
        self.norm_g, self.to_bias = nn.BatchNorm2d(4), nn.Linear(8, 6, bias=False)
        self.norm2, self.last = nn.BatchNorm2d(6), conv(6, W)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        g = F.relu(self.norm_g(self.pooled(h)))
        bias = self.to_bias(torch.cat([g.mean((2, 3)), g.amax((2, 3))], 1))
        return x + self.last(F.relu(self.norm2(self.regular(h) + bias[:, :, None, None])))


@row("randn(2, 3, 9, 9)", ["blocks.0: conv1 conv2", "blocks.1: pooled to_bias regular last"], stem="stem")
class BoardGame(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = conv(3), nn.ModuleList([PreAct(), GlobalPoolingBlock()])
        self.norm, self.policy, self.value = nn.BatchNorm2d(W), nn.Conv2d(W, 1, 1), nn.Linear(W, 3)

    def forward(self, board: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(board)
        for block in self.blocks:
            x = block(x)
        x = F.relu(self.norm(x))
        return self.policy(x).flatten(1), self.value(x.mean((2, 3)))


@row("randn(2, 3, 8, 8)", [f"blocks.{b}: conv1 conv2" for _ in range(2) for b in range(2)], stem="stem")
class Twins(Siamese):
    """One network on two images: its blocks run twice."""


@row("randn(2, 3, 8, 8)", [f"parts.{b}: 2" for b in range(4)], stem="stem.0")
class RevNet(nn.Module):
    """a = a + f(b); b = b + g(a), twice (Gomez et al. 2017, RevNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 2 * W), nn.BatchNorm2d(2 * W))
        self.parts = nn.ModuleList(nn.Sequential(nn.BatchNorm2d(W), nn.ReLU(), conv()) for _ in range(4))
        self.head = nn.Linear(2 * W, 5)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.stem(x).chunk(2, 1)
        for f, g in zip(self.parts[::2], self.parts[1::2], strict=True):
            a = a + f(b)
            b = b + g(a)
        return self.head(torch.cat([a, b], 1).mean((2, 3)))
