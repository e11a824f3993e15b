"""Multipliers, layer scale and factors of branches and sums, the branches' scale by L and m, and their removal."""

from __future__ import annotations

import pytest
import torch
from edit_helpers import added, altered, edited, images, randomized, removed, retyped
from torch import Tensor, nn

import normless as nl
from normless.edits import BranchMultiplier, LayerScale, RemoveBranches, RemoveNorms, RescaleBranches, ScaleSums
from normless.models import dense, resnet_cifar, wide_resnet


@pytest.mark.parametrize(("init", "value"), [(0.0, 0.0), (0.3, 0.3), ("1 / sqrt(L)", 6**-0.5)])
def test_one_multiplier_at_the_end_of_every_branch(init: float | str, value: float) -> None:
    model = wide_resnet(16, 1)
    net = edited(model, BranchMultiplier(init))
    assert added(model, net) == {f"blocks.{index}.conv2.multiplier" for index in range(6)}
    assert not removed(model, net) | altered(model, net)
    assert retyped(model, net) == {f"blocks.{index}.conv2": "ScalarConv2d" for index in range(6)}
    for block in net.blocks:
        assert block.conv2.multiplier.shape == (1,)
        assert block.conv2.multiplier.item() == pytest.approx(value)


class OwnLinear(nn.Linear):
    """Of another type than torch's own, so that it takes no multiplier and the sum does."""


