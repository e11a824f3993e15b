"""Norms, activations, scales and computed weights, known by what they compute, in a block of two layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from written_networks import Written, linear_layers

from gallery.row import Row, add, entropy, row

WIDTH = 8
NUMBERED = ["1: first second", "2: first second"]


class Block(nn.Module):
    """x + last(second(activation(first(norm(x)))))."""

    def __init__(self, norm: nn.Module, activation: nn.Module | None = None, last: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = norm
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.activation, self.last = activation or nn.ReLU(), last or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(self.second(self.activation(self.first(self.norm(x)))))


def between(make: Callable[[], nn.Module]) -> nn.Module:
    """Two such modules between linear layers."""
    return nn.Sequential(nn.Linear(6, WIDTH), make(), make(), nn.Linear(WIDTH, 3))


def blocks(name: str, make: Callable[[], nn.Module], roles: str = "last: *.norm", **stated: Any) -> None:
    """Enter a network of two blocks."""
    build = lambda: between(make)  # noqa: E731 - a row builds lazily
    common = {"blocks": tuple(NUMBERED), "stem": ("0",), "heads": ("3",), "roles": roles, "loss": entropy}
    add(Row(name, "norms", build, "randn(4, 5, 6)", **common | stated))


def of_ones(forward: Callable[[Any, Tensor], Tensor], names: str = "weight") -> Callable[[], nn.Module]:
    """A module that computes with vectors of ones."""
    return lambda: Written(forward, **{name: nn.Parameter(torch.ones(WIDTH)) for name in names.split()})


def layer_norm_by_hand(m: Any, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * m.scale + m.shift


def global_response(m: Any, x: Tensor) -> Tensor:
    size = x.norm(p=2, dim=1, keepdim=True)
    return m.gamma * (x * (size / (size.mean(-1, keepdim=True) + 1e-6))) + m.beta + x


class BiasOnly(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), None, self.bias)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer norm by hand": of_ones(layer_norm_by_hand, "scale shift"),
    "RMS norm of 1 + w": of_ones(lambda m, x: x * torch.rsqrt(x.square().mean(-1, True) + 1e-6) * (1 + m.weight)),
    "global response norm": of_ones(global_response, "gamma beta"),
    "functional layer norm": of_ones(lambda m, x: F.layer_norm(x, (WIDTH,), m.weight, m.bias), "weight bias"),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "RMS norm": lambda: nn.RMSNorm(WIDTH),
    "layer norm without parameters": lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    "bias alone": lambda: BiasOnly(WIDTH),
    "standardized": of_ones(
        lambda m, x: (x - x.mean(-1, True)) / (x.std(-1, keepdim=True) + 1e-5) * m.g + m.b, "g b"
    ),
    "gain ahead of the root": of_ones(lambda m, x: (x * m.g) * torch.rsqrt(x.square().mean(-1, True) + 1e-6), "g"),
    "division by a length": of_ones(lambda m, x: (m.g * x) / (x * x).sum(-1, keepdim=True).sqrt(), "g"),
}
for name, made in NORMS.items():
    blocks(name, lambda made=made: Block(made()))
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "PReLU": nn.PReLU,
    "Swish by hand": lambda: Written(lambda m, x: x * torch.sigmoid(1.702 * x)),
    "Hardtanh": nn.Hardtanh,
}
for name, made in ACTIVATIONS.items():
    blocks(name, lambda made=made: Block(nn.Identity(), made()), roles="")
blocks(
    "layer scale and dropout",
    lambda: Block(nn.Identity(), nn.Dropout(0.1), of_ones(lambda m, x: x * m.gamma, "gamma")()),
    roles="",
    odd="a scale ends each branch",
)


class Standardized(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight - self.weight.mean(1, keepdim=True)) / self.weight.std(1, keepdim=True)
        return F.linear(x, weight * self.gain, self.bias)


def with_gains() -> nn.Module:
    block = Block(nn.Identity())
    block.first, block.second = Standardized(), parametrizations.weight_norm(block.second)
    return block


blocks("standardized weights", with_gains, roles="", odd="gains of a standardized and of a normalized weight")


class RootLevel(nn.Module):
    """Blocks written at the root, where no module shows what belongs to which."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.stem, self.head, self.kind = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 3), kind
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 if kind == "v1" else 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, linear in zip(self.norms, self.layers, strict=False):
            if self.kind == "post-norm":
                x = norm(x + linear(torch.relu(x)))
            elif self.kind == "v1":
                x = torch.relu(x + norm(linear(x)))
            else:
                x = x + linear(torch.relu(norm(x)))
        return self.head(x if self.kind == "v1" else torch.relu(self.norms[2](x)))


for kind, roles in {"post-norm": "other: norms.2; last: *", "v1": "last: *", "v2": "other: norms.2; last: *"}.items():
    stated = {"name": f"{kind} at the root", "stem": "stem", "roles": roles}
    row("randn(4, 6)", ["layers: 0", "layers: 1"], kind, **stated)(RootLevel)


