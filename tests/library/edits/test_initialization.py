"""Reinitialize: the variance of every kind, biases zero, norms untouched."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from edit_helpers import added, altered, edited, randomized, removed, retyped

from normless.edits import ChannelBiases, Reinitialize
from normless.models import resnet_cifar, wide_resnet

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
