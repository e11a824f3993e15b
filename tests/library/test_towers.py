"""Towers that share one trunk, called again or under a second name, and parts of forward code without modules."""

from __future__ import annotations

import pytest
import torch
from streams_of_networks import WIDTH, RectifiedBlock, Trunk
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.errors import UnsupportedEditError


class Called(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = Trunk(), nn.Linear(2 * WIDTH, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(torch.cat([self.trunk(x), self.trunk(y)], 1))


class Named(Called):
    """The same trunk under a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.other = self.trunk

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(torch.cat([self.trunk(x), self.other(y)], 1))


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.towers, self.head = nn.ModuleList([Trunk()] * 3), nn.Linear(3 * WIDTH, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(torch.cat([tower(one) for tower, one in zip(self.towers, (x, y, x + y), strict=True)], 1))


class Uneven(nn.Module):
    """One block at two places, a ReLU after it at one of them alone."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, WIDTH, 3), nn.BatchNorm2d(WIDTH), nn.Linear(2 * WIDTH, 3)
        self.block, self.own = RectifiedBlock(), RectifiedBlock()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        one = F.relu(self.block(F.relu(self.stem(x))))
        other = self.block(self.norm(self.stem(y)))
        one = self.own(one)
        return self.head(torch.cat([one.mean((2, 3)), other.mean((2, 3))], 1))


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, 6, 6), torch.randn(4, 3, 6, 6)


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [(Called, "skipinit"), (Named, "skipinit"), (Listed, "skipinit"), (Named, "zeroinit_v1"), (Listed, "sqrt2")],
)
def test_a_shared_trunk_is_converted_once_however_it_is_called(kind: type[nn.Module], scheme: str) -> None:
    torch.manual_seed(0)
    model, (x, y) = kind().eval(), inputs()
    net = nl.convert(model, scheme, x, y)
    assert not any(isinstance(one, nn.BatchNorm2d) for one in net.modules())
    multipliers = [path for path, _ in net.named_parameters() if path.endswith("multiplier")]
    assert len(multipliers) == (0 if scheme == "sqrt2" else 2)
    trunk = next(module for module in net.modules() if isinstance(module, Trunk))
    assert all(module is trunk for module in net.modules() if isinstance(module, Trunk))
    if scheme == "skipinit":
        stem = F.relu(trunk.stem(x))
        torch.testing.assert_close(trunk(x), stem.mean((2, 3)))


@pytest.mark.parametrize("kind", [Called, Named, Listed])
def test_its_runs_are_the_same_layers(kind: type[nn.Module]) -> None:
    mapped = nl.residual_map(kind(), *inputs())
    runs = 3 if kind is Listed else 2
    names = {block.name.partition("#")[0] for block in mapped.blocks}
    assert (len(mapped.blocks), len(names)) == (2 * runs, 2)
    assert {len(block.after_sum) for block in mapped.blocks} == {1}
    first, *others = ([layer.path for layer in block.layers] for block in mapped.blocks[::2])
    assert all(one == first for one in others)


def test_what_cannot_be_separated_is_refused_as_shared_and_only_converts_the_rest() -> None:
    torch.manual_seed(0)
    model, (x, y) = Uneven().eval(), inputs()
    with pytest.raises(UnsupportedEditError, match=r"several places.*only="):
        nl.convert(model, "fixup", x, y)
    net = nl.convert(model, "skipinit", x, y, only="own")
    left = {path for path, one in net.named_modules() if isinstance(one, nn.BatchNorm2d)}
    assert left == {"norm", "block.norm1", "block.norm2"}
