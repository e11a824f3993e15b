"""Norms that define an output or compare queries and keys, and heads that must not start at zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gallery.row import Row, add, entropy, row, squares


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.last = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(F.relu(self.first(self.norm(x))))


class Trunk(nn.Sequential):
    def __init__(self, width: int = 16, outputs: int = 8, inputs: int = 6) -> None:
        last = (nn.LayerNorm(width), nn.Linear(width, outputs))
        super().__init__(nn.Linear(inputs, width), Block(width), Block(width), *last)


class Ends(nn.Module):
    """A trunk, and an end of a function and the parameters that it names."""

    def __init__(self, end: Callable[[Any, Tensor], Tensor], parts: str) -> None:
        super().__init__()
        self.end, self.trunk = end, Trunk()
        made = {
            "scale": lambda: nn.Parameter(torch.tensor(5.0)),
            "log_scale": lambda: nn.Parameter(torch.tensor(1.5)),
            "prototypes": lambda: nn.Parameter(torch.randn(10, 8)),
            "gamma": lambda: nn.Parameter(torch.ones(8)),
            "classes": lambda: nn.Linear(8, 10),
        }
        for name in parts.split():
            setattr(self, name, made[name]())

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self, self.trunk(x))


def unit(h: Tensor) -> Tensor:
    return h / h.pow(2).sum(-1, keepdim=True).sqrt().clamp_min(1e-6)


IN_TRUNK = ("trunk.1: first last", "trunk.2: first last")
UNITS: dict[str, tuple[str, Callable[[Any, Tensor], Tensor]]] = {
    "cosine classifier": ("scale prototypes", lambda m, h: m.scale * F.normalize(h) @ F.normalize(m.prototypes).t()),
    "its weight by linear": ("scale prototypes", lambda m, h: F.linear(m.scale * unit(h), F.normalize(m.prototypes))),
    "an exponential": ("log_scale", lambda m, h: m.log_scale.exp() * F.normalize(h) @ F.normalize(h).t()),
    "cosines by einsum": (
        "scale prototypes",
        lambda m, h: torch.einsum("nd,kd->nk", unit(h) * m.scale, unit(m.prototypes)),
    ),
    "softplus of a scale": ("scale", lambda m, h: F.normalize(h) * F.softplus(m.scale) @ F.normalize(h[:2]).t()),
    "a unit embedding": ("scale", lambda m, h: m.scale * F.normalize(h, dim=-1)),
}
ROLES = "last: trunk.*.norm; other: trunk.3"
for name, (parts, end) in UNITS.items():
    pairs = name in ("an exponential", "softplus of a scale")
    build = lambda end=end, parts=parts: Ends(end, parts)  # noqa: E731 - a row builds lazily
    add(Row(name, "directions", build, "randn(4, 6)", blocks=IN_TRUNK, roles=ROLES, batched=not pairs))
# Where weights or a vector follow, it is a norm of the trunk.
TRUNKS: dict[str, tuple[str, Callable[[Any, Tensor], Tensor]]] = {
    "RMS norm before the head": ("gamma classes", lambda m, h: m.classes(F.normalize(h, dim=-1) * m.gamma * 8**0.5)),
    "a scalar before the head": ("scale classes", lambda m, h: m.classes(m.scale * F.normalize(h, dim=-1))),
    "no gain before the head": (
        "classes",
        lambda m, h: m.classes(h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)),
    ),
    "tied to a table": ("gamma prototypes", lambda m, h: (unit(h) * m.gamma * 8**0.5) @ m.prototypes.t()),
    "a vector at the output": ("gamma", lambda m, h: F.normalize(h, dim=-1) * m.gamma),
}
for name, (parts, end) in TRUNKS.items():
    build = lambda end=end, parts=parts: Ends(end, parts)  # noqa: E731
    roles = "last: trunk.*.norm; other: *"
    add(Row(name, "directions", build, "randn(4, 6)", blocks=IN_TRUNK, directions=(), roles=roles))


class Attention(nn.Module):
    def __init__(self, normed: Callable[[Any, Tensor], Tensor], logits: str) -> None:
        super().__init__()
        self.normed, self.logits = normed, logits
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.own = nn.ModuleDict({"layer": nn.LayerNorm(8), "rms": nn.RMSNorm(8)})
        self.tau = nn.Parameter(torch.full((2, 1, 1), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        q, k = self.normed(self, q), self.normed(self, k)
        if self.logits == "softmax":
            y = (q @ k.mT * 8**-0.5).softmax(-1) @ v
        elif self.logits == "einsum":
            y = torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v)
        else:
            turned = [part * 0.6 + torch.cat([-part[..., 4:], part[..., :4]], -1) * 0.8 for part in (q, k)]
            y = F.scaled_dot_product_attention(*turned, v)
        return x + self.out(y.transpose(1, 2).flatten(-2))


NORMED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "layer": lambda m, q: m.own["layer"](q),
    "rms": lambda m, q: m.own["rms"](q),
    "tau": lambda m, q: F.normalize(q, dim=-1) * m.tau,
}
for normed, logits in (("layer", "softmax"), ("layer", "einsum"), ("rms", "rotated"), ("tau", "einsum")):

    def attentive(normed: str = normed, logits: str = logits) -> nn.Module:
        first, second = (Attention(NORMED[normed], logits) for _ in range(2))
        for one in (first, second):
            for unused in {"layer", "rms"} - {normed}:
                del one.own[unused]
            if normed != "tau":
                del one.tau
        return nn.Sequential(nn.Linear(6, 16), first, Block(16), second, nn.LayerNorm(16), nn.Linear(16, 4))

    name = f"{normed} norms of queries and keys, {logits}"
    stated = {"stem": ("0",), "heads": ("5",), "roles": "last: *.norm; other: 4", "loss": entropy}
    listed = ("1: qkv out", "2: first last", "3: qkv out")
    add(Row(name, "directions", attentive, "randn(2, 5, 6)", blocks=listed, **stated))


class Heads(nn.Module):
    """A trunk with linear layers whose results a function joins."""

    def __init__(self, join: Callable[..., object], count: int) -> None:
        super().__init__()
        self.trunk, self.join = Trunk(outputs=16), join
        self.heads = nn.ModuleList(nn.Linear(16, 5) for _ in range(count))

    def forward(self, x: Tensor) -> object:
        h = self.trunk(x)
        return self.join(*(head(h) for head in self.heads))


HEADS: dict[str, tuple[int, Callable[..., object]]] = {
    "two outputs": (2, lambda a, b: {"boxes": a, "classes": b}),
    "a product of heads": (2, lambda a, b: a * b),
    "a ratio of heads": (2, lambda a, b: a / (b.abs() + 1)),
    "unit vectors": (1, lambda a: F.normalize(a, dim=-1)),
    "squares": (1, lambda a: a.square().sum(-1)),
    "a length": (1, lambda a: a.norm(dim=-1)),
    "distances": (1, lambda a: torch.cdist(a, a)),
    "a Gram matrix": (1, lambda a: a @ a.t()),
    "log-probabilities": (1, lambda a: a.log_softmax(-1)),
}
for name, (count, join) in HEADS.items():
    heads = tuple(f"heads.{number}" for number in range(count))
    build = lambda join=join, count=count: Heads(join, count)  # noqa: E731
    pairs = name in ("distances", "a Gram matrix")
    add(Row(name, "directions", build, "randn(6, 6)", blocks=IN_TRUNK, heads=heads, loss=squares, batched=not pairs))


class CosineLinear(nn.Linear):
    """A linear layer that is a cosine classifier inside."""

    def forward(self, x: Tensor) -> Tensor:
        return 5 * F.linear(F.normalize(x), F.normalize(self.weight))


@row(
    "randn(4, 6)",
    ["0.1: first last", "0.2: first last"],
    name="a cosine layer",
    heads="1",
    odd="the weight of the head is normalized in its own module",
    loss=entropy,
)
def with_cosine_layer() -> nn.Module:
    return nn.Sequential(Trunk(), CosineLinear(8, 4, bias=False))
