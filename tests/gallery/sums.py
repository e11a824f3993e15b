"""Which additions are residual sums and which are not, in the ways people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

from gallery.row import Row, Stated, add, entropy

WIDTH = 8
Forward = Callable[[Any, Tensor], Tensor]
POOL = nn.AvgPool1d(3, stride=1, padding=1)


def part(name: str) -> nn.Module | nn.Parameter:
    """A part of a network by its name: a norm, a parameter, a table or a linear layer."""
    if name.startswith("norm"):
        return nn.LayerNorm(WIDTH)
    if name == "position":
        return nn.Parameter(torch.zeros(WIDTH))
    return nn.Embedding(5, WIDTH) if name == "table" else nn.Linear(WIDTH, WIDTH)


def written(name: str, forward: Forward, *blocks: Stated, parts: str = "f g", **stated: Any) -> None:
    """Enter a network of a stem, what a function does with the parts, and a head."""

    def build() -> nn.Module:
        named = {letter: part(letter) for letter in parts.split()}
        run = lambda m, x: m.head(forward(m, m.stem(x)))  # noqa: E731 - a forward pass is a function of module and input
        return Written(run, stem=part("stem"), head=nn.Linear(WIDTH, 3), **named)

    stem = ("stem",) if blocks else None
    add(Row(name, "sums", build, "randn(2, 3, 8)", blocks=blocks, stem=stem, loss=entropy, **stated))


def branch(m: Any, x: Tensor) -> Tensor:
    return m.g(torch.relu(m.f(x)))


def in_place(m: Any, x: Tensor) -> Tensor:
    h = branch(m, x)
    h += x
    return h


def second_first(m: Any, x: Tensor) -> Tensor:
    g = m.g(torch.tanh(x))
    return x + m.f(torch.relu(x)) + g


def highway(m: Any, x: Tensor) -> Tensor:
    gate = torch.sigmoid(m.g(x))
    return x * (1 - gate) + m.h(torch.relu(m.f(x))) * gate


def squeeze_excite(m: Any, x: Tensor) -> Tensor:
    h = m.f(x)
    return x + h * torch.sigmoid(m.h(torch.relu(m.g(h.mean(1, keepdim=True)))))


def attention(m: Any, x: Tensor) -> Tensor:
    y = m.norm(x)
    return x + m.h(torch.softmax(m.f(y) @ m.norm2(m.g(y)).mT, dim=-1) @ m.k(y))


def nested(m: Any, x: Tensor) -> Tensor:
    h = m.f(torch.relu(x))
    h = h + m.g(torch.relu(h))
    return x + m.h(torch.relu(h))


def long_skip(m: Any, x: Tensor) -> Tensor:
    h = x + m.f(torch.relu(x))
    h = h + m.g(torch.relu(h))
    return x + h


def of_two_sums(m: Any, x: Tensor) -> Tensor:
    return sum([x + m.g(m.f(x).relu()), x + m.k(m.h(x).relu())])


def three_calls(m: Any, x: Tensor) -> Tensor:
    for _ in range(3):
        x = x + m.g(m.f(m.norm(x)).relu())
    return x


# One branch, however it is added.
written("x + f", lambda m, x: x + branch(m, x), ": f g")
written("f + x", lambda m, x: branch(m, x) + x, ": f g")
written("torch.add", lambda m, x: torch.add(x, branch(m, x), alpha=0.5), ": f g", odd="a factor of the sum")
written("in place", in_place, ": f g")
written("add_", lambda m, x: branch(m, x).add_(x), ": f g")
written("stack and sum", lambda m, x: torch.stack([x, branch(m, x)]).sum(0), ": f g")
written("stack last", lambda m, x: torch.stack([branch(m, x), x], dim=-1).sum(dim=-1), ": f g")
written("sum of a list", lambda m, x: sum([x, branch(m, x)]), ": f g")
written("x - f", lambda m, x: x - branch(m, x), ": f g")
written("dropped out", lambda m, x: x + F.dropout(branch(m, x), 0.5, m.training), ": f g")
written("beside positions", lambda m, x: (y := x + m.position) + branch(m, y), ": f g", parts="f g position")

# Several branches are one block, which follow the additions.
written("x + f + g", lambda m, x: x + m.f(torch.relu(x)) + m.g(torch.tanh(x)), ": f + g")
written("x + (f + g)", lambda m, x: x + (m.f(torch.relu(x)) + m.g(torch.tanh(x))), ": f + g")
written("f + g + x", lambda m, x: m.f(torch.relu(x)) + m.g(torch.tanh(x)) + x, ": f + g")
written("f + (g + x)", lambda m, x: m.f(torch.relu(x)) + (m.g(torch.tanh(x)) + x), ": g + f")
written("g computed first", second_first, ": f + g")
written("three stacked", lambda m, x: torch.stack([m.f(torch.relu(x)), x, m.g(torch.tanh(x))], 1).sum(1), ": f + g")
written(
    "branches that share a norm",
    lambda m, x: x + m.f(y := m.norm(x)) + m.h(torch.relu(m.g(y))),
    ": f + g h",
    parts="f g h norm",
    roles="last: norm",
)
none = "the sum of two residual sums is none itself"
written("two sums of one activation", of_two_sums, ": f g", ": h k", parts="f g h k", odd=none)

# Gates and attention.
written("highway", highway, ": g f h | g", parts="f g h", odd="a gated skip path, found by the dominator")
written("squeeze and excite", squeeze_excite, ": f g h", parts="f g h")
normed = {"parts": "f g h k norm norm2", "roles": "last: norm", "directions": ("norm2",)}
written("attention of a normed key", attention, ": f g k h", **normed)

# Blocks inside branches, blocks of one module, branches without weights.
written("nested", nested, (": f g h", [": g"]), parts="f g h")
written("long skip", long_skip, (": f g", [": f", ": g"]), odd="a skip path around all blocks")
thrice = {"roles": "last: norm", "odd": "one block, run thrice"}
written("called three times", three_calls, *[": f g"] * 3, parts="f g norm", **thrice)
written("pooling of a norm", lambda m, x: x + POOL(m.norm(x)), ": ", parts="norm", odd="a branch without weights")
written("pooling less x", lambda m, x: x + (POOL(x) - x), ": ", parts="", odd="a branch without parameters")

# Other sums are no blocks.
written("position embedding", lambda m, x: m.f(x + m.position), parts="f position")
written("embedded positions", lambda m, x: m.f(x + m.table(torch.arange(3))), parts="f table")
written("a constant", lambda m, x: m.f(x) + torch.ones(WIDTH), parts="f")
written("attention mask", lambda m, x: torch.softmax(m.f(x) @ x.mT + torch.ones(3, 3).triu(), -1) @ m.g(x))
written(
    "attention logits with a bias of their own",
    lambda m, x: torch.softmax((q := m.f(x)) @ x.mT + m.g(q) @ torch.ones(WIDTH, 3), -1) @ m.h(x),
    parts="f g h",
)
written(
    "rotary embedding",
    lambda m, x: m.f(x * torch.arange(3.0).cos()[:, None] + x.roll(1, -1) * torch.arange(3.0).sin()[:, None]),
    parts="f",
)
written("gelu by hand", lambda m, x: m.f(0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3)))), parts="f")
written("one linear map in two parts", lambda m, x: m.f(x) + m.g(x))
gates = lambda m, x: x * m.g(m.f(x).relu()).sigmoid() + x * m.h(x).sigmoid()  # noqa: E731
written("two gates of one tensor", gates, parts="f g h")
written("a difference", lambda m, x: m.f(x).relu() - x, parts="f")
written("twice the same", lambda m, x: m.f(x + x), parts="f")
written("less its mean", lambda m, x: m.f(x - x.mean(-1, keepdim=True)), parts="f")
written("a sum of all", lambda m, x: m.f(torch.stack([x, 2 * x]).sum((0, 1))), parts="f", batched=False)


class Convolutions(nn.Module):
    """Paths of normalized convolutions, which a forward pass adds."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.written = forward
        self.stem, self.head = nn.Conv2d(3, WIDTH, 1), nn.Conv2d(WIDTH, 2, 1)
        self.short, self.deep, self.a, self.b = (normalized(size) for size in (1, 1, 3, 3))
        self.left, self.right = (nn.Conv2d(WIDTH, WIDTH // 2, 1) for _ in range(2))
        self.wide, self.point = nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, WIDTH, 1)
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(WIDTH) for _ in range(3))

    def branch(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.written(self, self.stem(x))))