class Shut(nn.Module):
    """A block whose branch starts at 0 by itself: by its last layer, or by a factor behind an unknown one."""

    def __init__(self, by_factor: bool) -> None:
        super().__init__()
        self.stem, self.last, self.head = (
            nn.Linear(4, 4),
            (OwnLinear if by_factor else nn.Linear)(4, 4),
            nn.Linear(4, 2),
        )
        self.gain = nn.Parameter(torch.zeros(()) if by_factor else torch.ones(()))
        if not by_factor:
            nn.init.zeros_(self.last.weight)
            nn.init.zeros_(self.last.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        return self.head(h + self.gain * self.last(torch.relu(h)))


@pytest.mark.parametrize("by_factor", [False, True])
def test_a_zero_behind_a_zero_would_never_move(by_factor: bool) -> None:
    """A learned factor starts at 1 then, since the multiplier takes its place; a weight layer of zeros stays."""
    model, x = Shut(by_factor), torch.randn(5, 4)
    if by_factor:
        assert edited(model, BranchMultiplier(0.0), inputs=(x,)).gain.item() == 1
    else:
        with pytest.raises(nl.UnsupportedEditError, match="its branch returns 0"):
            edited(model, BranchMultiplier(0.0), inputs=(x,))
    net = edited(model, BranchMultiplier(1.0), inputs=(x,))
    torch.testing.assert_close(net(x), model(x))
    net(x).square().sum().backward()
    assert (net.gain if by_factor else net.last.weight).grad.any()
    # Where the inputs are 0, and so is everything, nothing is known of the branch.
    nn.init.zeros_(model.stem.bias)
    nn.init.zeros_(model.last.bias)
    assert edited(model, BranchMultiplier(0.0), inputs=(torch.zeros(5, 4),)) is not None


def test_layer_scale_is_a_vector_at_the_end_of_every_branch() -> None:
    model = wide_resnet(10, 1)
    net = edited(model, LayerScale(0.01))
    assert added(model, net) == {f"blocks.{index}.conv2.layer_scale" for index in range(3)}
    assert not removed(model, net) | altered(model, net)
    for block, channels in zip(net.blocks, (16, 32, 64), strict=True):
        torch.testing.assert_close(block.conv2.layer_scale, nn.Parameter(torch.full((channels,), 0.01)))
    cifar = edited(resnet_cifar(8), LayerScale())
    assert [tuple(block.sum.multiplier.shape) for block in cifar.blocks] == [(16,), (32,), (64,)]
    assert cifar.blocks[0].sum.multiplier.unique().tolist() == pytest.approx([1e-4])


def test_removed_branches_leave_exactly_the_skip_path_of_a_wide_resnet() -> None:
    model = randomized(wide_resnet(16, 1)).eval()
    net = edited(model, RemoveNorms(), RemoveBranches())
    x = images()
    h = model.stem(x)
    for block in model.blocks:
        if block.projects:
            h = block.shortcut(torch.relu(h))
    expected = model.classifier(torch.relu(h).mean(dim=(2, 3)))
    torch.testing.assert_close(net(x), expected)
    weights = {"stem", "classifier", *(f"blocks.{i}.shortcut" for i in (2, 4))}
    assert set(net.state_dict()) == {f"{path}.weight" for path in weights} | {"classifier.bias"}
    assert not altered(model, net)


class ScaledBlock(nn.Module):
    """x + γ · f(x), γ a parameter of the block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(8), nn.Linear(8, 8)
        self.gamma, self.gain = nn.Parameter(torch.full((8,), 1e-3)), nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * self.gamma.mul(self.layer(self.norm(x)))


def test_without_branches_no_parameter_is_left_that_gets_no_gradient() -> None:
    """Distributed training waits for the gradient of every parameter."""
    model, x = nn.Sequential(nn.Linear(8, 8), ScaledBlock(), ScaledBlock(), nn.Linear(8, 3)), torch.randn(4, 8)
    net = nl.convert(model, "remove_branches", x)
    net(x).sum().backward()
    assert all(one.grad is not None for one in net.parameters())
    assert {name for name, _ in net.named_parameters()} == {"0.weight", "0.bias", "3.weight", "3.bias"}


class Pooled(nn.Module):
    """A branch of a norm and a pooling, without a weight layer, as in a PoolFormer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.pool = nn.GroupNorm(1, 4), nn.AvgPool2d(3, 1, 1)
        self.scale = nn.Parameter(torch.full((4, 1, 1), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.pool(self.norm(x))


def test_a_branch_without_weights_gets_its_multiplier_in_the_sum() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), Pooled(), nn.Flatten(), nn.Linear(144, 2)), torch.randn(2, 3, 8, 8)
    net = nl.convert(model, "skipinit", x)
    torch.testing.assert_close(net[1](torch.ones(1, 4, 2, 2)), torch.ones(1, 4, 2, 2))
    with pytest.raises(nl.UnsupportedEditError, match="1: its branch has no weight layer"):
        nl.convert(model, "layer_scale", x)


@pytest.mark.parametrize(
    ("layers", "depth", "gain", "factor"),
    [(2, 16, 1.0, 1 / 4), (3, 16, 1.0, 1 / 2), (4, 8, 10.0, 10 * 2**-0.5), (2, 1, 1.0, 1.0)],
)
def test_branch_weights_are_scaled_by_depth_and_gain(layers: int, depth: int, gain: float, factor: float) -> None:
    """L^(-1/(2m-2)) times the gain, in numbers."""
    model = dense(depth, 6, in_features=4, branch_layers=layers)
    net = edited(model, RescaleBranches(gain))
    expected = {f"blocks.{b}.branch.linear{i + 1}.weight" for b in range(depth) for i in range(layers)}
    assert altered(model, net) == (expected if factor != 1 else set())
    assert not added(model, net) | removed(model, net)
    for name in expected:
        torch.testing.assert_close(net.state_dict()[name], model.state_dict()[name] * factor)


def test_each_block_is_the_sum_times_the_factor() -> None:
    net = edited(resnet_cifar(8), RemoveNorms(), ScaleSums(0.25))
    x = torch.randn(2, 16, 8, 8)
    block = net.blocks[0]
    branch = block.conv2(torch.relu(block.conv1(x)))
    torch.testing.assert_close(block(x), torch.relu((x + branch) * 0.25))


def test_factors_of_two_edits_multiply() -> None:
    net = edited(wide_resnet(10, 1), ScaleSums(0.5), ScaleSums(0.5))
    assert [block.sum.factor for block in net.blocks] == [0.25] * 3
    assert net(images()).isfinite().all()


class TwoBranches(nn.Module):
    """A sum of two branches; one ends in a product, so that its multiplier becomes a part of an addition."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.f, self.g, self.form = nn.Linear(4, 4), nn.Linear(4, 4), form

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "x + f + g":
            g = self.g(torch.tanh(x))
            return x + torch.sigmoid(self.f(x)) * torch.tanh(x) + g
        both = torch.sigmoid(self.f(x)) * torch.tanh(x) + self.g(torch.tanh(x))
        return x + both if self.form == "x + (f + g)" else both + x


@pytest.mark.parametrize("form", ["x + f + g", "x + (f + g)", "(f + g) + x"])
def test_the_factor_multiplies_the_whole_sum(form: str) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), TwoBranches(form)), torch.randn(3, 4)
    net = nl.convert(model, nl.Scheme("half", (ScaleSums(0.5),)), x)
    torch.testing.assert_close(net(x), 0.5 * model(x))


def test_multipliers_close_both_branches_in_whatever_order_they_run() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), TwoBranches("x + f + g")), torch.randn(3, 4)
    torch.testing.assert_close(nl.convert(model, "skipinit", x)(x), model[0](x))


def test_branches_that_are_added_to_each_other_first_have_no_place_for_a_multiplier() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), TwoBranches("x + (f + g)")), torch.randn(3, 4)
    with pytest.raises(nl.UnsupportedEditError, match="its branches are added to each other before the skip path"):
        nl.convert(model, "skipinit", x)
