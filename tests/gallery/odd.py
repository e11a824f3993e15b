"""Odd networks: several streams, shared modules, steps between activations, experts, regions of forward code."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from streams_of_networks import WIDTH, Block as ConvBlock, Network as Images, RectifiedBlock, Trunk, conv
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from written_networks import Written, linear_layers

from gallery.row import Row, add, entropy, row

PHOTOS, PAIR = "randn(4, 3, 8, 8)", "(randn(4, 3, 6, 6), randn(4, 3, 6, 6))"
TWO = ["blocks.0: conv1 conv2", "blocks.1: conv1 conv2"]


@row(PHOTOS, ["blocks.0: conv1 conv2"] * 3, stem="stem", odd="one block runs three times", loss=entropy)
class Tied(Images):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = self.blocks[0](x)
        return self.head(x.mean((2, 3)))


@row(PAIR, [f"trunk.blocks.{b}: conv1 conv2" for _ in "xy" for b in range(2)], odd="one trunk, called twice")
class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = Trunk(), nn.Linear(2 * WIDTH, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(torch.cat([self.trunk(x), self.trunk(y)], 1))


@row(PAIR, [f"trunk.blocks.{b}: conv1 conv2" for _ in "xy" for b in range(2)], odd="one trunk of two names")
class NamedTwice(CalledTwice):
    def __init__(self) -> None:
        super().__init__()
        self.other = self.trunk

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(torch.cat([self.trunk(x), self.other(y)], 1))


@row(
    PAIR,
    ["block: conv1 conv2", "block: conv1 conv2", "own: conv1 conv2"],
    odd="a ReLU after one run of a block alone",
)
class Uneven(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, WIDTH, 3), nn.BatchNorm2d(WIDTH), nn.Linear(2 * WIDTH, 3)
        self.block, self.own = RectifiedBlock(), RectifiedBlock()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        one = F.relu(self.block(F.relu(self.stem(x))))
        other = self.block(self.norm(self.stem(y)))
        parts = [self.own(one).mean((2, 3)), other.mean((2, 3))]
        return self.head(torch.cat(parts, 1))


class OptionA(nn.Module):
    """A block whose shortcut takes every second pixel and new channels of zero, as early code for CIFAR has it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(WIDTH, 2 * WIDTH, 2), conv(2 * WIDTH, 2 * WIDTH)
        self.norm1, self.norm2 = nn.BatchNorm2d(2 * WIDTH), nn.BatchNorm2d(2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        short = F.avg_pool2d(x, 1, 2)
        zeros = torch.Tensor(short.size(0), WIDTH, short.size(2), short.size(3)).zero_().to(x.dtype)
        h = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return torch.cat([short.data, zeros], 1) + h


class Joined(nn.Module):
    """x + cat(f(x), g(x)) of 3 and 5 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = conv(), nn.BatchNorm2d(WIDTH)
        self.f, self.g = conv(outputs=3), conv(outputs=WIDTH - 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.stem(x)))
        return x + torch.cat([self.f(h), self.g(h)], 1)


def in_sequence(*blocks: nn.Module, width: int = WIDTH) -> nn.Module:
    """Blocks of images with a stem and a classifier."""
    return nn.Sequential(conv(3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))


@row(PHOTOS, ["1: conv1 conv2", "2: conv1 conv2"], stem="0", odd="new channels of zero by .data", loss=entropy)
def option_a() -> nn.Module:
    return in_sequence(ConvBlock(), OptionA(), width=2 * WIDTH)


@row(PHOTOS, ["1: stem f g", "2: stem f g"], stem="0", odd="branches end in a concatenation", loss=entropy)
def joined_branches() -> nn.Module:
    return in_sequence(Joined(), Joined())


@row(
    PHOTOS,
    ["1: conv1 conv2", "2: wide | point", "3: conv1 conv2"],
    stem="0",
    roles="last: *.norm2 2.norm; other: *",
    odd="a projection of one convolution between identity skip paths",
    loss=entropy,
)
def a_projection_between() -> nn.Module:
    parts = {"wide": conv(), "point": nn.Conv2d(WIDTH, WIDTH, 1), "norm": nn.BatchNorm2d(WIDTH)}
    return in_sequence(ConvBlock(), Written(lambda m, x: m.norm(m.wide(x)) + m.point(x), **parts), ConvBlock())


# Regions of forward code.
@row(PHOTOS, TWO, odd="autocast in the forward code", rounding=0.05, loss=entropy)
class Autocast(Images):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        with torch.autocast("cpu", torch.bfloat16):
            x = self.blocks(x).float()
        return self.head(x.mean((2, 3)))


@row(PHOTOS, TWO, odd="no gradients in the first block", loss=entropy)
class NoGrad(Images):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        with torch.no_grad():
            x = self.blocks[0](x)
        return self.head(self.blocks[1](x).mean((2, 3)))


@row(PHOTOS, TWO, odd="checkpoints in both of torch's ways", loss=entropy)
class Checkpointed(Images):
    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.blocks[0], self.stem(x), use_reentrant=True)
        x = checkpoint(self.blocks[1], x, use_reentrant=False)
        return self.head(x.mean((2, 3)))


@row(PHOTOS, TWO, odd="training leaves out blocks at random", loss=entropy)
class DropsLayers(Images):
    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if not (self.training and random.random() < 0.5):
                x = block(x)
        return self.head(x.mean((2, 3)))


@row(PHOTOS, TWO, odd="a second head in training, a norm that never runs")
class Auxiliary(Images):
    def __init__(self) -> None:
        super().__init__()
        self.auxiliary = nn.Sequential(nn.BatchNorm2d(WIDTH), nn.Flatten(), nn.Linear(WIDTH * 64, 5))
        self.unused = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Any:
        x = self.blocks(self.stem(x))
        logits = self.head(x.mean((2, 3)))
        return (logits, self.auxiliary(x)) if self.training else logits


@row(PHOTOS, TWO, odd="a layer computes from no input", loss=entropy)
class Positions(Images):
    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Linear(1, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x) + self.positions(torch.ones(1)).view(1, -1, 1, 1))
        return self.head(x.mean((2, 3)))


@row("randn(6, 4)", ["layers: 0", "layers: 1"], odd="how many rows there are depends on values", batched=False)
class ChosenRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        rows = x[:, 0].gt(0).nonzero()[:, 0]
        x = self.stem(x)[rows]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x)).relu()
        return self.head(F.pad(x, (0, 0, 0, 1)))


# Streams.
def layers(forward: Callable[..., Any], names: str = "f g h k", token: bool = False, norms: int = 2) -> nn.Module:
    """Linear layers to write forward passes with, norms, and a learned token."""
    parts: dict[str, Any] = {f"norm{number}": nn.LayerNorm(WIDTH) for number in range(norms)}
    parts |= {"token": nn.Parameter(torch.randn(1, 1, WIDTH))} if token else {}
    return Written(forward, **linear_layers(f"stem {names}", WIDTH), **parts)


def joined_anew(m: Any, x: Tensor) -> Tensor:
    first, second = m.stem(x).split(2, 1)
    y = m.norm0(torch.cat((first, second), 1))
    x = m.g(m.f(y).relu()) + torch.cat((first, second), 1)
    first, second = x.split(2, 1)
    y = m.norm1(torch.cat((first, second), 1))
    return m.k(m.h(y).relu()) + torch.cat((first, second), 1)


def attended(m: Any, token: Tensor, x: Tensor) -> Tensor:
    """A class token whose norm attends to itself and to what is made of the input (Touvron et al. 2021)."""
    y = m.norm0(token)
    every = torch.cat((y, x), 1)
    return token + m.h(F.scaled_dot_product_attention(m.f(y), m.g(every), m.k(every)))


def class_attention(m: Any, x: Tensor) -> Tensor:
    x, token = m.stem(x), m.token.expand(len(x), -1, -1)
    return attended(m, attended(m, token, x), x)


def joint(m: Any, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """Two streams with layers of their own and one attention over both (Esser et al. 2024)."""
    image, text = m.image.stem(image), m.text.stem(text)
    streams = ((m.text, m.text.norm0(text)), (m.image, m.image.norm0(image)))
    q, k, v = (torch.cat([getattr(stream, name)(x) for stream, x in streams], 1) for name in "fgk")
    both = F.scaled_dot_product_attention(q, k, v)
    size = text.shape[1]
    return image + m.image.h(both[:, size:]), text + m.text.h(both[:, :size])


def state_space(m: Any, x: Tensor) -> Tensor:
    """Δ computed from a view of x, D · x beside the scan of another view (Gu & Dao 2023)."""
    y = F.silu(m.f(m.stem(x)))
    across, step = y.mT, F.softplus(m.h(m.g(y)))
    return m.k((torch.cumsum(step.mT * across, -1) + across * m.token.mT).mT)


def exchanged(m: Any, x: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
    back, other = m.back(beside), m.to_other(x)
    return (m.own(x) + x + back).relu(), (m.transient(beside) + other).relu()


def two_streams(m: Any, x: Tensor) -> Tensor:
    x, beside = m.first(x).relu(), m.second(x).relu()
    for unit in m.units:
        x, beside = unit(x, beside)
    return torch.cat((x, beside), 1)


def resnet_in_resnet() -> nn.Module:
    units = nn.ModuleList(Written(exchanged, **linear_layers("own to_other transient back", WIDTH)) for _ in range(2))
    return Written(two_streams, **linear_layers("first second", WIDTH), units=units)


def streams(name: str, build: Callable[[], nn.Module], inputs: str, *blocks: Any, **stated: Any) -> None:
    """Enter a network of streams."""
    add(Row(name, "odd", build, inputs, blocks=blocks, **stated))


SEQUENCE = "randn(2, 4, 8)"
streams("parts joined anew", lambda: layers(joined_anew), SEQUENCE, ": f g", ": h k", roles="last: *", stem=("stem",))
streams(
    "class attention",
    lambda: layers(class_attention, token=True, norms=1),
    SEQUENCE,
    *[": f g k h"] * 2,
    roles="last: norm0",
    odd="a learned token attends",
)
streams(
    "joint attention",
    lambda: Written(joint, image=layers(torch.relu, norms=1), text=layers(torch.relu, norms=1)),
    "(randn(2, 5, 8), randn(2, 3, 8))",
    *[f"{stream}: f g k h" for stream in ("image", "text")],
    roles="last: *",
    odd="two streams share one attention",
)
streams("state space", lambda: layers(state_space, token=True, norms=0), "randn(2, 3, 8)", ": g h", odd="a scan")
streams(
    "residual and transient streams",
    resnet_in_resnet,
    "randn(2, 8)",
    "units.0: own",
    "units.1: own",
    stem=("first", "second"),
    odd="two streams exchange what they have (Targ et al. 2016)",
)


def recurrent() -> nn.Module:
    return Written(
        lambda m, x: m.recurrent(y := m.stem(x))[0] + m.shortcut(y),
        stem=nn.Linear(WIDTH, WIDTH),
        recurrent=nn.LSTM(WIDTH, WIDTH, num_layers=3, batch_first=True),
        shortcut=nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()),
    )


streams("three levels of an LSTM", recurrent, SEQUENCE, ": recurrent | shortcut.0", odd="longer than the projection")


def hidden_layers(m: Any, x: Tensor) -> Tensor:
    """A stem and two blocks in one forward pass; hidden layers go to the output as well, as in a WaveNet."""
    x, total = m.norm(m.first(x)), torch.zeros(())
    for hidden, back, out in zip(m.hidden, m.back, m.out, strict=True):
        h = torch.relu(hidden(x))
        total = total + torch.tanh(out(h))
        x = x + back(h)
    return torch.cat([x, total], -1)


@row(
    "randn(2, 3)",
    ["1: hidden.0 back.0", "1: hidden.1 back.1"],
    stem="0 1.first",
    roles="stem: 1.norm",
    odd="a stem in the module of the blocks; what a branch holds is read elsewhere",
)
def stem_among_the_blocks() -> nn.Module:
    lists = {name: nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)) for name in ("hidden", "back", "out")}
    inner = Written(hidden_layers, first=nn.Linear(WIDTH, WIDTH), norm=nn.LayerNorm(WIDTH), **lists)
    return nn.Sequential(nn.Linear(3, WIDTH), inner)