def of_dimensions(dimensions: int) -> nn.Module:
    kinds = ("Conv", "ConvTranspose", "BatchNorm", "InstanceNorm")
    layer = {name: getattr(nn, f"{name}{dimensions}d") for name in kinds}
    body = nn.Sequential(
        layer["BatchNorm"](4), nn.ReLU(), layer["Conv"](4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(),
        layer["ConvTranspose"](4, 4, 3, padding=1), layer["InstanceNorm"](4, affine=True),
    )  # fmt: skip
    return nn.Sequential(layer["Conv"](3, 4, 1), Written(lambda m, x: x + m.body(x), body=body))


for dimensions in (1, 2, 3):
    shape = ", ".join(["2", "3", *["5"] * dimensions])
    stated = {"name": f"norms of {dimensions} dimensions", "stem": "0"}
    stated |= {"roles": "last: 1.body.6; other: 1.body.0 1.body.3"}
    stated |= {"odd": "a transposed convolution; an instance norm at the end"}
    row(f"randn({shape})", ["1.body: 2 5"], dimensions, **stated)(of_dimensions)


BY_HAND = {"name": "a norm by hand on a skip path", "stem": "0", "roles": "down: 1.skip_norm"}


@row("randn(4, 6)", ["1: first second | skip"], **BY_HAND)
def norm_on_skip_path() -> nn.Module:
    projecting = Written(
        lambda m, x: m.skip_norm(m.skip(x)) + m.second(m.first(x).relu()),
        **linear_layers("skip first second", WIDTH),
        skip_norm=NORMS["layer norm by hand"](),
    )
    return nn.Sequential(nn.Linear(6, WIDTH), projecting)


# Norms of images whose module does more than to normalize.
class LeakyBatchNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(super().forward(x), 0.2)


class SwishGroupNorm(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * F.silu(super().forward(x))


class GeluLayerNorm(nn.LayerNorm):
    """Over the channels of images, with dropout that ends with training."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x.movedim(1, -1))
        return F.dropout(F.gelu(y, approximate="tanh"), 0.3, self.training).movedim(-1, 1)


class ConvBlock(nn.Module):
    """x + norm2(conv2(norm1(conv1(x)))), its convolutions wrapped."""

    def __init__(self, norm: nn.Module, wrap: Callable[[nn.Conv2d], nn.Module] = lambda layer: layer) -> None:
        super().__init__()
        self.conv1, self.conv2 = (wrap(nn.Conv2d(WIDTH, WIDTH, 3, padding=1)) for _ in range(2))
        self.norm1, self.norm2 = norm, nn.BatchNorm2d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm2(self.conv2(self.norm1(self.conv1(x))))


def images(name: str, make: Callable[[], nn.Module], *layers: str, **stated: Any) -> None:
    """Enter a network of two blocks of images."""

    def build() -> nn.Module:
        ends = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 5))
        return nn.Sequential(nn.Conv2d(3, WIDTH, 3), make(), make(), *ends)

    listed = tuple(f"{number}: {' '.join(layers or ('conv1', 'conv2'))}" for number in (1, 2))
    add(Row(name, "norms", build, "randn(4, 3, 8, 8)", blocks=listed, stem=("0",), loss=entropy, **stated))


ACTIVATED: dict[str, Callable[[], nn.Module]] = {
    "a leaky batch norm": lambda: LeakyBatchNorm(WIDTH),
    "a group norm with a Swish": lambda: SwishGroupNorm(2, WIDTH),
    "a layer norm with dropout": lambda: GeluLayerNorm(WIDTH),
}
for name, made in ACTIVATED.items():
    stated = {"roles": "last: *.norm2; other: *.norm1", "odd": "an activation in a norm"}
    images(name, lambda made=made: ConvBlock(made()), **stated)


class LowRank(nn.Module):
    """A layer with a low-rank adapter that starts at zero (Hu et al. 2021)."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer, self.down, self.up = layer, nn.Conv2d(WIDTH, 2, 1, bias=False), nn.Conv2d(2, WIDTH, 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))


def pruned(layer: nn.Conv2d) -> nn.Module:
    prune.l1_unstructured(layer, "weight", 0.3)
    return layer


WRAPPED: dict[str, Callable[[nn.Conv2d], nn.Module]] = {
    "old weight norm": weight_norm,
    "old spectral norm": spectral_norm,
    "pruned": pruned,
    "low-rank adapters": LowRank,
    "weight norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "transposed convolutions": lambda layer: nn.ConvTranspose2d(WIDTH, WIDTH, 3, padding=1),
}
for name, wrap in WRAPPED.items():
    layers = [f"conv{n}.{part}" for n in (1, 2) for part in ("layer", "down", "up")] if wrap is LowRank else []
    stated = {"roles": "last: *", "odd": "the weights are computed"}
    images(name, lambda wrap=wrap: ConvBlock(nn.ReLU(), wrap), *layers, **stated)
