"""Which additions are residual sums and which are not, on small networks written in the ways people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless import ResidualMap, residual_map
from normless.lifting import ADDITIONS

WIDTH = 8
Forward = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """A stem, linear and convolutional layers to write blocks with, and the forward pass under test."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.written = forward
        self.stem, self.f, self.g, self.h = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.position = nn.Parameter(torch.zeros(WIDTH))
        self.table = nn.Embedding(5, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, self.stem(x))


def map_of(forward: Forward) -> ResidualMap:
    return residual_map(Net(forward), torch.randn(2, 3, WIDTH))


def in_place(net: Net, x: Tensor) -> Tensor:
    x += net.g(torch.relu(net.f(x)))
    return x


def tanh_gelu_by_hand(net: Net, x: Tensor) -> Tensor:
    return net.f(0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3))))


ONE_BRANCH: dict[str, Forward] = {
    "x + f": lambda net, x: x + net.g(torch.relu(net.f(x))),
    "f + x": lambda net, x: net.g(torch.relu(net.f(x))) + x,
    "torch.add": lambda net, x: torch.add(x, net.g(torch.relu(net.f(x))), alpha=0.5),
    "in place": in_place,
    "add_": lambda net, x: net.g(torch.relu(net.f(x))).add_(x),
    "stack and sum": lambda net, x: torch.stack([x, net.g(torch.relu(net.f(x)))]).sum(0),
    "stack last and sum": lambda net, x: torch.stack([net.g(torch.relu(net.f(x))), x], dim=-1).sum(dim=-1),
    "sum of a list": lambda net, x: sum([x, net.g(torch.relu(net.f(x)))]),
    "x - f": lambda net, x: x - net.g(torch.relu(net.f(x))),
    "dropped out": lambda net, x: x + F.dropout(net.g(torch.relu(net.f(x))), 0.5),
    "position beside": lambda net, x: (y := x + net.position) + net.g(torch.relu(net.f(y))),
}


@pytest.mark.parametrize("name", ONE_BRANCH)
def test_one_branch_however_it_is_added(name: str) -> None:
    found = map_of(ONE_BRANCH[name])
    (block,) = found.blocks
    assert block.branch == ("f", "g")
    assert block.identity_skip
    assert block.skip == ()
    assert block.branches == (block.branch_layers,)
    assert found.stem == ("stem",)
    assert {one.path for one in found.unresolved} <= {"norm", "norm2"}, "only the norms that the forward leaves out"


