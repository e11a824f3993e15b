"""What edits set weights, gains and the classifier's input to, and that all else stays."""

from __future__ import annotations

from math import pi, sqrt

import pytest
import torch
from edit_helpers import added, altered, edited, images, randomized, removed, retyped
from torch import Tensor, nn

import normless as nl
from normless.edits import (
    LSUV,
    BranchMultiplier,
    ChannelBiases,
    Edit,
    HeadDropout,
    OnlyFinalNorm,
    Reinitialize,
    RemoveNorms,
    StandardizeWeights,
    ZeroBranchEnds,
    ZeroClassifier,
    ZeroLastGamma,
)
from normless.models import dense, resnet_cifar, wide_resnet
from normless.nn import ResidualSum

VARIANCE = {
    "he": lambda fan_in, fan_out: 2 / fan_out,
    "he_fan_in": lambda fan_in, fan_out: 2 / fan_in,
    "xavier": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
    "lecun": lambda fan_in, fan_out: 1 / fan_in,
}


@pytest.mark.parametrize("kind", VARIANCE)
def test_weights_are_normal_with_the_stated_variance(kind: str) -> None:
    net = edited(resnet_cifar(14), Reinitialize(kind))
    pooled = []
    for path in ["stem", *(f"blocks.{i}.conv{j}" for i in range(6) for j in (1, 2)), "classifier"]:
        weight = net.get_submodule(path).weight.detach()
        area = weight[0, 0].numel()
        variance = VARIANCE[kind](weight.shape[1] * area, weight.shape[0] * area)
        count = weight.numel()
        # A sample variance of n normal numbers deviates by √(2/n) of it.
        assert weight.square().mean().item() == pytest.approx(variance, rel=5 * sqrt(2 / count)), path
        assert abs(weight.mean().item()) <= 5 * sqrt(variance / count), path
        pooled.append(weight.flatten() / sqrt(variance))
    together = torch.cat(pooled)
    assert together.square().mean().item() == pytest.approx(1, rel=5 * sqrt(2 / together.numel()))
    assert together.pow(4).mean().item() == pytest.approx(3, rel=0.05)


def test_orthogonal_rows_or_columns() -> None:
    net = edited(wide_resnet(10, 1), Reinitialize("orthogonal"))
    for path in ["stem", "blocks.1.conv1", "blocks.2.shortcut", "classifier"]:
        weight = net.get_submodule(path).weight.detach().flatten(1)
        gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(gram, torch.eye(len(gram)), rtol=0, atol=1e-5)


def test_only_weights_change_and_layer_biases_become_zero() -> None:
    model = randomized(wide_resnet(10, 1))
    net = edited(model, ChannelBiases(), Reinitialize("he"))
    weights = {"stem", "classifier"} | {f"blocks.{i}.{name}" for i in range(3) for name in ("conv1", "conv2")}
    weights |= {f"blocks.{i}.shortcut" for i in (1, 2)}
    assert altered(model, net) == {f"{path}.weight" for path in weights} | {"classifier.bias"}
    assert added(model, net) == {f"{path}.bias" for path in weights - {"classifier"}}
    assert not removed(model, net)
    assert retyped(model, net) == {}
    assert not any(net.get_submodule(path).bias.any() for path in weights)


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


def test_zero_last_gamma_refuses_a_branch_without_norm() -> None:
    with pytest.raises(nl.UnsupportedEditError, match=r"at blocks\.0: its branch has no norm\."):
        edited(resnet_cifar(8), RemoveNorms(), ZeroLastGamma())


def test_zero_last_gamma_refuses_a_norm_without_gamma() -> None:
    model = resnet_cifar(8)
    model.blocks[1].norm2 = nn.BatchNorm2d(32, affine=False)
    with pytest.raises(nl.UnsupportedEditError, match=r"at blocks\.1\.norm2: the norm has no γ"):
        edited(model, ZeroLastGamma())


TOKENS = torch.randint(30, (4, 6), generator=torch.Generator().manual_seed(0))


class Tied(nn.Module):
    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embedding, self.inner, self.classifier = nn.Embedding(30, 8), nn.Linear(8, 8), nn.Linear(8, 30)
        if tied:
            self.classifier.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.classifier(x + torch.relu(self.inner(x)))


