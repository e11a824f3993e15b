"""Networks of time series, tables and graphs, a few channels wide, written as their packages write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from gallery.row import each, row
from gallery.sequences import Attention, D

SERIES = "randn(2, 4, 32)"


class TemporalBlock(nn.Module):
    def __init__(self, inputs: int, dilation: int) -> None:
        super().__init__()
        self.padding = 2 * dilation
        self.conv1 = weight_norm(nn.Conv1d(inputs, 8, 3, padding=self.padding, dilation=dilation))
        self.conv2 = weight_norm(nn.Conv1d(8, 8, 3, padding=self.padding, dilation=dilation))
        self.dropout = nn.Dropout(0.2)
        self.downsample = nn.Conv1d(inputs, 8, 1) if inputs != 8 else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.dropout(F.relu(self.conv1(x)[..., : -self.padding]))
        out = self.dropout(F.relu(self.conv2(out)[..., : -self.padding]))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


@row(
    SERIES,
    ["blocks.0: conv1 conv2 | downsample", "blocks.1: conv1 conv2", "blocks.2: conv1 conv2"],
    stem="",
    odd="branches end in a ReLU, which is flat at zero",
    refused={"fixup": "never get a gradient"},
)
class TCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(TemporalBlock(4, 1), TemporalBlock(8, 2), TemporalBlock(8, 4))
        self.linear = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.blocks(x)[..., -1])


class InceptionModule(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.bottleneck = nn.Conv1d(inputs, 4, 1, bias=False)
        self.convs = nn.ModuleList([nn.Conv1d(4, 2, size, padding=size // 2, bias=False) for size in (9, 5, 3)])
        self.pooled = nn.Conv1d(inputs, 2, 1, bias=False)
        self.bn = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bottleneck(x)
        parts = [conv(h) for conv in self.convs] + [self.pooled(F.max_pool1d(x, 3, 1, 1))]
        return F.relu(self.bn(torch.cat(parts, 1)))


MODULES = " ".join(f"parts.{m}.{layer}" for m in range(3) for layer in (
    "bottleneck", "convs.0", "convs.1", "convs.2", "pooled"
))  # fmt: skip


class InceptionBlock(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(*[InceptionModule(one) for one in (inputs, 8, 8)])
        self.shortcut = nn.Conv1d(inputs, 8, 1, bias=False) if inputs != 8 else nn.Identity()
        self.bn = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.parts(x) + self.bn(self.shortcut(x)))


@row(
    SERIES,
    [f"blocks.0: {MODULES} | shortcut", f"blocks.1: {MODULES}"],
    stem="",
    odd="branches end in a ReLU, which is flat at zero",
    refused={"fixup": "never get a gradient"},
)
class InceptionTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.fc = nn.Sequential(InceptionBlock(4), InceptionBlock(8)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(x).mean(2))


class CausalBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(8, 8, 4), nn.BatchNorm1d(8)
        self.conv2, self.bn2 = nn.Conv1d(8, 8, 4), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        out = F.dropout(F.elu(self.bn1(self.conv1(F.pad(x, (3, 0))))), 0.3, self.training)
        return F.elu(x + F.elu(self.bn2(self.conv2(F.pad(out, (3, 0))))))


@row(
    "randn(2, 4, 64)",
    [f"tcn.{b}: conv1 conv2" for b in range(2)],
    stem="spectral.0 spatial.0 separable.0 separable.1",
)
class EEGTCNet(nn.Module):
    """EEGNet's filters over time and electrodes, then a residual network over time."""

    def __init__(self) -> None:
        super().__init__()
        self.spectral = nn.Sequential(nn.Conv2d(1, 4, (1, 9), padding=(0, 4), bias=False), nn.BatchNorm2d(4))
        self.spatial = nn.Sequential(nn.Conv2d(4, 8, (4, 1), groups=4, bias=False), nn.BatchNorm2d(8), nn.ELU())
        self.separable = nn.Sequential(
            nn.Conv2d(8, 8, (1, 5), padding=(0, 2), groups=8, bias=False), nn.Conv2d(8, 8, 1, bias=False),
            nn.BatchNorm2d(8), nn.ELU(),
        )  # fmt: skip
        self.tcn, self.final = nn.Sequential(CausalBlock(), CausalBlock()), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.avg_pool2d(self.spatial(self.spectral(x[:, None])), (1, 2))
        h = F.avg_pool2d(self.separable(h), (1, 4)).squeeze(2)
        return self.final(self.tcn(h)[..., -1])


class GraphBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lin1, self.lin2 = nn.LayerNorm(D), nn.Linear(D, 32), nn.Linear(32, D)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return x + self.lin2(F.relu(self.lin1(adjacency @ F.relu(self.norm(x)))))


@row("(randn(2, 6, 5), rand(2, 6, 6))", [f"blocks.{b}: lin1 lin2" for b in range(3)], stem="first")
class DeepGCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(5, D), nn.ModuleList([GraphBlock() for _ in range(3)])
        self.norm, self.last = nn.LayerNorm(D), nn.Linear(D, 3)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        degree = adjacency.sum(2, keepdim=True)
        adjacency = adjacency / degree
        x = adjacency @ self.first(x)
        for block in self.blocks:
            x = block(x, adjacency)
        return self.last(F.relu(self.norm(x)))


class TableBlock(nn.Module):
    def __init__(self, first: bool) -> None:
        super().__init__()
        self.norm1, self.attn = None if first else nn.LayerNorm(D), Attention()
        self.norm2, self.linear1, self.linear2 = nn.LayerNorm(D), nn.Linear(D, 32), nn.Linear(16, D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attn(x if self.norm1 is None else self.norm1(x)), 0.1, self.training)
        a, b = self.linear1(self.norm2(x)).chunk(2, -1)
        return x + self.linear2(F.dropout(a * F.relu(b), 0.1, self.training))


@row(
    "(randn(2, 3), randint(4, (2, 2)))",
    each("blocks.{}.attn: q k v o", "blocks.{}: linear1 linear2"),
    stem="",
)
class FTTransformer(nn.Module):
    """A token for every column: numbers times a vector, categories by a table; the first norm is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(3, D)), nn.Parameter(torch.randn(3, D))
        self.categories, self.token = nn.Embedding(8, D), nn.Parameter(torch.randn(1, 1, D))
        self.blocks = nn.Sequential(TableBlock(True), TableBlock(False))
        self.head = nn.Sequential(nn.LayerNorm(D), nn.ReLU(), nn.Linear(D, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        tokens = [numbers[..., None] * self.scale + self.shift, self.categories(categories + torch.tensor([0, 4]))]
        x = torch.cat([self.token.expand(len(numbers), -1, -1), *tokens], 1)
        return self.head(self.blocks(x)[:, 0])
