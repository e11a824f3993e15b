"""Residual sums x + c·(f(x) − x): torch.lerp and what says the same, as in nGPT."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.errors import UnsupportedEditError

Forward = Callable[["Layer", Tensor], Tensor]


class Layer(nn.Module):
    """A branch of two linear layers, whose output and sum are unit vectors, and a learned step."""

    def __init__(self, forward: Forward | None = None) -> None:
        super().__init__()
        self.written = forward
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.step = nn.Parameter(torch.full((8,), 0.3))

    def target(self, x: Tensor) -> Tensor:
        return F.normalize(self.down(F.silu(self.up(x))), dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        assert self.written is not None
        return F.normalize(self.written(self, x), dim=-1)


def of_unit_skip(layer: Layer, x: Tensor) -> Tensor:
    """As the authors of nGPT write it."""
    a = F.normalize(x, dim=-1)
    return a + layer.step * (layer.target(x) - a)


WRITTEN: dict[str, Forward] = {
    "function": lambda layer, x: torch.lerp(x, layer.target(x), layer.step),
    "method": lambda layer, x: x.lerp(layer.target(x), layer.step),
    "keyword": lambda layer, x: torch.lerp(x, layer.target(x), weight=layer.step),
    "number": lambda layer, x: x.lerp(layer.target(x), 0.3),
    "scaled step": lambda layer, x: x.lerp(layer.target(x), layer.step * 2.0),
    "from the branch": lambda layer, x: layer.target(x).lerp(x, 1 - layer.step),
    "written out": lambda layer, x: x + layer.step * (layer.target(x) - x),
    "subtracted": lambda layer, x: x - layer.step * (x - layer.target(x)),
    "two products": lambda layer, x: (1 - layer.step) * x + layer.step * layer.target(x),
    "of a unit skip path": of_unit_skip,
}


class Named(nn.Module):
    """A network whose forward code is in a file, as that of every user is."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.layers = nn.ModuleList(KINDS[name]() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class ByFunction(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(torch.lerp(x, self.target(x), self.step), dim=-1)


class ByMethod(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.lerp(self.target(x), self.step), dim=-1)


class FromTheBranch(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.target(x).lerp(x, 1 - self.step), dim=-1)


class WrittenOut(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x + self.step * (self.target(x) - x), dim=-1)


KINDS: dict[str, type[Layer]] = {
    "function": ByFunction,
    "method": ByMethod,
    "from the branch": FromTheBranch,
    "written out": WrittenOut,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_a_block_with_branch_and_skip_path(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Layer(WRITTEN[name]), Layer(WRITTEN[name]), nn.Linear(8, 3))
    found = nl.residual_map(model, torch.randn(4, 8))
    assert [block.branch for block in found.blocks] == [("1.up", "1.down"), ("2.up", "2.down")]
    assert all(block.interpolates and not block.skip and block.m == 2 for block in found.blocks)
    assert (found.stem, found.classifier) == (("0",), "3")
    assert found.unresolved == ()


@pytest.mark.parametrize("name", KINDS)
def test_at_a_multiplier_of_zero_it_is_the_skip_path_and_at_one_the_network(name: str) -> None:
    torch.manual_seed(0)
    model, x = Named(name), torch.randn(4, 8)
    closed = nl.convert(model, "skipinit(keep_scale=False)", x)
    expected = model.head(F.normalize(model.stem(x), dim=-1))
    torch.testing.assert_close(closed(x), expected, rtol=1e-5, atol=1e-6)
    opened = nl.convert(model, "skipinit(alpha=1, keep_scale=False)", x)
    for one in (opened, deepcopy(opened), pickle.loads(pickle.dumps(opened))):
        torch.testing.assert_close(one(x), model(x), rtol=1e-5, atol=1e-6)
    assert [block.branch for block in nl.residual_map(opened, x).blocks] == [
        (f"layers.{index}.up", f"layers.{index}.down") for index in range(2)
    ]
    torch.nn.functional.cross_entropy(closed(x), torch.tensor([0, 1, 2, 0])).backward()
    gradients = [one.grad for path, one in closed.named_parameters() if path.endswith("multiplier")]
    assert len(gradients) == 2
    assert all(one is not None and one.any() for one in gradients)


@pytest.mark.parametrize("name", ["function", "written out"])
def test_fixup_is_refused_since_a_last_layer_of_zeros_leaves_less_than_x(name: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), Layer(WRITTEN[name]), Layer(WRITTEN[name]), nn.Linear(8, 3))
    with pytest.raises(UnsupportedEditError, match=r"fixup.*ZeroBranchEnds.*at 1: .*\(1 − c\)"):
        nl.convert(model, "fixup", torch.randn(4, 8))


def test_a_step_that_is_read_twice_is_no_gain_of_a_norm() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Layer(WRITTEN["two products"]), nn.Linear(8, 3))
    x = torch.randn(4, 8)
    assert nl.residual_map(model, x).norms == {}
    assert nl.convert(model, "none", x).get_parameter("1.step").shape == (8,)
