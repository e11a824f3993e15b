"""Edits of branches, sums and heads: multipliers, scales, zeros, dropout."""

from __future__ import annotations

import pytest
import torch
from edit_helpers import added, altered, edited, images, randomized, removed, retyped
from torch import Tensor, nn

import normless as nl
from normless.edits import (
    BranchMultiplier,
    ChannelBiases,
    HeadDropout,
    LayerScale,
    OnlyFinalNorm,
    RemoveBranches,
    RemoveNorms,
    RescaleBranches,
    ScaleSums,
    ZeroBranchEnds,
    ZeroClassifier,
    ZeroLastGamma,
)
from normless.models import dense, resnet_cifar, wide_resnet


@pytest.mark.parametrize(
    ("init", "value"), [(0.0, 0.0), (1, 1.0), (0.3, 0.3), ("1/sqrt(L)", 6**-0.5), ("1 / sqrt(L)", 6**-0.5)]
)
def test_one_multiplier_at_the_end_of_every_branch(init: float | str, value: float) -> None:
    model = wide_resnet(16, 1)
    net = edited(model, BranchMultiplier(init))
    assert added(model, net) == {f"blocks.{index}.conv2.multiplier" for index in range(6)}
    assert not removed(model, net) | altered(model, net)
    assert retyped(model, net) == {f"blocks.{index}.conv2": "ScalarConv2d" for index in range(6)}
    for block in net.blocks:
        assert block.conv2.multiplier.shape == (1,)
        assert block.conv2.multiplier.item() == pytest.approx(value)


def test_a_branch_that_ends_in_a_norm_is_multiplied_in_the_sum() -> None:
    model = resnet_cifar(8)
    net = edited(model, BranchMultiplier(0.5))
    assert added(model, net) == {f"blocks.{index}.sum.multiplier" for index in range(3)}
    x = torch.randn(4, 16, 8, 8)
    block, old = net.blocks[0], model.blocks[0]
    branch = old.norm2(old.conv2(old.relu1(old.norm1(old.conv1(x)))))
    torch.testing.assert_close(block(x), torch.relu(x + 0.5 * branch))


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
        with pytest.raises(
            nl.UnsupportedEditError, match=r"its branch returns 0 .*\. A branch that starts at 0 needs no other"
        ):
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


@pytest.mark.parametrize("layers", [2, 3, 4])
@pytest.mark.parametrize("depth", [1, 5, 16])
@pytest.mark.parametrize("gain", [1.0, 0.1, 10.0])
def test_branch_weights_are_scaled_by_the_formula(layers: int, depth: int, gain: float) -> None:
    model = dense(depth, 6, in_features=4, branch_layers=layers)
    net = edited(model, RescaleBranches(gain))
    expected = {f"blocks.{b}.branch.linear{i + 1}.weight" for b in range(depth) for i in range(layers)}
    factor = gain * depth ** (-1 / (2 * layers - 2))
    assert altered(model, net) == (expected if factor != 1 else set())
    assert not added(model, net) | removed(model, net)
    for name in expected:
        torch.testing.assert_close(net.state_dict()[name], model.state_dict()[name] * factor)


def test_the_papers_exponents() -> None:
    for layers, exponent in ((2, -1 / 2), (3, -1 / 4)):
        model = dense(16, 4, in_features=4, branch_layers=layers)
        net = edited(model, RescaleBranches())
        ratio = net.blocks[3].branch.linear1.weight / model.blocks[3].branch.linear1.weight
        torch.testing.assert_close(ratio, torch.full_like(ratio, 16**exponent))


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


def test_a_multiplier_needs_something_left_on_the_branch() -> None:
    with pytest.raises(nl.UnsupportedEditError, match="no layer is left on its branch"):
        edited(wide_resnet(10, 1), RemoveBranches(), BranchMultiplier())


def test_a_weight_that_two_branches_share_is_scaled_once() -> None:
    model = dense(4, 6, in_features=4, branch_layers=2)
    model.blocks[1].branch.linear2.weight = model.blocks[0].branch.linear2.weight
    net = edited(model, RescaleBranches())
    assert net.blocks[1].branch.linear2.weight is net.blocks[0].branch.linear2.weight
    expected = model.blocks[0].branch.linear2.weight * 4**-0.5
    torch.testing.assert_close(net.blocks[0].branch.linear2.weight.detach(), expected.detach())


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


def test_zero_branch_ends_zeroes_the_last_weight_layer_of_every_branch() -> None:
    model = randomized(resnet_cifar(8))
    net = edited(model, ZeroBranchEnds())
    expected = {f"blocks.{index}.conv2.weight" for index in range(3)}
    assert altered(model, net) == expected
    assert not added(model, net) | removed(model, net)
    assert retyped(model, net) == {}
    assert not any(net.state_dict()[name].any() for name in expected)


