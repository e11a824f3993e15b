"""The zero initializations: what becomes zero, and that all else stays."""

from __future__ import annotations

import pytest
import torch
from edit_helpers import added, altered, edited, randomized, removed, retyped
from torch import nn

import normless as nl
from normless.edits import ChannelBiases, RemoveNorms, ZeroBranchEnds, ZeroClassifier, ZeroLastGamma
from normless.models import dense, resnet_cifar, wide_resnet


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
