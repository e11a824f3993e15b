"""Classifiers of images, a few channels wide, written as their packages write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gallery.row import row

IMAGES = "randn(2, 3, 16, 16)"
W = 8


def conv(inputs: int = W, outputs: int = W, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)


def conv_bn(*arguments: int, act: type[nn.Module] | None = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = [layer := conv(*arguments), nn.BatchNorm2d(layer.out_channels)]
    return nn.Sequential(*layers, *([act()] if act is not None else []))


class Classifier(nn.Module):
    """A stem, blocks, a pooling and a linear layer."""

    def __init__(self, stem: nn.Module, *blocks: nn.Module, width: int = W) -> None:
        super().__init__()
        self.stem, self.blocks, self.fc = stem, nn.Sequential(*blocks), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class Basic(nn.Module):
    def __init__(self, inputs: int = W, outputs: int = W, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = conv_bn(inputs, outputs, 1, stride, act=None)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return F.relu(out)


@row(IMAGES, ["blocks.0: conv1 conv2", "blocks.1: conv1 conv2 | shortcut.0", "blocks.2: conv1 conv2"], stem="stem.0")
class CifarResNet(Classifier):
    def __init__(self) -> None:
        super().__init__(conv_bn(3, W), Basic(), Basic(W, 16, 2), Basic(16, 16), width=16)


class PreAct(nn.Module):
    def __init__(self, inputs: int = W, outputs: int = W, stride: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, outputs, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), conv(outputs, outputs)
        self.drop = nn.Dropout(dropout)
        self.shortcut = conv(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        short = x if self.shortcut is None else self.shortcut(out)
        return self.conv2(self.drop(F.relu(self.bn2(self.conv1(out))))) + short


@row(IMAGES, ["blocks.0: conv1 conv2 | shortcut", "blocks.1: conv1 conv2"], stem="stem")
class WideResNet(Classifier):
    def __init__(self) -> None:
        blocks = [PreAct(W, 32, 1, 0.3), PreAct(32, 32, 1, 0.3)]
        super().__init__(conv(3), *blocks, nn.BatchNorm2d(32), nn.ReLU(inplace=True), width=32)


class Dense(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), conv(inputs, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.layers(x)], 1)


@row(IMAGES, [])
class DenseNet(Classifier):
    def __init__(self) -> None:
        super().__init__(conv(3), Dense(8), Dense(12), nn.BatchNorm2d(16), nn.ReLU(), width=16)


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))))


class SEBlock(Basic):
    def __init__(self, *arguments: int) -> None:
        super().__init__(*arguments)
        self.se = SqueezeExcite(self.conv2.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        out = self.se(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(out + self.shortcut(x))


@row(
    IMAGES, ["blocks.0: conv1 conv2 se.fc1 se.fc2", "blocks.1: conv1 conv2 se.fc1 se.fc2 | shortcut.0"], stem="stem.0"
)
class SEResNet(Classifier):
    def __init__(self) -> None:
        super().__init__(conv_bn(3, W), SEBlock(), SEBlock(W, 16, 2), width=16)


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, outputs: int, downsample: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(conv_bn(inputs, 8, 1), conv_bn(8, 8, 3, 1, 4), conv_bn(8, outputs, 1, act=None))
        self.downsample = conv_bn(inputs, outputs, 1, act=None) if downsample else nn.Identity()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.downsample(x))


@row(
    IMAGES,
    ["blocks.0: body.0.0 body.1.0 body.2.0 | downsample.0", "blocks.1: body.0.0 body.1.0 body.2.0"],
    stem="stem.0.0",
)
class ResNeXt(Classifier):
    def __init__(self) -> None:
        stem = nn.Sequential(conv_bn(3, W, 7, 2), nn.MaxPool2d(3, 2, 1))
        super().__init__(stem, Bottleneck(W, 32, True), Bottleneck(32, 32, False), width=32)


class ShakeShakeBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.ReLU(), *conv_bn(W, W), *conv_bn(W, W, act=None)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        share = torch.rand(len(x), 1, 1, 1, device=x.device) if self.training else 0.5
        return x + share * self.left(x) + (1 - share) * self.right(x)


@row(IMAGES, [f"blocks.{b}: left.1 left.4 + right.1 right.4" for b in range(2)], stem="stem.0")
class ShakeShake(Classifier):
    def __init__(self) -> None:
        super().__init__(conv_bn(3, W), ShakeShakeBlock(), ShakeShakeBlock(), nn.ReLU())


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, gate: bool = False) -> None:
        super().__init__()
        hidden, act = 3 * inputs, nn.SiLU if gate else nn.ReLU6
        self.use_skip = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            conv_bn(inputs, hidden, 1, act=act),
            conv_bn(hidden, hidden, 3, stride, hidden, act=act),
            SqueezeExcite(hidden) if gate else nn.Identity(),
            *conv_bn(hidden, outputs, 1, act=None),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.use_skip else self.conv(x)


@row(IMAGES, [f"blocks.{b}.conv: 0.0 1.0 2.fc1 2.fc2 3" for b in (0, 2)], stem="stem.0")
class EfficientNet(Classifier):
    def __init__(self) -> None:
        blocks = [InvertedResidual(*one, gate=True) for one in ((W, W, 1), (W, 12, 2), (12, 12, 1))]
        super().__init__(conv_bn(3, W, act=nn.SiLU), *blocks, conv_bn(12, 16, 1, act=nn.SiLU), width=16)


class ConvNeXtBlock(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(W, W, 7, padding=3, groups=W), nn.LayerNorm(W, eps=1e-6)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(W, 4 * W), nn.GELU(), nn.Linear(4 * W, W)
        self.gamma, self.drop = nn.Parameter(torch.full((W,), 0.1)), drop

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        h = (self.gamma * self.pwconv2(self.act(self.pwconv1(h)))).permute(0, 3, 1, 2)
        if self.training and self.drop:
            keep = 1 - self.drop
            h = h / keep * torch.floor(keep + torch.rand(len(x), 1, 1, 1, dtype=x.dtype, device=x.device))
        return x + h


@row(IMAGES, [f"blocks.{b}: dwconv pwconv1 pwconv2" for b in range(2)], stem="stem.0")
class ConvNeXt(Classifier):
    def __init__(self) -> None:
        stem = nn.Sequential(nn.Conv2d(3, W, 4, 4), nn.GroupNorm(1, W))
        super().__init__(stem, ConvNeXtBlock(0.0), ConvNeXtBlock(0.2), nn.GroupNorm(1, W))
