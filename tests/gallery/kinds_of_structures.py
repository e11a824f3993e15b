"""Networks of three kinds with volumes, graphs and rows of tables as inputs, as others write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gallery.kinds_of_sequences import each
from gallery.row import adamw, entropy, row

GRAPHS = "(randn(4, 6, 4), rand(4, 6, 6).gt(0.6).float())"


class VideoBlock(nn.Module):
    """R(2+1)D: a convolution over space, one over time, activation after the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.space = nn.Conv3d(width, width, (1, 3, 3), padding=(0, 1, 1), bias=False)
        self.bn1 = nn.BatchNorm3d(width)
        self.time = nn.Conv3d(width, width, (3, 1, 1), padding=(1, 0, 0), bias=False)
        self.bn2 = nn.BatchNorm3d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.time(F.relu(self.bn1(self.space(x))))))


@row(
    "randn(4, 1, 3, 12, 12)",
    each("blocks.{}: space time"),
    8,
    2,
    stem="stem.0",
    heads="fc",
    roles="stem: stem.1; last: *.bn2; other: *.bn1",
    odd="convolutions over space, then over time",
    loss=entropy,
)
class Video(nn.Module):
    """Says in which of four directions a figure moves."""

    def __init__(self, width: int = 8, depth: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(1, width, 3, (1, 3, 3), 1, bias=False), nn.BatchNorm3d(width), nn.ReLU(inplace=True)
        )
        self.blocks = nn.Sequential(*(VideoBlock(width) for _ in range(depth)))
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3, 4)))


