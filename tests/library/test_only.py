"""Conversions of a part of a network by `only=`, and of parts that several places share: the rest stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gallery.odd import CalledTwice, NamedTwice
from streams_of_networks import WIDTH, Block, Trunk
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.errors import UnsupportedEditError

INPUTS = (torch.randn(4, 3, 6, 6), torch.randn(4, 3, 6, 6))


class TwoTowers(nn.Module):
    """Two trunks of one kind and a head with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Trunk(3), Trunk(3)
        self.norm, self.head = nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, 3)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.head(self.norm(torch.cat([self.left(x), self.right(y)], 1)))


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.towers, self.head = nn.ModuleList([Trunk()] * 3), nn.Linear(3 * WIDTH, 3)

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.head(torch.cat([tower(one) for tower, one in zip(self.towers, (x, y, x + y), strict=True)], 1))


def norms(net: nn.Module) -> set[str]:
    kinds = (nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)
    return {path for path, one in net.named_modules() if isinstance(one, kinds)}


def multipliers(net: nn.Module) -> list[float]:
    return [one.item() for path, one in net.named_parameters() if path.endswith("multiplier")]


@pytest.mark.parametrize(
    ("scheme", "mode"), [("none", True), ("fixup", False), ("layer_scale", True), ("nf_resnet", False)]
)
def test_the_rest_stays_as_it_is(scheme: str, mode: bool) -> None:
    model = TwoTowers().train(mode)
    found = nl.residual_map(model, *INPUTS)
    net = nl.convert(model, scheme, *INPUTS, only="left", residual_map=found)
    states = (model.state_dict(), net.state_dict())
    of_rest = [{name: one for name, one in state.items() if not name.startswith("left.")} for state in states]
    assert of_rest[0].keys() == of_rest[1].keys()
    assert all(torch.equal(one, of_rest[1][name]) for name, one in of_rest[0].items())
    assert scheme == "layer_scale" or norms(net) == {path for path in norms(model) if not path.startswith("left.")}
    plan = nl.plan(model, scheme, *INPUTS, only="left", residual_map=found)
    changed = {change.path for change in plan if change.path}
    assert changed
    assert all(path.startswith(("left.", "left:")) for path in changed)
    torch.testing.assert_close(net.get_submodule("right")(INPUTS[1]), model.right(INPUTS[1]))
    assert (nl.residual_map(net).depth, found.depth) == (6, 6)


def test_l_counts_the_blocks_that_are_converted_and_a_part_may_be_a_module_or_one_layer() -> None:
    model = TwoTowers()
    found = nl.residual_map(model, *INPUTS)
    for only, expected in ((("left",), 3), (("left.blocks.0", "right.blocks"), 4), (("",), 6), (model.left, 3)):
        net = nl.convert(model, "skipinit(alpha=1/sqrt(L))", *INPUTS, only=only, residual_map=found)
        assert multipliers(net) == pytest.approx([expected**-0.5] * expected)
    plans = [nl.plan(model, "skipinit", *INPUTS, only=only, residual_map=found) for only in ([model.left], "left")]
    assert plans[0] == plans[1]
    parts = ["left.blocks.1.norm1", "right.norm"]
    net = nl.convert(model, "group_norm(groups=2)", *INPUTS, only=parts, residual_map=found)
    assert {path for path, one in net.named_modules() if isinstance(one, nn.GroupNorm)} == {*parts}


class Shared(Block):
    def __init__(self, relu: nn.Module) -> None:
        super().__init__()
        self.relu = relu

    def forward(self, x: Tensor) -> Any:
        return x + self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))


def test_what_also_runs_outside_is_not_changed_there() -> None:
    """One ReLU module for all blocks gets its bias in the converted part alone; a shared weight is refused."""
    relu = nn.ReLU()
    model: Any = nn.Sequential(nn.Conv2d(3, WIDTH, 1), Shared(relu), Shared(relu))
    x, h = torch.randn(2, 3, 4, 4), torch.randn(2, WIDTH, 4, 4)
    net: Any = nl.convert(model, "fixup", x, only="1")
    assert type(net[2].relu) is nn.ReLU
    assert net[1].conv1.output_bias is not None
    torch.testing.assert_close(net[2](h), model[2](h))
    model[2].conv1 = model[1].conv1
    with pytest.raises(UnsupportedEditError, match=r"1\.conv1.*several places"):
        nl.convert(model, "fixup", x, only="1")


@pytest.mark.parametrize(
    ("kind", "scheme", "count"),
    [(CalledTwice, "skipinit", 2), (NamedTwice, "zeroinit_v1", 2), (Listed, "skipinit", 2), (Listed, "sqrt2", 0)],
)
def test_a_shared_trunk_is_converted_once_however_it_is_called(
    kind: type[nn.Module], scheme: str, count: int
) -> None:
    net = nl.convert(kind().eval(), scheme, *INPUTS)
    assert not norms(net)
    assert len(multipliers(net)) == count
    trunk: Any = next(module for module in net.modules() if isinstance(module, Trunk))
    assert all(module is trunk for module in net.modules() if isinstance(module, Trunk))
    if scheme == "skipinit":
        torch.testing.assert_close(trunk(INPUTS[0]), F.relu(trunk.stem(INPUTS[0])).mean((2, 3)))