def test_zero_branch_ends_zeroes_their_biases_too() -> None:
    model = edited(wide_resnet(10, 1), ChannelBiases())
    nn.init.ones_(model.blocks[1].conv2.bias)
    del model.normless_scheme
    net = edited(model, ZeroBranchEnds())
    assert not net.blocks[1].conv2.bias.any()
    assert model.blocks[1].conv2.bias.all()


def test_zero_classifier_zeroes_weight_and_bias() -> None:
    model = randomized(dense(2, 8, in_features=4))
    net = edited(model, ZeroClassifier())
    assert altered(model, net) == {"classifier.weight", "classifier.bias"}
    assert not added(model, net) | removed(model, net)
    assert not net(torch.randn(5, 4)).any()


def test_zero_last_gamma_zeroes_the_gammas_at_the_branch_ends() -> None:
    model = randomized(resnet_cifar(14))
    net = edited(model, ZeroLastGamma())
    assert altered(model, net) == {f"blocks.{index}.norm2.weight" for index in range(6)}
    assert not added(model, net) | removed(model, net)
    assert retyped(model, net) == {}
    assert not any(block.norm2.weight.any() for block in net.blocks)
    assert all(block.norm2.weight.requires_grad for block in net.blocks)


def test_zero_last_gamma_blocks_are_their_skip_paths_and_learn() -> None:
    net = edited(resnet_cifar(8), ZeroLastGamma())
    x = torch.relu(torch.randn(4, 16, 8, 8))
    assert torch.equal(net.blocks[0](x), x)
    net(images()).square().sum().backward()
    assert all(block.norm2.weight.grad.any() for block in net.blocks)


def test_zero_last_gamma_refuses_pre_activation_and_names_block_norm_and_reason() -> None:
    with pytest.raises(nl.UnsupportedEditError) as caught:
        edited(wide_resnet(10, 1), ZeroLastGamma())
    message = str(caught.value)
    assert message.startswith("test is not possible: ZeroLastGamma() is not possible at blocks.0: ")
    assert "blocks.0.norm2, is followed by blocks.0.conv2" in message


def test_zero_last_gamma_refuses_a_branch_without_norm() -> None:
    with pytest.raises(nl.UnsupportedEditError, match=r"at blocks\.0: its branch has no norm\."):
        edited(resnet_cifar(8), RemoveNorms(), ZeroLastGamma())


def test_zero_last_gamma_refuses_a_norm_without_gamma() -> None:
    model = resnet_cifar(8)
    model.blocks[1].norm2 = nn.BatchNorm2d(32, affine=False)
    with pytest.raises(nl.UnsupportedEditError, match=r"at blocks\.1\.norm2: the norm has no γ"):
        edited(model, ZeroLastGamma())


def test_only_the_classifier_changes_and_no_parameter() -> None:
    model = wide_resnet(10, 1)
    net = edited(model, HeadDropout(0.3))
    assert not added(model, net) | removed(model, net) | altered(model, net)
    assert retyped(model, net) == {"classifier": "ScalarLinear"}
    assert isinstance(net.classifier.before, nn.Dropout)
    assert net.classifier.before.p == 0.3
    assert HeadDropout().probability == 0.6


def test_features_are_dropped_in_training_and_not_in_evaluation() -> None:
    model = resnet_cifar(8)
    net = edited(model, HeadDropout(0.6))
    features = torch.ones(2000, 64)
    nn.init.constant_(net.classifier.weight, 1 / 64)
    nn.init.zeros_(net.classifier.bias)
    y = net.classifier(features)[:, 0]
    # Kept features are divided by 0.4: the mean stays 1, the variance is p / (1 - p) / 64.
    assert y.mean().item() == pytest.approx(1, abs=5 * (1.5 / 64 / 2000) ** 0.5)
    assert y.var().item() == pytest.approx(1.5 / 64, rel=0.2)
    net.eval()
    torch.testing.assert_close(net.classifier(features), torch.ones(2000, 10))


def test_behind_a_norm_on_the_features() -> None:
    net = edited(wide_resnet(10, 1), OnlyFinalNorm(), HeadDropout(0.5))
    assert [type(module) for module in net.classifier.before] == [nn.BatchNorm1d, nn.Dropout]
    assert net.classifier.before[1].training


def test_a_network_without_classifier_is_refused() -> None:
    class Headless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.first(x)

    with pytest.raises(nl.UnsupportedEditError, match="in this Headless: no classifier was found after its blocks"):
        edited(Headless(), HeadDropout(), inputs=(torch.randn(2, 4),))