class VolumeBlock(nn.Module):
    """Two convolutions with instance norms, activations ahead of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.InstanceNorm3d(width, affine=True), nn.Conv3d(width, width, 3, padding=1)
        self.norm2, self.conv2 = nn.InstanceNorm3d(width, affine=True), nn.Conv3d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.leaky_relu(self.norm1(x), 0.01))
        return x + self.conv2(F.leaky_relu(self.norm2(h), 0.01))


@row(
    "randn(2, 1, 8, 8, 8)",
    [
        "fine: conv1 conv2",
        (
            "halve coarse.0.conv1 coarse.0.conv2 coarse.1.conv1 coarse.1.conv2 coarse.2.conv1 coarse.2.conv2 enlarge",
            each("coarse.{}: conv1 conv2", count=3),
        ),
        "last: conv1 conv2",
    ],
    stem="enter",
    odd="instance norms; the finer scale is added to the coarser",
)
class VNet(nn.Module):
    """Marks the voxels of a ball: two scales, the finer added to the coarser."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter = nn.Conv3d(1, width, 2, 2)
        self.fine = VolumeBlock(width)
        self.halve = nn.Conv3d(width, 2 * width, 2, 2)
        self.coarse = nn.Sequential(*(VolumeBlock(2 * width) for _ in range(3)))
        self.enlarge = nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.last, self.out = VolumeBlock(width), nn.ConvTranspose3d(width, 2, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(self.enter(x))
        return self.out(self.last(fine + self.enlarge(self.coarse(self.halve(fine)))))


@row(
    "randn(4, 1, 8, 8, 8)",
    each("convs1.{0} convs2.{0}"),
    8,
    2,
    stem="enter",
    heads="fc",
    roles="last: norms2.*; other: *",
    odd="blocks written at the root",
    loss=entropy,
)
class Volumes(nn.Module):
    """Pre-activation blocks with batch norms; counts balls."""

    def __init__(self, width: int = 8, depth: int = 6, classes: int = 4) -> None:
        super().__init__()
        self.enter = nn.Conv3d(1, width, 3, 3, 1, bias=False)
        self.norms1 = nn.ModuleList(nn.BatchNorm3d(width) for _ in range(depth))
        self.convs1 = nn.ModuleList(nn.Conv3d(width, width, 3, padding=1, bias=False) for _ in range(depth))
        self.norms2 = nn.ModuleList(nn.BatchNorm3d(width) for _ in range(depth))
        self.convs2 = nn.ModuleList(nn.Conv3d(width, width, 3, padding=1, bias=False) for _ in range(depth))
        self.norm, self.fc = nn.BatchNorm3d(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for norm1, conv1, norm2, conv2 in zip(self.norms1, self.convs1, self.norms2, self.convs2, strict=True):
            h = h + conv2(F.relu(norm2(conv1(F.relu(norm1(h))))))
        return self.fc(F.relu(self.norm(h)).mean((2, 3, 4)))


@row(
    GRAPHS,
    each("neighbours.{0} own.{0}"),
    4,
    24,
    2,
    stem="enter",
    heads="out",
    roles="last: norms.*",
    odd="batch norm over nodes; a branch of two layers side by side",
)
class MessagePassing(nn.Module):
    """x + relu(norm(W · mean of the neighbours + V · x)); batch norm over all nodes of all graphs."""

    def __init__(self, features: int = 4, width: int = 24, depth: int = 6) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.neighbours = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        weights = adjacency / adjacency.sum(-1, keepdim=True).clamp(min=1)
        h = self.enter(nodes)
        for neighbours, own, norm in zip(self.neighbours, self.own, self.norms, strict=True):
            message = neighbours(weights @ h) + own(h)
            h = h + F.relu(norm(message.transpose(1, 2)).transpose(1, 2))
        return self.out(h)


class GraphAttentionLayer(nn.Module):
    """GAT: additive attention over the neighbours, after a layer norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.w = nn.LayerNorm(width), nn.Linear(width, width, bias=False)
        self.source, self.target = nn.Linear(width, 1, bias=False), nn.Linear(width, 1, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.w(self.norm(x))
        scores = F.leaky_relu(self.target(h) + self.source(h).transpose(1, 2), 0.2)
        attention = scores.masked_fill(adjacency == 0, -1e9).softmax(-1)
        return x + self.out(F.elu(attention @ h))


@row(
    GRAPHS,
    each("layers.{}: w target source out"),
    4,
    24,
    2,
    stem="enter",
    heads="out",
    roles="last: layers.*; other: norm",
    odd="additive attention over the neighbours",
    optimizer=adamw,
)
class GAT(nn.Module):
    """A value for every node."""

    def __init__(self, features: int = 4, width: int = 24, depth: int = 6) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.layers = nn.ModuleList(GraphAttentionLayer(width) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        h, adjacency = self.enter(nodes), adjacency + torch.eye(adjacency.shape[-1], device=adjacency.device)
        for layer in self.layers:
            h = layer(h, adjacency)
        return self.out(self.norm(h))


class GINLayer(nn.Module):
    """GIN with a pre-norm: a perceptron on the sum of the neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.epsilon = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.mlp((1 + self.epsilon) * h + adjacency @ h)


@row(
    GRAPHS,
    each("layers.{}: mlp.0 mlp.2"),
    4,
    24,
    2,
    stem="enter",
    heads="out",
    roles="last: layers.*; other: norm",
    odd="a learned factor beside the sum of the neighbours",
    optimizer=adamw,
)
class GIN(nn.Module):
    """A value for every graph: the mean over its nodes."""

    def __init__(self, features: int = 4, width: int = 24, depth: int = 6) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.layers = nn.ModuleList(GINLayer(width) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        h = self.enter(nodes)
        for layer in self.layers:
            h = layer(h, adjacency)
        return self.out(self.norm(h).mean(1))


@row(
    "randn(6, 12)",
    each("blocks.{}: 1 3"),
    12,
    24,
    2,
    stem="enter",
    heads="head.2",
    roles="last: blocks.*; other: head.0",
)
class TabularResNet(nn.Module):
    """x + W₂ relu(W₁ batch norm(x)), as in work on tabular data; a last norm."""

    def __init__(self, features: int = 12, width: int = 24, depth: int = 6) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.head = nn.Sequential(nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


@row(
    "randn(6, 12)", each("inner.{0} outer.{0}"), 12, 24, 2, stem="enter", odd="two heads that are added, less a mean"
)
class Dueling(nn.Module):
    """A Q-network with pre-norm residual perceptrons: value + advantage - mean advantage."""

    def __init__(self, features: int = 12, width: int = 24, depth: int = 6, actions: int = 4) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.inner = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.outer = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.value, self.advantage = nn.Linear(width, 1), nn.Linear(width, actions)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for norm, inner, outer in zip(self.norms, self.inner, self.outer, strict=True):
            h = h + outer(F.relu(inner(norm(h))))
        h = self.norm(h)
        advantage = self.advantage(h)
        return self.value(h) + advantage - advantage.mean(1, keepdim=True)


@row(
    "(randn(6, 64), randn(6, 8))",
    [*each("encoder.{}: 1 3"), *each("decoder.{}: 1 3")],
    64,
    24,
    8,
    2,
    stem="encode_in",
    odd="two trunks; the noise is an input; a logarithm of a variance",
    optimizer=adamw,
)
class VAE(nn.Module):
    """A variational autoencoder of residual perceptrons; the noise is an input."""

    def __init__(self, features: int = 64, width: int = 24, latent: int = 8, depth: int = 4) -> None:
        super().__init__()
        self.encode_in, self.encode_out = nn.Linear(features, width), nn.Linear(width, 2 * latent)
        self.decode_in, self.decode_out = nn.Linear(latent, width), nn.Linear(width, features)
        self.encoder = nn.ModuleList(self._block(width) for _ in range(depth))
        self.decoder = nn.ModuleList(self._block(width) for _ in range(depth))

    @staticmethod
    def _block(width: int) -> nn.Sequential:
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encode_in(x)
        for block in self.encoder:
            h = h + block(h)
        mean, log_variance = self.encode_out(h).chunk(2, 1)
        h = self.decode_in(mean + (0.5 * log_variance).exp() * noise)
        for block in self.decoder:
            h = h + block(h)
        return self.decode_out(h), mean, log_variance
