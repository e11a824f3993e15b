"""Channel biases, Fixup's scalar biases and the bias after a sum: where each one is, and that they start at zero."""

from __future__ import annotations

import pytest
import torch
from edit_helpers import added, altered, edited, images, randomized, removed

import normless as nl
from normless.edits import BiasAfterSum, ChannelBiases, NormOnSkip, RemoveNorms, ScalarBiases, ScaleSums
from normless.models import dense, resnet_cifar, wide_resnet


def without_norms(model):
    net = edited(randomized(model), RemoveNorms())
    del net.normless_scheme
    return net


@pytest.mark.parametrize("build", [lambda: wide_resnet(10, 1), lambda: resnet_cifar(8)])
def test_channel_biases_on_every_convolution(build) -> None:
    model = build()
    torch.nn.init.normal_(model.classifier.bias)
    net = edited(model, ChannelBiases())
    convolutions = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Conv2d)}
    assert added(model, net) == {f"{name}.bias" for name in convolutions}
    assert not removed(model, net)
    assert altered(model, net) == {"classifier.bias"}
    for name in (*convolutions, "classifier"):
        layer = net.get_submodule(name)
        assert layer.bias.shape == (layer.weight.shape[0],)
        assert not layer.bias.any()
        assert layer.bias.requires_grad
    x = images()
    torch.testing.assert_close(net.eval()(x), model.eval()(x) - model.classifier.bias)


def test_channel_biases_on_a_classifier_without() -> None:
    model = wide_resnet(10, 1)
    model.classifier = torch.nn.Linear(64, 10, bias=False)
    net = edited(model, ChannelBiases())
    assert net.classifier.bias.shape == (10,)
    assert not net.classifier.bias.any()


def test_channel_biases_of_convolutions_become_zero_and_those_of_other_linear_layers_stay() -> None:
    """A gate's linear layer may have a bias of one on purpose: only convolutions and the classifier are named."""

    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Conv2d(3, 4, 1)
            self.conv, self.gate = torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.Linear(4, 4)
            self.head = torch.nn.Linear(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            h = self.conv(x)
            x = x + h * self.gate(h.mean((2, 3))).sigmoid()[:, :, None, None]
            return self.head(x.mean((2, 3)))

    model = Gated()
    net = nl.convert(model, nl.Scheme("mine", (ChannelBiases(),)), torch.randn(2, 3, 8, 8))
    assert altered(model, net) == {"stem.bias", "conv.bias", "head.bias"}
    assert not any(net.get_submodule(name).bias.any() for name in ("stem", "conv", "head"))


def test_scalar_biases_of_a_dense_linear_network_are_before_its_layers() -> None:
    model = without_norms(dense(2, 6, in_features=4, relu=False, branch_layers=2))
    net = edited(model, ScalarBiases())
    layers = {f"blocks.{index}.branch.linear{place}" for index in range(2) for place in (1, 2)}
    assert added(model, net) == {f"{layer}.input_bias" for layer in layers} | {"classifier.input_bias"}


def test_the_skip_convolution_shares_the_bias_and_the_identity_has_none() -> None:
    net = edited(without_norms(wide_resnet(10, 1)), ScalarBiases()).double()
    x = torch.randn(2, 16, 8, 8, dtype=torch.float64)
    block = net.blocks[1]
    torch.nn.init.constant_(block.relu1.output_bias, 0.7)
    torch.nn.init.zeros_(block.conv2.weight)
    torch.testing.assert_close(block(x), block.shortcut(torch.relu(x) + 0.7))
    identity = net.blocks[0]
    torch.nn.init.constant_(identity.relu1.output_bias, 0.7)
    torch.nn.init.zeros_(identity.conv2.weight)
    assert torch.equal(identity(x), x)


def test_scalar_biases_also_next_to_norms() -> None:
    """A bias before an activation behind a norm cannot ride in a convolution: it is added."""
    model = randomized(resnet_cifar(8)).eval()
    net = edited(model, ScalarBiases())
    x = torch.randn(2, 16, 8, 8)
    block, old = net.blocks[0], model.blocks[0]
    values = {"conv1.input_bias": 0.1, "relu1.input_bias": 0.2, "relu1.output_bias": 0.3, "relu2.input_bias": 0.4}
    for name, value in values.items():
        torch.nn.init.constant_(block.get_parameter(name), value)
    h = torch.relu(old.norm1(old.conv1(x + 0.1)) + 0.2) + 0.3
    torch.testing.assert_close(block(x), torch.relu(x + old.norm2(old.conv2(h)) + 0.4))


def test_the_bias_after_a_sum_is_before_the_relu_behind_it() -> None:
    model = without_norms(resnet_cifar(8))
    net = edited(model, BiasAfterSum())
    assert added(model, net) == {f"blocks.{index}.relu2.input_bias" for index in range(3)}
    assert not removed(model, net) | altered(model, net)
    x = torch.randn(2, 16, 8, 8)
    block, old = net.blocks[0], model.blocks[0]
    torch.nn.init.constant_(block.relu2.input_bias, 0.3)
    torch.testing.assert_close(block(x), torch.relu(x + old.conv2(torch.relu(old.conv1(x))) + 0.3))


def test_the_bias_after_a_sum_that_is_scaled_is_not_scaled() -> None:
    model = without_norms(resnet_cifar(8))
    net = edited(model, ScaleSums(0.5), BiasAfterSum())
    x = torch.randn(2, 16, 8, 8)
    block, old = net.blocks[0], model.blocks[0]
    torch.nn.init.constant_(block.relu2.input_bias, 0.3)
    torch.testing.assert_close(block(x), torch.relu((x + old.conv2(torch.relu(old.conv1(x)))) * 0.5 + 0.3))


def test_the_bias_after_a_sum_with_a_norm_is_behind_that_norm() -> None:
    net = edited(without_norms(resnet_cifar(8)), NormOnSkip(), BiasAfterSum())
    assert all(block.relu2.input_bias.shape == (1,) for block in net.blocks)


def test_biases_of_a_trained_network_stay_and_plan_says_so() -> None:
    model = wide_resnet(10, 1)
    with torch.no_grad():
        model.norm.bias.fill_(0.1)
        model.classifier.bias.fill_(0.5)
    edits = (RemoveNorms(), ChannelBiases())
    net = edited(model, *edits)
    assert net.classifier.bias.eq(0.5).all()
    assert net.stem.bias.eq(0).all()
    planned = nl.plan(model, nl.Scheme("test", edits))
    assert [change.what for change in planned if change.path == "classifier"] == [
        "its bias of 10 channels stays: the network is trained"
    ]
