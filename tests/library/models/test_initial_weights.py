"""What weights of the reference networks and of `Reinitialize` start from, against closed forms of their moments."""

from __future__ import annotations

from math import prod, sqrt

import pytest
import torch
from torch import nn

import normless as nl
from normless.edits import Reinitialize
from normless.models import resnet_cifar
from normless.models._spec import build_model

SMALL = {
    "wide_resnet": "wide_resnet(depth=16, width=4, classes=100{})",
    "resnet_cifar": "resnet_cifar(depth=20, classes=100{})",
    "resnet": "resnet(depth=50, channels=32, classes=100{})",
    "grouped": "resnet(depth=50, channels=32, groups=8, width_per_group=16, classes=100{})",
    "resnet_v2": "resnet_v2(depth=50, classes=100{})",
}
FAN_IN_BY_DEFAULT = ("wide_resnet", "resnet_v2")
VARIANCE = {
    "he": lambda fan_in, fan_out: 2 / fan_out,
    "he_fan_in": lambda fan_in, fan_out: 2 / fan_in,
    "xavier": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
    "lecun": lambda fan_in, fan_out: 1 / fan_in,
}


def built(name: str, argument: str = "") -> nn.Module:
    torch.manual_seed(0)
    return build_model("normless:" + SMALL[name].format(argument))


def layers(network: nn.Module) -> dict[str, nn.Module]:
    return {name: one for name, one in network.named_modules() if isinstance(one, nn.Conv2d | nn.Linear)}


def classifier_of(network: nn.Module) -> nn.Linear:
    (linear,) = [one for one in network.modules() if isinstance(one, nn.Linear)]
    return linear


def assert_normal(weight: torch.Tensor, variance: float, where: str) -> None:
    """Mean 0 and the second and fourth moments of a normal distribution, within five standard errors."""
    count = weight.numel()
    scaled = weight.detach().double() / sqrt(variance)
    assert abs(scaled.mean().item()) <= 5 / sqrt(count), where
    assert abs(scaled.square().mean().item() - 1) <= 5 * sqrt(2 / count), where
    assert abs(scaled.pow(4).mean().item() - 3) <= 5 * sqrt(96 / count) + 20 / count, where


def fans(weight: torch.Tensor) -> tuple[int, int]:
    area = prod(weight.shape[2:])
    return weight.shape[1] * area, weight.shape[0] * area


NAMED = [*zip(SMALL, [*VARIANCE, "he"], strict=True), *(("", kind) for kind in VARIANCE)]


@pytest.mark.parametrize(("name", "kind"), NAMED)
def test_every_weight_has_the_variance_of_the_kind_that_the_text_names(name: str, kind: str) -> None:
    """By the network's argument or by the edit."""
    if name:
        network = built(name, f", initialization={kind}")
    else:
        network = nl.convert(resnet_cifar(14), nl.Scheme("test", (Reinitialize(kind),)))
    for path, layer in layers(network).items():
        assert_normal(layer.weight, VARIANCE[kind](*fans(layer.weight)), path)
    assert not classifier_of(network).bias.any()


@pytest.mark.parametrize("name", sorted({*SMALL} - {*FAN_IN_BY_DEFAULT}))
def test_the_other_networks_start_from_fan_out_and_torchs_classifier(name: str) -> None:
    """torchvision's ResNet and Fixup's: fan-out for convolutions; torch's linear layer is uniform in ±1/√fan-in."""
    network = built(name)
    for path, layer in layers(network).items():
        if isinstance(layer, nn.Conv2d):
            assert_normal(layer.weight, 2 / (layer.out_channels * prod(layer.kernel_size)), path)
    classifier = classifier_of(network)
    bound = 1 / sqrt(classifier.in_features)
    assert classifier.weight.abs().max().item() <= bound
    assert classifier.weight.var().item() == pytest.approx(bound**2 / 3, rel=0.05)
    assert classifier.bias.abs().max().item() <= bound
    assert classifier.bias.any()
