"""Conversions of a part of a network: `only=` names modules or blocks, and the rest stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from streams_of_networks import WIDTH, Block, Trunk
from torch import Tensor, nn

import normless as nl
from normless.errors import UnsupportedEditError


class TwoTowers(nn.Module):
    """Two trunks of one kind and a head with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.norm, self.head = (
            Trunk(3),
            Trunk(3),
            nn.LayerNorm(2 * WIDTH),
            nn.Linear(2 * WIDTH, 3),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(self.norm(torch.cat([self.left(x), self.right(y)], 1)))


class Siamese(nn.Module):
    """One trunk for both inputs, and blocks after it."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = Trunk(3), nn.Linear(2 * WIDTH, 3)
        self.mix = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(2 * WIDTH), nn.Linear(2 * WIDTH, 8), nn.ReLU()) for _ in range(2)
        )
        self.out = nn.ModuleList(nn.Linear(8, 2 * WIDTH) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.cat([self.trunk(x), self.trunk(y)], 1)
        for mix, out in zip(self.mix, self.out, strict=True):
            h = h + out(mix(h))
        return self.head(h)


def networks() -> tuple[TwoTowers, Siamese, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return TwoTowers(), Siamese(), (torch.randn(4, 3, 6, 6), torch.randn(4, 3, 6, 6))


def norms(net: nn.Module) -> set[str]:
    kinds = (nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)
    return {path for path, one in net.named_modules() if isinstance(one, kinds)}


@pytest.mark.parametrize(
    ("scheme", "mode"), [("none", True), ("fixup", False), ("layer_scale", True), ("nf_resnet", False)]
)
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
            return x + self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))

    relu = nn.ReLU()
    model, x = nn.Sequential(nn.Conv2d(3, WIDTH, 1), Shared(relu), Shared(relu)), torch.randn(2, 3, 4, 4)
    net: Any = nl.convert(model, "fixup", x, only="1")
    assert type(net[2].relu) is nn.ReLU
    assert net[1].conv1.output_bias is not None
    h = torch.randn(2, WIDTH, 4, 4)
    torch.testing.assert_close(net[2](h), model[2](h))
    model[2].conv1 = model[1].conv1
    with pytest.raises(UnsupportedEditError, match=r"1\.conv1.*several places"):
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


def test_a_part_is_given_as_a_module() -> None:
    model, _, inputs = networks()
    by_name = nl.convert(model, "skipinit", *inputs, only="left")
    by_module = nl.convert(model, "skipinit", *inputs, only=model.left)
    assert by_module.state_dict().keys() == by_name.state_dict().keys() != model.state_dict().keys()
    assert nl.plan(model, "skipinit", *inputs, only=[model.left]) == nl.plan(model, "skipinit", *inputs, only="left")
    with pytest.raises(ValueError, match="Linear"):
        nl.convert(model, "skipinit", *inputs, only=nn.Linear(1, 1))