SEVERAL: dict[str, Forward] = {
    "x + f + g": lambda net, x: x + net.f(torch.relu(x)) + net.g(torch.tanh(x)),
    "f + g + x": lambda net, x: net.f(torch.relu(x)) + net.g(torch.tanh(x)) + x,
    "x + (f + g)": lambda net, x: x + (net.f(torch.relu(x)) + net.g(torch.tanh(x))),
    "stacked": lambda net, x: torch.stack([net.f(torch.relu(x)), x, net.g(torch.tanh(x))], 1).sum(1),
    "sum of a list": lambda net, x: sum((x, net.f(torch.relu(x)), net.g(torch.tanh(x)))),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_branches_are_one_block(name: str) -> None:
    (block,) = map_of(SEVERAL[name]).blocks
    assert {tuple(layer.path for layer in branch if layer.kind == "weight") for branch in block.branches} == {
        ("f",),
        ("g",),
    }
    assert block.branch == ("f", "g")
    assert block.m == 1
    assert block.identity_skip


def second_first(net: Net, x: Tensor) -> Tensor:
    g = net.g(torch.tanh(x))
    return x + net.f(torch.relu(x)) + g


@pytest.mark.parametrize(("forward", "order", "additions"), [
    (second_first, ["f", "g"], [(0, 1), (1, 1)]),
    (lambda net, x: net.f(torch.relu(x)) + (net.g(torch.tanh(x)) + x), ["g", "f"], [(0, 0), (1, 0)]),
    (lambda net, x: (net.f(torch.relu(x)) + net.g(torch.tanh(x))) + x, ["f", "g"], [(1, 0)]),
    (lambda net, x: x + sum([net.f(torch.relu(x)), net.g(torch.tanh(x))]), ["f", "g"], [(1, 1)]),
])  # fmt: skip
def test_branches_follow_the_additions(forward: Forward, order: list[str], additions: list[tuple[int, int]]) -> None:
    found = map_of(forward)
    (block,) = found.blocks
    assert [branch[-1].path for branch in block.branches] == order
    assert found.flow is not None
    calls = [call for call in found.flow.calls if call.name in ADDITIONS and call.args == (Tensor, Tensor)]
    assert [(calls.index(addition.made_by), addition.branch) for addition in block.additions] == additions


def test_several_branches_beside_a_skip_path_joined_from_two_layers() -> None:
    def forward(net: Net, x: Tensor) -> Tensor:
        skip = net.norm(torch.cat((net.h(x)[..., :4], net.h(x.roll(1, 1))[..., 4:]), 2))
        return 0.3 * net.g(net.f(x).relu()) + 0.7 * net.f(net.g(x).relu()) + skip

    (block,) = map_of(forward).blocks
    assert [[layer.path for layer in branch if layer.kind == "weight"] for branch in block.branches] == [
        ["f", "g"],
        ["g", "f"],
    ]
    assert set(block.skip) == {"h"}


@pytest.mark.parametrize("forward", [
    lambda net, x: x + net.f(y := net.norm(x)) + net.h(torch.relu(net.g(y))),
    lambda net, x: x + (net.f(y := net.norm(x)) + net.h(torch.relu(net.g(y)))),
])  # fmt: skip
def test_parallel_branches_may_share_their_norm(forward: Forward) -> None:
    found = map_of(forward)
    (block,) = found.blocks
    assert [[layer.path for layer in branch if layer.kind != "activation"] for branch in block.branches] == [
        ["norm", "f"],
        ["norm", "g", "h"],
    ]
    assert block.m == 2
    assert found.norms["norm"] == "last"


NOT_RESIDUAL: dict[str, Forward] = {
    "position embedding": lambda net, x: net.f(x + net.position),
    "embedded positions": lambda net, x: net.f(x + net.table(torch.arange(3))),
    "a constant": lambda net, x: net.f(x) + torch.ones(WIDTH),
    "attention mask": lambda net, x: torch.softmax(net.f(x) @ x.mT + torch.ones(3, 3).triu(), -1) @ net.g(x),
    "attention logits with a bias of their own": lambda net, x: (
        torch.softmax((q := net.f(x)) @ x.mT + net.g(q) @ torch.ones(WIDTH, 3), -1) @ net.h(x)
    ),
    "rotary embedding": lambda net, x: net.f(
        x * torch.arange(3.0).cos()[:, None] + x.roll(1, -1) * torch.arange(3.0).sin()[:, None]
    ),
    "gelu by hand": tanh_gelu_by_hand,
    "one linear map in two parts": lambda net, x: net.f(x) + net.g(x),
    "two gates of one tensor": lambda net, x: x * net.g(net.f(x).relu()).sigmoid() + x * net.h(x).sigmoid(),
    "a difference": lambda net, x: net.f(x).relu() - x,
    "twice the same": lambda net, x: net.f(x + x),
    "a running mean": lambda net, x: net.f(x - x.mean(-1, keepdim=True)),
    "a sum of all": lambda net, x: net.f(torch.stack([x, 2 * x]).sum((0, 1))),
}


@pytest.mark.parametrize("name", NOT_RESIDUAL)
def test_other_sums_are_left_out(name: str) -> None:
    found = map_of(NOT_RESIDUAL[name])
    assert found.blocks == ()
    assert {one.path for one in found.unresolved} <= {"norm", "norm2"}, "only the norms that the forward leaves out"


class Projecting(nn.Module):
    """Blocks in which both paths have weights; a forward pass adds them."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.written = forward
        self.stem, self.head = nn.Conv2d(3, WIDTH, 1), nn.Conv2d(WIDTH, 2, 1)
        self.short, self.deep = (self.normalized(1) for _ in range(2))
        self.a, self.b = (self.normalized(3) for _ in range(2))
        self.left, self.right = (nn.Conv2d(WIDTH, WIDTH // 2, 1) for _ in range(2))

    def normalized(self, size: int) -> nn.Module:
        """A convolution and its norm."""
        return nn.Sequential(nn.Conv2d(WIDTH, WIDTH, size, padding=size // 2, bias=False), nn.BatchNorm2d(WIDTH))

    def branch(self, x: Tensor) -> Tensor:
        """Two convolutions."""
        return self.b(torch.relu(self.a(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.written(self, self.stem(x))))


def added_in_place(net: Projecting, x: Tensor) -> Tensor:
    out: Tensor = net.short(x)
    out += net.branch(x)
    return out


TWO_BRANCHES = (("a.0", "b.0"), ("short.0",))
PROJECTING: dict[str, tuple[Callable[[Projecting, Tensor], Tensor], tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "pooled before": (lambda net, x: net.short(F.avg_pool2d(x, 3, 1, 1)) + net.branch(x), TWO_BRANCHES),
    "with an activation": (lambda net, x: F.relu(net.short(x)) + net.branch(x), TWO_BRANCHES),
    "second": (lambda net, x: net.branch(x) + net.short(x), TWO_BRANCHES),
    "in place": (added_in_place, TWO_BRANCHES),
    "by sum": (lambda net, x: sum([net.short(x), net.branch(x)]), TWO_BRANCHES),  # type: ignore[arg-type,return-value]
    "stacked": (lambda net, x: torch.stack([net.short(x), net.branch(x)]).sum(0), TWO_BRANCHES),
    "lerp": (lambda net, x: torch.lerp(net.short(x), net.branch(x), 0.5), TWO_BRANCHES),
    "subtracted": (lambda net, x: torch.rsub(net.branch(x), net.short(x)), TWO_BRANCHES),
    "of a concatenation": (
        lambda net, x: net.short(x) + net.b(torch.relu(torch.cat([net.left(x), net.right(x)], 1))),
        (("left", "right", "b.0"), ("short.0",)),
    ),
    "beside two branches": (
        lambda net, x: net.short(x) + net.branch(x) + net.left(torch.relu(net.deep(x))).repeat(1, 2, 1, 1),
        (("a.0", "b.0", "deep.0", "left"), ("short.0",)),
    ),
}


@pytest.mark.parametrize("name", PROJECTING)
def test_a_skip_path_with_weights(name: str) -> None:
    forward, (branch, skip) = PROJECTING[name]
    (block,) = residual_map(Projecting(forward), torch.randn(2, 3, 8, 8)).blocks
    assert (block.branch, block.skip) == (branch, skip)


UNRESOLVED: dict[str, tuple[Callable[[Projecting, Tensor], Tensor], str]] = {
    "equal depth": (lambda net, x: net.deep(F.relu(net.short(x))) + net.branch(x), "none is a skip path"),
    "both with an activation": (lambda net, x: F.relu(net.short(x)) + F.relu(net.a(x)), "none is a skip path"),
    "addcmul": (
        lambda net, x: torch.addcmul(net.short(x), net.branch(x), net.deep(x)),
        "addcmul adds and multiplies at once",
    ),
}


@pytest.mark.parametrize("name", UNRESOLVED)
def test_a_sum_of_paths_from_one_activation_is_a_block_or_named(name: str) -> None:
    forward, reason = UNRESOLVED[name]
    found = residual_map(Projecting(forward), torch.randn(2, 3, 8, 8))
    assert found.blocks == ()
    assert any(reason in one.reason for one in found.unresolved)


def test_embeddings_of_tokens_and_their_positions_share_no_activation() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(9, WIDTH), nn.Embedding(9, WIDTH)
            self.f = nn.Linear(WIDTH, WIDTH)

        def forward(self, tokens: Tensor) -> Tensor:
            places = (tokens != 1).cumsum(-1)
            x = self.words(tokens) + self.places(places)
            return x + self.f(x)

    (block,) = residual_map(Tokens(), torch.zeros(2, 4, dtype=torch.int64)).blocks
    assert block.branch == ("f",)


def test_a_gated_skip_path_is_found_by_the_dominator() -> None:
    def highway(net: Net, x: Tensor) -> Tensor:
        gate = torch.sigmoid(net.g(x))
        return x * (1 - gate) + net.h(torch.relu(net.f(x))) * gate

    (block,) = map_of(highway).blocks
    assert set(block.branch) == {"f", "g", "h"}
    assert block.skip == ("g",)
    assert not block.identity_skip


def test_squeeze_excite_gates_and_does_not_count() -> None:
    def squeeze_excite(net: Net, x: Tensor) -> Tensor:
        h = net.f(x)
        return x + h * torch.sigmoid(net.h(torch.relu(net.g(h.mean(1, keepdim=True)))))

    (block,) = map_of(squeeze_excite).blocks
    assert block.branch == ("f", "g", "h")
    assert block.gates == ("g", ":relu", "h", ":sigmoid")
    assert block.m == 1
    assert block.activations == ()
    assert not block.ends_in_layer


def test_query_and_key_only_weigh_the_values() -> None:
    def attention(net: Net, x: Tensor) -> Tensor:
        y = net.norm(x)
        scores = torch.softmax(net.f(y) @ net.norm2(net.g(y)).mT, dim=-1)
        return x + net.h(scores @ net.stem(y))

    found = map_of(attention)
    (block,) = found.blocks
    assert set(block.gates) == {"f", "g", "norm2"}
    assert block.m == 2
    # The norm of the keys is the branch's last in time, but not on its way to the sum.
    assert found.norms == {"norm": "last"}
    assert [*found.directions] == ["norm2"]


def test_the_values_of_an_attention_to_something_else_belong_to_the_branch() -> None:
    class Cross(Net):
        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            x = self.stem(x)
            return x + self.h(torch.softmax(self.f(x) @ memory.mT, -1) @ self.g(memory)) + 0 * memory.sum()

    (block,) = residual_map(Cross(in_place), torch.randn(2, 3, WIDTH), torch.randn(2, 4, WIDTH)).blocks
    assert set(block.branch) == {"f", "g", "h"}
    assert block.m == 2


def test_blocks_inside_a_branch_are_a_tree() -> None:
    def nested(net: Net, x: Tensor) -> Tensor:
        h = net.f(torch.relu(x))
        h = h + net.g(torch.relu(h))
        return x + net.h(torch.relu(h))

    found = map_of(nested)
    (outer,) = found.blocks
    (inner,) = outer.inner
    assert outer.branch == ("f", "g", "h")
    assert inner.branch == ("g",)
    assert [block.name for block in found.walk()] == [outer.name, inner.name]
    assert found.depth == 1
    # Through the inner branch f, g and h follow on each other.
    assert (outer.m, inner.m) == (3, 1)


def test_a_long_skip_connection_around_blocks_holds_them() -> None:
    def long(net: Net, x: Tensor) -> Tensor:
        h = x + net.f(torch.relu(x))
        h = h + net.g(torch.relu(h))
        return x + h

    (outer,) = map_of(long).blocks
    assert [block.branch for block in outer.inner] == [("f",), ("g",)]


def test_a_branch_without_weights_counts_where_it_pools_or_normalizes() -> None:
    pooling = nn.AvgPool1d(3, stride=1, padding=1)
    for forward in (
        lambda net, x: x + pooling(net.norm(x)),
        lambda net, x: x + pooling(x),
        lambda net, x: x + (pooling(x) - x),
    ):
        (block,) = map_of(forward).blocks
        assert block.branch == ()
        assert block.m == 0
        assert block.identity_skip