@pytest.mark.parametrize("edit", [ZeroClassifier(), Reinitialize("xavier"), LSUV()], ids=repr)
@pytest.mark.parametrize("tied", [True, False])
def test_the_shared_weight_stays(edit: Edit, tied: bool) -> None:
    model = Tied(tied)
    net = edited(model, edit, inputs=(TOKENS,))
    assert (net.classifier.weight is net.embedding.weight) == tied
    changed = altered(model, net)
    assert "embedding.weight" not in changed
    assert ("classifier.weight" in changed) == (not tied)
    assert ("inner.weight" in changed) == (not isinstance(edit, ZeroClassifier))
    assert not net.classifier.bias.any()


def test_lsuv_takes_inputs_by_name_and_refuses_packed_attention() -> None:
    net = nl.convert(Tied(False), "lsuv", tokens=TOKENS)
    x = net.embedding(TOKENS)
    assert net.inner(x).var(correction=0).item() == pytest.approx(1, abs=0.02)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    with pytest.raises(nl.UnsupportedEditError, match=r"self_attn: it is not a layer with one weight and one output"):
        nl.convert(layer, "lsuv", torch.randn(2, 5, 8))


def test_packed_projections_are_drawn_each_by_its_own_shape() -> None:
    layer = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True)
    with torch.no_grad():
        layer.self_attn.in_proj_bias.fill_(1.0)
    net = nl.convert(layer, "xavier", torch.randn(2, 5, 64))
    for part in net.self_attn.in_proj_weight.chunk(3):
        assert part.var().item() == pytest.approx(1 / 64, rel=0.06)
    assert not net.self_attn.in_proj_bias.any()
    assert not net.self_attn.out_proj.bias.any()


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


RELU = sqrt(2 / (1 - 1 / pi))


def test_every_convolution_and_not_the_classifier() -> None:
    model = wide_resnet(10, 1)
    net = edited(model, StandardizeWeights())
    layers = {name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    assert added(model, net) == {f"{name}.gain" for name in layers}
    assert not removed(model, net) | altered(model, net)
    assert retyped(model, net) == dict.fromkeys(layers, "ScaledStdConv2d")


def test_gains_of_the_activations_that_the_layers_read() -> None:
    net = edited(wide_resnet(10, 1), RemoveNorms(), StandardizeWeights())
    assert net.stem.scale == 1
    for block in net.blocks:
        assert [block.conv1.scale, block.conv2.scale] == pytest.approx([RELU, RELU], rel=1e-12)
    # Shared with the branch, the first ReLU feeds the skip path's convolution as well.
    assert [net.blocks[1].shortcut.scale, net.blocks[2].shortcut.scale] == pytest.approx([RELU, RELU], rel=1e-12)


def test_an_activation_on_the_stream_gives_no_gain() -> None:
    net = edited(resnet_cifar(8), RemoveNorms(), StandardizeWeights())
    assert [block.conv1.scale for block in net.blocks] == [1, 1, 1]
    assert [block.conv2.scale for block in net.blocks] == pytest.approx([RELU] * 3, rel=1e-12)


def test_a_multiplier_keeps_its_effect_before_and_behind() -> None:
    model, x = wide_resnet(10, 1), images()
    before = edited(model, RemoveNorms(), BranchMultiplier(0.5), StandardizeWeights())
    behind = edited(model, RemoveNorms(), StandardizeWeights(), BranchMultiplier(0.5))
    assert torch.equal(before(x), behind(x))
    assert not torch.equal(before(x), edited(model, RemoveNorms(), StandardizeWeights())(x))


class Depthwise(nn.Module):
    """x + conv(conv(x)), the first depthwise and of one position."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 1, groups=4)
        self.conv2 = nn.Conv2d(4, 4, 1)
        self.sum = ResidualSum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sum(x, self.conv2(self.conv1(x)))


class Constant(Depthwise):
    """An activation between the convolutions that has no variance."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Threshold(100.0, 1.0))


def test_refusals() -> None:
    x = torch.randn(2, 4, 3, 3)
    with pytest.raises(nl.UnsupportedEditError, match="at conv1: each output reads one value"):
        edited(Depthwise(), StandardizeWeights(), inputs=(x,))
    with pytest.raises(nl.UnsupportedEditError, match=r"at conv1\.1: the activation is constant"):
        edited(Constant(), StandardizeWeights(), inputs=(x,))
