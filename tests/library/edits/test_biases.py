"""Channel biases, Fixup's scalar biases and the bias after a sum: where each one is, and that they start at zero."""

from __future__ import annotations

import torch
from edit_helpers import altered, edited, randomized

import normless as nl
from normless.edits import BiasAfterSum, ChannelBiases, RemoveNorms, ScalarBiases, ScaleSums
from normless.models import resnet_cifar, wide_resnet


def without_norms(model):
    net = edited(randomized(model), RemoveNorms())
    del net.normless_scheme
    return net


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


def test_the_bias_after_a_sum_that_is_scaled_is_not_scaled() -> None:
    model = without_norms(resnet_cifar(8))
    net = edited(model, ScaleSums(0.5), BiasAfterSum())
    x = torch.randn(2, 16, 8, 8)
    block, old = net.blocks[0], model.blocks[0]
    torch.nn.init.constant_(block.relu2.input_bias, 0.3)
    torch.testing.assert_close(block(x), torch.relu((x + old.conv2(torch.relu(old.conv1(x)))) * 0.5 + 0.3))


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
