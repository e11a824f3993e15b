"""HeadDropout: dropout on what the classifier reads."""

from __future__ import annotations

import pytest
import torch
from edit_helpers import added, altered, edited, removed, retyped
from torch import nn

from normless.edits import HeadDropout, OnlyFinalNorm
from normless.models import resnet_cifar, wide_resnet


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
