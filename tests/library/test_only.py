"""Conversions of a part of a network, and of towers that share modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.errors import UnsupportedEditError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = (nn.BatchNorm2d(4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3))
        return y


class TwoTowers(nn.Module):
    """Two trunks of one kind and a head with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.norm, self.head = Trunk(), Trunk(), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z: Tensor = self.head(self.norm(torch.cat([self.left(x), self.right(y)], 1)))
        return z


class Siamese(nn.Module):
    """One trunk for both inputs, and blocks after it."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = Trunk(), nn.Linear(8, 3)
        self.mix = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU()) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.cat([self.trunk(x), self.trunk(y)], 1)
        for mix, out in zip(self.mix, self.out, strict=True):
            h = h + out(mix(h))
        z: Tensor = self.head(h)
        return z


def networks() -> tuple[TwoTowers, Siamese, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return TwoTowers(), Siamese(), (torch.randn(4, 3, 6, 6), torch.randn(4, 3, 6, 6))


def norms(net: nn.Module) -> set[str]:
    kinds = (nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)
    return {path for path, one in net.named_modules() if isinstance(one, kinds)}


@pytest.mark.parametrize("scheme", ["none", "skipinit", "fixup", "rezero", "sqrt2", "layer_scale", "nf_resnet"])
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_the_rest_stays_as_it_is(scheme: str, mode: bool) -> None:
    model, _, inputs = networks()
    model.train(mode)
    net = nl.convert(model, scheme, *inputs, only="left")
    states = (model.state_dict(), net.state_dict())
    of_rest = [{name: one for name, one in state.items() if not name.startswith("left.")} for state in states]
    assert of_rest[0].keys() == of_rest[1].keys()
    assert all(torch.equal(one, of_rest[1][name]) for name, one in of_rest[0].items())
    if scheme != "layer_scale":
        assert norms(net) == {path for path in norms(model) if not path.startswith("left.")}
    changed = {change.path for change in nl.plan(model, scheme, *inputs, only="left") if change.path}
    assert changed
    assert all(path.startswith(("left.", "left:")) for path in changed)
    torch.testing.assert_close(net.right(inputs[1]), model.right(inputs[1]))
    assert (nl.residual_map(net).depth, nl.residual_map(model, *inputs).depth) == (6, 6)


def test_l_counts_the_blocks_that_are_converted() -> None:
    model, _, inputs = networks()
    for only, expected in ((("left",), 3), (("left.blocks.0", "right.blocks"), 4), (("",), 6)):
        net = nl.convert(model, "skipinit(alpha=1/sqrt(L))", *inputs, only=only)
        values = [one.item() for path, one in net.named_parameters() if path.endswith("multiplier")]
        assert values == pytest.approx([expected**-0.5] * expected)


def test_layers_of_a_block_that_is_not_converted_as_a_whole() -> None:
    model, _, inputs = networks()
    net = nl.convert(model, "group_norm(groups=2)", *inputs, only=["left.blocks.1.norm1", "right.norm"])
    groups = {path for path, one in net.named_modules() if isinstance(one, nn.GroupNorm)}
    assert groups == {"left.blocks.1.norm1", "right.norm"}
    with pytest.raises(UnsupportedEditError, match="no residual block"):
        nl.convert(model, "skipinit", *inputs, only="left.blocks.1.norm1")


def test_what_also_runs_outside_is_not_changed_there() -> None:
    """One ReLU module for all blocks gets its bias in the converted part alone; a shared weight is refused."""

    class Shared(Block):
        def __init__(self, relu: nn.Module) -> None:
            super().__init__()
            self.relu = relu

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = x + self.norm2(self.second(self.relu(self.norm1(self.first(x)))))
            return y

    relu = nn.ReLU()
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), Shared(relu), Shared(relu)), torch.randn(2, 3, 4, 4)
    net: Any = nl.convert(model, "fixup", x, only="1")
    assert type(net[2].relu) is nn.ReLU
    assert net[1].first.output_bias is not None
    h = torch.randn(2, 4, 4, 4)
    torch.testing.assert_close(net[2](h), model[2](h))
    model[2].first = model[1].first
    with pytest.raises(UnsupportedEditError, match=r"1\.first.*several places"):
        nl.convert(model, "fixup", x, only="1")


def test_a_siamese_network_is_converted_without_its_shared_trunk() -> None:
    _, model, inputs = networks()
    net = nl.convert(model, "skipinit", *inputs, only=("mix", "out", "#1", "#2"))
    assert norms(net) == {path for path in norms(model) if path.startswith("trunk.")}


def test_a_name_of_nothing_is_refused_with_what_was_meant() -> None:
    model, _, inputs = networks()
    with pytest.raises(ValueError, match=r"'lefft'.*Did you mean left\?"):
        nl.convert(model, "fixup", *inputs, only="lefft")
    with pytest.raises(ValueError, match="qualified names"):
        nl.scheme("fixup(only=3)")


class TowerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.norm1, self.norm2 = (nn.BatchNorm2d(4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))


class TowerTrunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 4, 3), nn.Sequential(TowerBlock(), TowerBlock())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks(F.relu(self.stem(x))).mean((2, 3))
        return y


class Called(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = TowerTrunk(), nn.Linear(8, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z: Tensor = self.head(torch.cat([self.trunk(x), self.trunk(y)], 1))
        return z


class Named(Called):
    """The same trunk under a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.other = self.trunk

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z: Tensor = self.head(torch.cat([self.trunk(x), self.other(y)], 1))
        return z


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.towers, self.head = nn.ModuleList([TowerTrunk()] * 3), nn.Linear(12, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z: Tensor = self.head(
            torch.cat([tower(one) for tower, one in zip(self.towers, (x, y, x + y), strict=True)], 1)
        )
        return z


class Uneven(nn.Module):
    """One block at two places, a ReLU after it at one of them alone."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(8, 3)
        self.block, self.own = TowerBlock(), TowerBlock()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        one = F.relu(self.block(F.relu(self.stem(x))))
        other = self.block(self.norm(self.stem(y)))
        one = self.own(one)
        z: Tensor = self.head(torch.cat([one.mean((2, 3)), other.mean((2, 3))], 1))
        return z


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3, 6, 6), torch.randn(4, 3, 6, 6)


@pytest.mark.parametrize("kind", [Called, Named, Listed])
@pytest.mark.parametrize("scheme", ["skipinit", "fixup", "sqrt2", "zeroinit_v1"])
def test_a_shared_trunk_is_converted_once_however_it_is_called(kind: type[nn.Module], scheme: str) -> None:
    torch.manual_seed(0)
    model, (x, y) = kind().eval(), inputs()
    net = nl.convert(model, scheme, x, y)
    assert not any(isinstance(one, nn.BatchNorm2d) for one in net.modules())
    multipliers = [path for path, _ in net.named_parameters() if path.endswith("multiplier")]
    assert len(multipliers) == (0 if scheme == "sqrt2" else 2)
    trunk = next(module for module in net.modules() if isinstance(module, TowerTrunk))
    assert all(module is trunk for module in net.modules() if isinstance(module, TowerTrunk))
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
