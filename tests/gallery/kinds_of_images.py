"""Networks of four kinds with images as inputs, as others write them: classifiers, embeddings, detectors, U-Nets."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gallery.row import entropy, row

DIGITS = "randn(4, 1, 8, 8)"


def numbered(count: int, block: str, first: int = 0) -> list[str]:
    """One statement for each number."""
    return [block.format(number) for number in range(first, first + count)]


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size of images, without bias."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class BasicBlock(nn.Module):
    """ResNet-V1: activation after the sum, a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, outputs, stride=stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv(outputs, outputs), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class PreActivationBlock(nn.Module):
    """ResNet-V2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(width), conv(width, width)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        return x + self.conv2(F.relu(self.bn2(out)))


class InvertedResidual(nn.Module):
    """MobileNetV2: expansion, depthwise convolution, linear projection."""

    def __init__(self, width: int, expansion: int = 3) -> None:
        super().__init__()
        inner = width * expansion
        self.conv = nn.Sequential(
            conv(width, inner, 1),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, padding=1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            conv(inner, width, 1),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


def stem(inputs: int, width: int, stride: int = 2) -> nn.Sequential:
    """The first layers of a ResNet."""
    return nn.Sequential(conv(inputs, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(inplace=True))


@row(
    DIGITS,
    [
        "layer1.0: conv1 conv2",
        "layer1.1: conv1 conv2",
        "layer1.2: conv1 conv2",
        "layer2.0: conv1 conv2 | downsample.0",
        "layer2.1: conv1 conv2",
        "layer2.2: conv1 conv2",
    ],
    stem="stem.0",
    heads="fc",
    roles="stem: stem.1; down: layer2.0.downsample.1; last: *.bn2; other: *.bn1",
    loss=entropy,
)
class ResNetV1(nn.Module):
    """Two stages of basic blocks and a linear classifier."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.stem = stem(1, width)
        self.layer1 = nn.Sequential(*(BasicBlock(width, width) for _ in range(3)))
        deeper = (BasicBlock(2 * width, 2 * width) for _ in range(2))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2), *deeper)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


@row(
    DIGITS,
    numbered(2, "blocks.{}: conv1 conv2"),
    8,
    2,
    stem="conv",
    heads="fc",
    roles="last: *.bn2; other: *",
    loss=entropy,
)
class ResNetV2(nn.Module):
    """Pre-activation blocks, a last norm, a linear classifier."""

    def __init__(self, width: int = 8, depth: int = 6, classes: int = 10) -> None:
        super().__init__()
        self.conv = conv(1, width, 3, 2)
        self.blocks = nn.Sequential(*(PreActivationBlock(width) for _ in range(depth)))
        self.bn = nn.BatchNorm2d(width)
        self.fc = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """The pooled features."""
        return F.relu(self.bn(self.blocks(self.conv(x)))).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


@row(
    DIGITS,
    numbered(2, "blocks.{}.conv: 0 3 6"),
    8,
    2,
    stem="stem.0",
    heads="fc",
    roles="stem: stem.1; last: *.conv.7; other: *",
    loss=entropy,
)
class MobileNet(nn.Module):
    """Inverted residuals and a linear classifier."""

    def __init__(self, width: int = 8, depth: int = 6, classes: int = 10) -> None:
        super().__init__()
        self.stem = stem(1, width)
        self.blocks = nn.Sequential(*(InvertedResidual(width) for _ in range(depth)))
        self.head = nn.Sequential(conv(width, 2 * width, 1), nn.BatchNorm2d(2 * width), nn.ReLU6())
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.head(self.blocks(self.stem(x))).mean((2, 3)))


