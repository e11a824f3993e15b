"""One module at several places: each place gets its own, and the network is that of separate modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.errors import UnsupportedEditError
from normless.lifting._turns import in_turns
from normless.nn import ResidualSum

X = torch.randn(5, 4)
close = torch.testing.assert_close


class Add(nn.Module):
    """As tsai adds."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.add(y)


class Adding(nn.Module):
    """Two sums by one module."""

    def __init__(self, add: nn.Module) -> None:
        super().__init__()
        self.add = add
        self.one, self.two = (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh()) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        x = self.add(x, self.one(x))
        return self.add(self.two(x), x)


class AddingInLoop(Adding):
    """One call of it adds twice."""

    def forward(self, x: Tensor) -> Any:
        for branch in (self.one, self.two):
            x = self.add(x, branch(x))
        return x


@pytest.mark.parametrize(("kind", "is_one"), [(Adding, False), (Adding, True), (AddingInLoop, True)])
def test_a_module_that_adds_in_several_sums(kind: type[Adding], is_one: bool) -> None:
    add = Add()
    model: Any = nn.Sequential(nn.Linear(4, 4), kind(add), kind(add if is_one else Add()))
    net = nl.convert(model, "skipinit(alpha=0.3, keep_scale=False)", X)
    h = model[0](X)
    for block in model[1:]:
        for branch in (block.one, block.two):
            h = h + 0.3 * branch[2](branch[0](h))
    close(net(X), h)
    sums = [module for module in net.modules() if isinstance(module, ResidualSum) and module.multiplier is not None]
    assert len({id(total.multiplier) for total in sums}) == 4
    assert [block.name for block in nl.residual_map(net).blocks] == ["1#1", "1#2", "2#1", "2#2"]


class Block(nn.Module):
    """Two activations, of which a function makes one or several modules."""

    def __init__(self, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.norm, self.act1, self.act2 = nn.LayerNorm(4), activation(), activation()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return x + self.second(self.act2(self.first(self.act1(self.norm(x)))))


@pytest.mark.parametrize("kind", [nn.SiLU, nn.ReLU])
def test_fixup_has_a_bias_for_every_place_of_one_activation(kind: type[nn.Module]) -> None:
    """Each parameter of one element is at 0.3, and no weight at zero, in the comparison."""
    one, nets, sizes = kind(), [], []
    for make in (lambda: one, kind):
        torch.manual_seed(0)
        net = nl.convert(nn.Sequential(nn.Linear(4, 4), Block(make), Block(make)), "fixup", X)
        for parameter in net.parameters():
            if parameter.numel() == 1:
                nn.init.constant_(parameter, 0.3)
            elif not parameter.any():
                parameter.data.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
        sizes.append(sorted(parameter.numel() for parameter in net.parameters()))
        nets.append(net)
    close(nets[0](X), nets[1](X))
    assert sizes[0] == sizes[1]
    nets[0](X).sum().backward()
    assert all(parameter.grad is not None for parameter in nets[0].parameters())


def unit_length(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


class NormAtTop(nn.Module):
    """The same line normalizes what the branch reads and, in its second turn, what the classifier reads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch, self.head = (nn.Linear(4, 4) for _ in range(3))
        self.inner, self.top = (nn.Parameter(torch.rand(4) + 1) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for scale in (self.inner, self.top):
            normed = unit_length(x) * scale
            if scale is self.inner:
                x = x + self.branch(normed).relu()
        return self.head(normed)


def test_a_norm_that_stays_keeps_its_code() -> None:
    """Bjorck et al.'s norm at the top, which the code of the others computes too, is not silently lost."""
    model = NormAtTop()
    assert list(nl.residual_map(model, X).norms) == [":inner", ":top"]
    with pytest.raises(UnsupportedEditError, match="the same code computes :top, which stays"):
        nl.convert(model, "only_top_norm", X)


@pytest.mark.parametrize(
    ("runs", "order", "own"),
    [("abab", "cycle", "ab"), ("aba", "once", "aba"), ("aa", "cycle", "a"), ("aabb", "loop", "ab")],
)
def test_a_cycle_is_complete(runs: str, order: str, own: str) -> None:
    assert in_turns([*runs]) == (order, [*own])