def normalized(size: int) -> nn.Module:
    """A convolution and its norm."""
    return nn.Sequential(nn.Conv2d(WIDTH, WIDTH, size, padding=size // 2, bias=False), nn.BatchNorm2d(WIDTH))


def convolved(name: str, forward: Forward, *blocks: Stated, used: str, **stated: Any) -> None:
    """Enter a network of the paths that are used."""

    def build() -> nn.Module:
        network = Convolutions(forward)
        for path, _ in [*network.named_children()]:
            if path not in {"stem", "head", *used.split()}:
                delattr(network, path)
        return network

    add(Row(name, "sums", build, "randn(2, 3, 8, 8)", blocks=blocks, **stated))


def added_in_place(m: Convolutions, x: Tensor) -> Tensor:
    out: Tensor = m.short(x)
    out += m.branch(x)
    return out


BESIDE, THREE = ": a.0 b.0 | short.0", "short a b"
convolved("pooled projection", lambda m, x: m.short(F.avg_pool2d(x, 3, 1, 1)) + m.branch(x), BESIDE, used=THREE)
convolved("projection and ReLU", lambda m, x: F.relu(m.short(x)) + m.branch(x), BESIDE, used=THREE)
convolved("projection second", lambda m, x: m.branch(x) + m.short(x), BESIDE, used=THREE)
convolved("projection in place", added_in_place, BESIDE, used=THREE)
convolved("projection stacked", lambda m, x: torch.stack([m.short(x), m.branch(x)]).sum(0), BESIDE, used=THREE)
convolved("lerp of a projection", lambda m, x: torch.lerp(m.short(x), m.branch(x), 0.5), BESIDE, used=THREE)
convolved("rsub of a projection", lambda m, x: torch.rsub(m.branch(x), m.short(x)), BESIDE, used=THREE)
convolved(
    "branch of a concatenation",
    lambda m, x: m.short(x) + m.b(torch.relu(torch.cat([m.left(x), m.right(x)], 1))),
    ": left right b.0 | short.0",
    used="left right b short",
)
convolved(
    "projection beside two branches",
    lambda m, x: m.short(x) + m.branch(x) + m.left(torch.relu(m.deep(x))).repeat(1, 2, 1, 1),
    ": a.0 b.0 + deep.0 left | short.0",
    used="short a b deep left",
)
# Convolutions side by side, as re-parameterizable networks train them, are one layer; a bare shortcut is a skip path.
convolved(
    "repvgg", lambda m, x: m.norm1(m.wide(x)) + m.norm2(m.point(x)) + m.norm3(x), used="wide point norm1 norm2 norm3"
)
convolved("mobileone", lambda m, x: m.norm3(x) + m.norm1(m.wide(x)), used="wide norm1 norm3")
convolved("repvit", lambda m, x: m.norm3((m.norm1(m.wide(x)) + m.point(x)) + x), used="wide point norm1 norm3")
WIDE = ": wide | point"
convolved("bare shortcut", lambda m, x: m.norm1(m.wide(x)) + m.point(x), WIDE, used="wide point norm1")
convolved("bare shortcut first", lambda m, x: m.point(x) + m.norm1(m.wide(x)), WIDE, used="wide point norm1")
convolved("bare shortcut in place", lambda m, x: m.norm1(m.wide(x)).add_(m.point(x)), WIDE, used="wide point norm1")
pooled = lambda m, x: m.norm1(m.wide(x)) + m.norm2(m.point(F.max_pool2d(x, 3, 1, 1)))  # noqa: E731
convolved("pooled shortcut", pooled, WIDE, used="wide point norm1 norm2")
# What cannot be placed is named.
NONE = {"unresolved": ("none is a skip path",)}
equal = lambda m, x: m.deep(F.relu(m.short(x))) + m.branch(x)  # noqa: E731
convolved("two paths of equal depth", equal, used="deep short a b", **NONE)
convolved("two activated paths", lambda m, x: F.relu(m.short(x)) + F.relu(m.a(x)), used="short a", **NONE)
both = {"used": "short a b deep", "unresolved": ("addcmul adds and multiplies at once",)}
convolved("addcmul", lambda m, x: torch.addcmul(m.short(x), m.branch(x), m.deep(x)), **both)