@row(
    DIGITS,
    numbered(6, "blocks.{}: conv1 conv2"),
    odd="unit features times unit prototypes and a learned scale",
    stem="stem.0",
    roles="stem: stem.1; last: *.bn2; other: *.bn1",
    loss=entropy,
)
class CosineClassifier(nn.Module):
    """Unit features against unit prototypes, times a learned scale."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.stem = stem(1, width)
        self.blocks = nn.Sequential(*(BasicBlock(width, width) for _ in range(6)))
        self.prototypes = nn.Parameter(torch.randn(classes, width))
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(self.stem(x)).mean((2, 3))
        return self.scale * F.normalize(h) @ F.normalize(self.prototypes).t()


@row(
    "(randn(4, 1, 8, 4), randn(4, 32))",
    [*numbered(2, "image.blocks.{}: conv1 conv2"), *numbered(2, "text.{}: 1 3")],
    8,
    2,
    odd="two towers and a temperature: an output of every pair",
    loss=entropy,
    batched=False,
)
class TwoTowers(nn.Module):
    """CLIP: a convolutional tower and one of residual perceptrons, and a learned temperature."""

    def __init__(self, width: int = 8, depth: int = 6) -> None:
        super().__init__()
        self.image = ResNetV2(width, depth, width)
        self.text_in = nn.Linear(32, 2 * width)
        self.text = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(2 * width), nn.Linear(2 * width, 4 * width), nn.GELU(), nn.Linear(4 * width, 2 * width)
            )
            for _ in range(depth)
        )
        self.text_norm = nn.LayerNorm(2 * width)
        self.text_out = nn.Linear(2 * width, width, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: Tensor, others: Tensor) -> Tensor:
        a = self.image(images)
        h = self.text_in(others)
        for block in self.text:
            h = h + block(h)
        b = self.text_out(self.text_norm(h))
        return self.logit_scale.exp() * F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).t()


@row(
    DIGITS,
    numbered(2, "blocks.{}: conv1 conv2"),
    8,
    2,
    odd="unit vectors from a projection with a norm in it",
    stem="stem.0",
)
class Embedder(nn.Module):
    """Unit embeddings for a supervised contrastive loss, from a projection head with a norm in it."""

    def __init__(self, width: int = 8, depth: int = 6) -> None:
        super().__init__()
        self.stem = stem(1, width)
        self.blocks = nn.Sequential(*(BasicBlock(width, width) for _ in range(depth)))
        self.projection = nn.Sequential(
            nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.projection(self.blocks(self.stem(x)).mean((2, 3))), dim=1)


@row(
    "randn(4, 1, 16, 16)",
    numbered(6, "backbone.{}: conv1 conv2", 2),
    odd="two heads, one of them behind a sigmoid",
    stem="backbone.0.0 backbone.1.0",
    heads="cls box",
)
class Detector(nn.Module):
    """One box and its class for each image."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            stem(1, width), stem(width, width), *(BasicBlock(width, width) for _ in range(6))
        )
        self.neck = nn.Sequential(nn.Flatten(), nn.Linear(16 * width, 2 * width), nn.ReLU())
        self.cls, self.box = nn.Linear(2 * width, classes), nn.Linear(2 * width, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.neck(self.backbone(x))
        return self.cls(h), torch.sigmoid(self.box(h))


@row(
    "randn(4, 1, 16, 16)",
    numbered(6, "blocks.{}: conv1 conv2"),
    odd="towers with group norms behind a trunk with batch norms",
    stem="stem.0.0 stem.1.0",
    heads="cls box",
)
class GridDetector(nn.Module):
    """FCOS: scores of classes and boxes at every cell, from towers that share the backbone."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(stem(1, width), stem(width, width))
        self.blocks = nn.ModuleList(PreActivationBlock(width) for _ in range(6))
        self.norm = nn.BatchNorm2d(width)
        self.cls_tower = nn.Sequential(conv(width, width), nn.GroupNorm(4, width), nn.ReLU())
        self.box_tower = nn.Sequential(conv(width, width), nn.GroupNorm(4, width), nn.ReLU())
        self.cls, self.box = nn.Conv2d(width, classes + 1, 3, padding=1), nn.Conv2d(width, 2, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        h = F.relu(self.norm(h))
        return self.cls(self.cls_tower(h)), self.box(self.box_tower(h))


@row(
    DIGITS,
    numbered(6, "trunk.{}.conv: 0 3 6", 1),
    odd="three heads of one trunk",
    stem="trunk.0.0",
    heads="heads.digit heads.odd heads.turn",
)
class ManyHeads(nn.Module):
    """Class, parity and rotation of an image from one trunk."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.trunk = nn.Sequential(stem(1, width), *(InvertedResidual(width) for _ in range(6)))
        self.heads = nn.ModuleDict({"digit": nn.Linear(width, 10), "odd": nn.Linear(width, 2)})
        self.heads["turn"] = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.trunk(x).mean((2, 3))
        return self.heads["digit"](h), self.heads["odd"](h), self.heads["turn"](h)


@row(
    DIGITS,
    ["down1.0: conv1 conv2", *numbered(4, "middle.{}: conv1 conv2"), "up1.0: conv1 conv2"],
    name="ResidualUNet",
    odd="two scales joined by a concatenation",
    stem="enter",
)
class UNet(nn.Module):
    """A residual U-Net of two scales that marks the pixels of a figure."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter = conv(1, width)
        self.down1 = nn.Sequential(PreActivationBlock(width))
        self.halve = conv(width, 2 * width, 3, 2)
        self.middle = nn.Sequential(*(PreActivationBlock(2 * width) for _ in range(4)))
        self.enlarge = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.merge = conv(2 * width, width)
        self.up1 = nn.Sequential(PreActivationBlock(width))
        self.norm = nn.BatchNorm2d(width)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down1(self.enter(x))
        coarse = self.middle(self.halve(fine))
        h = self.merge(torch.cat([fine, self.enlarge(coarse)], 1))
        return self.out(F.relu(self.norm(self.up1(h))))


@row(DIGITS, ["body: 0 2 5 8"], 8, 2, odd="one global skip path from the input, subtracted; no block inside")
class DnCNN(nn.Module):
    """A plain stack of convolutions that predicts the noise, which one global skip path takes off."""

    def __init__(self, width: int = 8, depth: int = 6) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
        for _ in range(depth):
            layers += [conv(width, width), nn.BatchNorm2d(width), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.body(x)


class TimedBlock(nn.Module):
    """A block of a diffusion model: group norms, SiLU, the time added between the convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(16, width)
        self.norm2, self.conv2 = nn.GroupNorm(4, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(t))[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


@row(
    "(randn(4, 1, 8, 8), rand(4, 1))",
    numbered(2, "blocks.{}: conv1 time conv2"),
    8,
    2,
    odd="the time is added between the convolutions; pixels are shuffled at the end",
    stem="enter time.0 time.2",
    roles="last: *.norm2; other: *",
)
class Diffusion(nn.Module):
    """Predicts the noise in an image of a given noise level."""

    def __init__(self, width: int = 8, depth: int = 6) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 16))
        self.enter = nn.Conv2d(1, width, 3, 2, 1)
        self.blocks = nn.ModuleList(TimedBlock(width) for _ in range(depth))
        self.norm, self.out = nn.GroupNorm(4, width), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        t, h = self.time(level), self.enter(x)
        for block in self.blocks:
            h = block(h, t)
        return F.pixel_shuffle(self.out(F.silu(self.norm(h))), 2)
